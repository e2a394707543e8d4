//! Libraries above the runtime that a client uses, and its handles of them. They are loaded when it asks for them.

use crate::codes::Code;
use crate::limits::HANDLES_MAX;
use crate::math::{table, Function};
use rgaps_cuda::Library;
use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A symbol that only rgaps's own libraries have, which stand in for NVIDIA's.
const OWN: &CStr = c"rgaps_math_called";
/// A handle of a library.
pub(super) struct Held {
    kind: u8,
    raw: u64,
    /// Values of the client's host to which attributes of a descriptor point, by attribute.
    values: HashMap<u64, Vec<u128>>,
}

/// Handles of all libraries, by the client's numbers.
#[derive(Default)]
pub(super) struct Handles(HashMap<u64, Held>);

impl Handles {
    pub(super) fn add(&mut self, number: u64, kind: u8, raw: u64) {
        let values = HashMap::new();
        self.0.insert(number, Held { kind, raw, values });
    }

    pub(super) fn find(&self, number: u64, kind: u8) -> Option<u64> {
        let found = self.0.get(&number).filter(|held| held.kind == kind);
        found.map(|held| held.raw)
    }

    pub(super) fn take(&mut self, number: u64, kind: u8) -> Option<u64> {
        let raw = self.find(number, kind)?;
        self.0.remove(&number);
        Some(raw)
    }

    /// Keeps values for an attribute of a descriptor, instead of those that it had. `None` if there is no such descriptor.
    pub(super) fn keep(&mut self, number: u64, attribute: u64, values: Vec<u128>) -> Option<()> {
        let held = self.0.get_mut(&number)?;
        held.values.insert(attribute, values);
        Some(())
    }

    pub(super) fn is_free(&self, number: u64) -> bool {
        number != 0 && self.0.len() < HANDLES_MAX && !self.0.contains_key(&number)
    }
}

/// The libraries that this client uses.
#[derive(Default)]
pub(crate) struct Math {
    libraries: HashMap<u8, Library>,
    /// Addresses of functions, by their numbers; `None` for one that the library lacks.
    addresses: HashMap<u16, Option<usize>>,
    pub(super) handles: Arc<Mutex<Handles>>,
}

pub(super) fn lock(handles: &Mutex<Handles>) -> MutexGuard<'_, Handles> {
    handles.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Math {
    /// Loads a library.
    pub(super) fn open(&mut self, number: u8, fingerprint: u64) -> Result<(), Code> {
        let table = table();
        if fingerprint != table.fingerprint {
            return Err(Code::INVALID_VALUE);
        }
        let library = table
            .libraries
            .get(usize::from(number))
            .ok_or(Code::INVALID_VALUE)?;
        if self.libraries.contains_key(&number) {
            return Ok(());
        }
        let mut reason = String::new();
        for version in &library.versions {
            let name = format!("lib{}.so.{version}", library.name);
            match load(&name) {
                Ok(found) => {
                    self.libraries.insert(number, found);
                    return Ok(());
                }
                Err(error) => reason = error,
            }
        }
        tracing::warn!(
            library = library.name,
            reason,
            "a library that a client asks for is not here"
        );
        Err(Code::NOT_FOUND)
    }

    pub(super) fn address(&mut self, number: u16, function: &Function) -> Option<usize> {
        let libraries = &self.libraries;
        *self.addresses.entry(number).or_insert_with(|| {
            let name = CString::new(function.name).ok()?;
            let address = libraries.get(&function.library)?.symbol(&name)?;
            Some(address as usize)
        })
    }
}

fn load(name: &str) -> Result<Library, String> {
    let found = Library::open(OsStr::new(name))?;
    // rgaps's own library would send the calls to this server again.
    match found.symbol(OWN) {
        None => Ok(found),
        Some(_) => Err(format!(
            "the {name} that is found is rgaps's own, which is for clients"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_their_types() {
        let mut handles = Handles::default();
        handles.add(16, 1, 0xabc);
        assert_eq!(
            (
                handles.find(16, 1),
                handles.find(16, 2),
                handles.find(32, 1)
            ),
            (Some(0xabc), None, None)
        );
        assert!(!handles.is_free(16) && !handles.is_free(0) && handles.is_free(32));
        assert_eq!(
            (
                handles.take(16, 2),
                handles.take(16, 1),
                handles.take(16, 1)
            ),
            (None, Some(0xabc), None)
        );
    }
}
