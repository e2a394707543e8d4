/*
 * A model checker for rgaps/device.cuh: it runs threads as fibres, one operation at a time, and tries out who goes next and
 * which of the values that the memory model allows a load returns.
 *
 * The memory is that of C++ (and PTX, which is no weaker here) with these bounds: a location's stores are ordered as they were
 * executed, a read-modify-write and a failed exchange see the last one, and sequential consistency is that of fences. A load
 * may return any store that is not hidden by one that happened before it, or by one that the thread has seen, as in loom and
 * relacy. Plain words (payload) are checked for races: two accesses of which one writes and none happened before the other.
 *
 * Exhaustive: depth first over all choices with at most `preemptions_max` switches away from a thread that could go on.
 * Random: seeded choices. A failure prints what failed and the choices that lead to it.
 */
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace model {

constexpr int threads_max = 6;
constexpr size_t stack_bytes = 256 << 10;
constexpr size_t words_max = 4096;
/* Operations of one execution: more is a loop without end. */
constexpr int steps_max = 20000;

using Clock = std::array<uint32_t, threads_max>;

inline void join(Clock &to, const Clock &from) {
    for (int i = 0; i < threads_max; ++i)
        if (from[i] > to[i]) to[i] = from[i];
}

struct Store {
    uint64_t value;
    int thread;
    uint32_t time;
    Clock sync;
};

/* Thrown in a thread that is killed, and in all threads when an execution is given up. */
struct Killed {};

struct Thread {
    std::function<void()> body;
    std::unique_ptr<char[]> stack;
    jmp_buf at;
    ucontext_t begin;
    bool is_started = false;
    bool is_done = false;
    /* What it waits for outside of the memory, if anything: the death of another, say. */
    std::function<bool()> waits;
    /* Operations after which it dies; -1: never. */
    int dies_after = -1;
    Clock now{};
    Clock acquire{};       /* what relaxed loads have seen, for the next fence */
    Clock release{};       /* the last release fence */
    std::vector<uint32_t> floor; /* by word: the first store that it may still read */
};

struct Plain {
    uint64_t value = 0;
    int thread = -1;
    uint32_t time = 0;
    Clock reads{};
};

class Explorer {
public:
    int preemptions_max = 2;
    std::string failure;

    /* Asked now and then: whether to leave the search as it is. */
    std::function<bool()> stop;

    /* Executes `scenario` with choices until all are tried, it is stopped or something failed. Returns the number of
     * executions. */
    long exhaust(const std::function<void()> &scenario) {
        random_ = 0;
        path_.clear();
        long executions = 0;
        do {
            at_ = 0;
            execute(scenario);
            ++executions;
            if (!failure.empty() || (executions % 64 == 0 && stop())) return executions;
        } while (advance());
        is_complete = true;
        return executions;
    }

    long sample(const std::function<void()> &scenario, long executions_max, uint64_t seed) {
        long executions = 0;
        while (executions < executions_max && failure.empty()) {
            random_ = (seed + executions) * 0x9e3779b97f4a7c15u | 1;
            path_.clear();
            at_ = 0;
            execute(scenario);
            ++executions;
        }
        return executions;
    }

    bool is_complete = false;

    /* For scenarios. */

    int spawn(std::function<void()> body, int dies_after = -1) {
        const int id = count_++;
        Thread &thread = threads_[id];
        thread.body = std::move(body);
        thread.is_started = thread.is_done = false;
        thread.dies_after = dies_after;
        thread.waits = nullptr;
        thread.acquire = thread.release = Clock{};
        thread.floor.assign(words_max, 0);
        if (!thread.stack) thread.stack.reset(new char[stack_bytes]);
        /* What the one who starts it has done, it sees. */
        thread.now = current_ >= 0 ? threads_[current_].now : base_;
        return id;
    }

    /* Runs all that were spawned to their end; then whoever called has seen all that they did. */
    void run() {
        current_ = pick(-1, true);
        if (current_ < 0) return;
        if (_setjmp(home_) == 0) resume();
        for (int id = 0; id < count_; ++id) join(base_, threads_[id].now);
        count_ = 0;
        current_ = -1;
    }

    int choose(int count) {
        if (count <= 1) return 0;
        if (random_) {
            random_ ^= random_ << 13;
            random_ ^= random_ >> 7;
            random_ ^= random_ << 17;
            return static_cast<int>((random_ >> 11) % count);
        }
        if (at_ == path_.size()) path_.push_back({0, count});
        return path_[at_++].chosen;
    }

    void fail(const std::string &what) {
        if (failure.empty()) failure = what;
        if (current_ >= 0) throw Killed{};
    }

    /* The thread has nothing to do until others have done something. */
    void yield() { step(true); }

    /* Waits for something that is not in the memory. */
    void wait_for(std::function<bool()> is_so) {
        threads_[current_].waits = std::move(is_so);
        step(true);
        threads_[current_].waits = nullptr;
        if (given_up_) throw Killed{};
    }

    /* The death of a process is seen with all that it did. */
    void see_end_of(int id) { join(threads_[current_].now, threads_[id].now); }
    bool has_ended(int id) const { return threads_[id].is_done; }

    /* Operations. */

    uint64_t load(const uint64_t *at, bool acquires) {
        step(false);
        const size_t word = index(at);
        std::vector<Store> &stores = history_[word];
        Thread *me = self();
        if (!me) return stores.back().value;
        uint32_t first = me->floor[word];
        for (uint32_t i = static_cast<uint32_t>(stores.size()) - 1; i > first; --i)
            if (stores[i].thread < 0 || stores[i].time <= me->now[stores[i].thread]) {
                first = i;
                break;
            }
        const uint32_t last = static_cast<uint32_t>(stores.size()) - 1;
        const uint32_t seen = last - static_cast<uint32_t>(choose(static_cast<int>(last - first + 1)));
        me->floor[word] = seen;
        join(acquires ? me->now : me->acquire, stores[seen].sync);
        return stores[seen].value;
    }

    void store(uint64_t *at, uint64_t value, bool releases) {
        step(false);
        const size_t word = index(at);
        put(word, value, releases, Clock{});
    }

    template <class Change>
    uint64_t change(uint64_t *at, bool acquires, Change change) {
        step(false);
        const size_t word = index(at);
        const Store before = history_[word].back();
        if (Thread *me = self()) {
            join(acquires ? me->now : me->acquire, before.sync);
            me->floor[word] = static_cast<uint32_t>(history_[word].size()) - 1;
        }
        uint64_t after = before.value;
        /* Even where it changes nothing it is a store, in the release sequence of the one before it. */
        if (change(after)) put(word, after, false, before.sync);
        return before.value;
    }

    void fence(bool is_sequential) {
        step(false);
        Thread *me = self();
        if (!me) return;
        ++me->now[current_];
        if (is_sequential) {
            join(me->now, me->acquire);
            join(me->now, sequential_);
            sequential_ = me->now;
        }
        me->release = me->now;
    }

    void fence_acquire() {
        step(false);
        if (Thread *me = self()) join(me->now, me->acquire);
    }

    uint64_t read_plain(size_t word) {
        step(false);
        Plain &plain = plain_[word];
        if (Thread *me = self()) {
            if (plain.thread >= 0 && plain.time > me->now[plain.thread]) fail("race: payload is read while it is written");
            plain.reads[current_] = ++me->now[current_];
        }
        return plain.value;
    }

    void write_plain(size_t word, uint64_t value) {
        step(false);
        Plain &plain = plain_[word];
        if (Thread *me = self()) {
            if (plain.thread >= 0 && plain.time > me->now[plain.thread]) fail("race: payload is written twice at once");
            for (int id = 0; id < threads_max; ++id)
                if (id != current_ && plain.reads[id] > me->now[id]) fail("race: payload is written while it is held");
            plain.time = ++me->now[current_];
            plain.thread = current_;
        }
        plain.value = value;
    }

    /* The memory, zeroed: `arena` is where the words are, as addresses only. */
    uint64_t arena[words_max];

private:
    struct Choice {
        int chosen, count;
    };
    std::vector<Choice> path_;
    size_t at_ = 0;
    uint64_t random_ = 0;
    Thread threads_[threads_max];
    int count_ = 0;
    int current_ = -1;
    int steps_ = 0, preemptions_ = 0;
    bool given_up_ = false;
    jmp_buf home_;
    Clock base_{}, sequential_{};
    std::vector<Store> history_[words_max];
    std::vector<size_t> touched_;
    std::vector<Plain> plain_ = std::vector<Plain>(words_max);

    Thread *self() { return current_ >= 0 ? &threads_[current_] : nullptr; }

    size_t index(const uint64_t *at) {
        const size_t word = static_cast<size_t>(at - arena);
        if (word >= words_max) {
            fprintf(stderr, "model: an access outside of the topic\n");
            abort();
        }
        if (history_[word].empty()) {
            history_[word].push_back(Store{0, -1, 0, Clock{}});
            touched_.push_back(word);
        }
        return word;
    }

    void put(size_t word, uint64_t value, bool releases, Clock sync) {
        Thread *me = self();
        Store store{value, -1, 0, sync};
        if (me) {
            store.time = ++me->now[current_];
            store.thread = current_;
            join(store.sync, releases ? me->now : me->release);
            me->floor[word] = static_cast<uint32_t>(history_[word].size());
        }
        history_[word].push_back(store);
    }

    bool advance() {
        while (!path_.empty() && path_.back().chosen + 1 == path_.back().count) path_.pop_back();
        if (path_.empty()) return false;
        ++path_.back().chosen;
        return true;
    }

    void execute(const std::function<void()> &scenario) {
        for (size_t word : touched_) history_[word].clear();
        touched_.clear();
        plain_.assign(64, Plain{});
        base_ = sequential_ = Clock{};
        count_ = steps_ = preemptions_ = 0;
        given_up_ = false;
        current_ = -1;
        scenario();
    }

    bool is_able(int id) { return !threads_[id].is_done && (given_up_ || !threads_[id].waits || threads_[id].waits()); }

    /* Who goes next; -1: nobody is left. */
    int pick(int from, bool is_free) {
        int able[threads_max], count = 0;
        const bool may_stay = from >= 0 && is_able(from);
        if (may_stay && !is_free) able[count++] = from; /* first: the choice that costs nothing */
        if (!(may_stay && !is_free && preemptions_ >= preemptions_max && !random_))
            for (int id = 0; id < count_; ++id)
                if (id != from && is_able(id)) able[count++] = id;
        if (count == 0 && may_stay) return from;
        if (count == 0) {
            for (int id = 0; id < count_; ++id)
                if (!threads_[id].is_done) {
                    given_up_ = true; /* they wait for what does not come any more */
                    return id;
                }
            return -1;
        }
        /* At random, a switch is as likely as in one of eight operations. */
        if (random_ && may_stay && !is_free && choose(8) != 0) return from;
        const int chosen = able[choose(count)];
        if (may_stay && !is_free && chosen != from) ++preemptions_;
        return chosen;
    }

    void step(bool is_free) {
        if (current_ < 0) return; /* before and after the threads */
        if (!failure.empty()) throw Killed{};
        if (++steps_ > steps_max) fail("no end");
        Thread &me = threads_[current_];
        if (me.dies_after == 0) throw Killed{};
        if (me.dies_after > 0) --me.dies_after;
        const int next = pick(current_, is_free);
        if (next != current_) switch_to(next);
        if (!failure.empty()) throw Killed{};
    }

    void switch_to(int next) {
        Thread &me = threads_[current_];
        current_ = next;
        if (_setjmp(me.at) == 0) resume();
    }

    [[noreturn]] void resume() {
        Thread &thread = threads_[current_];
        if (thread.is_started) _longjmp(thread.at, 1);
        thread.is_started = true;
        getcontext(&thread.begin);
        thread.begin.uc_stack.ss_sp = thread.stack.get();
        thread.begin.uc_stack.ss_size = stack_bytes;
        thread.begin.uc_link = nullptr;
        makecontext(&thread.begin, reinterpret_cast<void (*)()>(&Explorer::enter), 0);
        instance() = this;
        setcontext(&thread.begin);
        abort();
    }

    static Explorer *&instance() {
        static Explorer *explorer;
        return explorer;
    }

    static void enter() { instance()->live(); }

    [[noreturn]] void live() {
        const int me = current_;
        try {
            threads_[me].body();
        } catch (const Killed &) {
        }
        threads_[me].is_done = true;
        const int next = pick(me, true);
        if (next < 0) _longjmp(home_, 1);
        current_ = next;
        resume();
    }
};

inline Explorer &explorer() {
    static Explorer one;
    return one;
}

}  // namespace model
