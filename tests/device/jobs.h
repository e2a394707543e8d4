/*
 * What the kernels of tests and figures do with device topics, for any group: blocks of a GPU, and threads of the host.
 * Every word of every message is verified.
 */
#pragma once
#include "rgaps/device.cuh"

namespace jobs {

using namespace rgaps::device;

constexpr uint32_t samples_max = 1 << 16;
/* Of each step of ping and pong, and of each kind of access. */
constexpr uint32_t steps_max = 4096;
/* A receiver that waits looks at nothing else for so long. */
constexpr uint64_t wait_ticks = 20000000;

struct Counts {
    uint64_t first, last; /* sequence numbers */
    uint64_t messages, missed, corrupt;
};

/* Between two looks at the clock. */
enum Step : uint32_t { step_wait, step_read, step_loan, step_fill, step_publish, step_release, steps_count };

/* What steps are made of. */
enum Access : uint32_t {
    access_load, access_acquire, access_change, access_release, access_written_release, access_fence, access_fence_all,
    access_fence_device, access_host, accesses_count
};
constexpr uint32_t timed_max = uint32_t(accesses_count) > uint32_t(steps_count) ? uint32_t(accesses_count) : uint32_t(steps_count);
/* Accesses of one sample, each of which waits for the one before it. */
constexpr uint32_t accesses_chained = 64;

/* What a job has found out. Written by its thread of rank 0: the counts that are not current, then which are current, so that
 * whoever is killed leaves whole ones. */
struct Board {
    uint64_t current;
    Counts counts[2];
    uint64_t is_running;
    uint64_t seat; /* that the process took for the job */
    uint64_t status; /* of the call that ended it, as int64_t */
    uint64_t ticks, nanoseconds; /* from the first message to the last */
    uint64_t alone; /* steps that the thread of rank 0 began without its warp: ping and pong */
    uint64_t samples_count;
    uint32_t samples[samples_max]; /* ns one way (receive), ticks both ways (ping) */
    uint64_t timed_count;
    uint32_t timed[timed_max][steps_max]; /* ticks of each step or access */
};

RGAPS_DEVICE_FN void note(Board *board, const Counts &counts) {
    const uint64_t other = 1 - (board->current & 1);
    board->counts[other] = counts;
    memory::store_release(&board->current, other);
}

RGAPS_DEVICE_FN void note_end(Board *board, Status status) {
    board->status = static_cast<uint64_t>(static_cast<int64_t>(status));
}

/* Whether this thread runs without the others of its warp. */
template <class Group>
RGAPS_DEVICE_FN bool is_alone(const Group &group) {
#if defined(__CUDA_ARCH__)
    const unsigned active = __activemask();
    return group.size() > 1 && (active & (active - 1)) == 0;
#else
    return group.size() == 0;
#endif
}

/* Notes how long steps take. All threads look at the clock, the one of rank 0 writes it down, and its warp waits for that:
 * otherwise it would go through what comes next a second time, for that thread alone. */
template <class Group>
struct Stopwatch {
    const Group &group;
    Board *board;
    uint64_t last, message, alone;

    RGAPS_DEVICE_FN void start(uint64_t number) {
        message = number;
        last = memory::ticks();
    }
    RGAPS_DEVICE_FN uint64_t note(Step step) {
        const uint64_t now = memory::ticks();
        alone += is_alone(group);
        if (group.thread_rank() == 0 && message < steps_max) board->timed[step][message] = static_cast<uint32_t>(now - last);
        detail::reconverge(group);
        last = memory::ticks();
        return now;
    }
    RGAPS_DEVICE_FN void end(uint64_t messages) const {
        board->timed_count = messages < steps_max ? messages : steps_max;
        board->alone = alone;
    }
};

enum class Task : uint32_t { publish, receive, ping, pong, bare_ping, bare_pong, hang, audit, accesses };

struct Job {
    rgaps_device_topic_t topic; /* published to, or received from */
    rgaps_device_topic_t back;  /* the other way: ping and pong */
    Board *board;
    uint64_t messages; /* 0: until stopped */
    uint64_t bytes;
    uint32_t seat;
    uint32_t mode;
    Task task;
    bool is_varied; /* lengths from 8 bytes to `bytes` */
    bool is_whole;  /* publish and receive: the first word is one of the message's, and no time */
};

#if defined(__CUDA_ARCH__)
RGAPS_DEVICE_FN uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#elif defined(__CUDACC__)
RGAPS_DEVICE_FN uint64_t now_ns() { return 0; }
#else
inline uint64_t now_ns() { return memory::ticks(); }
#endif

#if defined(__CUDACC__)
#define JOBS_EVERYWHERE __host__ __device__ __forceinline__
#else
#define JOBS_EVERYWHERE inline
#endif

/* The words of a message differ, and so do the words at one place of two messages. Cheap, since a GPU's block would compute longer than
 * memory takes. */
JOBS_EVERYWHERE uint64_t pattern(uint64_t sequence, uint64_t word) {
    return sequence * 0xbf58476d1ce4e5b9u ^ word * 0x9e3779b97f4a7c15u;
}

JOBS_EVERYWHERE uint64_t length_of(const Job &job, uint64_t sequence) {
    if (!job.is_varied) return job.bytes;
    return 8 * (1 + pattern(sequence, ~uint64_t(0)) % (job.bytes / 8));
}

/* All threads write or read their words; `from` words are left out. */
template <class Group>
RGAPS_DEVICE_FN void fill(const Group &group, void *data, uint64_t bytes, uint64_t sequence, uint64_t from) {
    uint64_t *words = static_cast<uint64_t *>(data);
    for (uint64_t word = from + group.thread_rank(); word < bytes / 8; word += group.size())
        words[word] = pattern(sequence, word);
}

/* How many words are wrong, for the thread of rank 0. */
template <class Group, class Count>
RGAPS_DEVICE_FN uint64_t wrong_words(const Group &group, const void *data, uint64_t bytes, uint64_t sequence, uint64_t from,
                                     Count *count) {
    const uint64_t *words = static_cast<const uint64_t *>(data);
    const uint64_t end = bytes / 8, step = group.size();
    uint64_t wrong = 0, word = from + group.thread_rank();
    /* Several loads of each thread are on their way at a time, or it would wait for each. */
    constexpr uint64_t batch = 8;
    for (; word + (batch - 1) * step < end; word += batch * step) {
        uint64_t found[batch];
        for (uint64_t i = 0; i < batch; ++i) found[i] = words[word + i * step];
        for (uint64_t i = 0; i < batch; ++i) wrong += found[i] != pattern(sequence, word + i * step);
    }
    RGAPS_DEVICE_ROLLED
    for (; word < end; word += step) wrong += words[word] != pattern(sequence, word);
    if (wrong) count->add(wrong);
    group.sync();
    return count->take(group);
}

/* Publishes until it has published `messages`, or is stopped. The first word is the time, unless the job says otherwise. */
template <class Group>
RGAPS_DEVICE_FN void publish(const Group &group, const Job &job) {
    const bool leads = group.thread_rank() == 0;
    Publisher publisher;
    publisher.attach(group, job.topic);
    struct Start {
        uint64_t sequence;
    };
    uint64_t sequence = detail::broadcast(group, Start{publisher.next_sequence()}).sequence;
    Counts counts{sequence, sequence - 1, 0, 0, 0};
    Status status = Status::ok;
    const uint64_t begun = now_ns();
    for (uint64_t message = 0; job.messages == 0 || message < job.messages; ++message, ++sequence) {
        Loan loan;
        const uint64_t bytes = length_of(job, sequence);
        do {
            status = publisher.loan(group, bytes, &loan, wait_ticks);
        } while (status == Status::back_pressured || status == Status::no_block);
        if (status != Status::ok) break;
        fill(group, loan.data, bytes, sequence, job.is_whole ? 0 : 1);
        if (leads && !job.is_whole) *static_cast<uint64_t *>(loan.data) = now_ns();
        publisher.publish(group, &loan);
        ++counts.messages;
        counts.last = sequence;
        if (leads && message % 64 == 63) note(job.board, counts);
    }
    if (leads) {
        note(job.board, counts);
        job.board->nanoseconds = now_ns() - begun;
        note_end(job.board, status);
    }
}

/* Receives `messages` with what it missed, or until it is stopped and there is no more. */
template <class Group, class Count>
RGAPS_DEVICE_FN void receive(const Group &group, const Job &job, Count *count) {
    const bool leads = group.thread_rank() == 0;
    Board *board = job.board;
    Subscriber subscriber;
    Status status = subscriber.attach(group, job.topic, job.seat, job.mode);
    Counts counts{subscriber.next_sequence(), subscriber.next_sequence() - 1, 0, 0, 0};
    if (leads) {
        note(board, counts);
        board->is_running = 1;
    }
    uint64_t samples = 0, begun = 0, now = 0;
    bool is_stopped = false;
    while (status == Status::ok) {
        Sample sample;
        status = is_stopped ? subscriber.try_recv(group, &sample) : subscriber.recv(group, &sample, wait_ticks);
        if (status == Status::timed_out) {
            status = Status::ok;
            continue;
        }
        if (status == Status::stopped) {
            is_stopped = true;
            status = Status::ok;
            continue;
        }
        if (status != Status::ok) break;
        now = now_ns();
        const uint64_t sent = *static_cast<const uint64_t *>(sample.data);
        if (begun == 0) begun = now;
        const uint64_t bytes = sample.bytes(job.topic);
        uint64_t wrong = wrong_words(group, sample.data, bytes, sample.sequence, job.is_whole ? 0 : 1, count);
        wrong += bytes != length_of(job, sample.sequence);
        const uint64_t sequence = sample.sequence, missed = sample.missed;
        status = subscriber.release(group, &sample);
        if (status != Status::ok) break; /* evicted: the bytes may have changed */
        ++counts.messages;
        counts.missed += missed;
        counts.last = sequence;
        counts.corrupt += wrong != 0;
        if (leads && samples < samples_max && !job.is_whole) {
            const uint64_t took = now - sent;
            board->samples[samples++] = took < 0xffffffffu ? static_cast<uint32_t>(took) : 0xffffffffu;
        }
        /* Seldom, since it waits for the memory. */
        if (leads && counts.messages % 64 == 0) note(board, counts);
        if (job.messages && counts.messages + counts.missed >= job.messages) break;
    }
    if (leads) {
        note(board, counts);
        board->samples_count = samples;
        board->nanoseconds = now - begun;
        note_end(board, status);
    }
}

/* Publishes and waits for the answer to each; samples are ticks both ways, of which the last is when all is verified. */
template <class Group, class Count>
RGAPS_DEVICE_FN void ping(const Group &group, const Job &job, Count *count) {
    const bool leads = group.thread_rank() == 0;
    Board *board = job.board;
    Publisher publisher;
    Subscriber subscriber;
    publisher.attach(group, job.topic);
    Status status = subscriber.attach(group, job.back, job.seat, reliable);
    Counts counts{1, 0, 0, 0, 0};
    const uint64_t begun = now_ns(), ticks_begun = memory::ticks();
    Stopwatch<Group> watch{group, board, 0, 0, 0};
    for (uint64_t message = 0; message < job.messages && status == Status::ok; ++message) {
        Loan loan;
        const uint64_t sequence = message + 1;
        watch.start(message);
        status = publisher.loan(group, job.bytes, &loan, 100 * wait_ticks);
        if (status != Status::ok) break;
        watch.note(step_loan);
        fill(group, loan.data, job.bytes, sequence, 0);
        group.sync();
        const uint64_t sent = watch.note(step_fill);
        publisher.publish(group, &loan);
        watch.note(step_publish);
        Sample answer;
        status = subscriber.recv(group, &answer, 100 * wait_ticks);
        if (status != Status::ok) break;
        const uint64_t came = watch.note(step_wait);
        const uint64_t wrong = wrong_words(group, answer.data, 8, sequence, 0, count) + (answer.sequence != sequence);
        watch.note(step_read);
        status = subscriber.release(group, &answer);
        watch.note(step_release);
        ++counts.messages;
        counts.last = sequence;
        counts.corrupt += wrong != 0;
        if (leads && message < samples_max) board->samples[message] = static_cast<uint32_t>(came - sent);
    }
    if (leads) {
        board->ticks = memory::ticks() - ticks_begun;
        board->nanoseconds = now_ns() - begun;
        board->samples_count = counts.messages < samples_max ? counts.messages : samples_max;
        watch.end(counts.messages);
        note(board, counts);
        note_end(board, status);
    }
}

/* Verifies each message, then answers with its first word. */
template <class Group, class Count>
RGAPS_DEVICE_FN void pong(const Group &group, const Job &job, Count *count) {
    const bool leads = group.thread_rank() == 0;
    Board *board = job.board;
    Publisher publisher;
    Subscriber subscriber;
    publisher.attach(group, job.back);
    Status status = subscriber.attach(group, job.topic, job.seat, reliable);
    if (leads) board->is_running = 1;
    Counts counts{1, 0, 0, 0, 0};
    Stopwatch<Group> watch{group, board, 0, 0, 0};
    const uint64_t begun = now_ns(), ticks_begun = memory::ticks();
    while (counts.messages < job.messages && status == Status::ok) {
        Sample sample;
        Loan loan;
        watch.start(counts.messages);
        status = subscriber.recv(group, &sample, 100 * wait_ticks);
        if (status != Status::ok) break;
        watch.note(step_wait);
        const uint64_t sequence = sample.sequence;
        const uint64_t wrong = wrong_words(group, sample.data, job.bytes, sequence, 0, count);
        watch.note(step_read);
        status = publisher.loan(group, 8, &loan, 100 * wait_ticks);
        if (status != Status::ok) break;
        watch.note(step_loan);
        fill(group, loan.data, 8, sequence, 0);
        watch.note(step_fill);
        publisher.publish(group, &loan);
        watch.note(step_publish);
        status = subscriber.release(group, &sample);
        watch.note(step_release);
        ++counts.messages;
        counts.last = sequence;
        counts.corrupt += wrong != 0;
    }
    if (leads) {
        board->ticks = memory::ticks() - ticks_begun;
        board->nanoseconds = now_ns() - begun;
        watch.end(counts.messages);
        note(board, counts);
        note_end(board, status);
    }
}

/* The floor: one thread in each process, a word in each direction, nothing else. In the topics' first slots. */
template <class Group>
RGAPS_DEVICE_FN void bare(const Group &group, const Job &job) {
    if (group.thread_rank() != 0) return;
    const bool pings = job.task == Task::bare_ping;
    uint64_t *const there = detail::Words{job.topic}.slot(0), *const back = detail::Words{job.back}.slot(0);
    Board *board = job.board;
    Counts counts{1, 0, 0, 0, 0};
    Status status = Status::ok;
    board->is_running = 1;
    const uint64_t begun = now_ns(), ticks_begun = memory::ticks();
    while (counts.messages < job.messages && status == Status::ok) {
        const uint64_t sequence = counts.messages + 1, sent = memory::ticks();
        if (pings) memory::store_release(there, sequence);
        while (memory::load_acquire(pings ? back : there) < sequence) {
            if (memory::ticks() - sent > 1000 * wait_ticks) {
                status = Status::timed_out;
                break;
            }
            memory::pause();
        }
        if (!pings) memory::store_release(back, sequence);
        if (pings && counts.messages < samples_max) board->samples[counts.messages] = static_cast<uint32_t>(memory::ticks() - sent);
        ++counts.messages;
    }
    board->ticks = memory::ticks() - ticks_begun;
    board->nanoseconds = now_ns() - begun;
    board->samples_count = pings ? (counts.messages < samples_max ? counts.messages : samples_max) : 0;
    note(board, counts);
    note_end(board, status);
}

/* Ticks that `access` takes when each waits for the one before it: it gets a zero that it cannot know to be one. */
template <class One>
RGAPS_DEVICE_FN uint32_t chained(uint64_t *sum, One access) {
    const uint64_t begun = memory::ticks();
    uint64_t zero = *sum >> 63;
    RGAPS_DEVICE_ROLLED
    for (uint32_t i = 0; i < accesses_chained; ++i) zero = access(zero) >> 63;
    *sum = zero;
    return static_cast<uint32_t>((memory::ticks() - begun) / accesses_chained);
}

/* What one access of the topic's memory costs, with nobody else running. */
template <class Group>
RGAPS_DEVICE_FN void accesses(const Group &group, const Job &job) {
    if (group.thread_rank() != 0) return;
    const detail::Words words{job.topic};
    uint64_t *const slot = words.slot(0), *const payload = static_cast<uint64_t *>(words.bytes(0));
    const uint64_t *const host = detail::Words::at(job.topic.control + RGAPS_DEVICE_CONTROL_EVICTED);
    Board *board = job.board;
    const uint64_t samples = job.messages < steps_max ? job.messages : steps_max, begun = now_ns(), ticks_begun = memory::ticks();
    uint64_t sum = 0;
    for (uint64_t i = 0; i < samples; ++i) {
        board->timed[access_load][i] = chained(&sum, [=](uint64_t zero) { return memory::load(slot + zero); });
        board->timed[access_acquire][i] = chained(&sum, [=](uint64_t zero) { return memory::load_acquire(slot + zero); });
        board->timed[access_change][i] = chained(&sum, [=](uint64_t zero) { return memory::fetch_or(words.holder(0) + zero, 0); });
        board->timed[access_release][i] = chained(&sum, [=](uint64_t zero) {
            memory::store_release(slot, zero);
            return zero;
        });
        board->timed[access_written_release][i] = chained(&sum, [=](uint64_t zero) {
            memory::store(payload, zero);
            memory::store_release(slot, zero);
            return zero;
        });
        board->timed[access_fence][i] = chained(&sum, [=](uint64_t zero) {
            memory::fence_both();
            return zero;
        });
        board->timed[access_fence_all][i] = chained(&sum, [=](uint64_t zero) {
            memory::fence_all();
            return zero;
        });
#if defined(__CUDA_ARCH__)
        /* What a fence for one GPU would cost: not enough for two processes, which are two programs for PTX. */
        board->timed[access_fence_device][i] = chained(&sum, [=](uint64_t zero) {
            cuda::atomic_thread_fence(cuda::std::memory_order_acq_rel, cuda::thread_scope_device);
            return zero;
        });
#endif
        board->timed[access_host][i] = chained(&sum, [=](uint64_t zero) { return memory::load(host + zero); });
    }
    board->ticks = memory::ticks() - ticks_begun;
    board->nanoseconds = now_ns() - begun;
    board->timed_count = samples + sum;
    note_end(board, Status::ok);
}

/* A reliable subscriber that receives and releases nothing, until it is evicted and told so. */
template <class Group>
RGAPS_DEVICE_FN void hang(const Group &group, const Job &job) {
    Subscriber subscriber;
    Sample sample;
    Counts counts{};
    Status status = subscriber.attach(group, job.topic, job.seat, reliable);
    if (group.thread_rank() == 0) job.board->is_running = 1;
    do {
        status = subscriber.recv(group, &sample, wait_ticks);
        counts.messages += status == Status::ok;
        if (group.thread_rank() == 0) note(job.board, counts);
    } while (status == Status::ok || status == Status::timed_out);
    if (group.thread_rank() == 0) note_end(job.board, status);
}

/* With nobody running: each block is free, or in the ring. Bits of the evicted do not count. */
template <class Group>
RGAPS_DEVICE_FN void audit(const Group &group, const Job &job) {
    if (group.thread_rank() != 0) return;
    const detail::Words words{job.topic};
    Counts counts{};
    const uint64_t evicted = words.evicted() & detail::readers;
    for (uint32_t block = 0; block < job.topic.blocks; ++block) {
        const uint64_t holder = memory::load(words.holder(block)), sequence = detail::generation(holder);
        const bool in_ring = memory::load(words.slot(sequence)) == detail::slot_word(sequence, block);
        counts.corrupt += (holder & detail::mask & ~evicted) != (in_ring ? detail::ring : 0);
    }
    note(job.board, counts);
}

template <class Group, class Count>
RGAPS_DEVICE_FN void run(const Group &group, const Job &job, Count *count) {
    switch (job.task) {
        case Task::publish: publish(group, job); break;
        case Task::receive: receive(group, job, count); break;
        case Task::ping: ping(group, job, count); break;
        case Task::pong: pong(group, job, count); break;
        case Task::bare_ping:
        case Task::bare_pong: bare(group, job); break;
        case Task::hang: hang(group, job); break;
        case Task::audit: audit(group, job); break;
        case Task::accesses: accesses(group, job); break;
    }
}

}  // namespace jobs
