//! Arrays on the command line: published from options and files, printed as numbers, saved as files.

mod support;

use rgaps::{DType, PartSpec};
use serde_json::{json, Value};
use support::{finish, Realm};

/// Publishes one message with transient-local durability, so that a later `echo` gets it.
fn publish(realm: &Realm, arguments: &[&str]) {
    let all = [&["topic", "pub"][..], arguments, &["--transient-local"]].concat();
    realm.run(&all).ok();
}

fn echo(realm: &Realm, topic: &str, more: &[&str]) -> String {
    let late = [
        "topic",
        "echo",
        topic,
        "--late",
        "latest",
        "--count",
        "1",
        "--timeout",
        "60",
    ];
    realm.run(&[&late[..], more].concat()).ok()
}

fn echo_json(realm: &Realm, topic: &str) -> Value {
    serde_json::from_str(&echo(realm, topic, &["--json"])).unwrap()
}

/// `topic echo` must not print arrays as hex.
#[test]
fn numbers_are_printed_as_numbers() {
    let realm = Realm::new();
    let values = [1.5f32, -2.0, f32::NAN, 4.0, 0.0, 0.5];
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let file = realm.path("values.bin");
    std::fs::write(&file, bytes).unwrap();
    let file = file.to_str().unwrap();
    publish(
        &realm,
        &[
            "t", "--file", file, "--dtype", "float32", "--shape", "2,3", "--tag", "7",
        ],
    );
    let message = echo_json(&realm, "t");
    assert_eq!(message["tag"], 7);
    assert_eq!(message["tensor"]["dtype"], "float32");
    assert_eq!(message["tensor"]["shape"], json!([2, 3]));
    let numbers = &message["numbers"];
    assert_eq!(
        (&numbers["min"], &numbers["max"]),
        (&json!(-2.0), &json!(4.0))
    );
    assert_eq!(
        (&numbers["mean"], &numbers["nan"]),
        (&json!(0.8), &json!(1))
    );
    assert_eq!(numbers["first"][0], 1.5);
    let text = echo(&realm, "t", &["--values", "2"]);
    for part in [
        "float32[2, 3]",
        "24 B in host",
        "tag 7",
        "min -2, max 4, mean 0.8",
        "1 NaN",
        "first 1.5 -2 ...",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        echo(&realm, "t", &["--format", "hex"]).contains("00 00 c0 3f"),
        "hex on request"
    );
    let info = realm.json(&["topic", "info", "t"]);
    assert_eq!(info["type_name"], "float32[2,3]");
}

#[test]
fn sizes_that_do_not_match_are_refused_before_anything_is_published() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let refused = |arguments: &[&str]| {
        let run = realm.run(&[&["topic", "pub", "t"][..], arguments].concat());
        run.fails_with(2)
    };
    let error = refused(&["--text", "abc", "--dtype", "uint8", "--shape", "2,2"]);
    assert!(
        error.contains("uint8[2, 2] needs 4 bytes, but the message has 3"),
        "{error}"
    );
    refused(&["--text", "abc", "--dtype", "uint16"]);
    refused(&["--size", "1KiB", "--dtype", "float32", "--shape", "255"]);
    refused(&["--text", "abc", "--shape", "3"]);
    let error = refused(&["--text", "abc", "--dtype", "float33"]);
    assert!(error.contains("float32"), "{error}");
    refused(&["--text", "x", "--meta", "capture_ns=1"]);
    assert_eq!(realm.json(&["topic", "list"]), json!([]));
}

/// Publishes a file, saves the message in the same format, and reads it again.
#[test]
fn pictures_and_arrays_go_through_files() {
    let realm = Realm::new();
    let pixels: Vec<u8> = (0..12 * 20 * 3).map(|at| (at * 5) as u8).collect();
    let (raw, png, npy) = (
        realm.path("a.raw"),
        realm.path("b.png"),
        realm.path("c.npy"),
    );
    let [raw, png, npy] = [&raw, &png, &npy].map(|path| path.to_str().unwrap());
    std::fs::write(raw, &pixels).unwrap();
    publish(
        &realm,
        &[
            "raw", "--file", raw, "--dtype", "uint8", "--shape", "12,20,3",
        ],
    );
    // Without a number in the name, `--save` saves one message even without `--count`.
    let late = [
        "topic",
        "echo",
        "raw",
        "--late",
        "latest",
        "--timeout",
        "60",
        "--save",
    ];
    assert!(realm
        .run(&[&late[..], &[png]].concat())
        .ok()
        .contains("saved"));
    publish(&realm, &["png", "--file", png]);
    assert_eq!(
        echo_json(&realm, "png")["tensor"]["shape"],
        json!([12, 20, 3])
    );
    echo(&realm, "png", &["--save", npy]);
    publish(&realm, &["npy", "--file", npy]);
    let copy = realm.path("copy.raw");
    echo(&realm, "npy", &["--save", copy.to_str().unwrap()]);
    assert!(
        std::fs::read(&copy).unwrap() == pixels,
        "pixels changed on the way"
    );
    // With `--raw`, the message is the file itself.
    publish(&realm, &["file", "--file", png, "--raw"]);
    let size = std::fs::metadata(png).unwrap().len();
    let message = echo_json(&realm, "file");
    assert_eq!(
        (&message["bytes"], message.get("tensor")),
        (&json!(size), None)
    );
    let error = realm
        .run(&["topic", "pub", "x", "--file", png, "--dtype", "float32"])
        .fails_with(2);
    assert!(
        error.contains("uint8[12, 20, 3]") && error.contains("--raw"),
        "{error}"
    );
    std::fs::write(realm.path("bad.jpg"), b"no picture").unwrap();
    let error = realm
        .run(&["topic", "pub", "x", "--file", "bad.jpg"])
        .fails_with(1);
    assert!(
        error.contains("'bad.jpg': ")
            && error.ends_with("; to publish the bytes of the file as they are, add --raw\n"),
        "{error}"
    );
    assert!(!error.contains(".;"), "{error}");
    let error = realm
        .run(&["topic", "echo", "npy", "--save", "frame.tiff"])
        .fails_with(2);
    assert!(error.contains(".npy"), "{error}");
    let twice = ["topic", "echo", "npy", "--save", "f.npy", "--count", "2"];
    assert!(realm.run(&twice).fails_with(2).contains("{sequence}"));
    // `{part}` makes a series of files, but without a number it still saves one message.
    let one = realm.run(&[&late[..], &["{part}.npy"]].concat());
    assert!(
        one.stderr
            .contains("saved one message; with {sequence} or %d"),
        "{one:?}"
    );
    let numbered = [&late[..], &["{part}-%d.npy", "--count", "1"]].concat();
    assert!(!realm.run(&numbered).stderr.contains("saved one message"));
}

/// 16 x 8 pixels of one colour, written by Pillow.
const FLAT_JPG: &[u8] = include_bytes!("files/flat.jpg");
const COLOUR: [u8; 3] = [200, 100, 50];

#[test]
fn a_jpeg_file_is_published_as_its_pixels() {
    let realm = Realm::new();
    for name in ["flat.jpg", "flat.JPEG"] {
        std::fs::write(realm.path(name), FLAT_JPG).unwrap();
        publish(&realm, &["flat", "--file", name]);
        let tensor = &echo_json(&realm, "flat")["tensor"];
        assert_eq!(tensor["shape"], json!([8, 16, 3]), "{name}");
        echo(&realm, "flat", &["--save", "flat.raw"]);
        let pixels = std::fs::read(realm.path("flat.raw")).unwrap();
        assert_eq!(pixels.len(), 8 * 16 * 3);
        let is_close = |(at, value): (usize, &u8)| value.abs_diff(COLOUR[at % 3]) <= 3;
        assert!(pixels.iter().enumerate().all(is_close), "{pixels:?}");
    }
}

#[test]
fn several_messages_are_saved_under_their_numbers() {
    let realm = Realm::new();
    let keep = [
        "--size",
        "64",
        "--count",
        "3",
        "--dtype",
        "uint8",
        "--shape",
        "8,8",
        "--transient-local",
    ];
    realm
        .run(&[&["topic", "pub", "t"][..], &keep].concat())
        .ok();
    let echo = [
        "topic",
        "echo",
        "t",
        "--late",
        "all",
        "--count",
        "3",
        "--timeout",
        "60",
        "--save",
    ];
    realm
        .run(&[&echo[..], &["f-%03d-{sequence}.png"]].concat())
        .ok();
    for name in ["f-000-0.png", "f-001-1.png", "f-002-2.png"] {
        let file = std::fs::read(realm.path(name)).unwrap();
        assert!(file.starts_with(b"\x89PNG"), "{name}");
    }
}

#[test]
fn the_parts_of_a_message_are_saved_beside_each_other() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("robot");
    let publisher = node.publisher("t").transient_local().create().unwrap();
    let parts = [
        ("rgb", DType::U8, &[2, 2, 3][..]),
        ("pose", DType::F32, &[3]),
    ];
    let specs = parts.map(|(name, dtype, shape)| PartSpec { name, dtype, shape });
    let loan = publisher.loan_parts(&specs).unwrap();
    loan.publish()
        .map_err(|unpublished| unpublished.error)
        .unwrap();
    let save = |name: &str| {
        realm.run(&[
            "topic",
            "echo",
            "t",
            "--late",
            "latest",
            "--timeout",
            "60",
            "--save",
            name,
        ])
    };
    save("robot.npy").ok();
    for name in ["robot-rgb.npy", "robot-pose.npy"] {
        assert!(
            std::fs::read(realm.path(name))
                .unwrap()
                .starts_with(b"\x93NUMPY"),
            "{name}"
        );
    }
    save("{part}_kept.raw").ok();
    assert_eq!(
        std::fs::read(realm.path("pose_kept.raw")).unwrap().len(),
        12
    );
    let said = save("robot.png").stderr;
    assert!(
        said.contains("part 'pose' cannot be saved as 'robot-pose.png'"),
        "{said}"
    );
}

#[test]
fn images_are_drawn() {
    let realm = Realm::new();
    publish(
        &realm,
        &[
            "t", "--size", "300", "--dtype", "uint8", "--shape", "10,10,3",
        ],
    );
    let lines = |style: &str| {
        let text = echo(&realm, "t", &["--thumbnail", style]);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // Two lines of text and five lines of pixels.
    assert_eq!(lines("grey").len(), 7);
    assert!(lines("color")[2].contains("\x1b[38;2;"));
    // The output is a pipe, so `auto` draws nothing.
    assert_eq!(lines("auto").len(), 2);
}

#[test]
fn a_header_travels_and_is_printed() {
    let realm = Realm::new();
    let meta = [
        "--meta",
        "exposure_us=800",
        "--meta",
        "lens=wide",
        "--meta",
        "gain=2.5",
    ];
    publish(
        &realm,
        &[
            &["t", "--text", "x", "--frame-id", "left", "--capture-now"][..],
            &meta,
        ]
        .concat(),
    );
    let message = echo_json(&realm, "t");
    let header = &message["header"];
    assert_eq!(
        (&header["exposure_us"], &header["lens"]),
        (&json!(800), &json!("wide"))
    );
    assert_eq!(
        (&header["gain"], &header["frame_id"]),
        (&json!(2.5), &json!("left"))
    );
    assert!(header["capture_ns"].as_u64().unwrap() > 1_600_000_000_000_000_000);
    let text = echo(&realm, "t", &[]);
    for part in [
        "header: captured 20",
        "frame left",
        "exposure_us=800",
        "\nx\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Messages in the memory of a GPU (the test driver's) are printed like those of the host.
#[test]
fn arrays_on_a_gpu_are_copied_to_be_printed() {
    let realm = Realm::new();
    let on_gpu = |arguments: &[&str]| {
        let mut command = realm.command(arguments);
        command
            .env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library())
            .env("RGAPS_POOL__CUDA__CAP", "256MiB");
        let run: support::Run = command.output().unwrap().into();
        run.ok()
    };
    on_gpu(&["up"]);
    let array = [
        "--size", "64", "--dtype", "uint8", "--shape", "8,8", "--domain", "cuda",
    ];
    on_gpu(&[&["topic", "pub", "t", "--transient-local"][..], &array].concat());
    let late = [
        "topic",
        "echo",
        "t",
        "--late",
        "latest",
        "--count",
        "1",
        "--timeout",
        "60",
        "--json",
    ];
    let message: Value = serde_json::from_str(&on_gpu(&late)).unwrap();
    assert!(
        message["domain"].as_str().unwrap().starts_with("cuda:"),
        "{message}"
    );
    // The first generated message: eight bytes with its number, 0, then bytes that count up.
    assert_eq!(message["numbers"]["first"], json!([0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(message["numbers"]["max"], 63);
}

/// `echo` of a mistyped topic must print a notice while it waits.
#[test]
fn echo_of_a_topic_that_nobody_has_says_so() {
    let realm = Realm::new();
    publish(&realm, &["camera/left", "--text", "x"]);
    let echo = realm.spawn(&["topic", "echo", "camera/lefd", "--count", "1"]);
    realm.wait_for_subscribers("camera/lefd", 1);
    realm
        .run(&["topic", "pub", "camera/lefd", "--text", "y"])
        .ok();
    let run = finish(echo);
    assert!(run.stderr.contains("no publisher of topic"), "{run:?}");
    assert!(
        run.stderr.contains("Did you mean 'camera/left'?"),
        "{run:?}"
    );
    assert_eq!(run.ok(), "y\n");
    let late = [
        "topic",
        "echo",
        "camera/left",
        "--late",
        "latest",
        "--count",
        "1",
        "--timeout",
        "60",
    ];
    assert_eq!(realm.run(&late).stderr, "", "there is history");
}
