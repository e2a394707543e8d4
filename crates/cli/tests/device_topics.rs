//! Device topics in the listings of commands.

mod support;

use rgaps::{DeviceGeometry, DeviceTopic, Direction, Domain};
use std::sync::Arc;
use support::{until, Realm};

#[test]
fn listings_show_a_device_topic_and_its_seats() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("bridge");
    let sizes = DeviceGeometry {
        depth: 8,
        blocks: 12,
        block_bytes: 4096,
    };
    let topic = Arc::new(DeviceTopic::create(Domain::Host, sizes).unwrap());
    let bridge = node
        .bridge("camera", topic.clone(), Direction::ToHosts)
        .unwrap();
    assert_eq!(topic.take_seat().unwrap(), 1);
    let listed = realm.run(&["topic", "list"]).ok();
    assert!(listed.contains("host (device topic)"), "{listed}");
    assert_eq!(realm.json(&["topic", "list"])[0]["is_device"], true);
    until("the second seat to be listed", || {
        let info = realm.json(&["topic", "info", "camera"]);
        info["device"]["seats"].as_array().unwrap().len() == 2
    });
    let info = realm.json(&["topic", "info", "camera"]);
    let device = &info["device"];
    assert_eq!(device["blocks"], 12, "{info}");
    assert_eq!(device["kernels_publish"], true, "{info}");
    assert_eq!(device["seats"][0]["is_bridge"], true, "{info}");
    let text = realm.run(&["topic", "info", "camera"]).ok();
    for wanted in [
        "device    kernels publish, hosts receive, in host: 8 messages in the ring, 12 blocks of 4.0 KiB\n",
        "          0 messages so far; 0 forwarded, 0 refused\n",
        "seat 0    reliable, wants message 1, missed 0 (for hosts)\n",
        "seat 1    not joined\n",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!text.contains("take turns"), "{text}");
    drop(bridge);
}
