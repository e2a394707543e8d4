//! Whether a publisher's offer meets a subscriber's demand, and whether either is valid.

use crate::refuse::{bad, refuse};
use rgaps_layout::{type_accepts, MAX_BLOCKS, MAX_DEPTH};
use rgaps_session::{Demand, History, Offer, Refusal, RefusalCode, MAX_PATH_BYTES};

/// Why a publisher of this offer and type and a subscriber do not match, and what either side could change.
/// `demand`: None for an observer, which reads whatever is offered.
pub(crate) fn mismatch(
    (offer, sent): (&Offer, &str),
    (demand, expected): (Option<&Demand>, &str),
) -> Option<String> {
    let quality = || quality_mismatch(offer, demand?);
    type_mismatch(sent, expected).or_else(quality)
}

fn type_mismatch(sent: &str, expected: &str) -> Option<String> {
    let sent = match (type_accepts(expected, sent), sent) {
        (true, _) => return None,
        (false, "") => "declares no type".to_owned(),
        (false, sent) => format!("sends '{sent}'"),
    };
    Some(format!(
        "the subscriber expects '{expected}', and the publisher {sent}: publish with that type, or subscribe with \
         the publisher's or with none"
    ))
}

fn quality_mismatch(offer: &Offer, demand: &Demand) -> Option<String> {
    if demand.reliable && !offer.reliable {
        return Some(
            "the subscriber requests reliable delivery, and the publisher offers best effort: \
             publish reliably, or subscribe with best effort"
                .to_owned(),
        );
    }
    if demand.transient_local && !offer.transient_local {
        return Some(
            "the subscriber requests the history (transient-local), and the publisher is volatile: \
             publish transient-local, or subscribe volatile"
                .to_owned(),
        );
    }
    None
}

/// Refuses offers outside the limits.
pub(crate) fn check_offer(offer: &Offer) -> Result<(), Refusal> {
    let depth = offer.history.depth();
    if depth == 0 || offer.loans == 0 {
        return Err(bad(
            "a publisher needs a history of at least one message, and at least one loan",
        ));
    }
    if matches!(offer.history, History::KeepAll { bytes: 0, .. }) {
        return Err(bad(
            "a history with a limit of 0 bytes keeps nothing; give a limit above 0",
        ));
    }
    let blocks = u64::from(depth) + u64::from(offer.loans);
    if depth > MAX_DEPTH || blocks > u64::from(MAX_BLOCKS) {
        return Err(refuse(
            RefusalCode::LimitReached,
            format!(
                "a history of {depth} messages with {} loans is over the limits of {MAX_DEPTH} \
                 messages and {MAX_BLOCKS} of both together; request less",
                offer.loans
            ),
        ));
    }
    Ok(())
}

/// Refuses demands outside the limits.
pub(crate) fn check_demand(demand: &Demand) -> Result<(), Refusal> {
    if demand.depth > MAX_DEPTH {
        return Err(refuse(
            RefusalCode::LimitReached,
            format!(
                "a depth of {} messages is over the limit of {MAX_DEPTH}; give a smaller depth, or \
                 none to queue all that publishers keep",
                demand.depth
            ),
        ));
    }
    Ok(())
}

/// Refuses a reported path, or reason, that cannot be shown.
pub(crate) fn check_path(text: &str) -> Result<(), Refusal> {
    if text.len() > MAX_PATH_BYTES || text.chars().any(char::is_control) {
        return Err(bad(format!(
            "a reported path must have at most {MAX_PATH_BYTES} bytes and no control characters"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rgaps_layout::MAX_TYPE_NAME;
    use rgaps_session::MAX_REASON_BYTES;

    fn offer(depth: u32, reliable: bool, transient_local: bool) -> Offer {
        Offer {
            history: History::KeepLast(depth),
            reliable,
            transient_local,
            loans: 1,
        }
    }

    /// What a pair comes to, by the rules as the documentation has them.
    fn matches((offer, sent): (&Offer, &str), (demand, expected): (Option<&Demand>, &str)) -> bool {
        let of_type = expected.is_empty() || expected == sent;
        let of_quality = |demand: &Demand| {
            offer.reliable >= demand.reliable && offer.transient_local >= demand.transient_local
        };
        of_type && demand.is_none_or(of_quality)
    }

    proptest! {
        #[test]
        fn a_pair_matches_by_its_own_type_and_quality_alone(
            (keeps, reliable, lasting) in (1u32..5, any::<bool>(), any::<bool>()),
            (depth, demands, late, observer) in (0u32..6, any::<bool>(), any::<bool>(), any::<bool>()),
            sent in prop::sample::select(vec!["", "image", "cloud"]),
            expected in prop::sample::select(vec!["", "image", "cloud"]),
        ) {
            let offer = offer(keeps, reliable, lasting);
            let demand = Demand { reliable: demands, transient_local: late, depth };
            let (offered, wanted) = ((&offer, sent), ((!observer).then_some(&demand), expected));
            let why = mismatch(offered, wanted);
            prop_assert_eq!(why.is_none(), matches(offered, wanted), "{:?}", why);
            if let Some(why) = why {
                prop_assert!(why.contains("publish") && why.contains("subscribe"), "{}", why);
            }
        }
    }

    #[test]
    fn the_longest_reason_fits() {
        let long = |c: char| c.to_string().repeat(MAX_TYPE_NAME);
        let why = type_mismatch(&long('a'), &long('b')).unwrap();
        // With who the other one is.
        assert!(why.len() + 100 < MAX_REASON_BYTES, "{}", why.len());
    }

    #[test]
    fn offers_have_limits() {
        check_offer(&offer(1, false, false)).unwrap();
        check_offer(&offer(MAX_DEPTH, false, false)).unwrap();
        for wrong in [
            offer(0, false, false),
            offer(MAX_DEPTH + 1, false, false),
            offer(u32::MAX, false, false),
            Offer {
                loans: 0,
                ..offer(1, false, false)
            },
            Offer {
                loans: u32::MAX,
                ..offer(u32::MAX, false, false)
            },
            Offer {
                history: History::KeepAll {
                    messages: 5,
                    bytes: 0,
                },
                ..offer(1, true, true)
            },
        ] {
            assert!(check_offer(&wrong).is_err(), "{wrong:?}");
        }
        assert!(check_demand(&Demand {
            reliable: true,
            transient_local: true,
            depth: MAX_DEPTH + 1
        })
        .is_err());
    }
}
