use super::*;

struct Inline([u8; 100]);

impl ReceiveBuffer for Inline {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn deliver(
        self: Box<Self>,
        _sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        assert_eq!(self.0, description);
        Ok(())
    }
}

fn unfinished() -> UnfinishedBuffer {
    UnfinishedBuffer::new(Box::new(Inline([0; 100])), 100).unwrap()
}

fn write(granted: &mut GrantedBuffer, chunk: u32, bytes: u32, value: u8) -> Option<u64> {
    let mut range = granted.lend(1, chunk, bytes).unwrap();
    range.as_mut_slice().fill(value);
    range.landed(false)
}

#[test]
fn chunks_are_disjoint_and_each_is_lent_once() {
    assert!(UnfinishedBuffer::new(Box::new(Inline([0; 100])), 99).is_none());
    let (mut granted, from, _) = unfinished().grant(32, |_| None::<()>);
    assert_eq!(from, 0);
    assert_eq!(
        granted.lend(1, 4, 32).unwrap_err(),
        "it lies outside its message"
    );
    assert_eq!(granted.lend(1, 3, 32).unwrap_err(), "it has another length");
    let ranges: Vec<WriteRange> = [(0, 32), (1, 32), (2, 32), (3, 4)]
        .map(|(chunk, bytes)| granted.lend(1, chunk, bytes).unwrap())
        .into();
    assert_eq!(granted.lend(1, 2, 32).unwrap_err(), "it arrived before");
    let threads = ranges.into_iter().map(|mut range| {
        std::thread::spawn(move || {
            let value = range.chunk as u8;
            range.as_mut_slice().fill(value);
            range.landed(false).is_some()
        })
    });
    let threads: Vec<_> = threads.collect();
    let last = threads
        .into_iter()
        .filter(|_| true)
        .map(|thread| thread.join().unwrap());
    assert_eq!(last.filter(|is_last| *is_last).count(), 1);
    let whole = granted.into_unfinished().unwrap();
    assert_eq!(whole.prefix(), 100);
    let expected: Vec<u8> = (0..100).map(|at| (at / 32) as u8).collect();
    assert!(whole.into_whole().deliver(0, &expected).is_ok());
}

#[test]
fn a_new_grant_begins_behind_the_prefix_and_writes_again_what_lay_behind_a_hole() {
    let (mut granted, ..) = unfinished().grant(10, |_| None::<()>);
    for chunk in [0, 1, 2, 4, 5] {
        write(&mut granted, chunk, 10, 7);
    }
    let kept = granted.into_unfinished().unwrap();
    assert_eq!(kept.prefix(), 30);
    // With another chunk size, only whole chunks of the prefix count as landed.
    let (mut granted, from, _) = kept.grant(25, |_| None::<()>);
    assert_eq!(from, 1);
    assert_eq!(granted.lend(2, 0, 25).unwrap_err(), "it arrived before");
    write(&mut granted, 2, 25, 7);
    assert_eq!(granted.chunks.prefix_bytes(), 25);
    write(&mut granted, 1, 25, 7);
    assert_eq!(granted.chunks.prefix_bytes(), 75);
    assert!(write(&mut granted, 3, 25, 7).is_some());
    let whole = granted.into_unfinished().unwrap().into_whole();
    assert!(whole.deliver(0, &[7; 100]).is_ok());
}

#[test]
fn a_buffer_with_a_range_that_is_lent_is_not_granted_again() {
    let (mut granted, ..) = unfinished().grant(50, |_| None::<()>);
    let mut range = granted.lend(1, 0, 50).unwrap();
    assert!(granted.into_unfinished().is_none());
    // The memory stays until the range is dropped.
    range.as_mut_slice().fill(1);
    assert!(range.landed(true).is_none());
}

#[test]
fn a_range_that_is_dropped_leaves_a_hole() {
    let (mut granted, ..) = unfinished().grant(50, |_| None::<()>);
    drop(granted.lend(1, 0, 50).unwrap());
    write(&mut granted, 1, 50, 1);
    assert_eq!(granted.chunks.prefix_bytes(), 0);
    assert!(!granted.is_whole());
    assert_eq!(granted.into_unfinished().unwrap().prefix(), 0);
}

/// A message that others read while it arrives.
struct Shared(Arc<PrefixMemory>);

impl ReceiveBuffer for Shared {
    fn memory(&mut self) -> &mut [u8] {
        unreachable!("it has other memory")
    }

    fn prefix_memory(&mut self) -> Option<Arc<PrefixMemory>> {
        Some(self.0.clone())
    }

    fn deliver(self: Box<Self>, _: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        Ok(())
    }
}

#[test]
fn what_goes_on_is_read_while_it_arrives_and_not_written_again() {
    let grown = Arc::new(Mutex::new(Vec::new()));
    let seen = grown.clone();
    let memory = PrefixMemory::new(100, move |ready| seen.lock().unwrap().push(ready));
    let shared = || Box::new(Shared(memory.clone()));
    let buffer = UnfinishedBuffer::new(shared(), 100).unwrap();
    // Only one buffer may write it.
    assert!(UnfinishedBuffer::new(shared(), 100).is_none() && !memory.fill(&[0; 100]));
    let (mut granted, ..) = buffer.grant(25, |_| None::<()>);
    write(&mut granted, 2, 25, 3);
    assert_eq!(memory.ready(), 0);
    write(&mut granted, 0, 25, 1);
    assert_eq!(memory.slice(0, 25), [1; 25]);
    write(&mut granted, 1, 25, 2);
    assert_eq!(
        (memory.slice(25, 50), memory.slice(50, 75)),
        (&[2; 25][..], &[3; 25][..])
    );
    let kept = granted.into_unfinished().unwrap();
    let (mut granted, from, _) = kept.grant(25, |_| None::<()>);
    assert_eq!(from, 3);
    assert!(write(&mut granted, 3, 25, 4).is_some());
    drop(granted.into_unfinished().unwrap().into_whole());
    assert_eq!((memory.ready(), memory.slice(75, 100)), (100, &[4; 25][..]));
    assert_eq!(*grown.lock().unwrap(), [25, 75, 100]);
}

#[test]
fn a_small_message_that_goes_on_is_there_at_once() {
    let memory = PrefixMemory::new(3, |_| {});
    assert!(!memory.fill(b"four"));
    assert!(memory.fill(b"abc"));
    assert_eq!(memory.slice(0, 3), b"abc");
}
