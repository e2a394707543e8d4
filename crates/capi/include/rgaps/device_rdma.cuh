/*
 * RDMA that kernels post: queue pairs in memory that a kernel writes, with no CPU in the kernel's way.
 *
 * The host makes a queue pair (crate rgaps-gpu-verbs) and passes an rgaps_queue_pair_t to its kernels. Then:
 *
 *     using namespace rgaps::device;
 *     __global__ void send(rgaps_queue_pair_t pair, rdma::Buffer from, rdma::Buffer to, uint32_t bytes, uint64_t ticks_max) {
 *         Lane lane;
 *         rdma::QueuePair queue;
 *         queue.attach(lane, pair);
 *         rdma::Ticket ticket;
 *         rdma::Status status = queue.write_immediate(lane, from, to, bytes, 7, &ticket);
 *         if (status == rdma::Status::ok) status = queue.wait(lane, &ticket, ticks_max);
 *         ... failed: ticket.syndrome says why; timed_out: the bytes may still be read ...
 *         queue.detach(lane);
 *     }
 *
 * Entries     are those of mlx5 network cards, bit for bit: 64 bytes each, a doorbell record, a doorbell. A software card and a CPU
 *             proxy read the same entries, so kernels are the same for all back ends.
 * Groups      as in rgaps/device.cuh: all threads of a group call, the thread of rank 0 does it, all get the result.
 * Sharing     QueuePair belongs to one group at a time and keeps its indices in registers between attach() and detach().
 *             SharedQueuePair is used by any number of groups of a GPU at once; no thread waits for another.
 * Full        queues are `back_pressured`: nothing was posted, nothing is lost; what was deferred has been rung.
 * Errors      are values. After the first failed work the queue pair has failed: every ticket says its own outcome, and
 *             posting returns `failed`. Waits end after a number of ticks.
 * Source      bytes are the card's until their ticket is `ok` or `failed`. `timed_out` gives nothing back.
 * Quiet       works have no completion of their own; a later one, or flush(), tells. The last of each quarter of a queue is
 *             never quiet, so a full queue always gets room again.
 *
 * docs/decisions/0048-gpu-verbs.md has the reasons, and what was not proven: no ConnectX has ever read these entries.
 */
#ifndef RGAPS_DEVICE_RDMA_CUH
#define RGAPS_DEVICE_RDMA_CUH

#include "device.cuh"
#include "device_rdma_layout.h"

namespace rgaps {
namespace device {
namespace rdma {

/* What a call comes to. Numbers are those of rgaps::device::Status where it has the same. */
enum class Status : int32_t {
    ok = 0,
    /* The wait took all its ticks. */
    timed_out = -2,
    /* There is no immediate. */
    empty = -3,
    /* More bytes than a work can have. */
    too_large = -4,
    /* The queue is full. */
    back_pressured = -8,
    /* write_prepared() without prepare(), or after another work. */
    not_prepared = -9,
    /* The work, or one before it, failed. */
    failed = -32,
    /* The back end cannot do this work. */
    unsupported = -33,
    /* The work is not done yet. */
    pending = -34
};

/* How a work is posted; add them up. */
constexpr uint32_t at_once = 0;
/* No doorbell: the next work without this flag, ring(), wait() and flush() ring for all. */
constexpr uint32_t deferred = 1;
/* No completion of its own. Wait for it by flush(). */
constexpr uint32_t quiet = 2;

/* Memory by its address and the key under which a card knows it. */
struct Buffer {
    uint64_t address;
    uint32_t key;
    RGAPS_DEVICE_FN Buffer at(uint64_t offset) const { return Buffer{address + offset, key}; }
};

/* One work, until its outcome is known. */
struct Ticket {
    /* Works of the queue up to and with this one. */
    uint64_t end = 0;
    /* Of a work that failed: RGAPS_RDMA_SYNDROME_..., and what the card's maker adds. */
    uint32_t syndrome = 0;
    uint32_t vendor = 0;
};

/* A peer's write with an immediate, whose bytes are there. */
struct Received {
    uint32_t immediate = 0;
    uint32_t bytes = 0;
};

/* Accesses that rgaps/device.cuh has not. */
namespace access {
#if defined(RGAPS_DEVICE_RDMA_ACCESS)
#include RGAPS_DEVICE_RDMA_ACCESS
#elif defined(__CUDACC__)
RGAPS_DEVICE_FN uint64_t compare_exchange(uint64_t *at, uint64_t expected, uint64_t desired) {
    uint64_t before;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(memory::global(at)), "l"(expected), "l"(desired)
                 : "memory");
    return before;
}
RGAPS_DEVICE_FN void store_half(uint32_t *at, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(__cvta_generic_to_global(at)), "r"(value) : "memory");
}
/* A doorbell: a register of a card, or a word that a CPU reads. Neither merged nor split. */
RGAPS_DEVICE_FN void ring(uint64_t *at, uint64_t value) {
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" : : "l"(memory::global(at)), "l"(value) : "memory");
}
#else
inline uint64_t compare_exchange(uint64_t *at, uint64_t expected, uint64_t desired) {
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
inline void store_half(uint32_t *at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
inline void ring(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
#endif
}  // namespace access

/* The bytes that cards read and write, most significant first; as words of a host whose least significant byte is first. */
namespace wire {

constexpr uint32_t nop = 0x00, rdma_write = 0x08, rdma_write_immediate = 0x09, rdma_read = 0x10, compare_swap = 0x11,
                   fetch_add = 0x12;
/* Completion wanted. */
constexpr uint32_t completes = 0x08;
constexpr uint32_t is_inline = 0x80000000u;
constexpr uint32_t completed = 0, received_immediate = 1, request_failed = 13, receive_failed = 14, invalid = 15;

RGAPS_DEVICE_FN uint32_t swapped(uint32_t value) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
}
/* Two fields, one behind the other. */
RGAPS_DEVICE_FN uint64_t pair(uint32_t first, uint32_t second) {
    return uint64_t(swapped(second)) << 32 | swapped(first);
}
RGAPS_DEVICE_FN uint64_t wide(uint64_t value) { return pair(uint32_t(value >> 32), uint32_t(value)); }

/* An entry of a send queue: `count` words of 8 bytes. */
struct Entry {
    uint64_t words[8];
    uint32_t count;
};

RGAPS_DEVICE_FN uint64_t head(uint64_t index, uint32_t opcode, uint32_t number, uint32_t count) {
    return pair(uint32_t(index & 0xffff) << 8 | opcode, number << 8 | count / 2);
}
RGAPS_DEVICE_FN uint64_t control(bool signals, uint32_t immediate) { return pair(signals ? completes : 0, immediate); }

RGAPS_DEVICE_FN Entry bare(uint64_t index, uint32_t number) {
    return Entry{{head(index, nop, number, 2), control(true, 0)}, 2};
}
/* A write, with or without immediate, or a read. */
RGAPS_DEVICE_FN Entry move(uint64_t index, uint32_t opcode, uint32_t number, bool signals, uint32_t immediate, const Buffer &local,
                           const Buffer &remote, uint32_t bytes) {
    return Entry{{head(index, opcode, number, 6), control(signals, immediate), wide(remote.address), pair(remote.key, 0),
                  pair(bytes, local.key), wide(local.address)},
                 6};
}
/* A write of 8 bytes that the entry itself has. */
RGAPS_DEVICE_FN Entry word(uint64_t index, uint32_t number, bool signals, uint64_t value, const Buffer &remote) {
    return Entry{{head(index, rdma_write, number, 6), control(signals, 0), wide(remote.address), pair(remote.key, 0),
                  value << 32 | swapped(is_inline | 8), value >> 32},
                 6};
}
RGAPS_DEVICE_FN Entry atomic(uint64_t index, uint32_t opcode, uint32_t number, bool signals, uint64_t operand, uint64_t compare,
                             const Buffer &local, const Buffer &remote) {
    return Entry{{head(index, opcode, number, 8), control(signals, 0), wide(remote.address), pair(remote.key, 0), wide(operand),
                  wide(compare), pair(8, local.key), wide(local.address)},
                 8};
}
RGAPS_DEVICE_FN uint32_t record(uint64_t next) { return swapped(uint32_t(next & 0xffff)); }
RGAPS_DEVICE_FN uint64_t doorbell(uint64_t next, uint32_t number) { return pair(uint32_t(next & 0xffff) << 8, number << 8); }

}  // namespace wire

namespace detail {

using rgaps::device::detail::broadcast;

/* Completions that one call takes. */
constexpr uint32_t completions_max = 32;
/* Reservations that a thread may lose to others before it says that the queue is full. */
constexpr uint32_t reservations_max = 64;

/* A queue pair's words at their addresses. */
struct Words {
    rgaps_queue_pair_t pair;

    RGAPS_DEVICE_FN static uint64_t *at(uint64_t address) {
        return reinterpret_cast<uint64_t *>(static_cast<uintptr_t>(address));
    }
    RGAPS_DEVICE_FN static uint32_t *half(uint64_t address) {
        return reinterpret_cast<uint32_t *>(static_cast<uintptr_t>(address));
    }
    RGAPS_DEVICE_FN uint64_t size() const { return uint64_t(1) << pair.sends_log2; }
    RGAPS_DEVICE_FN uint64_t *entry(uint64_t index) const {
        return at(pair.sends + (index & (size() - 1)) * RGAPS_RDMA_ENTRY_BYTES);
    }
    RGAPS_DEVICE_FN uint64_t *state(uint64_t field) const { return at(pair.state + field); }
    RGAPS_DEVICE_FN uint64_t *filled(uint64_t index) const {
        return state(RGAPS_RDMA_STATE_FILLED + (index & (size() - 1)) * sizeof(uint64_t));
    }
    /* Whether the last entry of each quarter. */
    RGAPS_DEVICE_FN bool ends_quarter(uint64_t index) const { return ((index + 1) & (size() / 4 - 1)) == 0; }

    RGAPS_DEVICE_FN void put(uint64_t index, const wire::Entry &entry) const {
        uint64_t *const to = this->entry(index);
#if defined(__CUDACC__)
#pragma unroll
#endif
        for (uint32_t word = 0; word < 8; ++word)
            if (word < entry.count) memory::store(to + word, entry.words[word]);
    }

    /* Tells the card of all entries before `next`, which this thread wrote or has seen written. */
    RGAPS_DEVICE_FN void ring(uint64_t next) const {
        /* SYNC POINT entries: the card reads entries behind the doorbell record, and that behind the doorbell. */
        memory::fence_release();
        access::store_half(half(pair.record + RGAPS_RDMA_RECORD_SEND), wire::record(next));
        memory::fence_release();
        access::ring(at(pair.doorbell), wire::doorbell(next, pair.number));
    }
};

/* A completion queue: where its next entry is, and what that says. */
struct Completions {
    uint64_t queue, record;
    uint32_t size_log2;

    RGAPS_DEVICE_FN uint64_t *entry(uint64_t index) const {
        return Words::at(queue + (index & ((uint64_t(1) << size_log2) - 1)) * RGAPS_RDMA_ENTRY_BYTES);
    }
    /* The last word of the entry, if the card has written it in this round. */
    RGAPS_DEVICE_FN bool is_there(uint64_t index, uint64_t *last) const {
        *last = memory::load(entry(index) + 7);
        const uint32_t owned = uint32_t(*last >> 56);
        if (owned >> 4 == wire::invalid || (owned & 1) != (index >> size_log2 & 1)) return false;
        /* SYNC POINT completion: all else of the entry, and what the work did, is there. */
        memory::fence_acquire();
        return true;
    }
    RGAPS_DEVICE_FN static uint32_t opcode(uint64_t last) { return uint32_t(last >> 60); }
    RGAPS_DEVICE_FN static uint32_t counter(uint64_t last) { return wire::swapped(uint32_t(last >> 32)) >> 16; }
    RGAPS_DEVICE_FN void taken(uint64_t index) const {
        access::store_half(Words::half(record), wire::swapped(uint32_t(index & 0xffffff)));
    }
};

/* The first failure: the index of its work, and why. */
RGAPS_DEVICE_FN uint64_t failure_word(uint64_t index, uint32_t vendor, uint32_t syndrome) {
    return index << 16 | uint64_t(vendor & 0xff) << 8 | (syndrome & 0xff);
}

/* What the thread of rank 0 tells the others. */
struct Result {
    Status status;
    uint32_t first, second;
    uint64_t end;
};

/* What is known of a send queue. Those of a QueuePair are its members, those of a SharedQueuePair words of memory. */
struct Progress {
    uint64_t next = 0, completed = 0, taken = 0, failure = 0;
};

RGAPS_DEVICE_FN Status outcome(const Progress &progress, Ticket *ticket) {
    const uint64_t index = progress.failure >> 16;
    if (progress.failure && ticket->end > index) {
        /* Works behind the failed one are flushed, which is known before their completions come. */
        const bool is_first = ticket->end == index + 1;
        if (!is_first && progress.completed < ticket->end) return Status::pending;
        ticket->syndrome = is_first ? uint32_t(progress.failure & 0xff) : RGAPS_RDMA_SYNDROME_FLUSHED;
        ticket->vendor = is_first ? uint32_t(progress.failure >> 8 & 0xff) : 0;
        return Status::failed;
    }
    return progress.completed >= ticket->end ? Status::ok : Status::pending;
}

}  // namespace detail
/* The sending half of a queue pair. */
template <bool is_shared>
class Queue {
public:
    /* Goes on where an earlier kernel ended. */
    template <class Group>
    RGAPS_DEVICE_FN void attach(const Group &group, const rgaps_queue_pair_t &pair) {
        words_ = detail::Words{pair};
        completions_ = detail::Completions{pair.completions, pair.completion_record, pair.completions_log2};
        if (!is_shared && group.thread_rank() == 0) {
            mine_.next = rung_ = memory::load(words_.state(RGAPS_RDMA_STATE_RESERVED));
            mine_.completed = memory::load(words_.state(RGAPS_RDMA_STATE_COMPLETED));
            mine_.taken = memory::load(words_.state(RGAPS_RDMA_STATE_TAKEN));
            mine_.failure = memory::load(words_.state(RGAPS_RDMA_STATE_FAILURE));
        }
        is_prepared_ = false;
        group.sync();
    }

    /* Before the kernel ends. Works go on; another kernel may attach and wait for them. */
    template <class Group>
    RGAPS_DEVICE_FN void detach(const Group &group) {
        group.sync();
        if (group.thread_rank() != 0) return;
        ring_pending();
        if (is_shared) return;
        memory::store(words_.state(RGAPS_RDMA_STATE_RESERVED), mine_.next);
        memory::store(words_.state(RGAPS_RDMA_STATE_READY), mine_.next);
        memory::store(words_.state(RGAPS_RDMA_STATE_COMPLETED), mine_.completed);
        memory::store(words_.state(RGAPS_RDMA_STATE_TAKEN), mine_.taken);
        memory::store(words_.state(RGAPS_RDMA_STATE_FAILURE), mine_.failure);
    }

    /* Writes `bytes` bytes into the peer's memory. What the group wrote before is what the peer gets. */
    template <class Group>
    RGAPS_DEVICE_FN Status write(const Group &group, Buffer local, Buffer remote, uint32_t bytes, Ticket *ticket,
                                 uint32_t flags = at_once) {
        return move(group, wire::rdma_write, 0, local, remote, bytes, ticket, flags);
    }

    /* The same, and the peer's receive queue is told the immediate when the bytes are there. */
    template <class Group>
    RGAPS_DEVICE_FN Status write_immediate(const Group &group, Buffer local, Buffer remote, uint32_t bytes, uint32_t immediate,
                                           Ticket *ticket, uint32_t flags = at_once) {
        return move(group, wire::rdma_write_immediate, immediate, local, remote, bytes, ticket, flags);
    }

    /* Reads `bytes` bytes of the peer's memory; they are there when the ticket is `ok`. */
    template <class Group>
    RGAPS_DEVICE_FN Status read(const Group &group, Buffer local, Buffer remote, uint32_t bytes, Ticket *ticket,
                                uint32_t flags = at_once) {
        return move(group, wire::rdma_read, 0, local, remote, bytes, ticket, flags);
    }

    /* Writes 8 bytes that need no memory of this side: a flag, a counter. */
    template <class Group>
    RGAPS_DEVICE_FN Status write_word(const Group &group, uint64_t value, Buffer remote, Ticket *ticket, uint32_t flags = at_once) {
        const uint32_t number = words_.pair.number;
        return post(group, ticket, flags, RGAPS_RDMA_CAN_WRITE, [=](uint64_t index, bool signals) {
            return wire::word(index, number, signals, value, remote);
        });
    }

    /* Adds to a word of the peer's memory; `local` gets what was there before. */
    template <class Group>
    RGAPS_DEVICE_FN Status fetch_add(const Group &group, Buffer local, Buffer remote, uint64_t more, Ticket *ticket,
                                     uint32_t flags = at_once) {
        return change(group, wire::fetch_add, more, 0, local, remote, ticket, flags);
    }

    /* Replaces a word of the peer's memory if it is `expected`; `local` gets what was there before. */
    template <class Group>
    RGAPS_DEVICE_FN Status compare_swap(const Group &group, Buffer local, Buffer remote, uint64_t expected, uint64_t desired,
                                        Ticket *ticket, uint32_t flags = at_once) {
        return change(group, wire::compare_swap, desired, expected, local, remote, ticket, flags);
    }

    /* Writes what all further writes have in common into every entry, once: keys, length and flags. The queue must be idle. */
    template <class Group>
    RGAPS_DEVICE_FN Status prepare(const Group &group, uint32_t local_key, uint32_t remote_key, uint32_t bytes, uint32_t flags = at_once) {
        static_assert(!is_shared, "the entries of a shared queue belong to nobody for long");
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) {
            drain();
            if (bytes > RGAPS_RDMA_BYTES_MAX) result.status = Status::too_large;
            else if (mine_.completed != mine_.next) result.status = Status::back_pressured;
            else is_prepared_ = true;
            for (uint64_t index = 0; result.status == Status::ok && index < words_.size(); ++index) {
                const bool signals = !(flags & quiet) || words_.ends_quarter(index);
                uint64_t *const entry = words_.entry(index);
                memory::store(entry + 1, wire::control(signals, 0));
                memory::store(entry + 3, wire::pair(remote_key, 0));
                memory::store(entry + 4, wire::pair(bytes, local_key));
            }
        }
        return broadcast(group, result).status;
    }

    /* A write of which only the addresses are new. `flags` defers it or not; whether it is quiet, prepare() has said. */
    template <class Group>
    RGAPS_DEVICE_FN Status write_prepared(const Group &group, uint64_t local, uint64_t remote, Ticket *ticket, uint32_t flags = at_once) {
        group.sync();
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) {
            result.status = is_prepared_ ? admit(&result.end) : Status::not_prepared;
            if (result.status == Status::ok) {
                uint64_t *const entry = words_.entry(result.end);
                memory::store(entry, wire::head(result.end, wire::rdma_write, words_.pair.number, 6));
                memory::store(entry + 2, wire::wide(remote));
                memory::store(entry + 5, wire::wide(local));
                submit(result.end++, flags);
            }
        }
        return give(broadcast(group, result), ticket);
    }

    /* Rings the doorbell for all that was deferred. */
    template <class Group>
    RGAPS_DEVICE_FN void ring(const Group &group) {
        group.sync();
        if (group.thread_rank() == 0) ring_pending();
    }

    /* How a work ended, at once: ok, failed or pending. */
    template <class Group>
    RGAPS_DEVICE_FN Status poll(const Group &group, Ticket *ticket) {
        detail::Result result{Status::pending, 0, 0, 0};
        if (group.thread_rank() == 0) result = look(*ticket);
        return report(broadcast(group, result), ticket);
    }

    /* Waits for it for at most `ticks_max` ticks. */
    template <class Group>
    RGAPS_DEVICE_FN Status wait(const Group &group, Ticket *ticket, uint64_t ticks_max) {
        detail::Result result{Status::pending, 0, 0, 0};
        if (group.thread_rank() == 0) result = wait_for(*ticket, ticks_max);
        return report(broadcast(group, result), ticket);
    }

    /* Rings for all that was posted before, and waits until all of it is done. `failed`: a work has failed, ever. */
    template <class Group>
    RGAPS_DEVICE_FN Status flush(const Group &group, uint64_t ticks_max) {
        group.sync();
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) {
            const uint64_t start = memory::ticks();
            const uint32_t number = words_.pair.number;
            const auto nothing = [=](uint64_t index, bool) { return wire::bare(index, number); };
            Ticket last;
            while ((result.status = one(&last.end, at_once, nothing)) == Status::back_pressured) {
                if (memory::ticks() - start >= ticks_max) break;
                memory::pause();
            }
            if (result.status == Status::back_pressured) result.status = Status::timed_out;
            if (result.status == Status::ok) {
                const uint64_t spent = memory::ticks() - start;
                result = wait_for(last, ticks_max > spent ? ticks_max - spent : 0);
            }
        }
        return broadcast(group, result).status;
    }

private:
    template <class Group>
    RGAPS_DEVICE_FN Status move(const Group &group, uint32_t opcode, uint32_t immediate, const Buffer &local, const Buffer &remote,
                                uint32_t bytes, Ticket *ticket, uint32_t flags) {
        if (bytes > RGAPS_RDMA_BYTES_MAX) return Status::too_large;
        const uint32_t number = words_.pair.number;
        const uint32_t can = opcode == wire::rdma_read ? RGAPS_RDMA_CAN_READ : RGAPS_RDMA_CAN_WRITE;
        return post(group, ticket, flags, can, [=](uint64_t index, bool signals) {
            return wire::move(index, opcode, number, signals, immediate, local, remote, bytes);
        });
    }

    template <class Group>
    RGAPS_DEVICE_FN Status change(const Group &group, uint32_t opcode, uint64_t operand, uint64_t compare, const Buffer &local,
                                  const Buffer &remote, Ticket *ticket, uint32_t flags) {
        const uint32_t number = words_.pair.number;
        return post(group, ticket, flags, RGAPS_RDMA_CAN_CHANGE, [=](uint64_t index, bool signals) {
            return wire::atomic(index, opcode, number, signals, operand, compare, local, remote);
        });
    }

    template <class Group, class Encode>
    RGAPS_DEVICE_FN Status post(const Group &group, Ticket *ticket, uint32_t flags, uint32_t can, const Encode &encode) {
        if (!(words_.pair.abilities & can)) return Status::unsupported;
        /* What all threads of the group wrote comes before the entry. */
        group.sync();
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.status = one(&result.end, flags, encode);
        return give(broadcast(group, result), ticket);
    }

    RGAPS_DEVICE_FN static Status give(const detail::Result &result, Ticket *ticket) {
        if (result.status == Status::ok) *ticket = Ticket{result.end, 0, 0};
        return result.status;
    }

    RGAPS_DEVICE_FN static Status report(const detail::Result &result, Ticket *ticket) {
        ticket->syndrome = result.first;
        ticket->vendor = result.second;
        return result.status;
    }

    template <class Encode>
    RGAPS_DEVICE_FN Status one(uint64_t *end, uint32_t flags, const Encode &encode) {
        uint64_t index;
        const Status status = admit(&index);
        if (status != Status::ok) return status;
        is_prepared_ = false;
        const bool signals = !(flags & quiet) || words_.ends_quarter(index);
        words_.put(index, encode(index, signals));
        submit(index, flags);
        *end = index + 1;
        return Status::ok;
    }

    /* The index of an entry that is this thread's to write, if there is one. */
    RGAPS_DEVICE_FN Status admit(uint64_t *index) {
        if (failure()) return Status::failed;
        if (reserve(index)) return Status::ok;
        drain();
        if (failure()) return Status::failed;
        if (reserve(index)) return Status::ok;
        ring_pending();
        return Status::back_pressured;
    }

    RGAPS_DEVICE_FN uint64_t failure() const {
        return is_shared ? memory::load(words_.state(RGAPS_RDMA_STATE_FAILURE)) : mine_.failure;
    }

    RGAPS_DEVICE_FN bool reserve(uint64_t *index) {
        if (!is_shared) {
            if (mine_.next - mine_.completed >= words_.size()) return false;
            *index = mine_.next++;
            return true;
        }
        uint64_t *const reserved = words_.state(RGAPS_RDMA_STATE_RESERVED);
        uint64_t next = memory::load(reserved);
        RGAPS_DEVICE_ROLLED
        for (uint32_t tried = 0; tried < detail::reservations_max; ++tried) {
            /* SYNC POINT completed: pairs with the store in drain_shared. The card has read the entry that is written next. */
            const uint64_t completed = memory::load_acquire(words_.state(RGAPS_RDMA_STATE_COMPLETED));
            if (static_cast<int64_t>(next - completed) >= static_cast<int64_t>(words_.size())) return false;
            const uint64_t seen = access::compare_exchange(reserved, next, next + 1);
            if (seen == next) {
                *index = next;
                return true;
            }
            next = seen;
        }
        return false;
    }

    RGAPS_DEVICE_FN void submit(uint64_t index, uint32_t flags) {
        if (is_shared) {
            /* SYNC POINT filled: pairs with the loads in ring_shared. */
            memory::store_release(words_.filled(index), index + 1);
        }
        if (!(flags & deferred)) ring_pending();
    }

    RGAPS_DEVICE_FN void ring_pending() {
        if (is_shared) {
            ring_shared();
        } else if (rung_ != mine_.next) {
            words_.ring(mine_.next);
            rung_ = mine_.next;
        }
    }

    /* Rings for the entries that are filled without a gap. One thread does, the others leave it to that one, which looks again
     * when it has let go; so nobody waits and no entry stays behind. */
    RGAPS_DEVICE_FN void ring_shared() {
        uint64_t *const ringer = words_.state(RGAPS_RDMA_STATE_RINGER);
        uint64_t ready;
        RGAPS_DEVICE_ROLLED
        do {
            /* SYNC POINT left: between what I filled and my look at the ringer; pairs with the other one of these fences. */
            memory::fence_all();
            if (memory::fetch_or(ringer, 1)) return;
            /* SYNC POINT ringer: pairs with the release of the last one. */
            memory::fence_acquire();
            const uint64_t first = ready = memory::load(words_.state(RGAPS_RDMA_STATE_READY));
            RGAPS_DEVICE_ROLLED
            while (ready - first < words_.size() && memory::load_acquire(words_.filled(ready)) == ready + 1) ++ready;
            if (ready != first) {
                memory::store(words_.state(RGAPS_RDMA_STATE_READY), ready);
                words_.ring(ready);
            }
            memory::store_release(ringer, 0);
            /* SYNC POINT left. */
            memory::fence_all();
        } while (memory::load(words_.filled(ready)) == ready + 1);
    }

    RGAPS_DEVICE_FN void drain() {
        if (is_shared) {
            drain_shared();
        } else {
            take(&mine_);
        }
    }

    /* One thread takes completions, the others go on with what it has told. */
    RGAPS_DEVICE_FN void drain_shared() {
        uint64_t *const drainer = words_.state(RGAPS_RDMA_STATE_DRAINER);
        if (memory::fetch_or(drainer, 1)) return;
        /* SYNC POINT drainer: pairs with the release of the last one. */
        memory::fence_acquire();
        detail::Progress all;
        all.completed = memory::load(words_.state(RGAPS_RDMA_STATE_COMPLETED));
        all.taken = memory::load(words_.state(RGAPS_RDMA_STATE_TAKEN));
        all.failure = memory::load(words_.state(RGAPS_RDMA_STATE_FAILURE));
        if (take(&all)) {
            memory::store(words_.state(RGAPS_RDMA_STATE_TAKEN), all.taken);
            memory::store(words_.state(RGAPS_RDMA_STATE_FAILURE), all.failure);
            /* SYNC POINT completed: pairs with the loads in reserve and progress. */
            memory::store_release(words_.state(RGAPS_RDMA_STATE_COMPLETED), all.completed);
        }
        memory::store_release(drainer, 0);
    }

    /* Takes completions that are there. Whether there were any. */
    RGAPS_DEVICE_FN bool take(detail::Progress *progress) const {
        const uint64_t taken = progress->taken;
        uint64_t last;
        RGAPS_DEVICE_ROLLED
        for (uint32_t count = 0; count < detail::completions_max && completions_.is_there(progress->taken, &last); ++count) {
            if (is_shared) progress->next = memory::load(words_.state(RGAPS_RDMA_STATE_RESERVED));
            const uint64_t index = progress->completed + ((detail::Completions::counter(last) - progress->completed) & 0xffff);
            const uint32_t opcode = detail::Completions::opcode(last);
            if (index >= progress->next || (opcode != wire::completed && opcode != wire::request_failed)) {
                /* Nothing that this card says is true. */
                if (!progress->failure) progress->failure = detail::failure_word(progress->completed, 0, RGAPS_RDMA_SYNDROME_CORRUPT);
                progress->completed = progress->next;
                return true;
            }
            if (opcode == wire::request_failed && !progress->failure) {
                const uint64_t why = memory::load(completions_.entry(progress->taken) + 6);
                progress->failure = detail::failure_word(index, uint32_t(why >> 48), uint32_t(why >> 56));
            }
            progress->completed = index + 1;
            ++progress->taken;
        }
        if (progress->taken == taken) return false;
        completions_.taken(progress->taken);
        return true;
    }

    RGAPS_DEVICE_FN detail::Progress progress() const {
        if (!is_shared) return mine_;
        detail::Progress all;
        /* SYNC POINT completed: pairs with the store in drain_shared. */
        all.completed = memory::load_acquire(words_.state(RGAPS_RDMA_STATE_COMPLETED));
        all.failure = memory::load(words_.state(RGAPS_RDMA_STATE_FAILURE));
        return all;
    }

    RGAPS_DEVICE_FN detail::Result look(Ticket ticket) {
        Status status = detail::outcome(progress(), &ticket);
        if (status == Status::pending) {
            drain();
            status = detail::outcome(progress(), &ticket);
        }
        return detail::Result{status, ticket.syndrome, ticket.vendor, ticket.end};
    }

    RGAPS_DEVICE_FN detail::Result wait_for(const Ticket &ticket, uint64_t ticks_max) {
        ring_pending();
        const uint64_t start = memory::ticks();
        RGAPS_DEVICE_ROLLED
        for (;;) {
            detail::Result result = look(ticket);
            if (result.status != Status::pending) return result;
            if (memory::ticks() - start >= ticks_max) {
                result.status = Status::timed_out;
                return result;
            }
            memory::pause();
        }
    }

    detail::Words words_{};
    detail::Completions completions_{};
    detail::Progress mine_{};
    /* Works that the card knows of. */
    uint64_t rung_ = 0;
    bool is_prepared_ = false;
};

/* Belongs to one group of one kernel at a time. */
using QueuePair = Queue<false>;
/* Any groups of one GPU's kernels use it at once; each has a handle of its own. */
using SharedQueuePair = Queue<true>;

/* The receiving half of a queue pair: immediates of the peer's writes. One group of one kernel at a time has it. */
class ReceiveQueue {
public:
    /* Goes on where an earlier kernel ended. All receives of the queue are posted. */
    template <class Group>
    RGAPS_DEVICE_FN void attach(const Group &group, const rgaps_queue_pair_t &pair) {
        words_ = detail::Words{pair};
        completions_ = detail::Completions{pair.receive_completions, pair.receive_completion_record, pair.receives_log2};
        if (group.thread_rank() == 0) {
            taken_ = memory::load(words_.state(RGAPS_RDMA_STATE_RECEIVED));
            post();
        }
        group.sync();
    }

    /* Before the kernel ends. */
    template <class Group>
    RGAPS_DEVICE_FN void detach(const Group &group) {
        group.sync();
        if (group.thread_rank() == 0) memory::store(words_.state(RGAPS_RDMA_STATE_RECEIVED), taken_);
    }

    /* The next immediate, if there is one; its receive is posted again. `failed`: none comes any more. */
    template <class Group>
    RGAPS_DEVICE_FN Status try_receive(const Group &group, Received *received) {
        detail::Result result{Status::empty, 0, 0, 0};
        if (group.thread_rank() == 0) result = take();
        return give(broadcast(group, result), received);
    }

    /* Waits for it for at most `ticks_max` ticks. */
    template <class Group>
    RGAPS_DEVICE_FN Status receive(const Group &group, Received *received, uint64_t ticks_max) {
        detail::Result result{Status::empty, 0, 0, 0};
        if (group.thread_rank() == 0) {
            const uint64_t start = memory::ticks();
            RGAPS_DEVICE_ROLLED
            while ((result = take()).status == Status::empty) {
                if (memory::ticks() - start >= ticks_max) {
                    result.status = Status::timed_out;
                    break;
                }
                memory::pause();
            }
        }
        return give(broadcast(group, result), received);
    }

private:
    RGAPS_DEVICE_FN static Status give(const detail::Result &result, Received *received) {
        if (result.status == Status::ok) *received = Received{result.first, result.second};
        return result.status;
    }

    /* The entries of the receive queue are all the same, without memory, and written by the host. */
    RGAPS_DEVICE_FN void post() const {
        const uint64_t posted = taken_ + (uint64_t(1) << words_.pair.receives_log2);
        memory::fence_release();
        access::store_half(detail::Words::half(words_.pair.record + RGAPS_RDMA_RECORD_RECEIVE), wire::record(posted));
    }

    RGAPS_DEVICE_FN detail::Result take() {
        uint64_t last;
        if (!completions_.is_there(taken_, &last)) return detail::Result{Status::empty, 0, 0, 0};
        if (detail::Completions::opcode(last) != wire::received_immediate) return detail::Result{Status::failed, 0, 0, 0};
        const uint64_t *const entry = completions_.entry(taken_);
        const uint32_t immediate = wire::swapped(uint32_t(memory::load(entry + 4) >> 32));
        const uint32_t bytes = wire::swapped(uint32_t(memory::load(entry + 5) >> 32));
        ++taken_;
        completions_.taken(taken_);
        post();
        return detail::Result{Status::ok, immediate, bytes, 0};
    }

    detail::Words words_{};
    detail::Completions completions_{};
    uint64_t taken_ = 0;
};

}  // namespace rdma
}  // namespace device
}  // namespace rgaps

#endif
