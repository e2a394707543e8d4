//! Random steps of two ends, with random delays and faults: what arrives is a prefix of what was sent,
//! byte by byte; and when both are closed, nothing is in flight and no memory is kept.

mod pair;

use pair::{bytes_of, small, Pair};
use proptest::prelude::*;
use rgaps_verbs::cursors::Watermark;
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::raw::{RawPair, RawWrite, MARKED, NOTICES};
use rgaps_verbs::*;
use std::io::IoSlice;
use std::sync::{Arc, Weak};

/// The most bytes of a direct write; each has so many bytes of the peer's memory.
const PLACE: usize = 64;
const STEPS_MAX: usize = 300;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { bytes: u64 },
    Direct { bytes: u64 },
    Marked { bytes: u64 },
    Batch { count: u8 },
    Progress,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Work(usize),
    Link,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u64>().prop_map(|bytes| Step::Send { bytes }),
        1 => (1..=PLACE as u64).prop_map(|bytes| Step::Direct { bytes }),
        1 => (1..=PLACE as u64).prop_map(|bytes| Step::Marked { bytes }),
        1 => (1u8..6).prop_map(|count| Step::Batch { count }),
        4 => Just(Step::Progress),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        1 => (1..Status::ALL.len()).prop_map(Fault::Work),
        1 => Just(Fault::Link),
        1 => Just(Fault::Close),
    ]
}

fn config() -> impl Strategy<Value = (ChannelConfig, Faults)> {
    let sizes = (1u64..12, 3u32..10, 5u32..20, 0usize..4);
    let faults = (
        any::<u64>(),
        0u32..6,
        prop_oneof![Just(None), Just(Some(0))],
    );
    (sizes, faults).prop_map(|((quarters, receives, sends, watermark), faults)| {
        let watermarks = [
            Watermark::Zero,
            Watermark::Eighth,
            Watermark::Quarter,
            Watermark::Half,
        ];
        let config = ChannelConfig {
            watermark: watermarks[watermark],
            ..small(256 * quarters, receives, sends)
        };
        let (seed, delay_one_in, inline_max) = faults;
        let faults = Faults {
            seed,
            delay_one_in,
            inline_max,
            depth_max: 0,
        };
        (config, faults)
    })
}

/// A frame, or the mark of a marked write.
type Sent = Result<Vec<u8>, u32>;

/// One direction: what one end sent, each with the content of its direct write, and how much of it the other has received.
struct Way {
    sent: Vec<(Sent, Option<Vec<u8>>)>,
    came: usize,
    completed: u64,
    /// The regions of direct writes, which only the channel keeps, with the number of their frame.
    regions: Vec<(u64, Weak<Region>)>,
    landing: Arc<Allocation>,
    place: Arc<Region>,
}

impl Way {
    fn new(pair: &Pair, to: usize) -> Self {
        let (landing, place) = pair.region(to, PLACE * STEPS_MAX * 6, Access::RemoteWrite);
        Self {
            sent: vec![],
            came: 0,
            completed: 0,
            regions: vec![],
            landing,
            place,
        }
    }

    fn take(&mut self, arrived: Arrived<'_>) -> Result<(), String> {
        let (expected, direct) = &self.sent[self.came];
        let is_expected = match (arrived, expected) {
            (Arrived::Frame(frame), Ok(expected)) => frame == expected,
            (Arrived::Written { mark, bytes }, Err(expected)) => {
                let length = direct.as_ref().map(Vec::len);
                mark == *expected && length == Some(bytes as usize)
            }
            _ => false,
        };
        if !is_expected {
            return Err(format!("frame {} differs", self.came));
        }
        if let Some(direct) = direct {
            let mut landed = vec![0; direct.len()];
            self.landing.read(self.came * PLACE, &mut landed);
            if landed != *direct {
                return Err(format!("what is before frame {} differs", self.came));
            }
        }
        self.came += 1;
        Ok(())
    }

    /// The content of the next frame's direct write, and the write.
    fn direct(&self, pair: &Pair, from: usize, bytes: u64) -> (Vec<u8>, Direct) {
        let content = bytes_of(!(self.sent.len() as u64), bytes);
        let (memory, region) = pair.region(from, PLACE, Access::LocalRead);
        memory.write(0, &content);
        let direct = Direct {
            region,
            offset: 0,
            bytes,
            address: self.place.address() + (self.sent.len() * PLACE) as u64,
            key: self.place.remote_key().unwrap(),
        };
        (content, direct)
    }

    /// Checks that the channel keeps regions only until their frame has completed.
    fn check(&mut self, end: &Channel) {
        let completed = end.completed();
        assert!(completed >= self.completed && completed <= self.sent.len() as u64);
        self.completed = completed;
        self.regions.retain(|(frame, region)| {
            let is_done = *frame <= completed;
            assert_eq!(
                region.strong_count(),
                usize::from(!is_done),
                "frame {frame}'s region"
            );
            !is_done
        });
    }
}

fn one_step(pair: &Pair, ways: &mut [Way; 2], end: usize, step: Step) -> Result<(), ChannelError> {
    let channel = &pair.ends[end];
    let number = |way: &Way| way.sent.len() as u64;
    match step {
        Step::Send { bytes } => {
            let way = &mut ways[end];
            let frame = bytes_of(number(way), bytes % (channel.frame_bytes_max() + 1));
            if channel.send(&[IoSlice::new(&frame)], None)?.is_some() {
                way.sent.push((Ok(frame), None));
            }
        }
        Step::Direct { bytes } => {
            let way = &mut ways[end];
            let (content, direct) = way.direct(pair, end, bytes);
            let frame = bytes_of(number(way), 8);
            if let Some(number) = channel.send(&[IoSlice::new(&frame)], Some(&direct))? {
                way.sent.push((Ok(frame), Some(content)));
                way.regions.push((number, Arc::downgrade(&direct.region)));
            }
        }
        Step::Marked { bytes } => {
            let way = &mut ways[end];
            let (content, direct) = way.direct(pair, end, bytes);
            let mark = MARK_MAX - way.sent.len() as u32;
            let mut batch = channel.batch()?;
            if let Some(number) = batch.push_marked(&direct, mark)? {
                way.sent.push((Err(mark), Some(content)));
                way.regions.push((number, Arc::downgrade(&direct.region)));
            }
            batch.post()?;
        }
        Step::Batch { count } => {
            let mut batch = channel.batch()?;
            for _ in 0..count {
                let frame = bytes_of(number(&ways[end]), 8);
                if batch.push(&[IoSlice::new(&frame)], None)?.is_none() {
                    break;
                }
                ways[end].sent.push((Ok(frame), None));
            }
            batch.post()?;
        }
        Step::Progress => {
            let way = &mut ways[1 - end];
            channel.progress(&mut |arrived| way.take(arrived))?;
            ways[end].check(channel);
        }
    }
    Ok(())
}

/// Checks the error of an end: there was a fault, the error is no fault of the stream, and the end keeps it.
fn is_told(pair: &Pair, end: usize, error: &ChannelError, fault: Fault) {
    assert!(
        !matches!(error, ChannelError::Refused(_) | ChannelError::Violation(_)),
        "{error}"
    );
    assert!(!matches!(fault, Fault::None), "{error}");
    assert_eq!(pair.ends[end].ended().as_ref(), Some(error));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_arrives_is_a_beginning_of_what_was_sent(
        (config, faults) in config(),
        steps in proptest::collection::vec((0usize..2, step()), 1..STEPS_MAX),
        fault in fault(),
        at in 0usize..STEPS_MAX,
    ) {
        let pair = Pair::new(faults, config);
        let mut ways = [Way::new(&pair, 1), Way::new(&pair, 0)];
        for (index, (end, step)) in steps.iter().enumerate() {
            if index == at {
                match fault {
                    Fault::None => {}
                    Fault::Work(status) => pair.network.fail_next(Status::ALL[status]),
                    Fault::Link => pair.network.set_link(false),
                    Fault::Close => pair.ends[*end].close(),
                }
            }
            if let Err(error) = one_step(&pair, &mut ways, *end, *step) {
                is_told(&pair, *end, &error, fault);
            }
        }
        if matches!(fault, Fault::None) {
            settle(&pair, &mut ways);
        }
        for (end, way) in ways.iter_mut().enumerate() {
            pair.ends[end].close();
            let counts = pair.ends[end].counts();
            prop_assert_eq!(counts.not_drained, 0);
            prop_assert!(counts.works_in_flight_most <= config.sends.into());
            prop_assert!(counts.notices_in_flight_most <= config.receives.into());
            for (frame, region) in &way.regions {
prop_assert_eq!(region.strong_count(), 0, "frame {} keeps its region", frame);
            }
        }
    }

    #[test]
    fn whatever_a_peer_writes_nothing_but_its_channel_ends(
        writes in proptest::collection::vec(
            // The bytes written; the header's length, number and cursor; the slot; which notice.
            (0u32..1400, 0u32..1400, 0u32..3, 0u64..40, 0u64..16, 0u32..20), 1..12),
        words in proptest::collection::vec((0u64..2, any::<u64>()), 0..4),
        honest in any::<bool>(),
    ) {
        let network = rgaps_verbs::in_process::SoftwareNetwork::new(Faults::default());
        let (liar, other) = (network.device("liar").unwrap(), network.device("other").unwrap());
        let channel = Channel::new(&other, small(4096, 8, 8)).unwrap();
        let memory = Allocation::new(4096 + 64);
        let region = Region::new(&liar, memory.clone(), Access::RemoteWrite).unwrap();
        let mut raw = RawPair::new(&liar, 64, 16).unwrap();
        raw.connect(&channel.address()).unwrap();
        channel.connect(&raw.address(&region)).unwrap();
        raw.keep(region);
        let (ring, _, credits, key) = channel.address().parts();
        for (word, value) in words {
            network.scribble(credits + 8 * word, &value.to_le_bytes());
        }
        for (bytes, says, number, cursor, slot, notice) in writes {
            let says = if honest { bytes.saturating_sub(16) } else { says };
            let mut header = [0; 16];
            header[..4].copy_from_slice(&says.to_le_bytes());
            header[4..8].copy_from_slice(&number.to_le_bytes());
            header[8..].copy_from_slice(&(64 * cursor).to_le_bytes());
            memory.write(0, &header);
            let immediate = match notice {
                0 => NOTICES[0],
                1 => NOTICES[1],
                2 => u32::MAX,
                3 => MARKED | 7,
                _ => slot as u32,
            };
            let write = RawWrite {
                offset: 0,
                bytes,
                address: ring + 64 * slot,
                key,
                immediate: Some(immediate),
                is_signalled: true,
            };
            raw.write(0, &write).unwrap();
            while raw.poll().unwrap().is_some() {}
            // The channel hands over a frame only if its header is true.
            let mut each = |arrived: Arrived<'_>| {
                match arrived {
                    Arrived::Frame(frame) => {
                        assert_eq!(frame.len() as u32, says.min(bytes - 16));
                    }
                    // The channel cannot know where a write with this mark belongs.
                    Arrived::Written { mark, bytes: wrote } => {
                        assert_eq!((mark, wrote), (7, bytes));
                    }
                }
                Ok(())
            };
            let progress = channel.progress(&mut each);
            let sent = channel.send(&[IoSlice::new(&[1; 100])], None);
            for error in [progress.err(), sent.err()].into_iter().flatten() {
                let is_named = matches!(
                    error,
                    ChannelError::Violation(_) | ChannelError::Completion { .. } | ChannelError::Event(_)
                );
                prop_assert!(is_named, "{}", error);
            }
        }
        channel.close();
        prop_assert_eq!(channel.counts().not_drained, 0);
    }
}

/// After any steps, both ends can send more than all their credits allow at once, and everything arrives.
fn settle(pair: &Pair, ways: &mut [Way; 2]) {
    let until = [0, 1].map(|end| ways[end].sent.len() + 50);
    for _ in 0..20_000 {
        for end in 0..2 {
            if ways[end].sent.len() < until[end] {
                one_step(pair, ways, end, Step::Send { bytes: u64::MAX }).unwrap();
            }
            one_step(pair, ways, end, Step::Progress).unwrap();
        }
        if [0, 1].iter().all(|end| ways[*end].came == until[*end]) {
            return;
        }
    }
    panic!("it hangs");
}
