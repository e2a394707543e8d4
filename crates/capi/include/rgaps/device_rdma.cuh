/*
 * RDMA that kernels post: a kernel writes the entries of a queue pair itself, without a CPU.
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
 *         ... failed: ticket.syndrome says why; timed_out: the card may still read the bytes ...
 *         queue.detach(lane);
 *     }
 *
 * Entries     have the format of mlx5 network cards, bit for bit: 64 bytes each, a doorbell record, a doorbell. A software card and
 *             a CPU proxy read the same entries, so kernels are the same for all back ends.
 * Groups      as in rgaps/device.cuh: all threads of a group call, the thread of rank 0 does it, all get the result.
 * Sharing     QueuePair belongs to one group at a time and keeps its indices in registers between attach() and detach().
 *             SharedQueuePair is used by any number of groups of a GPU at once; no thread waits for another.
 * Full        queues return `back_pressured`: the call posted nothing, but rang the doorbell for all deferred works.
 * Errors      are values. After the first failed work the queue pair has failed: every ticket has its own outcome, and
 *             posting returns `failed`. Waits end after a number of ticks.
 * Source      bytes belong to the card until their ticket is `ok` or `failed`, also after `timed_out`.
 * Quiet       works have no completion of their own; the completion of a later work covers them. The last of each quarter of a queue
 *             is never quiet, so a full queue always gets room again.
 *
 * docs/decisions/0048-gpu-verbs.md has the reasons, and what is not proven: no ConnectX has ever read these entries.
 */
#ifndef RGAPS_DEVICE_RDMA_CUH
#define RGAPS_DEVICE_RDMA_CUH

#include "device.cuh"
#include "device_rdma_layout.h"

namespace rgaps {
namespace device {
namespace rdma {

/* The result of a call. Where rgaps::device::Status has the same status, the numbers are equal. */
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

/* How a work is posted. Combine flags with |. */
constexpr uint32_t at_once = 0;
/* Does not ring the doorbell: the next work without this flag, ring(), wait() or flush() rings for all. */
constexpr uint32_t deferred = 1;
/* Asks for no completion. Wait for the work by flush(). */
constexpr uint32_t quiet = 2;

/* Registered memory: its address and its key. */
struct Buffer {
    uint64_t address;
    uint32_t key;
    RGAPS_DEVICE_FN Buffer at(uint64_t offset) const { return Buffer{address + offset, key}; }
};

/* Identifies a posted work, and has its outcome. */
struct Ticket {
    /* The number of the queue's works up to this one, inclusive. */
    uint64_t end = 0;
    /* For a failed work: RGAPS_RDMA_SYNDROME_..., and the vendor's code. */
    uint32_t syndrome = 0;
    uint32_t vendor = 0;
};

/* A completed write with an immediate by the peer: its immediate, and how many bytes it wrote. */
struct Received {
    uint32_t immediate = 0;
    uint32_t bytes = 0;
};

/* Accesses that rgaps/device.cuh lacks. */
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
/* Writes a doorbell: a register of a card, or a word that a CPU reads. The write is neither merged nor split. */
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

/* Encodes the big-endian bytes that cards read and write, as words of a little-endian host. */
namespace wire {

constexpr uint32_t nop = 0x00, rdma_write = 0x08, rdma_write_immediate = 0x09, rdma_read = 0x10, compare_swap = 0x11,
                   fetch_add = 0x12;
/* Asks for a completion. */
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
/* A word of two big-endian fields, `first` at the lower address. */
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
/* A write of 8 bytes that the entry itself contains. */
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

/* How many completions one call takes at most. */
constexpr uint32_t completions_max = 32;
/* How many reservations a thread may lose to others before it returns `back_pressured`. */
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
    /* Whether this is the last entry of a quarter of the queue. */
    RGAPS_DEVICE_FN bool ends_quarter(uint64_t index) const { return ((index + 1) & (size() / 4 - 1)) == 0; }

    RGAPS_DEVICE_FN void put(uint64_t index, const wire::Entry &entry) const {
        uint64_t *const to = this->entry(index);
#if defined(__CUDACC__)
#pragma unroll
#endif
        for (uint32_t word = 0; word < 8; ++word)
            if (word < entry.count) memory::store(to + word, entry.words[word]);
    }

    /* Rings the doorbell for all entries before `next`. This thread wrote them, or read with acquire order that others did. */
    RGAPS_DEVICE_FN void ring(uint64_t next) const {
        /* SYNC POINT entries: the card reads the doorbell, then the doorbell record, then the entries. */
        memory::fence_release();
        access::store_half(half(pair.record + RGAPS_RDMA_RECORD_SEND), wire::record(next));
        memory::fence_release();
        access::ring(at(pair.doorbell), wire::doorbell(next, pair.number));
    }
};

/* A completion queue, and how to read its entries. */
struct Completions {
    uint64_t queue, record;
    uint32_t size_log2;

    RGAPS_DEVICE_FN uint64_t *entry(uint64_t index) const {
        return Words::at(queue + (index & ((uint64_t(1) << size_log2) - 1)) * RGAPS_RDMA_ENTRY_BYTES);
    }
    /* Whether the card has written the entry in this round of the queue. `last`: the entry's last word. */
    RGAPS_DEVICE_FN bool is_there(uint64_t index, uint64_t *last) const {
        *last = memory::load(entry(index) + 7);
        const uint32_t owned = uint32_t(*last >> 56);
        if (owned >> 4 == wire::invalid || (owned & 1) != (index >> size_log2 & 1)) return false;
        /* SYNC POINT completion: behind this fence, the rest of the entry and the work's writes are visible. */
        memory::fence_acquire();
        return true;
    }
    RGAPS_DEVICE_FN static uint32_t opcode(uint64_t last) { return uint32_t(last >> 60); }
    RGAPS_DEVICE_FN static uint32_t counter(uint64_t last) { return wire::swapped(uint32_t(last >> 32)) >> 16; }
    RGAPS_DEVICE_FN void taken(uint64_t index) const {
        access::store_half(Words::half(record), wire::swapped(uint32_t(index & 0xffffff)));
    }
};

/* Encodes the first failure: the index of the failed work, and its codes. */
RGAPS_DEVICE_FN uint64_t failure_word(uint64_t index, uint32_t vendor, uint32_t syndrome) {
    return index << 16 | uint64_t(vendor & 0xff) << 8 | (syndrome & 0xff);
}

/* The result that the thread of rank 0 broadcasts to the others. */
struct Result {
    Status status;
    uint32_t first, second;
    uint64_t end;
};

/* The state of a send queue: indices of the next work, of the first work without a known completion and of the next completion
 * entry, and the first failure (0: none). A QueuePair has them as members, a SharedQueuePair as words of memory. */
struct Progress {
    uint64_t next = 0, completed = 0, taken = 0, failure = 0;
};

RGAPS_DEVICE_FN Status outcome(const Progress &progress, Ticket *ticket) {
    const uint64_t index = progress.failure >> 16;
    if (progress.failure && ticket->end > index) {
        /* The card flushes all works behind the failed one. Their tickets are `pending` until their completions are taken. */
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
    /* Continues where an earlier kernel ended. */
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

    /* Call before the kernel ends. Posted works continue; another kernel may attach and wait for them. */
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

    /* Writes `bytes` bytes into the peer's memory, including everything that the group wrote to `local` before. */
    template <class Group>
    RGAPS_DEVICE_FN Status write(const Group &group, Buffer local, Buffer remote, uint32_t bytes, Ticket *ticket,
                                 uint32_t flags = at_once) {
        return move(group, wire::rdma_write, 0, local, remote, bytes, ticket, flags);
    }

    /* Like write(); the peer's receive queue then gets `immediate` when the bytes have arrived. */
    template <class Group>
    RGAPS_DEVICE_FN Status write_immediate(const Group &group, Buffer local, Buffer remote, uint32_t bytes, uint32_t immediate,
                                           Ticket *ticket, uint32_t flags = at_once) {
        return move(group, wire::rdma_write_immediate, immediate, local, remote, bytes, ticket, flags);
    }

    /* Reads `bytes` bytes of the peer's memory into `local`. They are complete when the ticket is `ok`. */
    template <class Group>
    RGAPS_DEVICE_FN Status read(const Group &group, Buffer local, Buffer remote, uint32_t bytes, Ticket *ticket,
                                uint32_t flags = at_once) {
        return move(group, wire::rdma_read, 0, local, remote, bytes, ticket, flags);
    }

    /* Writes an 8-byte value, such as a flag or a counter, which needs no registered memory on this side. */
    template <class Group>
    RGAPS_DEVICE_FN Status write_word(const Group &group, uint64_t value, Buffer remote, Ticket *ticket, uint32_t flags = at_once) {
        const uint32_t number = words_.pair.number;
        return post(group, ticket, flags, RGAPS_RDMA_CAN_WRITE, [=](uint64_t index, bool signals) {
            return wire::word(index, number, signals, value, remote);
        });
    }

    /* Atomically adds to a word of the peer's memory; `local` gets the old value. */
    template <class Group>
    RGAPS_DEVICE_FN Status fetch_add(const Group &group, Buffer local, Buffer remote, uint64_t more, Ticket *ticket,
                                     uint32_t flags = at_once) {
        return change(group, wire::fetch_add, more, 0, local, remote, ticket, flags);
    }

    /* Atomically replaces a word of the peer's memory if it is `expected`; `local` gets the old value. */
    template <class Group>
    RGAPS_DEVICE_FN Status compare_swap(const Group &group, Buffer local, Buffer remote, uint64_t expected, uint64_t desired,
                                        Ticket *ticket, uint32_t flags = at_once) {
        return change(group, wire::compare_swap, desired, expected, local, remote, ticket, flags);
    }

    /* Writes the common fields of all further write_prepared() into every entry: keys, length, `quiet`. The queue must be idle. */
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

    /* Writes as prepare() set up, between these addresses. Of `flags`, only `deferred` counts. */
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

    /* Rings the doorbell for all deferred works. */
    template <class Group>
    RGAPS_DEVICE_FN void ring(const Group &group) {
        group.sync();
        if (group.thread_rank() == 0) ring_pending();
    }

    /* The outcome of a work: ok, failed or pending. Does not wait. */
    template <class Group>
    RGAPS_DEVICE_FN Status poll(const Group &group, Ticket *ticket) {
        detail::Result result{Status::pending, 0, 0, 0};
        if (group.thread_rank() == 0) result = look(*ticket);
        return report(broadcast(group, result), ticket);
    }

    /* Waits for the outcome of a work for at most `ticks_max` ticks. */
    template <class Group>
    RGAPS_DEVICE_FN Status wait(const Group &group, Ticket *ticket, uint64_t ticks_max) {
        detail::Result result{Status::pending, 0, 0, 0};
        if (group.thread_rank() == 0) result = wait_for(*ticket, ticks_max);
        return report(broadcast(group, result), ticket);
    }

    /* Rings for all posted works, and waits for at most `ticks_max` ticks until all of them are done. `failed`: some work of the
     * queue pair has failed, now or earlier. */
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
        /* Orders the writes of all threads of the group before the entry. */
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

    /* Reserves an entry for this thread to write. Drains completions if the queue is full. */
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
            /* SYNC POINT completed: pairs with the store in drain_shared. The card has read the old entry at this index. */
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

    /* Rings for all filled entries up to the first gap. One thread, the ringer, does it for all. Others return at once, and the
     * ringer looks for new entries again after it has given up the role; so nobody waits, and no entry is left unrung. */
    RGAPS_DEVICE_FN void ring_shared() {
        uint64_t *const ringer = words_.state(RGAPS_RDMA_STATE_RINGER);
        uint64_t ready;
        RGAPS_DEVICE_ROLLED
        do {
            /* SYNC POINT left: orders this thread's filled entry before its look at the ringer. Pairs with the fence below. */
            memory::fence_all();
            if (memory::fetch_or(ringer, 1)) return;
            /* SYNC POINT ringer: pairs with the last ringer's release. */
            memory::fence_acquire();
            const uint64_t first = ready = memory::load(words_.state(RGAPS_RDMA_STATE_READY));
            RGAPS_DEVICE_ROLLED
            while (ready - first < words_.size() && memory::load_acquire(words_.filled(ready)) == ready + 1) ++ready;
            if (ready != first) {
                memory::store(words_.state(RGAPS_RDMA_STATE_READY), ready);
                words_.ring(ready);
            }
            memory::store_release(ringer, 0);
            /* SYNC POINT left: orders the release of the role before the look at the next entry. Pairs with the fence above. */
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

    /* One thread, the drainer, takes completions. Others return at once and use the progress that it has stored. */
    RGAPS_DEVICE_FN void drain_shared() {
        uint64_t *const drainer = words_.state(RGAPS_RDMA_STATE_DRAINER);
        if (memory::fetch_or(drainer, 1)) return;
        /* SYNC POINT drainer: pairs with the last drainer's release. */
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

    /* Takes the completions that the card has written. False: there were none. */
    RGAPS_DEVICE_FN bool take(detail::Progress *progress) const {
        const uint64_t taken = progress->taken;
        uint64_t last;
        RGAPS_DEVICE_ROLLED
        for (uint32_t count = 0; count < detail::completions_max && completions_.is_there(progress->taken, &last); ++count) {
            if (is_shared) progress->next = memory::load(words_.state(RGAPS_RDMA_STATE_RESERVED));
            const uint64_t index = progress->completed + ((detail::Completions::counter(last) - progress->completed) & 0xffff);
            const uint32_t opcode = detail::Completions::opcode(last);
            if (index >= progress->next || (opcode != wire::completed && opcode != wire::request_failed)) {
                /* The entry is invalid, so the card cannot be trusted: all works count as completed, and as failed. */
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
    /* How many works the doorbell was rung for. */
    uint64_t rung_ = 0;
    bool is_prepared_ = false;
};

/* The sending half of a queue pair that belongs to one group of one kernel at a time. */
using QueuePair = Queue<false>;
/* The sending half of a queue pair that any groups of one GPU's kernels use at once, each with a handle of its own. */
using SharedQueuePair = Queue<true>;

/* The receiving half of a queue pair: the immediates of the peer's writes. Belongs to one group of one kernel at a time. */
class ReceiveQueue {
public:
    /* Continues where an earlier kernel ended, and posts all receives of the queue. */
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

    /* Call before the kernel ends. */
    template <class Group>
    RGAPS_DEVICE_FN void detach(const Group &group) {
        group.sync();
        if (group.thread_rank() == 0) memory::store(words_.state(RGAPS_RDMA_STATE_RECEIVED), taken_);
    }

    /* Takes the next immediate, if there is one, and posts its receive again. `failed`: no immediate will come any more. */
    template <class Group>
    RGAPS_DEVICE_FN Status try_receive(const Group &group, Received *received) {
        detail::Result result{Status::empty, 0, 0, 0};
        if (group.thread_rank() == 0) result = take();
        return give(broadcast(group, result), received);
    }

    /* Waits for the next immediate for at most `ticks_max` ticks. */
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

    /* Posts all free receives, by the doorbell record alone: the host wrote the entries once, all alike and without memory. */
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
