#![no_main]
#[path = "../control.rs"]
mod control;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    control::control(data);
});
