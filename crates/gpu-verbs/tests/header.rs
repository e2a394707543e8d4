//! `rgaps/device_rdma_layout.h` is the text that `src/view.rs` generates. `RGAPS_WRITE_HEADER=1` writes it.

#[test]
fn the_layout_of_queue_pairs_is_up_to_date() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../capi/include/rgaps/device_rdma_layout.h"
    );
    let wanted = rgaps_gpu_verbs::header();
    if std::env::var_os("RGAPS_WRITE_HEADER").is_some() {
        std::fs::write(path, &wanted).expect("the header can be written");
    }
    let found = std::fs::read_to_string(path).expect("the header is there");
    assert!(
        found == wanted,
        "{path} is not what src/view.rs says: run this test with RGAPS_WRITE_HEADER=1"
    );
}
