//! The page, its requests, and which requests the server refuses.

mod support;

use rgaps::DType;
use rgaps_testkit::until;
use rgaps_view::{Options, Server, ViewError};
use support::{get, send, Client, View};

const TOKEN: &str = "0123456789abcdef";

#[test]
fn the_page_and_its_files_are_there_and_load_nothing_else() {
    let view = View::start();
    for (path, content_type, part) in [
        ("/", "text/html", "<title>rgaps view</title>"),
        ("/page.js", "text/javascript", "state.json"),
        ("/page.css", "text/css", "#picture"),
    ] {
        let answer = get(view.address(), path, &[]);
        assert_eq!(answer.status, 200);
        assert!(
            answer
                .head
                .contains(&format!("Content-Type: {content_type}")),
            "{}",
            answer.head
        );
        assert!(answer
            .head
            .contains("Content-Security-Policy: default-src 'none'"));
        assert!(answer.text().contains(part));
        // The page works without a network.
        let text = answer.text().replace("http://www.w3.org/2000/svg", "");
        assert!(
            !text.contains("http://") && !text.contains("https://"),
            "{path}"
        );
    }
    assert_eq!(get(view.address(), "/nothing", &[]).status, 404);
    let posted = send(view.address(), "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(posted.status, 405);
    let junk = send(view.address(), "\x16\x03\x01 junk\r\n\r\n");
    assert_eq!(junk.status, 400);
}

#[test]
fn the_state_has_topics_members_and_pools() {
    let view = View::start();
    let node = view.daemon.node("camera");
    let publisher = node.publisher("front").transient_local();
    let publisher = publisher.keep_last(1).create().unwrap();
    let subscriber = view.daemon.node("detector");
    let subscriber = subscriber.subscriber("front").create().unwrap();
    publisher.put(b"x").unwrap();
    until("the topic's channel", || {
        view.state()["shown"][0]["schemas"][0] == "rgaps.Message"
    });
    until("the message, and no reader of ours", || {
        let state = view.state();
        let topic = &state["topics"][0];
        topic["topic"] == "front" && topic["messages"] == 1 && topic["subscribers"] == 1
    });
    let state = view.state();
    let members = state["members"].as_array().unwrap();
    let find = |role: &str| {
        members
            .iter()
            .find(|member| member["role"] == role)
            .unwrap()
    };
    assert_eq!(find("publisher")["process"], "camera");
    assert_eq!(find("subscriber")["process"], "detector");
    assert_eq!(state["pools"][0]["domain"], "host");
    assert_eq!(state["view"]["clients"], 0);
    drop(subscriber);
}

#[test]
fn an_image_topic_has_a_thumbnail_while_somebody_asks() {
    let view = View::start();
    let node = view.daemon.node("camera");
    let publisher = node.publisher("front/left").transient_local();
    let publisher = publisher.keep_last(1).create().unwrap();
    let mut loan = publisher.loan_tensor(DType::U8, &[2, 3, 3]).unwrap();
    loan.as_mut_slice().unwrap().copy_from_slice(&[9; 18]);
    loan.publish().unwrap();
    let ask = || get(view.address(), "/thumbnail?topic=front%2Fleft", &[]);
    until("the thumbnail", || ask().status == 200);
    let answer = ask();
    assert!(answer.head.contains("image/png"));
    let mut reader = png::Decoder::new(std::io::Cursor::new(answer.body));
    reader.set_transformations(png::Transformations::IDENTITY);
    let mut reader = reader.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height, &pixels[..]), (3, 2, &[9; 18][..]));
    assert_eq!(
        get(view.address(), "/thumbnail?topic=other", &[]).status,
        404
    );
    let readers = || node.topic("front/left").unwrap().subscribers;
    assert_eq!(readers().len(), 1);
    until("nobody asks", || readers().is_empty());
}

#[test]
fn another_host_or_web_site_is_refused() {
    let view = View::start();
    let evil = ("Host", "evil.example");
    for path in ["/", "/page.js", "/state.json", "/thumbnail?topic=x"] {
        assert_eq!(get(view.address(), path, &[evil]).status, 403, "{path}");
    }
    let site = ("Origin", "http://evil.example");
    assert_eq!(get(view.address(), "/state.json", &[site]).status, 403);
    let connect = |header| Client::connect(view.address(), "/", &[header]);
    for header in [evil, site] {
        assert_eq!(connect(header).err().unwrap().status(), 403);
    }
    let foxglove = ("Origin", "https://app.foxglove.dev");
    assert!(connect(foxglove).is_ok());
    let other = Client::connect(view.address(), "/", &[("Sec-WebSocket-Protocol", "chat")]);
    assert_eq!(other.err().unwrap().status(), 400);
}

#[test]
fn with_a_token_nobody_gets_data_without_it() {
    let view = View::with(Options {
        token: Some(TOKEN.to_owned()),
        ..Options::default()
    });
    let address = view.address();
    // The page itself has no data, so it needs no token.
    assert_eq!(get(address, "/", &[]).status, 200);
    for path in [
        "/state.json",
        "/thumbnail?topic=x",
        "/state.json?token=0123456789abcdee",
    ] {
        let answer = get(address, path, &[]);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.text().contains("token"), "{}", answer.text());
    }
    assert_eq!(
        get(address, &format!("/state.json?token={TOKEN}"), &[]).status,
        200
    );
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(
        get(address, "/state.json", &[("Authorization", &bearer)]).status,
        200
    );
    let wrong = Client::connect(address, "/?token=0123456789abcdee", &[]);
    assert_eq!(wrong.err().unwrap().status(), 401);
    let mut right = Client::connect(address, &format!("/?token={TOKEN}"), &[])
        .ok()
        .unwrap();
    right.text("serverInfo");
}

#[test]
fn what_cannot_be_served_is_refused_at_start() {
    let view = View::start();
    let start = |options| Server::start(view.daemon.node("view"), options).unwrap_err();
    let taken = start(Options {
        listen: view.address(),
        ..Options::default()
    });
    assert!(matches!(taken, ViewError::InUse { .. }), "{taken}");
    let open = start(Options {
        listen: "0.0.0.0:0".parse().unwrap(),
        ..Options::default()
    });
    assert!(matches!(open, ViewError::NoToken { .. }), "{open}");
}

#[test]
fn the_page_is_told_that_the_daemon_went() {
    let mut view = View::start();
    view.state();
    view.daemon.kill();
    let answer = || get(view.address(), "/state.json", &[]);
    until("the error", || answer().status == 503);
    let error: serde_json::Value = serde_json::from_slice(&answer().body).unwrap();
    assert!(!error["error"].as_str().unwrap().is_empty(), "{error}");
}
