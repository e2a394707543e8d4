//! The option `domain`: names of domains, and which domain to join.

use crate::status::{Code, Coded, Failure, Outcome};
use rgaps_cuda::{Device, Driver};
use rgaps_layout::Domain;

/// The domain that C asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// C passed NULL: the topic's domain.
    Topic,
    /// This domain, or an error.
    Exactly(Domain),
    /// "auto": this GPU (None: there is none) if it can be used, else the host. If the topic is in another domain, that one.
    Auto(Option<Domain>),
}

impl Wish {
    /// Parses the name of a domain; None means NULL.
    pub(crate) fn parse(text: Option<&str>) -> Outcome<Wish> {
        let Some(text) = text else {
            return Ok(Wish::Topic);
        };
        match text {
            "auto" => Ok(Wish::Auto(
                device(0).ok().map(|device| Domain::Cuda(device.uuid)),
            )),
            "cuda" => Ok(Wish::Exactly(Domain::Cuda(device(0)?.uuid))),
            _ => match text.strip_prefix("cuda:").map(str::parse::<usize>) {
                Some(Ok(ordinal)) => Ok(Wish::Exactly(Domain::Cuda(device(ordinal)?.uuid))),
                _ => text.parse().map(Wish::Exactly).map_err(|_| unknown(text)),
            },
        }
    }

    /// Calls `join` with the domain that C asks for. For "auto" it tries the GPU, then the host, then the topic's domain,
    /// while a domain is unavailable or is not the topic's.
    pub(crate) fn join<T, E: Coded>(
        self,
        join: impl Fn(Option<Domain>) -> Result<T, E>,
    ) -> Result<T, E> {
        let gpu = match self {
            Wish::Topic => return join(None),
            Wish::Exactly(domain) => return join(Some(domain)),
            Wish::Auto(gpu) => gpu,
        };
        for domain in [gpu, Some(Domain::Host)].into_iter().flatten() {
            match join(Some(domain)) {
                Err(error)
                    if matches!(error.code(), Code::DomainUnavailable | Code::DomainMismatch) => {}
                outcome => return outcome,
            }
        }
        join(None)
    }
}

fn unknown(text: &str) -> Failure {
    Failure::argument(format!(
        "'{text}' is not a domain: write 'host', 'cuda', 'cuda:0', 'cuda:GPU-<uuid>' or 'auto'"
    ))
}

/// A GPU by its position among those that this process sees.
fn device(ordinal: usize) -> Outcome<Device> {
    let unavailable = |reason: String| Failure::new(Code::DomainUnavailable, reason);
    let devices = Driver::load()
        .and_then(|driver| driver.devices())
        .map_err(|error| unavailable(format!("no GPU can be used: {error}")))?;
    let count = devices.len();
    let device = devices.into_iter().nth(ordinal).ok_or_else(|| {
        unavailable(format!(
            "there is no GPU {ordinal}: this process sees {count}"
        ))
    })?;
    device
        .require_pools()
        .map_err(|error| Failure::from(error.into_pool(device.uuid)))?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The error of a join that fails with this code.
    #[derive(Debug)]
    struct Refused(Code);

    impl std::fmt::Display for Refused {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:?}", self.0)
        }
    }

    impl Coded for Refused {
        fn code(&self) -> Code {
            self.0
        }
    }

    fn gpu() -> Domain {
        "cuda:GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
            .parse()
            .unwrap()
    }

    #[test]
    fn names_are_understood() {
        assert_eq!(Wish::parse(None).unwrap(), Wish::Topic);
        assert_eq!(
            Wish::parse(Some("host")).unwrap(),
            Wish::Exactly(Domain::Host)
        );
        assert_eq!(
            Wish::parse(Some(&gpu().to_string())).unwrap(),
            Wish::Exactly(gpu())
        );
        for wrong in ["", "gpu", "cuda:x", "HOST", "cuda:-1"] {
            let error = Wish::parse(Some(wrong)).unwrap_err();
            assert_eq!(error.code, Code::Argument, "{wrong}");
            assert!(error.message.contains("write 'host'"), "{}", error.message);
        }
    }

    #[test]
    fn auto_takes_what_there_is() {
        // The domain that a join gets and the number of tries. `topic`: the topic's domain, if it has one already.
        let joined = |wish: Wish, topic: Option<Domain>, usable: &[Domain]| {
            let asked = RefCell::new(0);
            let result = wish.join(|domain| {
                *asked.borrow_mut() += 1;
                match domain.or(topic).unwrap_or(Domain::Host) {
                    domain if !usable.contains(&domain) => Err(Refused(Code::DomainUnavailable)),
                    domain if topic.is_some_and(|t| t != domain) => {
                        Err(Refused(Code::DomainMismatch))
                    }
                    domain => Ok(domain),
                }
            });
            (result.ok(), asked.into_inner())
        };
        let (auto, all) = (Wish::Auto(Some(gpu())), [gpu(), Domain::Host]);
        assert_eq!(joined(auto, None, &all), (Some(gpu()), 1));
        assert_eq!(joined(auto, None, &[Domain::Host]), (Some(Domain::Host), 2));
        assert_eq!(
            joined(auto, Some(Domain::Host), &all),
            (Some(Domain::Host), 2)
        );
        assert_eq!(
            joined(Wish::Auto(None), Some(gpu()), &all),
            (Some(gpu()), 2)
        );
        assert_eq!(
            joined(Wish::Exactly(gpu()), None, &[Domain::Host]),
            (None, 1)
        );
        assert_eq!(joined(Wish::Topic, Some(gpu()), &all), (Some(gpu()), 1));
    }

    #[test]
    fn other_refusals_are_told_at_once() {
        let refused: Result<(), _> =
            Wish::Auto(Some(gpu())).join(|_| Err(Refused(Code::Permission)));
        assert_eq!(refused.unwrap_err().0, Code::Permission);
    }
}
