//! Two hosts as network namespaces with a cable between them, which is pulled. As root only, and where
//! `ip netns` may be used; elsewhere it says why it did nothing.
mod support;

use std::time::Duration;
use support::stream::nothing_is_lost;
use support::{disturb, ip, until, wait_for_subscribers, Host, LIMIT};

/// Two namespaces and a cable; gone when it is dropped.
struct Cable {
    names: [String; 2],
    ends: [String; 2],
}

impl Cable {
    fn lay() -> Result<Cable, String> {
        let pid = std::process::id();
        let cable = Cable {
            names: ["a", "b"].map(|end| format!("rgaps-{pid}-{end}")),
            ends: ["a", "b"].map(|end| format!("rg{pid}{end}")),
        };
        let [a, b] = &cable.names;
        let [end_a, end_b] = &cable.ends;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!(
            "link add {end_a} netns {a} type veth peer name {end_b} netns {b}"
        ))?;
        for (at, (name, end)) in cable.names.iter().zip(&cable.ends).enumerate() {
            let address = format!("10.213.77.{}/24", at + 1);
            ip(&format!("-n {name} addr add {address} dev {end}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {end} up"))?;
            disturb(name, end).unwrap();
        }
        Ok(cable)
    }

    fn pull(&self) {
        self.set("down");
    }

    fn plug_in(&self) {
        self.set("up");
    }

    fn set(&self, state: &str) {
        let (name, end) = (&self.names[1], &self.ends[1]);
        ip(&format!("-n {name} link set {end} {state}")).unwrap();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn reliable_subscribers_miss_nothing_while_the_cable_is_out() {
    let cable = match Cable::lay() {
        Ok(cable) => cable,
        Err(why) => return println!("left out: network namespaces are not to be had here: {why}"),
    };
    let host = |at: usize| {
        let (own, other) = (at + 1, 2 - at);
        let links = format!(
            "host = \"host-{own}\"\nlisten = \"10.213.77.{own}:0\"\ninsecure = true\noutage_ms = 30000\n\
             control = [\"tcp/10.213.77.{own}:7447\"]\nconnect = [\"tcp/10.213.77.{other}:7447\"]"
        );
        Host::start_in(Some(&cable.names[at]), &format!("host-{own}"), &links)
    };
    let hosts = [host(0), host(1)];
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscribers"));
    let subscribers = (0..3)
        .map(|_| there.subscriber("photos").reliable().create().unwrap())
        .collect();
    let publisher = here.publisher("photos").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 3);
    const BYTES: usize = 100_000;
    let published = nothing_is_lost(publisher, subscribers, BYTES, || {
        cable.pull();
        std::thread::sleep(Duration::from_secs(2));
        let lanes = |are: fn(u32) -> bool| {
            let peers = here.peers().unwrap().peers;
            peers.iter().all(|peer| are(peer.lanes))
        };
        until("the loss to be seen", || lanes(|lanes| lanes == 0));
        cable.plug_in();
        until("the link to be back", || lanes(|lanes| lanes > 0));
        std::thread::sleep(Duration::from_millis(500));
    });
    // Once for the host, but for what was on its way when the cable was pulled.
    let crossed = here.peers().unwrap().peers[0].messages_out;
    assert_eq!(crossed, published);
}
