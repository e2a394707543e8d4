/*
 * What kernels (or threads) do in tests and figures of rgaps/device_rdma.cuh: one thread runs each job. `Job` and `Board` are
 * crates/gpu-verbs/examples/gpu_verbs_check/jobs.rs, too.
 */
#pragma once
#include "rgaps/device_link.cuh"

#include <stddef.h>

namespace jobs {

using namespace rgaps::device;
using rdma::Buffer;
using rdma::Status;
using rdma::Ticket;

enum class Task : uint32_t {
    send = 0,
    receive = 1,
    /* Works that fail, and those behind them. */
    fail = 2,
    /* Fills the queue of a card that does nothing for a while. */
    fill = 3,
    /* The ladder. */
    naive = 4,
    prepared = 5,
    pipelined = 6,
    shared = 7,
    /* Posting alone, without a card. */
    enqueue = 8,
    /* A device topic's publisher and subscriber, and the ends of a link between two: link_jobs.h. */
    topic_publish = 9,
    topic_receive = 10,
    egress = 11,
    ingress = 12
};

constexpr uint32_t slots_max = 64;

/* What a job has to tell. Each step that is not as it should be has a number. */
struct Board {
    uint64_t is_running, is_done;
    /* 0, or the number of the step that failed, and what the call returned there. */
    uint64_t failed_step;
    int64_t failed_status;
    uint64_t messages, corrupt, back_pressured, ticks, nanoseconds;
    /* Set by the host. */
    uint64_t may_go_on;
    uint64_t ends[slots_max];
};

struct Job {
    rgaps_queue_pair_t pair;
    /* This side's memory and the peer's: source slots, landing slots, words, and a slot for what is read back. */
    Buffer local, remote;
    Board *board;
    uint64_t messages, ticks_max;
    uint32_t slots, slot_bytes, ring_every;
    Task task;
    /* Of `fail`: 1 wrong remote key, 2 wrong local key, 3 outside of the memory, 4 no receive; and the syndrome that is due.
     * Of the ends of a link: 1 goes on when a wait ends. */
    uint32_t fault, syndrome;
    /* Of the last four tasks. `slots` and `slot_bytes` are those of the link; the seat is that of the topic's one subscriber. */
    rgaps_device_topic_t topic;
    uint32_t seat, padding;
};
static_assert(sizeof(Buffer) == 16 && offsetof(Job, local) == 88 && offsetof(Job, board) == 120 && offsetof(Job, topic) == 168 && sizeof(Job) == 240, "jobs.rs");
static_assert(sizeof(Board) == 80 + 8 * slots_max, "jobs.rs");

RGAPS_DEVICE_FN uint64_t now_ns() {
#if defined(__CUDA_ARCH__)
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#elif defined(__CUDACC__)
    return 0;
#else
    return memory::ticks();
#endif
}

/* Where things lie in a side's memory. */
struct Layout {
    const Job *job;
    RGAPS_DEVICE_FN uint64_t stride() const { return (job->slot_bytes + 255) / 256 * 256; }
    RGAPS_DEVICE_FN uint64_t source(uint64_t slot) const { return slot * stride(); }
    RGAPS_DEVICE_FN uint64_t landing(uint64_t slot) const { return (job->slots + slot) * stride(); }
    RGAPS_DEVICE_FN uint64_t word(uint64_t number) const { return 2 * job->slots * stride() + 64 * number; }
    RGAPS_DEVICE_FN uint64_t read_back() const { return word(16); }
    RGAPS_DEVICE_FN uint64_t *at(uint64_t offset) const {
        return reinterpret_cast<uint64_t *>(static_cast<uintptr_t>(job->local.address + offset));
    }
};
constexpr uint64_t word_credits = 0, word_sum = 1, word_swap = 2, word_result = 3;

/* SplitMix64, so that no word of one message is that of another. */
RGAPS_DEVICE_FN uint64_t pattern(uint64_t message, uint64_t word) {
    uint64_t z = (message + 1) * 0x9e3779b97f4a7c15u + word * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
RGAPS_DEVICE_FN uint32_t length(const Job &job, uint64_t message) {
    return 8 + uint32_t(pattern(message, 99) % (job.slot_bytes / 8)) * 8;
}
RGAPS_DEVICE_FN void fill(uint64_t *to, uint64_t message, uint32_t bytes) {
    for (uint32_t word = 0; word < bytes / 8; ++word) to[word] = pattern(message, word);
}
RGAPS_DEVICE_FN uint64_t wrong_words(const volatile uint64_t *at, uint64_t message, uint32_t bytes) {
    uint64_t wrong = 0;
    for (uint32_t word = 0; word < bytes / 8; ++word) wrong += at[word] != pattern(message, word);
    return wrong;
}

/* Notes the first step that failed. Whether this one is well. */
RGAPS_DEVICE_FN bool want(Board *board, uint32_t step, Status status, Status wanted = Status::ok) {
    if (status == wanted) return true;
    if (!board->failed_step) {
        board->failed_step = step;
        board->failed_status = int64_t(status);
    }
    return false;
}
RGAPS_DEVICE_FN bool want(Board *board, uint32_t step, bool is_so) { return want(board, step, is_so ? Status::ok : Status::pending); }

/* Posts until there is room, or the ticks are over. */
template <class Post>
RGAPS_DEVICE_FN Status patiently(const Job &job, const Post &post) {
    const uint64_t start = memory::ticks();
    Status status;
    RGAPS_DEVICE_ROLLED
    while ((status = post()) == Status::back_pressured) {
        ++job.board->back_pressured;
        if (memory::ticks() - start >= job.ticks_max) break;
        memory::pause();
    }
    return status;
}

RGAPS_DEVICE_FN bool wait_for_word(const Job &job, const uint64_t *at, uint64_t least) {
    const uint64_t start = memory::ticks();
    while (memory::load_acquire(at) < least) {
        if (memory::ticks() - start >= job.ticks_max) return false;
        memory::pause();
    }
    return true;
}

/* Adds to the peer's counter and swaps its word, and checks what was there. */
RGAPS_DEVICE_FN bool change(const Job &job, rdma::QueuePair *queue, uint64_t round, uint64_t *sum) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    const Buffer result = job.local.at(layout.word(word_result));
    Ticket ticket;
    Status status = patiently(job, [&] { return queue->fetch_add(lane, result, job.remote.at(layout.word(word_sum)), round + 1, &ticket); });
    if (!want(board, 10, status) || !want(board, 11, queue->wait(lane, &ticket, job.ticks_max))) return false;
    if (!want(board, 12, *(volatile uint64_t *)layout.at(layout.word(word_result)) == *sum)) return false;
    *sum += round + 1;
    status = patiently(job, [&] {
        return queue->compare_swap(lane, result, job.remote.at(layout.word(word_swap)), round, round + 1, &ticket);
    });
    if (!want(board, 13, status) || !want(board, 14, queue->wait(lane, &ticket, job.ticks_max))) return false;
    return want(board, 15, *(volatile uint64_t *)layout.at(layout.word(word_result)) == round);
}

RGAPS_DEVICE_FN bool read_back(const Job &job, rdma::QueuePair *queue, uint64_t message) {
    const Layout layout{&job};
    const Lane lane;
    Ticket ticket;
    const uint32_t bytes = length(job, message);
    const Status status = patiently(job, [&] {
        return queue->read(lane, job.local.at(layout.read_back()), job.remote.at(layout.landing(message % job.slots)), bytes, &ticket);
    });
    if (!want(job.board, 20, status) || !want(job.board, 21, queue->wait(lane, &ticket, job.ticks_max))) return false;
    job.board->corrupt += wrong_words(layout.at(layout.read_back()), message, bytes);
    return true;
}

RGAPS_DEVICE_FN void send(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    rdma::QueuePair queue;
    queue.attach(lane, job.pair);
    uint64_t sum = 0;
    const bool can_change = job.pair.abilities & RGAPS_RDMA_CAN_CHANGE, can_read = job.pair.abilities & RGAPS_RDMA_CAN_READ;
    for (uint64_t message = 0; message < job.messages; ++message) {
        const uint64_t slot = message % job.slots;
        if (message >= job.slots) {
            Ticket before;
            before.end = board->ends[slot];
            if (!want(board, 1, queue.wait(lane, &before, job.ticks_max))) break;
            if (!want(board, 2, wait_for_word(job, layout.at(layout.word(word_credits)), message - job.slots + 1))) break;
        }
        const uint32_t bytes = length(job, message);
        fill(layout.at(layout.source(slot)), message, bytes);
        const uint32_t flags = (message % 3 == 1 ? rdma::deferred : 0) | (message % 4 == 2 ? rdma::quiet : 0);
        Ticket ticket;
        const Status status = patiently(job, [&] {
            return queue.write_immediate(lane, job.local.at(layout.source(slot)), job.remote.at(layout.landing(slot)), bytes,
                                         uint32_t(message * 0x01010101), &ticket, flags);
        });
        if (!want(board, 3, status)) break;
        board->ends[slot] = ticket.end;
        if (can_change && message % 16 == 5 && !change(job, &queue, message / 16, &sum)) break;
        if (can_read && message % 32 == 9 && !read_back(job, &queue, message)) break;
        ++board->messages;
        /* As a kernel that is launched again. */
        if (message % 64 == 40) {
            queue.detach(lane);
            queue = rdma::QueuePair();
            queue.attach(lane, job.pair);
        }
    }
    want(board, 4, queue.flush(lane, job.ticks_max));
    queue.detach(lane);
}

RGAPS_DEVICE_FN void receive(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    rdma::QueuePair queue;
    rdma::ReceiveQueue receives;
    queue.attach(lane, job.pair);
    receives.attach(lane, job.pair);
    memory::store_release(&board->is_running, 1);
    for (uint64_t message = 0; message < job.messages; ++message) {
        rdma::Received received;
        if (!want(board, 1, receives.receive(lane, &received, job.ticks_max))) break;
        const uint32_t bytes = length(job, message);
        if (!want(board, 2, received.immediate == uint32_t(message * 0x01010101))) break;
        if (!want(board, 3, received.bytes == bytes)) break;
        board->corrupt += wrong_words(layout.at(layout.landing(message % job.slots)), message, bytes);
        ++board->messages;
        Ticket ticket;
        const Status status = patiently(job, [&] {
            return queue.write_word(lane, message + 1, job.remote.at(layout.word(word_credits)), &ticket, message % 2 ? rdma::quiet : 0);
        });
        if (!want(board, 4, status)) break;
    }
    want(board, 5, queue.flush(lane, job.ticks_max));
    queue.detach(lane);
    receives.detach(lane);
}

/* One work that fails between two that do not. */
RGAPS_DEVICE_FN void fail(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    rdma::QueuePair queue;
    queue.attach(lane, job.pair);
    Ticket good, bad, behind, last;
    Buffer from = job.local.at(layout.source(0)), to = job.remote.at(layout.landing(0));
    want(board, 1, queue.write(lane, from, to, 8, &good, rdma::deferred | rdma::quiet));
    if (job.fault == 1) to.key ^= 0x8000;
    if (job.fault == 2) from.key ^= 0x8000;
    if (job.fault == 3) to.address -= 1 << 20;
    const Status status = job.fault == 4 ? queue.write_immediate(lane, from, to, 8, 1, &bad, rdma::deferred | rdma::quiet)
                                         : queue.write(lane, from, to, 8, &bad, rdma::deferred | rdma::quiet);
    want(board, 2, status);
    want(board, 3, queue.write(lane, job.local.at(layout.source(0)), job.remote.at(layout.landing(0)), 8, &behind, rdma::deferred | rdma::quiet));
    want(board, 4, queue.poll(lane, &behind), Status::pending);
    want(board, 5, queue.wait(lane, &bad, job.ticks_max), Status::failed);
    want(board, 6, bad.syndrome == job.syndrome);
    want(board, 7, queue.wait(lane, &behind, job.ticks_max), Status::failed);
    want(board, 8, behind.syndrome == RGAPS_RDMA_SYNDROME_FLUSHED);
    want(board, 9, queue.poll(lane, &good));
    want(board, 10, queue.write(lane, from, to, 8, &last), Status::failed);
    want(board, 11, queue.flush(lane, job.ticks_max), Status::failed);
    want(board, 12, queue.write(lane, from, to, RGAPS_RDMA_BYTES_MAX + 1, &last), Status::too_large);
    queue.detach(lane);
    /* The next kernel learns of it, too. */
    rdma::QueuePair again;
    again.attach(lane, job.pair);
    want(board, 13, again.write(lane, from, to, 8, &last), Status::failed);
    rgaps_queue_pair_t unable = job.pair;
    unable.abilities = 0;
    again.attach(lane, unable);
    want(board, 14, again.read(lane, from, to, 8, &last), Status::unsupported);
    ++board->messages;
}

/* The card does nothing until the host lets it. */
RGAPS_DEVICE_FN void fill(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    rdma::QueuePair queue;
    queue.attach(lane, job.pair);
    Ticket first, last;
    const uint64_t size = uint64_t(1) << job.pair.sends_log2;
    uint64_t posted = 0;
    Status status;
    while (posted <= size) {
        status = queue.write_word(lane, posted + 1, job.remote.at(layout.word(word_credits)), &last, rdma::deferred | rdma::quiet);
        if (status != Status::ok) break;
        if (posted == 0) first = last;
        ++posted;
    }
    want(board, 1, status, Status::back_pressured);
    want(board, 2, posted == size);
    want(board, 3, queue.wait(lane, &first, 1000), Status::timed_out);
    want(board, 4, queue.flush(lane, 1000), Status::timed_out);
    memory::store_release(&board->is_running, 1);
    if (!want(board, 5, wait_for_word(job, &board->may_go_on, 1))) return;
    want(board, 6, queue.flush(lane, job.ticks_max));
    want(board, 7, queue.poll(lane, &last));
    board->messages = posted;
    queue.detach(lane);
}

/* One rung of the ladder: how long it takes to post `messages` writes and to know that they are done. */
template <class Queue>
RGAPS_DEVICE_FN void climb(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    Queue queue;
    queue.attach(lane, job.pair);
    const Buffer from = job.local.at(layout.source(0)), to = job.remote.at(layout.landing(0));
    const bool waits = job.task == Task::naive;
    const uint64_t begun = now_ns(), start = memory::ticks();
    Ticket ticket;
    for (uint64_t message = 0; message < job.messages; ++message) {
        const bool rings = waits || (job.ring_every && (message + 1) % job.ring_every == 0);
        const uint32_t flags = rings ? rdma::at_once : rdma::deferred | rdma::quiet;
        const Status status = patiently(job, [&] { return queue.write(lane, from, to, 8, &ticket, flags); });
        if (!want(board, 2, status)) break;
        if (waits && !want(board, 3, queue.wait(lane, &ticket, job.ticks_max))) break;
        ++board->messages;
    }
    want(board, 4, queue.flush(lane, job.ticks_max));
    board->ticks = memory::ticks() - start;
    board->nanoseconds = now_ns() - begun;
    queue.detach(lane);
}

RGAPS_DEVICE_FN void climb_prepared(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    rdma::QueuePair queue;
    queue.attach(lane, job.pair);
    if (!want(board, 1, queue.prepare(lane, job.local.key, job.remote.key, 8))) return;
    const uint64_t from = job.local.address + layout.source(0), to = job.remote.address + layout.landing(0);
    const uint64_t begun = now_ns(), start = memory::ticks();
    Ticket ticket;
    for (uint64_t message = 0; message < job.messages; ++message) {
        const Status status = patiently(job, [&] { return queue.write_prepared(lane, from, to, &ticket); });
        if (!want(board, 2, status) || !want(board, 3, queue.wait(lane, &ticket, job.ticks_max))) break;
        ++board->messages;
    }
    board->ticks = memory::ticks() - start;
    board->nanoseconds = now_ns() - begun;
    want(board, 4, queue.flush(lane, job.ticks_max));
    want(board, 5, queue.write_prepared(lane, from, to, &ticket), Status::not_prepared);
    queue.detach(lane);
}

/* Posts whole queues without a card: each lap begins with an unused queue. */
RGAPS_DEVICE_FN void enqueue(const Job &job) {
    const Layout layout{&job};
    const Lane lane;
    Board *board = job.board;
    const uint64_t size = uint64_t(1) << job.pair.sends_log2;
    const Buffer from = job.local.at(layout.source(0)), to = job.remote.at(layout.landing(0));
    while (board->messages < job.messages) {
        rdma::QueuePair queue;
        queue.attach(lane, job.pair);
        Ticket ticket;
        const uint64_t begun = now_ns(), start = memory::ticks();
        for (uint64_t entry = 0; entry < size; ++entry) {
            const bool rings = job.ring_every && (entry + 1) % job.ring_every == 0;
            if (!want(board, 1, queue.write(lane, from, to, 8, &ticket, rings ? rdma::at_once : rdma::deferred | rdma::quiet))) return;
        }
        board->ticks += memory::ticks() - start;
        board->nanoseconds += now_ns() - begun;
        board->messages += size;
    }
}

}  // namespace jobs

#include "link_jobs.h"

namespace jobs {

RGAPS_DEVICE_FN void run(const Job &job) {
    switch (job.task) {
        case Task::send: send(job); break;
        case Task::receive: receive(job); break;
        case Task::fail: fail(job); break;
        case Task::fill: fill(job); break;
        case Task::naive:
        case Task::pipelined: climb<rdma::QueuePair>(job); break;
        case Task::shared: climb<rdma::SharedQueuePair>(job); break;
        case Task::prepared: climb_prepared(job); break;
        case Task::enqueue: enqueue(job); break;
        case Task::topic_publish: topic_publish(job); break;
        case Task::topic_receive: topic_receive(job); break;
        case Task::egress: carry(job, rdma::Egress()); break;
        case Task::ingress: carry(job, rdma::Ingress()); break;
    }
    memory::store_release(&job.board->is_done, 1);
}

}  // namespace jobs
