//! Memory divided among publishers: each has a *reserve* that nobody else can take. The sum of all reserves is at most the total.

use std::collections::BTreeMap;
use thiserror::Error;

/// Publishers with a reserve at most.
const PUBLISHERS_MAX: usize = 4096;

/// Memory divided among publishers.
#[derive(Clone, Debug)]
pub struct Shares {
    total: u64,
    reserves: BTreeMap<u64, u64>,
    reserved: u64,
}

/// Why a publisher gets no reserve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShareError {
    /// Less is left.
    #[error("only {left} bytes are left")]
    Short {
        /// What no reserve has.
        left: u64,
    },
    /// There are too many reserves.
    #[error("the limit of {PUBLISHERS_MAX} publishers is reached")]
    Publishers,
    /// It has one.
    #[error("publisher {0} already has a reserve")]
    Twice(u64),
}

impl Shares {
    /// Divides so many bytes.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            reserves: BTreeMap::new(),
            reserved: 0,
        }
    }

    /// Gives a publisher its reserve.
    pub fn open(&mut self, publisher: u64, bytes: u64) -> Result<(), ShareError> {
        if self.reserves.contains_key(&publisher) {
            return Err(ShareError::Twice(publisher));
        }
        if self.reserves.len() == PUBLISHERS_MAX {
            return Err(ShareError::Publishers);
        }
        let left = self.total - self.reserved;
        if bytes > left {
            return Err(ShareError::Short { left });
        }
        self.reserved += bytes;
        self.reserves.insert(publisher, bytes);
        Ok(())
    }

    /// Takes the reserve back, if the publisher has one.
    pub fn close(&mut self, publisher: u64) {
        self.reserved -= self.reserves.remove(&publisher).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_are_never_more_than_the_total_and_come_back() {
        let mut shares = Shares::new(1000);
        shares.open(1, 700).unwrap();
        assert_eq!(shares.open(1, 1), Err(ShareError::Twice(1)));
        assert_eq!(shares.open(2, 301), Err(ShareError::Short { left: 300 }));
        shares.open(2, 300).unwrap();
        assert_eq!(shares.open(3, 1), Err(ShareError::Short { left: 0 }));
        // One that has none gives nothing back.
        shares.close(3);
        shares.close(1);
        shares.open(3, 700).unwrap();
    }

    #[test]
    fn there_is_a_limit_of_publishers() {
        let mut shares = Shares::new(u64::MAX);
        (0..PUBLISHERS_MAX as u64).for_each(|one| shares.open(one, 1).unwrap());
        assert_eq!(shares.open(u64::MAX, 1), Err(ShareError::Publishers));
    }
}
