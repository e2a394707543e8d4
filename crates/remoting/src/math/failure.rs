//! The failure of a library's function for which the program did not wait.

use super::table::{table, Function};

/// No code of CUDA's has this bit.
const MARK: i32 = 1 << 30;
/// Statuses are below this.
const STATUS_BITS: u32 = 13;

/// Which function failed, and its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The function's number in the table.
    pub function: u16,
    /// The library's status.
    pub status: i32,
}

impl Failure {
    /// Encodes it as a number that travels in place of a code of CUDA's.
    pub fn code(self) -> i32 {
        let status = self.status & ((1 << STATUS_BITS) - 1);
        MARK | i32::from(self.function) << STATUS_BITS | status
    }

    /// Decodes such a number; `None` for a code of CUDA's.
    pub fn of(code: i32) -> Option<Failure> {
        (code & MARK != 0 && code > 0).then_some(Failure {
            function: ((code & !MARK) >> STATUS_BITS) as u16,
            status: code & ((1 << STATUS_BITS) - 1),
        })
    }

    /// The function's line in the table.
    pub fn function(self) -> Option<&'static Function> {
        table().functions.get(usize::from(self.function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_travels_as_a_code() {
        let last = table().functions.len() as u16 - 1;
        for failure in
            [(0, 7), (last, 5003), (17, 15)].map(|(function, status)| Failure { function, status })
        {
            assert_eq!(Failure::of(failure.code()), Some(failure));
        }
        for code in [0, 1, 700, 999, -1] {
            assert_eq!(Failure::of(code), None);
        }
    }
}
