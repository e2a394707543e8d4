//! Messages in GPU memory, over the test driver, or on a real GPU with `RGAPS_TEST_GPU=1`.

mod support;

use rgaps::{DType, Domain};
use rgaps_cuda::Driver;
use rgaps_testkit::{driver, Daemon};
use rgaps_view::Options;
use support::View;

/// The server copies the messages that it shows from the GPU; publishers copy nothing for it.
#[test]
fn an_image_on_a_gpu_is_shown_and_its_publisher_copies_nothing() {
    if !driver::is_real() {
        // Delays copies and kernels, so that a missing wait shows.
        driver::use_test_driver(&[("DELAY_US", "3000")]);
    }
    let uuid = Driver::load().unwrap().devices().unwrap()[0].uuid;
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"1GiB\"\n");
    let view = View::on(daemon, Options::default());
    let node = view.daemon.node("camera");
    let publisher = node.publisher("front").domain(Domain::Cuda(uuid));
    let publisher = publisher.transient_local().keep_last(1).create().unwrap();
    let mut client = view.client();
    let mut channel = None;
    for seed in 0..20u8 {
        let image: Vec<u8> = (0..64 * 48 * 3).map(|at| (at as u8) ^ seed).collect();
        let mut loan = publisher.loan_tensor(DType::U8, &[64, 48, 3]).unwrap();
        loan.write(0, &image).unwrap();
        loan.publish().unwrap();
        if channel.is_none() {
            let announced = client.channel("front");
            client.subscribe(1, &announced);
            channel = Some(announced);
        }
        // An older message may come first.
        while !client.message().1.ends_with(&image) {}
    }
    assert_eq!(channel.unwrap()["schemaName"], "foxglove.RawImage");
    let pools = node.pools().unwrap();
    assert!(
        pools.iter().all(|pool| pool.copied_messages == 0),
        "{pools:?}"
    );
}
