//! Injected failures.

use crate::abi::Code;
use std::collections::HashMap;

/// When a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Nth(u64),
    From(u64),
    Percent(u64),
}

/// One `CALL:WHEN:ERROR`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    call: String,
    when: When,
    failure: Failure,
}

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// With this code, once.
    Code(Code),
    /// As after a kernel that failed: from now on all calls in the current context do.
    Lost,
}

impl Fault {
    pub(crate) fn parse(text: &str) -> Result<Fault, String> {
        let bad = |what: &str| format!("'{text}': {what}; write CALL:WHEN:ERROR");
        let mut parts = text.trim().split(':');
        let (Some(call), Some(when), Some(error), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad("not three parts"));
        };
        let number = |text: &str| {
            text.parse::<u64>()
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| bad("not a count from 1"))
        };
        let when = match (when, when.strip_suffix('%'), when.strip_suffix('+')) {
            ("*", _, _) => When::From(1),
            (_, Some(percent), _) => When::Percent(number(percent)?),
            (_, _, Some(first)) => When::From(number(first)?),
            (nth, None, None) => When::Nth(number(nth)?),
        };
        let failure = match error {
            "lost" => Failure::Lost,
            name => Failure::Code(Code::named(name).ok_or_else(|| bad("an unknown error"))?),
        };
        Ok(Fault {
            call: call.to_owned(),
            when,
            failure,
        })
    }
}

/// Counts calls and decides which fail.
#[derive(Default)]
pub(crate) struct Faults {
    counts: HashMap<&'static str, u64>,
    random: Random,
}

impl Faults {
    /// Starts counting anew.
    pub(crate) fn reset(&mut self, seed: u64) {
        self.counts.clear();
        self.random = Random::new(seed);
    }

    /// Counts a call; gives the error that it is to fail with.
    pub(crate) fn on_call(&mut self, call: &'static str, faults: &[Fault]) -> Option<Failure> {
        let count = self.counts.entry(call).or_insert(0);
        *count += 1;
        let count = *count;
        let fault = faults
            .iter()
            .filter(|fault| fault.call == call)
            .find(|f| match f.when {
                When::Nth(n) => count == n,
                When::From(n) => count >= n,
                When::Percent(percent) => self.random.next() % 100 < percent,
            });
        fault.map(|fault| fault.failure)
    }

    pub(crate) fn count(&self, call: &str) -> u64 {
        self.counts.get(call).copied().unwrap_or(0)
    }
}

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled".
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

impl Default for Random {
    fn default() -> Self {
        Random::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(spec: &str, calls: usize) -> Vec<usize> {
        let rules = [Fault::parse(spec).unwrap()];
        let mut faults = Faults::default();
        (1..=calls)
            .filter(|_| faults.on_call("cuMemMap", &rules).is_some())
            .collect()
    }

    #[test]
    fn calls_fail_when_they_should() {
        assert_eq!(failing("cuMemMap:2:CUDA_ERROR_OUT_OF_MEMORY", 4), [2]);
        assert_eq!(failing("cuMemMap:3+:CUDA_ERROR_OUT_OF_MEMORY", 4), [3, 4]);
        assert_eq!(failing("cuMemMap:*:CUDA_ERROR_UNKNOWN", 2), [1, 2]);
        assert!(failing("cuMemUnmap:*:CUDA_ERROR_UNKNOWN", 3).is_empty());
        let some = failing("cuMemMap:30%:CUDA_ERROR_UNKNOWN", 1000).len();
        assert!((200..400).contains(&some), "{some} of 1000 at 30 %");
    }

    #[test]
    fn wrong_rules_are_refused() {
        for wrong in [
            "cuMemMap",
            "a:b",
            "a:0:CUDA_ERROR_UNKNOWN",
            "a:1:EPERM",
            "a:1:b:c",
            "a::b",
        ] {
            assert!(Fault::parse(wrong).is_err(), "{wrong}");
        }
    }
}
