//! The CUDA driver that tests use: the one of `tests/driver`, or with `RGAPS_TEST_GPU` a real one.

/// Whether tests run on a real GPU, whose driver they cannot control.
pub fn is_real() -> bool {
    std::env::var_os("RGAPS_TEST_GPU").is_some()
}

/// Makes this process, and those that it starts, use the test driver with these settings: variables without `RGAPS_TEST_DRIVER_`.
/// Must come before anything loads a driver.
pub fn use_test_driver(settings: &[(&str, &str)]) {
    std::env::set_var("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
    for (name, value) in settings {
        std::env::set_var(format!("RGAPS_TEST_DRIVER_{name}"), value);
    }
}
