#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    rgaps_remoting::decode_for_fuzzing(data);
});
