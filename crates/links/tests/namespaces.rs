//! Two hosts as network namespaces with a cable between them, which is pulled. The test needs root and `ip netns`; elsewhere it
//! prints why it did nothing.
mod support;

use support::cable::Cable;
use support::stream::nothing_is_lost;
use support::{until, wait_for_subscribers, LIMIT};

#[test]
fn reliable_subscribers_miss_nothing_while_the_cable_is_out() {
    let Some(cable) = Cable::lay() else { return };
    let host = |at| {
        let more = format!("outage_ms = 300000\n{}", cable.connect(at));
        cable.host(at, &more)
    };
    let hosts = [host(0), host(1)];
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscribers"));
    let subscribers = (0..3)
        .map(|_| there.subscriber("photos").reliable().create().unwrap())
        .collect();
    let publisher = here.publisher("photos").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 3);
    const BYTES: usize = 100_000;
    let published = nothing_is_lost(publisher, subscribers, BYTES, |traffic| {
        let lanes = || {
            let peers = here.peers().unwrap().peers;
            peers.first().map_or(0, |peer| peer.lanes)
        };
        until("the link to be reported", || lanes() > 0);
        cable.pull();
        until("the loss to be seen", || lanes() == 0);
        cable.plug_in();
        until("the link to be back", || lanes() > 0);
        traffic.flows();
    });
    // Each message crossed once, except those that were on their way when the cable was pulled.
    let mut crossed = 0;
    until("the count", || {
        let peers = here.peers().unwrap().peers;
        crossed = peers.first().map_or(0, |peer| peer.messages_out);
        crossed >= published
    });
    assert_eq!(crossed, published);
}
