//! Which back end serves a queue pair, found out by trial.

use crate::mlx5;
use std::fmt;

/// What reads the entries that kernels write. Kernels are the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    /// A card of mlx5, with no CPU on the way. Refused everywhere for now: see [`mlx5::refusal`].
    Mlx5,
    /// A thread of the host that posts on a carrier: TCP, or RDMA verbs.
    Proxy,
    /// A software card inside this process, for tests and figures of what posting costs.
    Model,
}

impl fmt::Display for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackEnd::Mlx5 => "mlx5 direct",
            BackEnd::Proxy => "proxy",
            BackEnd::Model => "model",
        })
    }
}

/// A back end, and why none before it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What was taken.
    pub back_end: BackEnd,
    /// What was tried before, with the reasons against it.
    pub refused: Vec<(BackEnd, String)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.back_end)?;
        for (back_end, reason) in &self.refused {
            write!(f, "; not {back_end}: {reason}")?;
        }
        Ok(())
    }
}

/// The best back end of this host: a card's own where that works, else the proxy. The model is never chosen, only asked for.
pub fn choose() -> Choice {
    Choice {
        back_end: BackEnd::Proxy,
        refused: vec![(BackEnd::Mlx5, mlx5::refusal().to_string())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_says_why() {
        let choice = choose();
        assert_eq!(choice.back_end, BackEnd::Proxy);
        assert!(
            choice.to_string().starts_with("proxy; not mlx5 direct: "),
            "{choice}"
        );
    }
}
