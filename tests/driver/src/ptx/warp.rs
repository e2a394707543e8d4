//! What the threads of a warp do together.

use super::instruction::Instruction;
use crate::abi::Code;

/// What a lane gets, and whether it is from another lane in range.
pub(super) fn shuffled(
    of: &Instruction,
    lane: usize,
    values: &[u64],
    by: u64,
    clamp: u64,
) -> (u64, bool) {
    let (by, bound, segment) = (
        (by & 31) as usize,
        (clamp & 31) as usize,
        (clamp >> 8 & 31) as usize,
    );
    let most = lane & segment | bound & !segment;
    let (from, holds) = match () {
        () if of.has("up") => (lane.wrapping_sub(by), lane >= by && lane - by >= most),
        () if of.has("down") => (lane + by, lane + by <= most),
        () if of.has("bfly") => (lane ^ by, lane ^ by <= most),
        () => {
            let from = lane & segment | by & !segment;
            (from, from <= most)
        }
    };
    match values.get(from).filter(|_| holds) {
        Some(value) => (*value, true),
        None => (values[lane], false),
    }
}

pub(super) fn voted(of: &Instruction, values: &[u64], lanes: &[usize]) -> Result<u64, Code> {
    let holds = |lane: &&usize| values[**lane] & 1 != 0;
    Ok(match () {
        () if of.has("ballot") => lanes
            .iter()
            .filter(holds)
            .fold(0, |mask, lane| mask | 1 << lane),
        () if of.has("any") => lanes.iter().any(|lane| holds(&lane)).into(),
        () if of.has("all") => lanes.iter().all(|lane| holds(&lane)).into(),
        () => return Err(Code::NOT_SUPPORTED),
    })
}
