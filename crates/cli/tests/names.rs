//! Names of topics as users write them.

mod support;

use support::{finish, Realm};

/// ROS 2 writes `/camera`; here that failed as a name with an empty part.
#[test]
fn a_leading_slash_means_the_same_topic() {
    let realm = Realm::new();
    let echo = realm.spawn(&["topic", "echo", "/camera/left", "--count", "1", "--json"]);
    realm.wait_for_subscribers("camera/left", 1);
    let sent = realm.json(&["topic", "pub", "camera/left", "--text", "x"]);
    assert_eq!(sent["topic"], "camera/left");
    let got = finish(echo).ok();
    assert!(got.contains("\"topic\":\"camera/left\""), "{got}");
    let sent = realm.json(&[
        "topic",
        "pub",
        "/camera/left",
        "--text",
        "x",
        "--transient-local",
    ]);
    assert_eq!(sent["topic"], "camera/left");
    let info = realm.json(&["topic", "info", "/camera/left"]);
    assert_eq!(
        (&info["name"], &info["orphans"]),
        (&"camera/left".into(), &1.into())
    );
    let error = realm.run(&["topic", "info", "//camera"]).fails_with(2);
    assert!(error.contains("two in a row"), "{error}");
}
