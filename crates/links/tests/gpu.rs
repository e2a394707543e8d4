//! Messages in a GPU's memory on one host, read on a GPU of another: copied down once, sent once, copied up once. The test driver's
//! streams are slow, so work that nobody waits for has not happened yet.
mod support;

use rgaps::{Config, DType, Domain, Header, Node, PartSpec, RecvError};
use rgaps_cuda::Driver;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use support::{bytes_of, content, hosts, receive, until, wait_for_subscribers, LIMIT};

/// Sizes below, at and above those from which either host copies a message in parts.
const SIZES: [usize; 6] = [0, 1000, 70_000, 3_000_001, 9 << 20, (20 << 20) + 12_345];

/// The trace tells processes apart and not tests, so tests run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU, which all hosts share, and the file in which its driver records the calls of all processes.
fn gpu() -> (Domain, &'static PathBuf) {
    static TRACE: OnceLock<(Domain, PathBuf)> = OnceLock::new();
    let (domain, trace) = TRACE.get_or_init(|| {
        let trace = std::env::temp_dir().join(format!("rgaps-gpu-trace-{}", std::process::id()));
        let settings = [
            ("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library()),
            ("RGAPS_TEST_DRIVER_DELAY_US", "1000".into()),
            ("RGAPS_TEST_DRIVER_SEED", "5".into()),
            ("RGAPS_TEST_DRIVER_TRACE", trace.clone()),
        ];
        for (name, value) in settings {
            if std::env::var_os(name).is_none() {
                std::env::set_var(name, value);
            }
        }
        let driver = Driver::load().unwrap();
        let device = driver.devices().unwrap()[0].uuid;
        (Domain::Cuda(device), trace)
    });
    (*domain, trace)
}

/// The bytes of each call of the driver's function `name` by a process.
fn calls(process: u32, name: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(gpu().1).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let is = words.next()?.parse() == Ok(process) && words.next()? == name;
        is.then(|| words.next()?.parse().ok())?
    });
    lines.collect()
}

#[test]
fn a_message_is_copied_down_once_for_two_hosts_and_up_once_for_three_subscribers_of_each() {
    let _alone = alone();
    let (gpu, _) = gpu();
    // The larger messages span several segments of 8 MiB, each of which is registered with the driver on its own.
    let hosts = hosts(3, "");
    let here = hosts[0].node("publisher");
    let subscribers: Vec<_> = hosts[1..]
        .iter()
        .map(|host| {
            let there = host.node("subscribers");
            [0; 3].map(|_| {
                let subscriber = there.subscriber("frames").domain(gpu);
                subscriber.reliable().create().unwrap()
            })
        })
        .collect();
    let publisher = here
        .publisher("frames")
        .domain(gpu)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 6);
    let copied = |process| calls(process, "cuMemcpyAsync").iter().sum::<u64>();
    let links: Vec<u32> = hosts[1..]
        .iter()
        .map(|host| host.links.as_ref().unwrap().id())
        .collect();
    let all_copied = || {
        let up: Vec<u64> = links.iter().map(|links| copied(*links)).collect();
        (copied(std::process::id()), up)
    };
    for (number, bytes) in SIZES.into_iter().enumerate() {
        let number = number as u64;
        let expected = content(number, bytes);
        let mut loan = publisher.loan(bytes as u64).unwrap();
        loan.write(0, &expected).unwrap();
        let before = all_copied();
        loan.publish().unwrap();
        for subscribers in &subscribers {
            let samples = subscribers.each_ref().map(receive);
            for sample in &samples {
                assert_eq!((sample.sequence(), sample.missed()), (number, 0));
                assert_eq!((sample.domain(), sample.len()), (gpu, bytes as u64));
                assert!(bytes_of(sample) == expected, "message {number}");
                assert_eq!(sample.address(), samples[0].address());
            }
        }
        let after = all_copied();
        assert_eq!(after.0 - before.0, bytes as u64, "down, message {number}");
        for (after, before) in after.1.iter().zip(&before.1) {
            assert_eq!(after - before, bytes as u64, "up, message {number}");
        }
    }
    // Processes that copy from or to the host's pools have pinned them.
    for process in links.iter().copied().chain([std::process::id()]) {
        let registered = calls(process, "cuMemHostRegister");
        assert!(
            registered.iter().any(|bytes| *bytes >= 2 << 20),
            "process {process} registered {registered:?}"
        );
    }
    for process in links.iter().copied().chain([std::process::id()]) {
        assert_eq!(
            calls(process, "copyOverRegistrations"),
            [0u64; 0],
            "process {process}"
        );
    }
    // This process copies down in parts of at most 4 MiB. The links copy up as chunks land.
    let down = calls(std::process::id(), "cuMemcpyAsync");
    assert!(
        down.iter().all(|bytes| *bytes <= 4 << 20) && down.len() > 8,
        "{down:?}"
    );
    for links in links {
        assert!(calls(links, "cuMemcpyAsync").len() > SIZES.len());
    }
}

#[test]
fn attachments_and_parts_of_a_message_on_a_gpu_cross_a_link() {
    let _alone = alone();
    let (gpu, _) = gpu();
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = there.subscriber("frames").domain(gpu).reliable();
    let subscriber = subscriber.create().unwrap();
    let publisher = here.publisher("frames").domain(gpu).deadline(LIMIT);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 1);
    for (number, bytes) in SIZES.into_iter().enumerate() {
        let shape = &[bytes as u64];
        let part = |name| PartSpec {
            name,
            dtype: DType::U8,
            shape,
        };
        let parts = ["rgb", "depth"].map(part);
        let mut loan = publisher.loan_parts(&parts).unwrap();
        let sent = content(number as u64, loan.len() as usize);
        loan.write(0, &sent).unwrap();
        let header = Header::captured_now().frame_id("left");
        loan.set_header(&header).unwrap();
        let parts: Vec<_> = loan.parts().unwrap().iter().collect();
        loan.publish().unwrap();
        let sample = receive(&subscriber);
        assert!(bytes_of(&sample) == sent, "{bytes} bytes");
        assert_eq!(sample.header().unwrap(), Some(header));
        assert_eq!(sample.parts().unwrap().iter().collect::<Vec<_>>(), parts);
    }
}

#[test]
fn what_lands_on_a_gpu_is_copied_there_once_while_it_lands_from_memory_that_the_driver_knows() {
    let _alone = alone();
    let (gpu, _) = gpu();
    let hosts = hosts(
        2,
        "[[links.landing]]\nname = \"gpu\"\ntopics = [\"up/**\"]\ndomain = \"cuda:0\"",
    );
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscribers"));
    // A reliable subscriber in the domain where messages land, and one in the host's.
    let near = there.subscriber("up/a").reliable().create().unwrap();
    let publisher = here.publisher("up/a").domain(Domain::Host);
    let publisher = publisher.deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    let links = hosts[1].links.as_ref().unwrap().id();
    let copied = || calls(links, "cuMemcpyAsync").iter().sum::<u64>();
    let registered = || calls(links, "cuMemHostRegister").len();
    let mut known = 0;
    for round in 0..2 {
        for (number, bytes) in SIZES.into_iter().enumerate() {
            let expected = content(number as u64, bytes);
            let before = copied();
            publisher.put(&expected).unwrap();
            let sample = receive(&near);
            assert_eq!((sample.domain(), sample.missed()), (gpu, 0));
            assert!(bytes_of(&sample) == expected, "message {number}");
            assert_eq!(copied() - before, bytes as u64, "message {number}");
        }
        match round {
            0 => known = registered(),
            _ => assert_eq!(registered(), known, "the driver is told once"),
        }
    }
    for what in ["copyOverRegistrations", "copyPageable"] {
        assert_eq!(calls(links, what), [0u64; 0], "{what}");
    }
    // The links do not copy a large message at once.
    let largest = calls(links, "cuMemcpyAsync").into_iter().max();
    assert!(
        largest < SIZES.last().map(|bytes| *bytes as u64),
        "{largest:?}"
    );
}

/// Environment variable with the path of the host's configuration, for the publisher in a process of its own.
const CONFIG: &str = "RGAPS_TEST_GPU_CONFIG";
/// Bytes of the message of the publisher that dies.
const BROKEN: usize = 24 << 20;

struct Alone(Child);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_message_whose_publisher_dies_half_way_down_is_missed_or_whole() {
    let _alone = alone();
    let (gpu, _) = gpu();
    let hosts = hosts(2, "");
    let there = hosts[1].node("subscriber");
    let near = hosts[0].node("near");
    // One subscriber sees how far the copy on its host is, the other one is on the other host.
    let watches = near.subscriber("dies").domain(Domain::Host);
    let watches = watches.create().unwrap();
    let subscriber = there.subscriber("dies").domain(gpu).reliable();
    let subscriber = subscriber.create().unwrap();
    let mut other = Alone(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "alone_a_publisher_dies", "--ignored"])
            .env(CONFIG, hosts[0].path())
            // Only this process's copies are slow.
            .env("RGAPS_TEST_DRIVER_DELAY_US", "60000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let sample = receive(&watches);
    sample.wait_bytes(1, LIMIT).unwrap();
    other.0.kill().unwrap();
    other.0.wait().unwrap();
    let whole = match sample.wait_bytes(BROKEN as u64, LIMIT) {
        Ok(_) => true,
        Err(RecvError::Aborted { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    // The bytes that were reported as ready stay valid.
    let there_of = sample.ready_slice().unwrap().len();
    assert!(sample.ready_slice().unwrap() == &content(0, BROKEN)[..there_of]);
    assert!(whole || (there_of > 0 && there_of < BROKEN), "{there_of}");
    drop(sample);
    // The topic still works.
    let next = near.publisher("dies").domain(gpu).deadline(LIMIT);
    let next = next.create().unwrap();
    wait_for_subscribers(&next, 2);
    let mut loan = next.loan(9 << 20).unwrap();
    loan.write(0, &content(1, 9 << 20)).unwrap();
    loan.set_tag(1);
    loan.publish().unwrap();
    let mut got = receive(&subscriber);
    if got.tag() == 0 {
        assert!(whole, "a message that was never whole");
        assert!(bytes_of(&got) == content(0, BROKEN));
        got = receive(&subscriber);
    }
    assert_eq!(got.tag(), 1);
    assert!(bytes_of(&got) == content(1, 9 << 20));
}

#[test]
#[ignore = "a part of `a_message_whose_publisher_dies_half_way_down_is_missed_or_whole`"]
fn alone_a_publisher_dies() {
    let path = std::env::var_os(CONFIG).expect("another test starts this one");
    let config = Config::load(Some(std::path::Path::new(&path))).unwrap();
    let node = Node::builder("alone").config(config).build().unwrap();
    let publisher = node.publisher("dies").domain(gpu().0).deadline(LIMIT);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 2);
    let mut loan = publisher.loan(BROKEN as u64).unwrap();
    loan.write(0, &content(0, BROKEN)).unwrap();
    loan.publish().unwrap();
    // The test kills this process meanwhile.
    std::thread::sleep(LIMIT);
}

#[test]
fn links_that_are_killed_while_chunks_are_copied_up_lose_no_memory_and_go_on() {
    const BYTES: usize = 6 << 20;
    let _alone = alone();
    let (gpu, _) = gpu();
    let mut hosts = hosts(2, "outage_ms = 30000");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = there.subscriber("killed").domain(gpu).reliable();
    let subscriber = subscriber.create().unwrap();
    let publisher = here.publisher("killed").domain(gpu).deadline(LIMIT);
    let publisher = publisher.keep_last(16).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    let mut got = BTreeMap::new();
    let mut aborted = 0;
    let mut next = 0;
    for round in 0..3u64 {
        for _ in 0..3 {
            let mut loan = publisher.loan(BYTES as u64).unwrap();
            loan.write(0, &content(next, BYTES)).unwrap();
            loan.set_tag(next);
            loan.publish().unwrap();
            next += 1;
        }
        if round < 2 {
            // Each round kills the links in another stage of the first messages.
            std::thread::sleep(Duration::from_millis(5 + 20 * round));
            hosts[1].kill_links();
            hosts[1].start_links();
        }
        while got.len() < next as usize {
            let sample = receive(&subscriber);
            let mut bytes = vec![0; BYTES];
            match sample.synchronize(LIMIT) {
                Ok(()) => {
                    sample.read(0, &mut bytes).unwrap();
                    assert!(bytes == content(sample.tag(), BYTES));
                }
                // It was published, and then the process that made its copy died.
                Err(RecvError::Aborted { .. }) => aborted += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(got.insert(sample.tag(), ()).is_none(), "twice");
        }
    }
    assert!(aborted <= 2 * 3, "{aborted} of {next} came to nothing");
    // The publisher's links have sent all messages.
    until("the samples to be acknowledged", || {
        let peers = here.peers().unwrap();
        peers.peers.iter().all(|peer| peer.messages_out >= next)
    });
}
