//! A host's landing memory, and what its subscribers hold.
use rgaps_transport::link::Span;
use rgaps_transport::{Flow, Meta, Places};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// First fit in a region; checks that nothing is given twice or given back twice.
#[derive(Debug, Default)]
pub struct Memory {
    pub bytes: Vec<u8>,
    used: BTreeMap<u64, u64>,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            used: BTreeMap::new(),
        }
    }

    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let mut at = 0;
        for (start, length) in &self.used {
            if start - at >= bytes {
                break;
            }
            at = start + length;
        }
        (at + bytes <= self.bytes.len() as u64).then(|| {
            self.used.insert(at, bytes);
            at
        })
    }

    pub fn give(&mut self, span: Span) {
        assert_eq!(
            self.used.remove(&span.offset),
            Some(span.bytes),
            "a place given back twice"
        );
        self.slice(span).fill(0xdd);
    }

    pub fn slice(&mut self, span: Span) -> &mut [u8] {
        &mut self.bytes[span.offset as usize..(span.offset + span.bytes) as usize]
    }

    pub fn is_free(&self) -> bool {
        self.used.is_empty()
    }
}

/// A link's part of a host's memory: what it took and has not given back or committed.
#[derive(Clone, Debug)]
pub struct Landing {
    pub memory: Rc<RefCell<Memory>>,
    pub in_flight: Rc<RefCell<BTreeMap<u64, u64>>>,
}

impl Landing {
    pub fn new(memory: Rc<RefCell<Memory>>) -> Self {
        Self {
            memory,
            in_flight: Rc::default(),
        }
    }

    /// It belongs to a committed message.
    pub fn committed(&self, place: Span) {
        let took = self.in_flight.borrow_mut().remove(&place.offset);
        assert_eq!(
            took,
            Some(place.bytes),
            "committed at a place that was not taken"
        );
    }

    /// The daemon is gone; the next one finds what was not committed.
    pub fn crashed(&self) {
        for (offset, bytes) in std::mem::take(&mut *self.in_flight.borrow_mut()) {
            self.memory.borrow_mut().give(Span { offset, bytes });
        }
    }
}

impl Places for Landing {
    fn take(&mut self, _flow: Flow, _sequence: u64, _meta: &Meta, bytes: u64) -> Option<u64> {
        let offset = self.memory.borrow_mut().take(bytes)?;
        self.in_flight.borrow_mut().insert(offset, bytes);
        Some(offset)
    }

    fn give(&mut self, _flow: Flow, place: Span) {
        self.committed(place);
        self.memory.borrow_mut().give(place);
    }
}
