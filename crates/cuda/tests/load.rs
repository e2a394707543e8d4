//! Loading the driver and finding its GPUs, and the errors when that fails.
mod support;

use rgaps_cuda::{CudaError, CudaSource, Driver, LIBRARY_ENV};
use rgaps_layout::{Domain, GpuUuid};
use rgaps_pool::{Access, PoolError};
use rgaps_test_driver::TestDriver;
use std::path::Path;
use std::process::Command;
use support::{cuda_code, Gpu, UNIT};

fn message(error: &CudaError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "'{text}' does not mention '{part}'");
    }
}

#[test]
fn a_missing_library_is_named() {
    let error = Driver::load_from(Path::new("/nowhere/libcuda.so.1")).unwrap_err();
    assert!(
        matches!(error, CudaError::LibraryMissing { .. }),
        "{error:?}"
    );
    message(
        &error,
        &["/nowhere/libcuda.so.1", "install the NVIDIA driver"],
    );
}

#[test]
fn a_library_without_our_functions_is_too_old() {
    let error = Driver::load_from(Path::new("libc.so.6")).unwrap_err();
    assert!(
        matches!(
            error,
            CudaError::TooOld {
                symbol: "cuInit",
                ..
            }
        ),
        "{error:?}"
    );
    message(&error, &["libc.so.6", "cuInit", "update the NVIDIA driver"]);
}

#[test]
fn an_initialisation_that_fails_is_told_with_its_code() {
    let control = TestDriver::private();
    control.configure("devices=0");
    let error = Driver::load_from(control.path()).unwrap_err();
    message(
        &error,
        &[
            "cuInit",
            "CUDA_ERROR_NO_DEVICE",
            "(100)",
            "CUDA_VISIBLE_DEVICES",
        ],
    );

    control.configure("devices=1;fail=cuInit:*:CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
    let error = Driver::load_from(control.path()).unwrap_err();
    assert_eq!(error.code(), Some(803));
    message(&error, &["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"]);
}

/// Runs the ignored test `name` of this program in a process of its own.
fn in_a_child(name: &str, environment: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--include-ignored", "--nocapture"]);
    command.envs(environment.iter().copied());
    let output = command.output().expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{name} did not run: {text}");
}

#[test]
fn the_environment_chooses_the_library() {
    let library = rgaps_test_driver::library();
    let library = library.to_str().unwrap();
    in_a_child(
        "child_sees_two_gpus",
        &[(LIBRARY_ENV, library), ("RGAPS_TEST_DRIVER_DEVICES", "2")],
    );
}

#[test]
#[ignore = "run by the_environment_chooses_the_library"]
fn child_sees_two_gpus() {
    let driver = Driver::load().unwrap();
    assert!(driver.library().ends_with("librgaps_test_driver.so"));
    assert_eq!(driver.devices().unwrap().len(), 2);
}

#[test]
fn an_environment_that_is_wrong_is_refused() {
    let library = rgaps_test_driver::library();
    let library = library.to_str().unwrap();
    let wrong = [
        ("RGAPS_TEST_DRIVER_FAIL", "cuInit"),
        ("RGAPS_TEST_DRIVER_DELAY_US", "long"),
    ];
    for setting in wrong {
        in_a_child("child_cannot_load", &[(LIBRARY_ENV, library), setting]);
    }
}

#[test]
#[ignore = "run by an_environment_that_is_wrong_is_refused"]
fn child_cannot_load() {
    assert_eq!(Driver::load().unwrap_err().code(), Some(1));
}

/// A process that numbers GPUs differently finds the same GPU by its UUID.
#[test]
fn gpus_are_found_by_uuid_whatever_their_order() {
    let library = rgaps_test_driver::library();
    in_a_child(
        "child_finds_gpu_2_first",
        &[
            (LIBRARY_ENV, library.to_str().unwrap()),
            ("RGAPS_TEST_DRIVER_DEVICES", "4"),
            ("CUDA_VISIBLE_DEVICES", "2,1"),
        ],
    );
}

#[test]
#[ignore = "run by gpus_are_found_by_uuid_whatever_their_order"]
fn child_finds_gpu_2_first() {
    let driver = Driver::load().unwrap();
    let numbered = |number: u8| {
        let mut uuid = *b"rgaps test gpu\0\0";
        uuid[15] = number;
        GpuUuid(uuid)
    };
    assert_eq!(driver.device(numbered(2)).unwrap().ordinal, 0);
    assert_eq!(driver.device(numbered(1)).unwrap().ordinal, 1);
    let error = driver.device(numbered(0)).unwrap_err();
    assert!(matches!(error, CudaError::NoSuchDevice { .. }), "{error:?}");
    message(&error, &[&numbered(2).to_string(), "CUDA_VISIBLE_DEVICES"]);
}

#[test]
fn a_gpu_is_described() {
    let gpu = Gpu::new("memory_mb=1024");
    assert_eq!(gpu.driver.version(), (12, 4));
    let device = &gpu.device;
    assert_eq!((device.ordinal, device.total_bytes), (0, 1 << 30));
    assert_eq!(
        (device.name.as_str(), device.compute_capability),
        ("rgaps test GPU", (9, 0))
    );
    assert!(device.virtual_memory && device.fd_handles && device.gpu_direct_rdma);
    assert!(!device.integrated);
}

#[test]
fn a_gpu_that_cannot_hold_pools_says_what_it_lacks() {
    for (lack, expected) in [
        ("vmm", "virtual memory management"),
        ("fd", "file descriptor"),
    ] {
        let gpu = Gpu::new(&format!("lack={lack}"));
        let domain = Domain::Cuda(gpu.device.uuid);
        for result in [
            gpu.source().map(drop),
            gpu.mapping(UNIT, Access::ReadOnly).map(drop),
        ] {
            match result {
                Err(PoolError::Unavailable {
                    domain: found,
                    reason,
                }) => {
                    assert_eq!(found, domain);
                    assert!(reason.contains(expected), "{reason}");
                }
                other => panic!("{lack}: {other:?}"),
            }
        }
        gpu.assert_nothing_held("after a refusal");
    }
}

#[test]
fn a_gpu_that_is_not_there_cannot_be_used() {
    let gpu = Gpu::new("");
    let missing = CudaSource::new(gpu.driver.clone(), GpuUuid([7; 16])).map(drop);
    assert!(
        matches!(missing, Err(PoolError::Unavailable { .. })),
        "{missing:?}"
    );
}

#[test]
fn a_call_that_fails_while_gpus_are_listed_is_told() {
    let gpu = Gpu::new("devices=1;fail=cuDeviceGetUuid:*:CUDA_ERROR_UNKNOWN");
    assert_eq!(cuda_code(gpu.source().map(drop)), ("cuDeviceGetUuid", 999));
}
