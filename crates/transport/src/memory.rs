//! Places that several lanes' threads write at the same time, each its own part.

use crate::owner::{OnCard, Place};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A place whose parts are written.
pub(crate) struct Landing {
    /// From `Box::into_raw`; taken back by `drop` or, once, by `into_place`.
    place: Option<*mut dyn Place>,
    memory: *mut u8,
    bytes: usize,
    /// Where the peer's card is to write instead.
    on_card: Option<Arc<dyn OnCard>>,
    /// Starts and ends of the parts that are out.
    lent: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: a `Place` is `Send`, and nothing of it is touched through a shared `Landing` but its bytes,
// each of which is in one `Part` at most (`part` looks into `lent`).
unsafe impl Send for Landing {}
// SAFETY: as above.
unsafe impl Sync for Landing {}

impl Landing {
    /// `None` if the place does not have so many bytes.
    pub(crate) fn new(mut place: Box<dyn Place>, bytes: u64) -> Option<Self> {
        let on_card = place.on_card();
        let place = Box::into_raw(place);
        // SAFETY: it was a box a line ago, and nobody else has it.
        let memory = unsafe { (*place).memory() };
        let landing = Self {
            memory: memory.as_mut_ptr(),
            bytes: memory.len(),
            place: Some(place),
            on_card,
            lent: Mutex::default(),
        };
        (landing.bytes as u64 == bytes).then_some(landing)
    }

    /// Its first byte's address, and how many there are.
    pub(crate) fn memory(&self) -> (u64, u64) {
        (self.memory as u64, self.bytes as u64)
    }

    /// Where the peer's card is to write instead, if it can.
    pub(crate) fn on_card(&self) -> Option<&Arc<dyn OnCard>> {
        self.on_card.as_ref()
    }

    /// A part to write; `None` if it lies outside, or somebody has some of it.
    pub(crate) fn part(self: &Arc<Self>, from: u64, bytes: u64) -> Option<Part> {
        let from = usize::try_from(from).ok()?;
        let end = from.checked_add(usize::try_from(bytes).ok()?)?;
        let mut lent = self.lent.lock().expect("nobody panics with it");
        let before = lent.range(..end).next_back();
        if end > self.bytes || from == end || before.is_some_and(|(_, end)| *end > from) {
            return None;
        }
        lent.insert(from, end);
        let landing = Arc::clone(self);
        Some(Part { landing, from, end })
    }

    /// The place, when no part is out.
    pub(crate) fn into_place(self: Arc<Self>) -> Option<Box<dyn Place>> {
        let place = Arc::into_inner(self)?.place.take()?;
        // SAFETY: it came from a box and is taken back once: it is not in the landing any more.
        Some(unsafe { Box::from_raw(place) })
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            // SAFETY: it came from a box and is taken back once; parts hold a clone of the `Arc` around this.
            drop(unsafe { Box::from_raw(place) });
        }
    }
}

/// A part of a place that nobody else reads or writes.
pub(crate) struct Part {
    landing: Arc<Landing>,
    from: usize,
    end: usize,
}

impl Part {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = self.end - self.from;
        // SAFETY: `part` checked the bounds of what `Place::memory` gave, which stays borrowed as long as the
        // landing does; and that no other part has these bytes until this one is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.landing.memory.add(self.from), bytes) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut lent = self.landing.lent.lock().expect("nobody panics with it");
        lent.remove(&self.from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Inline([u8; 64]);

    impl Place for Inline {
        fn memory(&mut self) -> &mut [u8] {
            &mut self.0
        }
        fn commit(self: Box<Self>, _sequence: u64, meta: &[u8]) -> Result<(), Box<dyn Place>> {
            assert_eq!(self.0, meta);
            Ok(())
        }
    }

    #[test]
    fn parts_are_disjoint_and_come_back() {
        assert!(Landing::new(Box::new(Inline([0; 64])), 63).is_none());
        let landing = Arc::new(Landing::new(Box::new(Inline([0; 64])), 64).unwrap());
        for (from, bytes) in [(0, 65), (64, 1), (u64::MAX, 2), (3, 0)] {
            assert!(landing.part(from, bytes).is_none());
        }
        let mut first = landing.part(0, 32).unwrap();
        assert!(landing.part(31, 1).is_none() && landing.part(0, 1).is_none());
        let mut second = landing.part(32, 32).unwrap();
        let threads = [
            std::thread::spawn(move || first.as_mut_slice().fill(1)),
            std::thread::spawn(move || second.as_mut_slice().fill(2)),
        ];
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let again = landing.part(0, 64).unwrap();
        assert!(landing.clone().into_place().is_none());
        drop(again);
        let mut expected = [1; 64];
        expected[32..].fill(2);
        assert!(landing.into_place().unwrap().commit(0, &expected).is_ok());
    }
}
