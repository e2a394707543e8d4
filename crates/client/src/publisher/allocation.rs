//! Allocates blocks for loans and replicas: from leased memory, else from memory that the publisher leases for the block.
//! Waits for memory up to `loan_timeout`.

use super::memory::{ArenaState, MappedArena, ReportedRange};
use super::PublisherCore;
use crate::client::broken;
use crate::pending::Deadline;
use crate::{ClientError, LoanError};
use rgaps_layout::{Domain, BLOCK_ALIGN};
use rgaps_pool::Tlsf;
use rgaps_session::RefusalCode;
use rgaps_topic::Sleeper;

/// How long a publisher that waits for memory sleeps before it asks the daemon again. It must ask, since no doorbell
/// rings when other publishers return memory.
const POOL_RETRY_NS: u64 = 20_000_000;
/// How long it sleeps instead while GPU work may still use its blocks. No doorbell rings when such work ends.
const GPU_LOOK_NS: u64 = 100_000;
/// A publisher that needs more memory leases an eighth of the bytes that it has. So at most an eighth lies idle, and the
/// number of leases grows with the logarithm of the bytes.
const GROWTH: u64 = 8;
/// A publisher that leases ahead expects subscribers to hold this many messages that have left the history.
const HELD_SAMPLES: u64 = 32;
/// A publisher leases ahead this many times the bytes of its history and held samples, if all messages are as long as the
/// one to allocate. So a publisher of small messages asks the daemon once, even if their sizes vary, and needs no daemon later.
const AHEAD_HISTORIES: u64 = 4;
/// The most bytes that a publisher leases ahead.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

/// Why no block is free.
enum Shortage {
    Memory,
    Blocks,
    Loans,
}

impl PublisherCore {
    /// Allocates a block of `bytes` bytes in an arena, and waits for it up to `loan_timeout`. Returns it with its offset. A
    /// block in the publisher's own pool counts as a loan.
    pub(super) fn block(
        &self,
        mapped: &MappedArena,
        bytes: u64,
        align: u64,
    ) -> Result<(rgaps_topic::Loan, u64), LoanError> {
        let mut deadline = None;
        let mut sleeper = None;
        let block = loop {
            let shortage = match self.try_block(mapped, bytes, align) {
                Ok(block) => break Ok(block),
                Err(shortage) => shortage,
            };
            let error = match self.relieve(mapped, &shortage, bytes, align) {
                Ok(()) => continue,
                Err(error) => error,
            };
            if !matches!(
                error,
                LoanError::PoolFull { .. } | LoanError::NoBlocks { .. }
            ) {
                break Err(error);
            }
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(self.qos.loan_timeout));
            let Some(left_ns) = deadline.left_ns() else {
                break Err(error);
            };
            // The first round only announces that this publisher waits. Each round takes the doorbell's count before the loop
            // tries again, and the next one sleeps on that count, so no wake-up in between is lost.
            match sleeper.take() {
                None => self.lock().writer.announce_wants_blocks(true),
                Some(sleeper) => {
                    let slice_ns = self.retry_ns();
                    let _: rgaps_sync::Wake = Sleeper::sleep(&sleeper, left_ns.min(slice_ns));
                }
            }
            sleeper = Some(self.sleeper()?);
        };
        if sleeper.is_some() {
            self.lock().writer.announce_wants_blocks(false);
        }
        block
    }

    /// A block of memory that is leased already. None: no such block is free.
    pub(super) fn block_at_hand(
        &self,
        mapped: &MappedArena,
        bytes: u64,
        align: u64,
    ) -> Result<Option<(rgaps_topic::Loan, u64)>, LoanError> {
        match self.try_block(mapped, bytes, align) {
            Ok(block) => Ok(Some(block)),
            Err(Shortage::Loans) => Err(self.too_many_loans()),
            Err(Shortage::Memory | Shortage::Blocks) => Ok(None),
        }
    }

    fn too_many_loans(&self) -> LoanError {
        LoanError::TooManyLoans {
            topic: self.topic_name.clone(),
            limit: self.qos.max_loans,
        }
    }

    /// How many nanoseconds to sleep before trying again.
    fn retry_ns(&self) -> u64 {
        let state = self.lock();
        match state.is_written() || state.writer.has_deferred_releases() {
            true => GPU_LOOK_NS,
            false => POOL_RETRY_NS,
        }
    }

    fn try_block(
        &self,
        mapped: &MappedArena,
        bytes: u64,
        align: u64,
    ) -> Result<(rgaps_topic::Loan, u64), Shortage> {
        let mut state = self.lock();
        let is_loan = mapped.arena == self.own.arena;
        if is_loan && state.loans >= self.qos.max_loans {
            return Err(Shortage::Loans);
        }
        if !state.unasked.is_empty() {
            state.ask_again(&self.own.mapping, &self.client);
        }
        state.collect();
        let mut allocation = state.memory.allocate(mapped.arena, bytes, align);
        if allocation.is_none() && state.writer.has_deferred_releases() {
            state.collect_deferred_releases();
            allocation = state.memory.allocate(mapped.arena, bytes, align);
        }
        let allocation = allocation.ok_or(Shortage::Memory)?;
        let ArenaState {
            writer,
            memory,
            loans,
            ..
        } = &mut *state;
        let block = match is_loan {
            true => writer.loan(allocation.offset, allocation.bytes),
            false => writer.loan_in(mapped.pool.pool as u16, allocation.offset, allocation.bytes),
        };
        match block {
            Ok(block) => {
                memory.allocated(block.block(), mapped.arena, allocation.handle);
                *loans += u32::from(is_loan);
                Ok((block, allocation.offset))
            }
            Err(rgaps_topic::LoanError::NoBlocks) => {
                memory.undo(mapped.arena, &allocation);
                state.collect_deferred_releases();
                Err(Shortage::Blocks)
            }
        }
    }

    /// Tries to end a shortage: removes messages that all subscribers have read, or leases memory. Ok: try to allocate again.
    fn relieve(
        &self,
        mapped: &MappedArena,
        shortage: &Shortage,
        bytes: u64,
        align: u64,
    ) -> Result<(), LoanError> {
        match shortage {
            Shortage::Loans => Err(self.too_many_loans()),
            Shortage::Blocks if self.evict_consumed() => Ok(()),
            Shortage::Blocks => Err(LoanError::NoBlocks {
                topic: self.topic_name.clone(),
                limit: self.lock().memory.blocks(),
            }),
            Shortage::Memory => match self.grow(mapped, bytes, align) {
                // Messages that every subscriber has read may leave the history early.
                Err(LoanError::PoolFull { .. }) if self.evict_consumed() => Ok(()),
                outcome => outcome,
            },
        }
    }

    fn evict_consumed(&self) -> bool {
        if self.qos.transient_local {
            return false;
        }
        let mut state = self.lock();
        let ArenaState { writer, memory, .. } = &mut *state;
        writer.evict_consumed(&mut |block| memory.free(block)) > 0
    }

    /// Leases memory for a block of `bytes` bytes, and more ahead if the daemon grants it.
    fn grow(&self, mapped: &MappedArena, bytes: u64, align: u64) -> Result<(), LoanError> {
        let full = |reason: String| LoanError::PoolFull {
            topic: self.topic_name.clone(),
            bytes,
            domain: match mapped.pool.domain {
                Domain::Host => "host",
                Domain::Cuda(_) => "cuda",
            },
            reason,
        };
        let needed = Tlsf::lease_bytes(bytes, align)
            .ok_or_else(|| full("no pool can be that large".to_owned()))?;
        let leased = self.lock().memory.leased_bytes(mapped.arena);
        let wanted = wanted_bytes(needed, leased, self.history_bytes(bytes));
        let mut outcome = self.lease(mapped, wanted);
        if wanted > needed && matches!(&outcome, Err(error) if is_full(error) || is_limit(error)) {
            outcome = self.lease(mapped, needed);
        }
        match outcome {
            Err(error) if is_full(&error) => Err(full(error.to_string())),
            outcome => Ok(outcome?),
        }
    }

    /// Bytes of a full history of messages of `bytes` bytes, of one loan, and of [`HELD_SAMPLES`] samples that subscribers hold.
    fn history_bytes(&self, bytes: u64) -> u64 {
        let block = bytes.max(1).next_multiple_of(BLOCK_ALIGN);
        let held = block.saturating_mul(HELD_SAMPLES);
        block
            .saturating_mul(u64::from(self.qos.history.depth()) + 1)
            .min(self.max_bytes.saturating_add(block))
            .saturating_add(held)
    }

    fn lease(&self, mapped: &MappedArena, bytes: u64) -> Result<(), ClientError> {
        let ranges = self
            .client
            .conductor
            .lease(self.member, mapped.pool.pool, bytes)?;
        let ranges = joined(ranges);
        // Without the lock: a network card takes long to register memory.
        let reported: Vec<_> = ranges
            .iter()
            .map(|range| ReportedRange::new(&mapped.mapping, *range))
            .collect();
        let mut state = self.lock();
        for (range, reported) in ranges.iter().zip(reported) {
            state
                .memory
                .add(mapped.arena, range, &mapped.mapping, reported)
                .map_err(|reason| broken(&reason))?;
        }
        Ok(())
    }
}

/// Bytes to lease for a block that needs `needed` bytes, by a publisher that leases `leased` bytes already and whose history
/// takes `history` bytes. A multiple of `needed`, since a rest that is too small for a block would lie idle.
fn wanted_bytes(needed: u64, leased: u64, history: u64) -> u64 {
    let ahead = history
        .saturating_mul(AHEAD_HISTORIES)
        .min(AHEAD_BYTES_MAX)
        .saturating_sub(leased);
    needed
        * (leased / GROWTH / needed)
            .max(ahead.div_ceil(needed))
            .max(1)
}

fn is_full(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.code == RefusalCode::PoolFull)
}

/// Whether the daemon refused because of the limit of this publisher.
fn is_limit(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.code == RefusalCode::LimitReached)
}

/// Merges ranges that touch. The result is sorted by offset.
fn joined(mut ranges: Vec<rgaps_session::Range>) -> Vec<rgaps_session::Range> {
    ranges.sort_unstable_by_key(|range| range.offset);
    ranges.dedup_by(|next, range| {
        let touches = range.offset + range.bytes == next.offset;
        range.bytes += if touches { next.bytes } else { 0 };
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_layout::GRANULE_BYTES;

    /// Allocates `blocks` blocks, leasing as a publisher with a history of 16 does. Returns the bytes leased and the number of
    /// leases. With `crowded` another publisher's memory follows each lease, so that no two leases touch.
    fn leases(bytes: u64, blocks: u32, crowded: bool) -> (u64, u32) {
        let (mut tlsf, mut leased, mut leases, mut end) = (Tlsf::new(), 0, 0, 0);
        for _ in 0..blocks {
            if tlsf.allocate(bytes, BLOCK_ALIGN).is_some() {
                continue;
            }
            let needed = Tlsf::lease_bytes(bytes, BLOCK_ALIGN).unwrap();
            let history = 17 * bytes.next_multiple_of(BLOCK_ALIGN);
            let wanted = wanted_bytes(needed, leased, history);
            tlsf.add_region(end, wanted).unwrap();
            (leased, leases) = (leased + wanted, leases + 1);
            end += wanted + if crowded { GRANULE_BYTES } else { 0 };
            assert!(tlsf.allocate(bytes, BLOCK_ALIGN).is_some());
        }
        (leased, leases)
    }

    #[test]
    fn at_most_an_eighth_of_what_is_leased_lies_idle() {
        for bytes in [24u64, 4096, 60_000, 100_000, 1 << 20, 6_220_800, 24_883_200] {
            for blocks in [1u32, 3, 17, 100, 1000] {
                for crowded in [false, true] {
                    // A block takes whole granules, or several small blocks share one.
                    let fit = (GRANULE_BYTES / bytes.next_multiple_of(BLOCK_ALIGN)).max(1);
                    let own = bytes.next_multiple_of(GRANULE_BYTES);
                    let needed = own * u64::from(blocks).div_ceil(fit);
                    let history = 17 * bytes.next_multiple_of(BLOCK_ALIGN);
                    let ahead = (AHEAD_HISTORIES * history).min(AHEAD_BYTES_MAX);
                    let (leased, count) = leases(bytes, blocks, crowded);
                    let what = format!("{blocks} of {bytes} bytes take {leased} in {count}");
                    assert!(
                        leased <= (needed + needed / GROWTH).max(ahead) + own,
                        "{what}"
                    );
                    assert!(count <= 8 + 9 * (blocks.ilog2() + 1), "{what}");
                    assert!(
                        count == 1 || blocks > 17 || ahead == AHEAD_BYTES_MAX,
                        "{what}"
                    );
                }
            }
        }
    }
}
