/*
 * Device topics: kernels publish messages to kernels of other processes without a CPU in between.
 *
 * The host sets a topic up (rgaps/device.h) and passes an rgaps_device_topic_t to its kernels. Then:
 *
 *     using namespace rgaps::device;
 *     __global__ void camera(rgaps_device_topic_t topic) {
 *         auto group = cooperative_groups::this_thread_block();
 *         Publisher publisher;
 *         publisher.attach(group, topic);
 *         Loan loan;
 *         while (publisher.loan(group, bytes, &loan, ticks_max) == Status::ok) {
 *             ... all threads write loan.data ...
 *             publisher.publish(group, &loan);
 *         }
 *     }
 *
 *     __global__ void detector(rgaps_device_topic_t topic, uint32_t seat) {
 *         auto group = cooperative_groups::this_thread_block();
 *         Subscriber subscriber;
 *         subscriber.attach(group, topic, seat, reliable);
 *         Sample sample;
 *         while (subscriber.recv(group, &sample, ticks_max) == Status::ok) {
 *             ... all threads read sample.data ...
 *             subscriber.release(group, &sample);
 *         }
 *     }
 *
 * Groups      Every function is called by all threads of a group with the same arguments: a thread alone (Lane), a tile
 *             of a warp, a coalesced group or a block. The thread of rank 0 does the protocol; all get the result.
 *             Use a handle only from groups that have the same thread of rank 0.
 * Producer    A topic has one publisher: one group of one kernel at a time.
 * Errors      are values. Nothing traps. Waits end after a number of ticks of the clock (clock64() on a GPU,
 *             nanoseconds on the host), or when the host stops them: loan() and recv() then return `stopped` within 128
 *             tries, also where there is no need to wait.
 * Order       What the group wrote before publish() can be read by the group that received the sample. Writes of the
 *             asynchronous proxy (TMA) want a fence.proxy.async first. Do not read samples by __ldg or const __restrict__.
 * Samples     keep their block until release(). A subscriber that is evicted loses them; release() then returns `evicted`. A
 *             kernel must release its samples before it ends; otherwise a reliable subscriber gets the last one again.
 * Speed       A reliable subscriber that releases each sample before it receives the next one changes no word that others
 *             write. If it holds several, it pays an atomic for each but the newest. A best-effort subscriber pays one for each.
 *
 * The same source compiles for the host, where threads take the place of lanes. docs/decisions/0046-device-topics.md
 * explains the protocol, and why each memory order is strong enough.
 */
#ifndef RGAPS_DEVICE_CUH
#define RGAPS_DEVICE_CUH

#include "device_layout.h"

#include <stdint.h>

#if defined(__CUDACC__)
#include <cooperative_groups.h>
#include <cuda/atomic>
#define RGAPS_DEVICE_FN __device__ __forceinline__
/* Stops the unrolling of loops that seldom run, so that they take few instructions. */
#define RGAPS_DEVICE_ROLLED _Pragma("unroll 1")
#else
#include <chrono>
#include <thread>
#define RGAPS_DEVICE_FN inline
#define RGAPS_DEVICE_ROLLED
#endif

namespace rgaps {
namespace device {

/* The result of a call. Where rgaps.h has the same status, the numbers are equal. */
enum class Status : int32_t {
    ok = 0,
    /* The wait took all its ticks. */
    timed_out = -2,
    /* No message is waiting. */
    empty = -3,
    /* More bytes than a block has. */
    too_large = -4,
    /* All blocks are loaned, in the ring or held by subscribers. */
    no_block = -5,
    /* A reliable subscriber has not received the oldest message, which would leave the ring. */
    back_pressured = -8,
    /* The loan or sample is not open. */
    not_held = -9,
    /* The topic's memory has a value that violates the protocol. */
    corrupt = -23,
    /* The host stopped this endpoint. */
    stopped = -30,
    /* The subscriber was evicted; the bytes of its samples may have changed. */
    evicted = -31,
    /* A link to another host has failed: rgaps/device_link.cuh. */
    failed = -32
};

/* How a subscriber receives. Combine flags with |. */
enum Mode : uint32_t {
    best_effort = 0,
    /* The publisher waits for it. */
    reliable = 1,
    /* Begins with the messages that are in the ring, instead of the next one. */
    history = 2
};

/* Accesses to words that processes share. Each function makes one atomic access of system scope. */
namespace memory {
#if defined(RGAPS_DEVICE_MEMORY)
/* The accesses of a model checker. */
#include RGAPS_DEVICE_MEMORY
#elif defined(__CUDACC__)
/* PTX instead of cuda::atomic_ref, which takes a generic pointer: each change of a word then waits for an answer that says whether
 * the word was in shared memory, even if nobody uses the result. All these words are in global memory. */
RGAPS_DEVICE_FN size_t global(const uint64_t *at) { return __cvta_generic_to_global(at); }
RGAPS_DEVICE_FN uint64_t load(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(global(at)) : "memory");
    return value;
}
RGAPS_DEVICE_FN uint64_t load_acquire(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(global(at)) : "memory");
    return value;
}
RGAPS_DEVICE_FN void store(uint64_t *at, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(global(at)), "l"(value) : "memory");
}
RGAPS_DEVICE_FN void store_release(uint64_t *at, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(global(at)), "l"(value) : "memory");
}
RGAPS_DEVICE_FN uint64_t fetch_or(uint64_t *at, uint64_t bits) {
    uint64_t before;
    asm volatile("atom.relaxed.sys.global.or.b64 %0, [%1], %2;" : "=l"(before) : "l"(global(at)), "l"(bits) : "memory");
    return before;
}
RGAPS_DEVICE_FN uint64_t fetch_and(uint64_t *at, uint64_t bits) {
    uint64_t before;
    asm volatile("atom.relaxed.sys.global.and.b64 %0, [%1], %2;" : "=l"(before) : "l"(global(at)), "l"(bits) : "memory");
    return before;
}
/* Like fetch_and, without a result and so without a wait for it. */
RGAPS_DEVICE_FN void clear(uint64_t *at, uint64_t bits) {
    asm volatile("red.relaxed.sys.global.and.b64 [%0], %1;" : : "l"(global(at)), "l"(~bits) : "memory");
}
RGAPS_DEVICE_FN void fence_acquire() {
#if __CUDA_ARCH__ >= 900 && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 7))
    /* CUDA's function also waits for this thread's stores, which takes half a microsecond. */
    asm volatile("fence.acquire.sys;" : : : "memory");
#else
    cuda::atomic_thread_fence(cuda::std::memory_order_acquire, cuda::thread_scope_system);
#endif
}
RGAPS_DEVICE_FN void fence_release() {
    cuda::atomic_thread_fence(cuda::std::memory_order_release, cuda::thread_scope_system);
}
RGAPS_DEVICE_FN void fence_both() {
    cuda::atomic_thread_fence(cuda::std::memory_order_acq_rel, cuda::thread_scope_system);
}
RGAPS_DEVICE_FN void fence_all() {
    cuda::atomic_thread_fence(cuda::std::memory_order_seq_cst, cuda::thread_scope_system);
}
RGAPS_DEVICE_FN uint64_t ticks() { return static_cast<uint64_t>(clock64()); }
/* Runs between two tries of a wait. Does nothing on a GPU, whose scheduler runs other warps meanwhile. */
RGAPS_DEVICE_FN void pause() {}
#else
inline uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline uint64_t load_acquire(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
inline void store_release(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline uint64_t fetch_or(uint64_t *at, uint64_t bits) { return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
inline uint64_t fetch_and(uint64_t *at, uint64_t bits) { return __atomic_fetch_and(at, bits, __ATOMIC_RELAXED); }
inline void clear(uint64_t *at, uint64_t bits) { __atomic_fetch_and(at, ~bits, __ATOMIC_RELAXED); }
inline void fence_acquire() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
inline void fence_release() { __atomic_thread_fence(__ATOMIC_RELEASE); }
inline void fence_both() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void fence_all() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void pause() { std::this_thread::yield(); }
inline uint64_t ticks() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}
#endif
}  // namespace memory

/* A group of one thread. */
struct Lane {
    RGAPS_DEVICE_FN uint32_t thread_rank() const { return 0; }
    RGAPS_DEVICE_FN uint32_t size() const { return 1; }
    RGAPS_DEVICE_FN void sync() const {}
    template <class T>
    RGAPS_DEVICE_FN T broadcast(T value) const {
        return value;
    }
};

namespace detail {

constexpr uint64_t producer = uint64_t(1) << RGAPS_DEVICE_PRODUCER_BIT;
constexpr uint64_t ring = uint64_t(1) << RGAPS_DEVICE_RING_BIT;
constexpr uint64_t readers = (uint64_t(1) << RGAPS_DEVICE_MAX_SUBSCRIBERS) - 1;
constexpr uint64_t mask = (uint64_t(1) << RGAPS_DEVICE_GENERATION_SHIFT) - 1;
/* loan() and recv() read the host's words once in this many tries, counted over all calls, since these words lie across a bus. */
#if defined(RGAPS_DEVICE_TRIES_BETWEEN_LOOKS)
constexpr uint64_t tries_between_looks = RGAPS_DEVICE_TRIES_BETWEEN_LOOKS;
#else
constexpr uint64_t tries_between_looks = 64;
#endif
/* A call of a best-effort subscriber that is overrun this many times returns `empty`. */
constexpr uint32_t overruns_max = 8;

RGAPS_DEVICE_FN uint64_t generation(uint64_t holder) { return holder >> RGAPS_DEVICE_GENERATION_SHIFT; }
RGAPS_DEVICE_FN uint64_t held(uint64_t sequence, uint64_t bits) {
    return sequence << RGAPS_DEVICE_GENERATION_SHIFT | bits;
}
RGAPS_DEVICE_FN uint64_t slot_sequence(uint64_t slot) { return slot >> RGAPS_DEVICE_SEQUENCE_SHIFT; }
RGAPS_DEVICE_FN uint32_t slot_block(uint64_t slot) {
    return static_cast<uint32_t>(slot & ((uint64_t(1) << RGAPS_DEVICE_SEQUENCE_SHIFT) - 1));
}
RGAPS_DEVICE_FN uint64_t slot_word(uint64_t sequence, uint32_t block) {
    return sequence << RGAPS_DEVICE_SEQUENCE_SHIFT | block;
}
RGAPS_DEVICE_FN uint64_t cursor_word(uint64_t sequence, uint64_t bits) {
    return sequence << RGAPS_DEVICE_CURSOR_SHIFT | bits;
}

/* The topic's words at their addresses. */
struct Words {
    rgaps_device_topic_t topic;

    RGAPS_DEVICE_FN static uint64_t *at(uint64_t address) {
        return reinterpret_cast<uint64_t *>(static_cast<uintptr_t>(address));
    }
    RGAPS_DEVICE_FN uint64_t *slot(uint64_t sequence) const {
        return at(topic.slots + (sequence & (topic.depth - 1)) * sizeof(uint64_t));
    }
    RGAPS_DEVICE_FN uint64_t *length(uint32_t block) const { return at(topic.lengths + block * sizeof(uint64_t)); }
    RGAPS_DEVICE_FN uint64_t *holder(uint32_t block) const {
        return at(topic.holders + uint64_t(block) * RGAPS_DEVICE_HOLDER_BYTES);
    }
    RGAPS_DEVICE_FN void *bytes(uint32_t block) const { return at(topic.blocks_at + uint64_t(block) * topic.block_bytes); }
    RGAPS_DEVICE_FN uint64_t *seat(uint32_t number, uint64_t field) const {
        return at(topic.seats + number * uint64_t(RGAPS_DEVICE_SEAT_BYTES) + field);
    }
    RGAPS_DEVICE_FN bool is_evicted(uint32_t seat) const { return evicted() >> seat & 1; }
    /* The evicted subscribers: a bit for each seat, which the host sets. */
    RGAPS_DEVICE_FN uint64_t evicted() const { return memory::load(at(topic.control + RGAPS_DEVICE_CONTROL_EVICTED)); }
    RGAPS_DEVICE_FN uint64_t stopped() const { return memory::load(at(topic.control + RGAPS_DEVICE_CONTROL_STOPPED)); }
    RGAPS_DEVICE_FN bool is_stopped(uint32_t endpoint) const { return stopped() >> endpoint & 1; }
    /* The sequence number of the newest message in the ring; 0: nothing was published yet. */
    RGAPS_DEVICE_FN uint64_t newest() const {
        uint64_t newest = 0;
        RGAPS_DEVICE_ROLLED
        for (uint32_t slot_number = 0; slot_number < topic.depth; ++slot_number) {
            const uint64_t sequence = slot_sequence(memory::load_acquire(slot(slot_number)));
            newest = sequence > newest ? sequence : newest;
        }
        return newest;
    }
};

/* Reads the host's words ahead: a try uses the values that an earlier try loaded, so it does not wait for the bus. */
struct Ahead {
    uint64_t tries = 0, stopped = 0, evicted = 0;

    /* Counts a try. Whether it should use the values and load new ones. */
    RGAPS_DEVICE_FN bool is_due() { return ++tries % tries_between_looks == 0; }
    /* Starts the loads. Must not use the values, since that would wait for them. */
    RGAPS_DEVICE_FN void ask(const Words &words) {
        stopped = words.stopped();
        evicted = words.evicted();
    }
};

/* The result that the thread of rank 0 broadcasts to the others. */
struct Result {
    Status status;
    uint32_t block;
    uint64_t sequence;
    uint64_t missed;
};

template <class Group, class T>
RGAPS_DEVICE_FN T broadcast(const Group &group, T value) {
    return group.broadcast(value);
}
/* Makes the thread of rank 0 converge with its warp again. Otherwise the warp may execute the user's next code twice, once for that
 * thread alone. */
#if defined(__CUDACC__)
template <class Group>
RGAPS_DEVICE_FN void reconverge(const Group &group) {
    group.sync();
}
RGAPS_DEVICE_FN void reconverge(const cooperative_groups::thread_block &) { __syncwarp(); }
#else
template <class Group>
void reconverge(const Group &) {}
#endif
#if defined(__CUDACC__)
template <class T>
RGAPS_DEVICE_FN T broadcast(const cooperative_groups::thread_block &group, T value) {
    __shared__ T told;
    if (group.thread_rank() == 0) told = value;
    group.sync();
    value = told;
    group.sync();
    return value;
}
template <unsigned Size, class Parent, class T>
RGAPS_DEVICE_FN T broadcast(const cooperative_groups::thread_block_tile<Size, Parent> &group, T value) {
    static_assert(Size <= 32, "a tile of more than a warp has no shuffle; use the block");
    return group.shfl(value, 0);
}
template <class T>
RGAPS_DEVICE_FN T broadcast(const cooperative_groups::coalesced_group &group, T value) {
    return group.shfl(value, 0);
}
#endif

}  // namespace detail

/* A block that the publisher's group fills. */
struct Loan {
    void *data = nullptr;
    uint64_t bytes = 0;
    uint32_t block = 0;
};

/* A received message, and the right to read its block until release(). */
struct Sample {
    const void *data = nullptr;
    uint64_t sequence = 0;
    /* How many messages this subscriber missed between the previous sample and this one. */
    uint64_t missed = 0;
    uint32_t block = 0;

    /* The message's length in bytes. Never more than a block's, whatever the publisher wrote there. */
    RGAPS_DEVICE_FN uint64_t bytes(const rgaps_device_topic_t &topic) const {
        const uint64_t length = memory::load(detail::Words{topic}.length(block));
        return length < topic.block_bytes ? length : topic.block_bytes;
    }
};

/* The one producer of a topic. */
class Publisher {
public:
    /* Takes the topic over from an earlier kernel, or from a publisher that died. Its open loans are discarded; its published
     * messages stay. */
    template <class Group>
    RGAPS_DEVICE_FN Status attach(const Group &group, const rgaps_device_topic_t &topic) {
        words_ = detail::Words{topic};
        ahead_ = detail::Ahead{};
        if (group.thread_rank() == 0) recover();
        group.sync();
        return Status::ok;
    }

    /* Loans a block for `bytes` bytes if there is one. Does not wait. */
    template <class Group>
    RGAPS_DEVICE_FN Status try_loan(const Group &group, uint64_t bytes, Loan *loan) {
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.status = find(bytes, &result.block);
        return lend(detail::broadcast(group, result), bytes, loan);
    }

    /* Loans a block for `bytes` bytes. Waits for at most `ticks_max` ticks; then returns the reason, back_pressured or no_block. */
    template <class Group>
    RGAPS_DEVICE_FN Status loan(const Group &group, uint64_t bytes, Loan *loan, uint64_t ticks_max) {
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.status = wait_for_block(bytes, &result.block, ticks_max);
        return lend(detail::broadcast(group, result), bytes, loan);
    }

    /* Publishes the loan. Never waits. */
    template <class Group>
    RGAPS_DEVICE_FN Status publish(const Group &group, Loan *loan) {
        if (loan->data == nullptr) return Status::not_held;
        group.sync();
        if (group.thread_rank() == 0) announce(*loan);
        detail::reconverge(group);
        loan->data = nullptr;
        return Status::ok;
    }

    /* Returns a loan's block without publishing it. */
    template <class Group>
    RGAPS_DEVICE_FN Status discard(const Group &group, Loan *loan) {
        if (loan->data == nullptr) return Status::not_held;
        group.sync();
        if (group.thread_rank() == 0) {
            memory::clear(words_.holder(loan->block), detail::producer);
            --open_;
        }
        detail::reconverge(group);
        loan->data = nullptr;
        return Status::ok;
    }

    /* Whether the host wants this kernel to end. For loops that use try_loan(); loan() checks this by itself. */
    template <class Group>
    RGAPS_DEVICE_FN bool is_stopped(const Group &group) const {
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.block = words_.is_stopped(RGAPS_DEVICE_PUBLISHER_ENDPOINT);
        return detail::broadcast(group, result).block != 0;
    }

    /* The sequence number of the next message. Valid in the thread of rank 0. */
    RGAPS_DEVICE_FN uint64_t next_sequence() const { return next_; }

private:
    RGAPS_DEVICE_FN Status lend(const detail::Result &result, uint64_t bytes, Loan *loan) const {
        if (result.status == Status::ok) {
            loan->data = words_.bytes(result.block);
            loan->bytes = bytes;
            loan->block = result.block;
        } else {
            loan->data = nullptr;
        }
        return result.status;
    }

    /* Repairs the topic after a publisher that may have died between any two steps: clears its bit in all holder words, and the
     * ring's bit in those of blocks that no slot names. */
    RGAPS_DEVICE_FN void recover() {
        next_ = words_.newest() + 1;
        open_ = 0;
        hint_ = 0;
        is_free_ = false;
        overrides_ = false;
        RGAPS_DEVICE_ROLLED
        for (uint32_t block = 0; block < words_.topic.blocks; ++block) {
            const uint64_t holder = memory::load(words_.holder(block));
            uint64_t lost = holder & detail::producer;
            const uint64_t sequence = detail::generation(holder);
            if (memory::load(words_.slot(sequence)) != detail::slot_word(sequence, block)) lost |= holder & detail::ring;
            if (lost) memory::clear(words_.holder(block), lost);
        }
        look_at_all();
        prepare();
    }

    /* Reads the cursors of all reliable subscribers except those in `evicted`, and sets `limit_`. It does not see subscribers that
     * join later. They miss nothing after their join, since messages from `seen_` + depth on need another look.
     *
     * The caller has called fence_all(). */
    RGAPS_DEVICE_FN void read_cursors(uint64_t evicted) {
        uint64_t oldest = next_;
        waited_for_ = 0;
        for (uint32_t seat = 0; seat < RGAPS_DEVICE_MAX_SUBSCRIBERS; ++seat) {
            const uint64_t cursor = memory::load(words_.seat(seat, RGAPS_DEVICE_SEAT_CURSOR));
            const uint64_t sequence = cursor >> RGAPS_DEVICE_CURSOR_SHIFT;
            if (!(cursor & RGAPS_DEVICE_CURSOR_RELIABLE)) continue;
            if (evicted >> seat & 1) {
                overrides_ = true;
                continue;
            }
            waited_for_ |= uint64_t(1) << seat;
            oldest = sequence < oldest ? sequence : oldest;
        }
        /* SYNC POINT cursor: pairs with the fences before Subscriber::tell. */
        memory::fence_acquire();
        seen_ = next_;
        limit_ = oldest + words_.topic.depth;
    }

    RGAPS_DEVICE_FN void look_at_all() {
        memory::fence_all();
        read_cursors(0);
    }

    /* Like look_at_all(), but also asks the host for the evicted seats, which takes a trip across the bus, and returns them. Their
     * bits do not count in a block that is outside of the ring and whose holder word was loaded before this look. For the seat's
     * next subscriber sets its bit only while the block is in the ring, behind the fence of its join: if the load saw that bit,
     * this look sees the end of the eviction. */
    RGAPS_DEVICE_FN uint64_t look_at_evicted() {
        memory::fence_all();
        const uint64_t evicted = words_.evicted() & detail::readers;
        overrides_ = false;
        read_cursors(evicted);
        return evicted;
    }

    /* Reads the cursors again of the subscribers that the last look at all seats saw. */
    RGAPS_DEVICE_FN void look_again() {
        uint64_t oldest = seen_;
        RGAPS_DEVICE_ROLLED
        for (uint32_t seat = 0; waited_for_ >> seat; ++seat) {
            if (!(waited_for_ >> seat & 1)) continue;
            /* SYNC POINT cursor: pairs with the fences before Subscriber::tell. */
            const uint64_t cursor = memory::load_acquire(words_.seat(seat, RGAPS_DEVICE_SEAT_CURSOR));
            const uint64_t sequence = cursor >> RGAPS_DEVICE_CURSOR_SHIFT;
            if ((cursor & RGAPS_DEVICE_CURSOR_RELIABLE) && sequence < oldest) oldest = sequence;
        }
        limit_ = oldest + words_.topic.depth;
    }

    /* Whether one more message may be on its way to the ring. */
    RGAPS_DEVICE_FN bool has_room() {
        if (next_ + open_ < limit_) return true;
        if (next_ + open_ < seen_ + words_.topic.depth) {
            look_again();
        } else {
            look_at_all();
        }
        return next_ + open_ < limit_;
    }

    /* Whether a failed try may ask the host for evicted seats: once in `tries_between_looks` tries, or always while an evicted
     * subscriber is overridden. Once in that many tries it also tells the host which message waits for room. */
    RGAPS_DEVICE_FN bool may_ask_host() {
        if (++refused_ % detail::tries_between_looks != 0) return overrides_;
        memory::store(words_.seat(RGAPS_DEVICE_PUBLISHER_ENDPOINT, RGAPS_DEVICE_SEAT_CURSOR), next_);
        return true;
    }

    RGAPS_DEVICE_FN Status find(uint64_t bytes, uint32_t *found) {
        if (bytes > words_.topic.block_bytes) return Status::too_large;
        if (!has_room()) {
            if (!may_ask_host()) return Status::back_pressured;
            look_at_evicted();
            if (next_ + open_ >= limit_) return Status::back_pressured;
        }
        if (!is_free_) find_free(0, words_.topic.blocks);
        if (!is_free_) {
            if (!may_ask_host()) return Status::no_block;
            /* Behind the loads of find_free: every subscriber whose bit they saw had joined before. */
            const uint64_t evicted = look_at_evicted();
            if (evicted) find_free(evicted, words_.topic.blocks);
            if (!is_free_) return Status::no_block;
        }
        is_free_ = false;
        ++open_;
        /* A plain store: others change only subscribers' bits in this word, which do not count while the ring's bit is clear. */
        memory::store(words_.holder(free_), detail::producer);
        *found = free_;
        return Status::ok;
    }

    /* Looks for a block that only `ignored` seats hold, or nobody, and remembers it. The block stays free, since a subscriber's bit
     * counts only if it was set while the ring's bit was. */
    RGAPS_DEVICE_FN void find_free(uint64_t ignored, uint32_t tries) {
        RGAPS_DEVICE_ROLLED
        for (uint32_t tried = 0; tried < tries && !is_free_; ++tried) {
            free_ = hint_;
            hint_ = hint_ + 1 < words_.topic.blocks ? hint_ + 1 : 0;
            /* SYNC POINT release: pairs with the fence of Subscriber::let_go. */
            is_free_ = (memory::load_acquire(words_.holder(free_)) & detail::mask & ~ignored) == 0;
        }
    }

    RGAPS_DEVICE_FN Status wait_for_block(uint64_t bytes, uint32_t *found, uint64_t ticks_max) {
        const uint64_t start = memory::ticks();
        RGAPS_DEVICE_ROLLED
        for (;;) {
            if (ahead_.is_due()) {
                if (ahead_.stopped >> RGAPS_DEVICE_PUBLISHER_ENDPOINT & 1) return Status::stopped;
                ahead_.ask(words_);
            }
            const Status status = find(bytes, found);
            if (status != Status::back_pressured && status != Status::no_block) return status;
            if (memory::ticks() - start >= ticks_max) return status;
            memory::pause();
        }
    }

    RGAPS_DEVICE_FN void announce(const Loan &loan) {
        const uint64_t sequence = next_++;
        --open_;
        memory::store(words_.length(loan.block), loan.bytes);
        memory::store(words_.holder(loan.block), detail::held(sequence, detail::ring));
        /* SYNC POINT publish: pairs with the load of the slot in Subscriber::take. */
        memory::store_release(words_.slot(sequence), detail::slot_word(sequence, loan.block));
        if (leaving_) memory::clear(words_.holder(detail::slot_block(leaving_)), detail::ring);
        prepare();
    }

    /* Loads the words that the next loan and the next publish() need, while the last message is still on its way. */
    RGAPS_DEVICE_FN void prepare() {
        /* SYNC POINT overwritten: pairs with the fence of Subscriber::let_go. From here on the group may overwrite a block that
         * an evicted subscriber still reads; that subscriber then sees that the slot has changed. */
        if (overrides_) memory::fence_release();
        leaving_ = memory::load(words_.slot(next_));
        if (has_room() && !is_free_) find_free(0, 1);
    }

    detail::Words words_{};
    detail::Ahead ahead_{};
    uint64_t next_ = 1;
    /* The sequence number of the first message for which the ring has no room yet. */
    uint64_t limit_ = 0;
    /* `next_` at the last look at all seats, and the seats of the reliable subscribers that it found. */
    uint64_t seen_ = 0;
    uint64_t waited_for_ = 0;
    /* The word in the slot that the next message will overwrite: the message that then leaves the ring. */
    uint64_t leaving_ = 0;
    uint64_t refused_ = 0;
    uint32_t open_ = 0;
    /* The block at which the search for a free one continues; and the free block, if is_free_. */
    uint32_t hint_ = 0;
    uint32_t free_ = 0;
    bool is_free_ = false;
    /* A reliable subscriber was evicted, and this publisher does not wait for it. */
    bool overrides_ = false;
};

/* One of a topic's subscribers, in the seat that the host took for it. */
class Subscriber {
public:
    /* Joins the topic; or continues where an earlier kernel with this seat ended, and ignores `mode`. */
    template <class Group>
    RGAPS_DEVICE_FN Status attach(const Group &group, const rgaps_device_topic_t &topic, uint32_t seat, uint32_t mode) {
        words_ = detail::Words{topic};
        ahead_ = detail::Ahead{};
        seat_ = seat;
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.status = seat < RGAPS_DEVICE_MAX_SUBSCRIBERS ? sit_down(mode) : Status::not_held;
        return detail::broadcast(group, result).status;
    }

    /* The next message, if there is one. */
    template <class Group>
    RGAPS_DEVICE_FN Status try_recv(const Group &group, Sample *sample) {
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result = take();
        return give(detail::broadcast(group, result), sample);
    }

    /* Waits for the next message for at most `ticks_max` ticks. */
    template <class Group>
    RGAPS_DEVICE_FN Status recv(const Group &group, Sample *sample, uint64_t ticks_max) {
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result = wait_for_message(ticks_max);
        return give(detail::broadcast(group, result), sample);
    }

    /* Releases a sample that the group has read. `evicted`: the bytes may have changed while the group read them. */
    template <class Group>
    RGAPS_DEVICE_FN Status release(const Group &group, Sample *sample) {
        if (sample->data == nullptr) return Status::not_held;
        group.sync();
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.status = let_go(*sample);
        sample->data = nullptr;
        return detail::broadcast(group, result).status;
    }

    /* Whether the host wants this kernel to end. For loops that use try_recv(); recv() checks this by itself. */
    template <class Group>
    RGAPS_DEVICE_FN bool is_stopped(const Group &group) const {
        detail::Result result{Status::ok, 0, 0, 0};
        if (group.thread_rank() == 0) result.block = words_.is_stopped(seat_);
        return detail::broadcast(group, result).block != 0;
    }

    /* The sequence number of the message that it wants next. Valid in the thread of rank 0. */
    RGAPS_DEVICE_FN uint64_t next_sequence() const { return next_; }

private:
    RGAPS_DEVICE_FN uint64_t *cursor() const { return words_.seat(seat_, RGAPS_DEVICE_SEAT_CURSOR); }
    RGAPS_DEVICE_FN uint64_t bit() const { return uint64_t(1) << seat_; }

    RGAPS_DEVICE_FN Status give(const detail::Result &result, Sample *sample) const {
        if (result.status == Status::ok) {
            sample->data = words_.bytes(result.block);
            sample->block = result.block;
            sample->sequence = result.sequence;
            sample->missed = result.missed;
        } else {
            sample->data = nullptr;
        }
        return result.status;
    }

    RGAPS_DEVICE_FN Status sit_down(uint32_t mode) {
        if (words_.is_evicted(seat_)) return Status::evicted;
        const uint64_t word = memory::load(cursor());
        missed_all_ = memory::load(words_.seat(seat_, RGAPS_DEVICE_SEAT_MISSED));
        missed_ = 0;
        is_told_ = true;
        pinned_ = 0;
        const bool is_new = !(word & RGAPS_DEVICE_CURSOR_JOINED);
        if (is_new) {
            /* Releases the blocks of the seat's last subscriber, which was evicted. */
            RGAPS_DEVICE_ROLLED
            for (uint32_t block = 0; block < words_.topic.blocks; ++block) {
                if (memory::load(words_.holder(block)) & bit()) memory::clear(words_.holder(block), bit());
            }
            flags_ = (mode & reliable) ? RGAPS_DEVICE_CURSOR_RELIABLE : 0;
            memory::store_release(cursor(), flags_);
        }
        /* From here on the publisher sees the cursor, and removes no message from the ring that this subscriber wants. newest()
         * sees every message that the publisher published before it saw the cursor. */
        memory::fence_all();
        const uint64_t newest = words_.newest();
        kept_from_ = newest + 1;
        if (!is_new) {
            flags_ = word & RGAPS_DEVICE_CURSOR_FLAGS;
            next_ = word >> RGAPS_DEVICE_CURSOR_SHIFT;
            return Status::ok;
        }
        const uint64_t depth = words_.topic.depth;
        next_ = newest + 1;
        if (mode & history) next_ = newest > depth ? newest - depth + 1 : 1;
        flags_ |= RGAPS_DEVICE_CURSOR_JOINED;
        memory::store_release(cursor(), detail::cursor_word(next_, flags_));
        return Status::ok;
    }

    RGAPS_DEVICE_FN void skip_to(uint64_t sequence) {
        missed_ += sequence - next_;
        next_ = sequence;
        is_told_ = false;
    }

    /* Stores the cursor for the publisher. The caller has made a release fence behind its reads of earlier samples. */
    RGAPS_DEVICE_FN void tell() {
        memory::store(words_.seat(seat_, RGAPS_DEVICE_SEAT_MISSED), missed_all_ + missed_);
        memory::store(cursor(), detail::cursor_word(next_, flags_));
        is_told_ = true;
    }

    /* Sets this seat's bit in a block's holder word. False: the ring no longer holds the block with that message, so the bit does
     * not count. */
    RGAPS_DEVICE_FN bool claim(uint32_t block, uint64_t sequence) {
        const uint64_t before = memory::fetch_or(words_.holder(block), bit());
        if (detail::generation(before) == sequence && (before & detail::ring)) return true;
        memory::clear(words_.holder(block), bit());
        return false;
    }

    /* Whether the cursor alone keeps the message in the ring. The publisher removes no message that a reliable subscriber's cursor
     * has not passed, so such a sample needs a bit only if it is still held when the cursor advances. */
    RGAPS_DEVICE_FN bool is_kept(uint64_t sequence) const {
        return (flags_ & RGAPS_DEVICE_CURSOR_RELIABLE) && sequence >= kept_from_;
    }

    RGAPS_DEVICE_FN detail::Result take() {
        if (pinned_) {
            claim(pinned_block_, pinned_); /* fails only after an eviction, which release() reports */
            pinned_ = 0;
        }
        if (!is_told_) {
            /* SYNC POINT cursor: pairs with the loads of cursors in Publisher. */
            memory::fence_release();
            tell();
        }
        return take(look());
    }

    RGAPS_DEVICE_FN uint64_t look() const {
        /* SYNC POINT publish: pairs with the store of the slot in Publisher::announce. */
        return memory::load_acquire(words_.slot(next_));
    }

    /* Takes the next message. `slot` is the word of its slot, loaded with acquire order. */
    RGAPS_DEVICE_FN detail::Result take(uint64_t slot) {
        RGAPS_DEVICE_ROLLED
        for (uint32_t overruns = 0; overruns < detail::overruns_max; ++overruns) {
            const uint64_t sequence = detail::slot_sequence(slot);
            if (sequence < next_) break;
            if (sequence > next_) {
                /* Continues with the oldest message of the ring; if that one is overrun, too, with the newest. */
                skip_to(overruns == 0 ? sequence - words_.topic.depth + 1 : sequence);
                slot = look();
                continue;
            }
            const uint32_t block = detail::slot_block(slot);
            if (block >= words_.topic.blocks) return detail::Result{Status::corrupt, 0, 0, 0};
            if (is_kept(sequence) || claim(block, sequence)) {
                pinned_ = is_kept(sequence) ? sequence : 0;
                pinned_block_ = block;
                next_ = sequence + 1;
                is_told_ = false;
                const uint64_t missed = missed_;
                missed_all_ += missed;
                missed_ = 0;
                return detail::Result{Status::ok, block, sequence, missed};
            }
            skip_to(sequence + 1);
            slot = look();
        }
        return detail::Result{Status::empty, 0, 0, 0};
    }

    RGAPS_DEVICE_FN detail::Result wait_for_message(uint64_t ticks_max) {
        const uint64_t start = memory::ticks();
        detail::Result result{look_at_host(), 0, 0, 0};
        if (result.status == Status::ok) result = take();
        RGAPS_DEVICE_ROLLED
        while (result.status == Status::empty) {
            uint64_t slot = 0;
            result.status = wait_for_slot(start, ticks_max, &slot);
            if (result.status == Status::ok) result = take(slot);
        }
        return result;
    }

    /* Waits until the next message is in its slot. Keeps two loads in flight, half a load's latency apart. So it sees a message a
     * quarter of that latency sooner, on average, than with one load after the other. */
    RGAPS_DEVICE_FN Status wait_for_slot(uint64_t start, uint64_t ticks_max, uint64_t *slot) {
        const uint64_t *at = words_.slot(next_);
        const uint64_t asked = memory::ticks();
        uint64_t one = memory::load(at), two = one;
        if (detail::slot_sequence(one) < next_) {
            const uint64_t answered = memory::ticks();
            one = memory::load(at);
            while (memory::ticks() - answered < (answered - asked) / 2) {
            }
            two = memory::load(at);
        }
        RGAPS_DEVICE_ROLLED
        for (;;) {
            *slot = one;
            if (detail::slot_sequence(one) >= next_) break;
            one = memory::load(at);
            *slot = two;
            if (detail::slot_sequence(two) >= next_) break;
            two = memory::load(at);
            const Status host = look_at_host();
            if (host != Status::ok) return host;
            if (memory::ticks() - start >= ticks_max) return Status::timed_out;
            memory::pause();
        }
        /* SYNC POINT publish: pairs with the store of the slot in Publisher::announce. */
        memory::fence_acquire();
        return Status::ok;
    }

    /* Checks, once in `tries_between_looks` calls, whether the host stopped or evicted this subscriber. */
    RGAPS_DEVICE_FN Status look_at_host() {
        if (!ahead_.is_due()) return Status::ok;
        if (ahead_.evicted >> seat_ & 1) return Status::evicted;
        if (ahead_.stopped >> seat_ & 1) return Status::stopped;
        ahead_.ask(words_);
        return Status::ok;
    }

    RGAPS_DEVICE_FN Status let_go(const Sample &sample) {
        if (sample.sequence == pinned_) {
            pinned_ = 0;
            /* SYNC POINT cursor: pairs with the loads of cursors in Publisher.
             * SYNC POINT overwritten: pairs with the fence in Publisher::prepare. */
            memory::fence_both();
            if (memory::load_acquire(words_.slot(sample.sequence)) != detail::slot_word(sample.sequence, sample.block)) {
                return Status::evicted;
            }
            tell();
            return Status::ok;
        }
        /* SYNC POINT release: pairs with the load of the holder in Publisher::find_free. */
        memory::fence_release();
        const uint64_t before = memory::fetch_and(words_.holder(sample.block), ~bit());
        /* Every sample that the cursor passes is either released or has a bit. */
        if (!is_told_ && pinned_ == 0) tell();
        const bool was_held = detail::generation(before) == sample.sequence && (before & bit());
        return was_held ? Status::ok : Status::evicted;
    }

    detail::Words words_{};
    uint64_t next_ = 1;
    uint64_t flags_ = 0;
    uint64_t missed_ = 0;
    uint64_t missed_all_ = 0;
    detail::Ahead ahead_{};
    /* The sequence number of the held sample that only the cursor keeps, without a bit; 0: none. */
    uint64_t pinned_ = 0;
    /* The publisher may remove messages before this one without waiting for this subscriber. */
    uint64_t kept_from_ = 0;
    uint32_t pinned_block_ = 0;
    uint32_t seat_ = 0;
    bool is_told_ = true;
};

}  // namespace device
}  // namespace rgaps

#endif
