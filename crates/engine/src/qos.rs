//! Whether what a publisher offers is what a subscriber demands, and whether either makes sense.

use crate::refuse::{bad, refuse};
use rgaps_layout::{MAX_BLOCKS, MAX_DEPTH};
use rgaps_session::{Demand, History, Offer, Refusal, RefusalCode};

/// What of a demand an offer does not meet, and what either side could change.
pub(crate) fn mismatch(offer: &Offer, demand: &Demand) -> Option<String> {
    if demand.reliable && !offer.reliable {
        return Some(
            "the subscriber demands reliable delivery and the publisher offers best effort: \
             publish reliably, or subscribe with best effort"
                .to_owned(),
        );
    }
    if demand.transient_local && !offer.transient_local {
        return Some(
            "the subscriber demands the history (transient-local) and the publisher is volatile: \
             publish transient-local, or subscribe volatile"
                .to_owned(),
        );
    }
    let kept = offer.history.depth();
    (demand.depth > kept).then(|| {
        format!(
            "the subscriber demands a history of {} messages and the publisher keeps {kept}: \
             publish with more, or demand less",
            demand.depth
        )
    })
}

/// Refuses offers outside the limits.
pub(crate) fn check_offer(offer: &Offer) -> Result<(), Refusal> {
    let depth = offer.history.depth();
    if depth == 0 || offer.loans == 0 {
        return Err(bad(
            "a publisher keeps at least one message and has at least one loan",
        ));
    }
    if matches!(offer.history, History::KeepAll { bytes: 0, .. }) {
        return Err(bad(
            "a log of at most 0 bytes keeps nothing; give it a limit in bytes",
        ));
    }
    let blocks = u64::from(depth) + u64::from(offer.loans);
    if depth > MAX_DEPTH || blocks > u64::from(MAX_BLOCKS) {
        return Err(refuse(
            RefusalCode::LimitReached,
            format!(
                "a history of {depth} messages with {} loans is over the limits of {MAX_DEPTH} \
                 messages and {MAX_BLOCKS} of both together; ask for less",
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
                "no publisher keeps {} messages; the limit is {MAX_DEPTH}",
                demand.depth
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(depth: u32, reliable: bool, transient_local: bool) -> Offer {
        Offer {
            history: History::KeepLast(depth),
            reliable,
            transient_local,
            loans: 1,
        }
    }

    #[test]
    fn an_offer_meets_what_is_no_more_than_it() {
        for (r, t) in [(false, false), (false, true), (true, false), (true, true)] {
            for (reliable, transient_local) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                for depth in [0, 3, 4, 5] {
                    let demand = Demand {
                        reliable,
                        transient_local,
                        depth,
                    };
                    let fits = (r || !reliable) && (t || !transient_local) && depth <= 4;
                    assert_eq!(
                        mismatch(&offer(4, r, t), &demand).is_none(),
                        fits,
                        "{demand:?}"
                    );
                }
            }
        }
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
