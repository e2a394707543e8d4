//! The choice of the back end that serves queue pairs, by what this host has.

use crate::mlx5;
use std::fmt;

/// The reader of the entries that kernels write. The same kernels run with each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    /// An mlx5 card, without a CPU in between. [`mlx5::refusal`] refuses it on every host.
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

/// The chosen back end, and why better ones were not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen back end.
    pub back_end: BackEnd,
    /// Back ends that were tried first, with the reasons against each.
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

/// Chooses the best back end of this host: an mlx5 card where that works, otherwise the proxy. It never chooses the model.
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
