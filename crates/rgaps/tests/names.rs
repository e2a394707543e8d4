//! Namespaces and remapping: every call of a node uses the same full name.

use rgaps::{Config, Node, OpenError};
use rgaps_testkit::{Daemon, LIMIT};

fn node(daemon: &Daemon, namespace: &str, remap: &[&str]) -> Result<Node, OpenError> {
    let config = Config {
        namespace: namespace.to_owned(),
        remap: remap.iter().map(|rule| (*rule).to_owned()).collect(),
        ..daemon.config()
    };
    Node::builder("test").config(config).build()
}

#[test]
fn two_robots_run_the_same_program() {
    let daemon = Daemon::start();
    let everywhere = daemon.node("all");
    let one = node(&daemon, "one", &[]).unwrap();
    let two = node(&daemon, "/two", &["camera:=front/camera", "/clock:=/time"]).unwrap();
    for (robot, camera) in [(&one, "one/camera"), (&two, "two/front/camera")] {
        let subscriber = everywhere.subscriber(camera).create().unwrap();
        let publisher = robot
            .publisher("camera")
            .transient_local()
            .create()
            .unwrap();
        assert_eq!((publisher.topic(), subscriber.topic()), (camera, camera));
        assert_eq!(robot.resolve_topic("camera"), camera);
        publisher.put(camera.as_bytes()).unwrap();
        let sample = subscriber.recv_timeout(LIMIT).unwrap();
        assert_eq!(sample.as_slice().unwrap(), camera.as_bytes());
        assert_eq!(robot.topic("camera").unwrap().row.name, camera);
        // `with_full_names` takes names as listings show them, without namespace and remapping.
        let full = robot.with_full_names();
        assert_eq!(full.topic(camera).unwrap().row.name, camera);
        assert_eq!(full.subscriber(camera).create().unwrap().topic(), camera);
        assert!(full.subscriber(&format!("/{camera}")).create().is_err());
        drop(publisher);
        assert_eq!(robot.forget_topic("camera").unwrap().messages, 1);
    }
    for (robot, clock) in [(&one, "clock"), (&two, "time")] {
        assert_eq!(robot.subscriber("/clock").create().unwrap().topic(), clock);
    }
    drop((one, two));
    let absent = everywhere.topic("camera");
    assert!(absent.unwrap_err().to_string().contains("'camera'"));
}

#[test]
fn what_is_no_namespace_or_rule_is_refused() {
    let daemon = Daemon::start();
    for (namespace, rule, said) in [
        ("a//b", "a:=b", "namespace = \"a//b\""),
        ("a", "b", "remap = \"b\": write a rule as FROM:=TO"),
    ] {
        let error = node(&daemon, namespace, &[rule]).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
