//! `rgaps topic pub --ffmpeg` and `--v4l2`, with a script in place of ffmpeg, and with ffmpeg where it is installed.

mod support;

use rgaps::{Late, Sample, Subscriber};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use support::{finish, interrupt, until, Realm, Run, LIMIT};

/// Writes a script into the realm's folder as `ffmpeg`. The script writes its arguments to `arguments`, one per line.
fn stand_in(realm: &Realm, script: &str) -> PathBuf {
    let folder = realm.path("bin");
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("ffmpeg");
    let text = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > arguments\necho $$ > pid\n{script}\n");
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn publish(realm: &Realm, script: &str, options: &[&str]) -> Command {
    let words = [
        "topic",
        "pub",
        "camera",
        "--json",
        "--timeout",
        "60",
        "--transient-local",
    ];
    let mut command = realm.command(&[&words[..], options].concat());
    let path = std::env::var("PATH").unwrap();
    command.env(
        "PATH",
        format!("{}:{path}", stand_in(realm, script).display()),
    );
    command
}

fn arguments(realm: &Realm) -> String {
    let text = std::fs::read_to_string(realm.path("arguments")).unwrap();
    text.lines().collect::<Vec<_>>().join(" ")
}

fn camera(realm: &Realm) -> Subscriber {
    realm.run(&["up"]).ok();
    let camera = realm.node("test").subscriber("camera");
    let camera = camera.reliable().late(Late::AllKept).type_name("rgb8");
    camera.create().unwrap()
}

fn shape(sample: &Sample) -> Vec<u64> {
    let tensor = sample.tensor().unwrap();
    tensor.shape[..usize::from(tensor.ndim)].to_vec()
}

/// A picture of 4 x 2 pixels, then one of 2 x 1, whose bytes look like a head.
const TWO_PICTURES: &str =
    "printf 'P6\\n4 2\\n255\\nabcdefghijklmnopqrstuvwx'; printf 'P6\\n2 1\\n255\\nP6\\n1 1'";

#[test]
fn pictures_come_with_shape_type_and_time() {
    let realm = Realm::new();
    let camera = camera(&realm);
    std::fs::write(realm.path("drive.mp4"), "a film").unwrap();
    let options = ["--ffmpeg", "drive.mp4", "--frame-id", "left"];
    let before = rgaps::Header::captured_now().capture_ns.unwrap();
    let run: Run = publish(&realm, TWO_PICTURES, &options)
        .output()
        .unwrap()
        .into();
    let report: serde_json::Value = serde_json::from_str(&run.ok()).unwrap();
    assert_eq!(
        (&report["messages"], &report["bytes"]),
        (&2.into(), &30.into())
    );
    for (size, bytes) in [
        ([2, 4, 3], &b"abcdefghijklmnopqrstuvwx"[..]),
        ([1, 2, 3], b"P6\n1 1"),
    ] {
        let sample = camera.recv_timeout(LIMIT).unwrap();
        assert_eq!(
            (&shape(&sample)[..], sample.as_slice().unwrap()),
            (&size[..], bytes)
        );
        let header = sample.header().unwrap().unwrap();
        assert_eq!(header.frame_id.as_deref(), Some("left"));
        assert!(header.capture_ns.unwrap() >= before);
    }
    assert!(arguments(&realm).contains("-nostdin -readrate 1 -i drive.mp4 -map 0:v:0"));
}

#[test]
fn a_camera_is_read_until_ctrl_c_which_ends_ffmpeg() {
    let realm = Realm::new();
    let camera = camera(&realm);
    let script = "while printf 'P6\\n1 1\\n255\\nabc'; do sleep 0.01; done";
    let options = ["--v4l2", "/dev/video7", "--ffmpeg-option", "framerate=30"];
    let publisher = publish(&realm, script, &options)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..3 {
        assert_eq!(
            camera.recv_timeout(LIMIT).unwrap().as_slice().unwrap(),
            b"abc"
        );
    }
    interrupt(&publisher);
    finish(publisher).ok();
    let pid = std::fs::read_to_string(realm.path("pid")).unwrap();
    let process = format!("/proc/{}", pid.trim());
    until("ffmpeg to end", || !std::path::Path::new(&process).exists());
    let given = arguments(&realm);
    assert!(
        given.contains("-f v4l2 -framerate 30 -i /dev/video7"),
        "{given}"
    );
}

/// Ctrl-C must end the command while a camera gives no pictures.
#[test]
fn a_camera_without_pictures_can_be_interrupted() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let publisher = publish(&realm, "exec sleep 1000", &["--v4l2", "/dev/video0"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until("ffmpeg to start", || realm.path("pid").exists());
    interrupt(&publisher);
    let error = finish(publisher).fails_with(1);
    assert!(
        error.contains("interrupted before the first picture"),
        "{error}"
    );
}

#[test]
fn what_ffmpeg_cannot_read_is_an_error() {
    let realm = Realm::new();
    for (script, said) in [
        (
            "echo 'No such device' >&2; exit 3",
            "ffmpeg ended with exit status: 3 while it read 'in'",
        ),
        ("exit 0", "ffmpeg found no picture in 'in'"),
        ("echo hello", "a line 'hello' where 'P6' begins one"),
        (
            "printf 'P6\\n4 2\\n255\\nabc'",
            "ffmpeg ended within a picture of 'in'",
        ),
    ] {
        let run: Run = publish(&realm, script, &["--ffmpeg", "in"])
            .output()
            .unwrap()
            .into();
        let error = run.stderr.clone();
        assert_eq!(run.code, 1, "{run:?}");
        assert!(error.contains(said), "{error}");
    }
    let words = [
        "topic",
        "pub",
        "camera",
        "--text",
        "x",
        "--ffmpeg-option",
        "framerate=30",
    ];
    let error = realm.run(&words).fails_with(2);
    assert!(error.contains("needs --ffmpeg or --v4l2"), "{error}");
    let mut command = realm.command(&["topic", "pub", "camera", "--ffmpeg", "in"]);
    let run: Run = command
        .env("PATH", realm.path("empty"))
        .output()
        .unwrap()
        .into();
    let error = run.fails_with(1);
    assert!(error.contains("apt install ffmpeg"), "{error}");
}
