//! Attachments, headers and parts against a real daemon.

use rgaps::{
    DType, Header, Late, LoanError, PartSpec, PublishError, RecvError, Value, MAX_ATTACHMENT_BYTES,
    MAX_MESSAGE_PARTS,
};
use rgaps_testkit::{Daemon, LIMIT as SOON};

#[test]
fn a_shortened_message_has_its_attachment_and_no_stale_bytes() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("short").create().unwrap();
    let publisher = node.publisher("short").create().unwrap();
    let mut loan = publisher.loan(100).unwrap();
    loan.write(0, &[b'!'; 100]).unwrap();
    loan.set_attachment(b"beside").unwrap();
    loan.set_shape(DType::U8, &[100]).unwrap();
    loan.truncate(3);
    let unpublished = loan.publish().unwrap_err();
    let said = unpublished.error.to_string();
    assert!(
        said.contains("spans 100 bytes, but the message has 3"),
        "{said}"
    );
    let mut loan = *unpublished.loan.unwrap();
    loan.set_shape(DType::U8, &[3]).unwrap();
    loan.publish().unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!(sample.as_slice().unwrap(), b"!!!");
    assert_eq!(sample.attachment(), Some(&b"beside"[..]));
}

#[test]
fn an_attachment_is_the_message_s_own_and_outlives_the_ring() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("attached").create().unwrap();
    let publisher = node.publisher("attached").keep_last(2).create().unwrap();
    let publish = |attachment: &[u8]| {
        let mut loan = publisher.loan(8).unwrap();
        loan.set_attachment(b"replaced by the next call").unwrap();
        loan.set_attachment(attachment).unwrap();
        loan.publish().unwrap();
        subscriber.recv_timeout(SOON).unwrap()
    };
    let first = publish(b"first");
    assert_eq!(publish(b"").attachment(), None);
    let most = [7; MAX_ATTACHMENT_BYTES];
    let held: Vec<_> = (0..20u8).map(|n| (n, publish(&[n; 300]))).collect();
    assert_eq!(publish(&most).attachment(), Some(&most[..]));
    publisher.put(b"without").unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!(sample.attachment(), None);
    assert_eq!(sample.header().unwrap(), None);
    assert!(sample.parts().unwrap().is_empty());
    for (n, sample) in held {
        assert_eq!(sample.clone().attachment(), Some(&[n; 300][..]));
    }
    assert_eq!(first.attachment(), Some(&b"first"[..]));
    assert_eq!(first.header().unwrap(), None);

    let mut loan = publisher.loan(8).unwrap();
    loan.set_attachment(b"kept").unwrap();
    let error = loan.set_attachment(&[0; 4097]).unwrap_err();
    assert!(matches!(error, LoanError::Attachment { bytes: 4097 }));
    assert!(
        error.to_string().contains("over the limit of 4096 bytes"),
        "{error}"
    );
    loan.publish().unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!(sample.attachment(), Some(&b"kept"[..]));
}

#[test]
fn headers_and_parts_arrive_also_late_and_from_a_publisher_that_is_gone() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let publisher = node
        .publisher("camera")
        .keep_last(3)
        .transient_local()
        .create()
        .unwrap();
    let specs = [
        PartSpec {
            name: "rgb",
            dtype: DType::U8,
            shape: &[4, 5, 3],
        },
        PartSpec {
            name: "depth",
            dtype: DType::F32,
            shape: &[4, 5],
        },
    ];
    let header = |n: i64| {
        let header = Header::captured_now().frame_id("left");
        header.value("n", n).value("raw", &[1u8, 2][..])
    };
    let mut sent = Vec::new();
    for n in 0..5u8 {
        let mut loan = publisher.loan_parts(&specs).unwrap();
        loan.part_mut("rgb").unwrap().fill(n);
        loan.part_mut("depth").unwrap().fill(n + 100);
        sent.push(header(n.into()));
        loan.set_header(sent.last().unwrap()).unwrap();
        loan.publish().unwrap();
    }
    drop(publisher);
    let late = node
        .subscriber("camera")
        .late(Late::AllKept)
        .create()
        .unwrap();
    for n in 2..5u8 {
        let sample = late.recv_timeout(SOON).unwrap();
        assert_eq!(sample.part_slice("rgb").unwrap(), [n; 60]);
        assert_eq!(sample.part_slice("depth").unwrap(), [n + 100; 80]);
        let depth = sample.part("depth").unwrap();
        assert_eq!(depth.offset(), 256);
        assert_eq!(depth.tensor().shape[..2], [4, 5]);
        assert_eq!(depth.tensor().strides[..2], [5, 1]);
        assert!(sample.tensor().is_none());
        let names: Vec<_> = sample
            .parts()
            .unwrap()
            .iter()
            .map(|p| p.name().to_owned())
            .collect();
        assert_eq!(names, ["rgb", "depth"]);
        let header = sample.header().unwrap().unwrap();
        assert_eq!(header, sent[usize::from(n)]);
        assert_eq!(header.values["n"], Value::Int(n.into()));
        let error = sample.part("pose").unwrap_err();
        assert!(matches!(error, RecvError::Parts { .. }));
        assert!(error
            .to_string()
            .ends_with("no part 'pose'; its parts are: 'rgb', 'depth'"));
    }
}

#[test]
fn parts_beyond_the_limits_are_refused_and_leave_nothing_behind() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let publisher = node.publisher("parts").create().unwrap();
    let names: Vec<String> = (0..=MAX_MESSAGE_PARTS).map(|n| format!("p{n}")).collect();
    let specs: Vec<_> = names
        .iter()
        .map(|name| PartSpec {
            name,
            dtype: DType::U8,
            shape: &[1],
        })
        .collect();
    let error = publisher.loan_parts(&specs).unwrap_err();
    assert!(matches!(error, LoanError::Parts(_)));
    assert!(error
        .to_string()
        .contains("33 parts are over the limit of 32 parts"));
    let subscriber = node.subscriber("parts").create().unwrap();
    let mut loan = publisher.loan_parts(&specs[1..]).unwrap();
    loan.part_mut("p32").unwrap()[0] = 32;
    // All parts and the longest attachment at once.
    loan.set_attachment(&[9; MAX_ATTACHMENT_BYTES]).unwrap();
    loan.publish().unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!(sample.parts().unwrap().len(), MAX_MESSAGE_PARTS);
    assert_eq!(sample.part_slice("p32").unwrap(), [32]);
    assert_eq!(sample.attachment().unwrap().len(), MAX_ATTACHMENT_BYTES);
    // The loan is truncated, so its second part lies outside.
    let mut loan = publisher.loan_parts(&specs[..2]).unwrap();
    loan.truncate(256);
    let error = loan.publish().unwrap_err().error;
    assert!(matches!(error, PublishError::Argument(_)), "{error}");
}
