/*
 * rgaps/device.cuh under the model checker of explorer.h: the shipped source, with its accesses handed to the explorer.
 *
 *     model [--only SCENARIO] [--seconds N] [--seed N]
 *
 * Each scenario is searched at random for a moment, exhaustively with few preemptions, and at random again. The last
 * line is JSON; the exit code is 1 if a scenario failed. tools/device/model.sh runs it on mutants of the header, too, each
 * of which must fail.
 */
#include "explorer.h"

#include "rgaps/device_layout.h"
/* Fewer seats, so that a look at all of them is short. */
#undef RGAPS_DEVICE_MAX_SUBSCRIBERS
#define RGAPS_DEVICE_MAX_SUBSCRIBERS 2
#undef RGAPS_DEVICE_PUBLISHER_ENDPOINT
#define RGAPS_DEVICE_PUBLISHER_ENDPOINT 2
/* Whoever is evicted is found out by the second try that comes to nothing. */
#define RGAPS_DEVICE_TRIES_BETWEEN_LOOKS 2
#define RGAPS_DEVICE_MEMORY "model_memory.h"
#include "rgaps/device.cuh"

#include "search.h"

using namespace rgaps::device;
using model::explorer;

namespace {

constexpr uint32_t payload_words = 2;
/* Times that somebody tries before it gives up, since an execution has to end. */
constexpr int tries_max = 3;
const Lane lane;

/* A topic in the explorer's memory. */
rgaps_device_topic_t topic(uint32_t depth, uint32_t blocks) {
    const uint64_t base = reinterpret_cast<uintptr_t>(explorer().arena);
    rgaps_device_topic_t topic{};
    topic.control = base;
    topic.slots = base + 768;
    topic.lengths = topic.slots + 8 * depth;
    topic.seats = base + 2048;
    topic.holders = base + 4096;
    topic.blocks_at = 4096; /* payload is in plain words, by the number of the block */
    topic.block_bytes = 256;
    topic.depth = depth;
    topic.blocks = blocks;
    return topic;
}

uint64_t pattern(uint64_t sequence, uint32_t word) { return sequence * 16 + word + 1; }

/* Publishes one message, if there is room. */
bool publish_one(Publisher &publisher) {
    Loan loan;
    for (int tried = 0; tried < tries_max; ++tried) {
        const Status status = publisher.try_loan(lane, 16, &loan);
        if (status == Status::ok) {
            const uint64_t sequence = publisher.next_sequence();
            for (uint32_t word = 0; word < payload_words; ++word)
                explorer().write_plain(loan.block * payload_words + word, pattern(sequence, word));
            publisher.publish(lane, &loan);
            return true;
        }
        if (status != Status::back_pressured && status != Status::no_block) explorer().fail("a loan failed");
        explorer().yield();
    }
    return false;
}

void check(const Sample &sample) {
    for (uint32_t word = 0; word < payload_words; ++word)
        if (explorer().read_plain(sample.block * payload_words + word) != pattern(sample.sequence, word))
            explorer().fail("payload of another message");
}

/* One subscriber's account of what it got. */
struct Reader {
    Subscriber subscriber;
    uint64_t first = 0, got = 0, missed = 0, last = 0;
    /* Whether it receives by recv(). */
    bool waits = false;

    void join(const rgaps_device_topic_t &topic, uint32_t seat, uint32_t mode) {
        if (subscriber.attach(lane, topic, seat, mode) != Status::ok) explorer().fail("cannot join");
        first = subscriber.next_sequence();
    }

    bool receive(Sample *sample) {
        const Status status = waits ? subscriber.recv(lane, sample, 0) : subscriber.try_recv(lane, sample);
        if (status == (waits ? Status::timed_out : Status::empty)) return false;
        if (status != Status::ok) explorer().fail("receiving failed");
        if (sample->sequence <= last) explorer().fail("a message came twice, or late");
        last = sample->sequence;
        ++got;
        missed += sample->missed;
        if (first + got + missed != sample->sequence + 1) explorer().fail("lag is not told");
        check(*sample);
        return true;
    }

    void release(Sample *sample) {
        check(*sample);
        if (subscriber.release(lane, sample) != Status::ok) explorer().fail("a sample was taken away");
    }

    /* Receives until there is nothing; with nobody else running, all that was published has come then. */
    void drain() {
        Sample sample;
        while (explorer().failure.empty() && receive(&sample)) release(&sample);
    }

    void read(int count) {
        Sample sample;
        for (int tried = 0; tried < count + tries_max && got < uint64_t(count); ++tried) {
            if (receive(&sample)) release(&sample);
            else explorer().yield();
        }
    }
};

/* With nobody running: what no subscriber holds is in the ring or free. */
void check_holders(const rgaps_device_topic_t &topic, uint64_t ignored = 0) {
    const detail::Words words{topic};
    for (uint32_t block = 0; block < topic.blocks; ++block) {
        const uint64_t holder = memory::load(words.holder(block));
        const uint64_t sequence = detail::generation(holder);
        const bool in_ring = memory::load(words.slot(sequence)) == detail::slot_word(sequence, block) && sequence > 0;
        if ((holder & detail::mask & ~ignored) != (in_ring ? detail::ring : 0)) explorer().fail("a block is lost");
    }
}

/* A reliable subscriber joins while messages are published: from its first on it gets all. */
template <bool waits>
void reliable_gets_all() {
    const auto t = topic(2, 3);
    Publisher publisher;
    Reader reader;
    reader.waits = waits;
    uint64_t published = 0;
    explorer().spawn([&] {
        publisher.attach(lane, t);
        for (int message = 0; message < 4; ++message) published += publish_one(publisher);
    });
    explorer().spawn([&] {
        reader.join(t, 0, reliable);
        reader.read(2);
    });
    explorer().run();
    reader.drain();
    if (reader.missed != 0) explorer().fail("a reliable subscriber missed a message");
    if (reader.first + reader.got != published + 1) explorer().fail("a message is lost");
    if (publish_one(publisher)) reader.drain();
    check_holders(t);
}

/* A reliable subscriber holds two at once, and its kernel is launched again before or not; what was in the ring when it
 * joined may leave. */
template <uint32_t mode, bool is_launched_again>
void reliable_holds_two() {
    const auto t = topic(1, 3);
    Publisher publisher;
    Reader reader;
    explorer().spawn([&] {
        publisher.attach(lane, t);
        for (int message = 0; message < 3; ++message) publish_one(publisher);
    });
    explorer().spawn([&] {
        reader.join(t, 0, mode);
        if (is_launched_again && reader.subscriber.attach(lane, t, 0, best_effort) != Status::ok)
            explorer().fail("cannot go on");
        Sample first, second;
        for (int tried = 0; tried < tries_max; ++tried) {
            if (!reader.receive(&first)) {
                explorer().yield();
                continue;
            }
            const bool is_second = reader.receive(&second);
            reader.release(&first);
            if (is_second) reader.release(&second);
            break;
        }
    });
    explorer().run();
    reader.drain();
    for (int message = 0; message < 2; ++message) {
        if (!publish_one(publisher)) explorer().fail("no room although nothing is held");
        reader.drain();
    }
    if (!(mode & history) && reader.missed != 0) explorer().fail("a reliable subscriber missed a message");
    check_holders(t);
}

/* Who is evicted while it reads may read other bytes, and is told so. Payload is in shared words here. */
void evicted_are_told() {
    const auto t = topic(2, 3);
    uint64_t *const payload = reinterpret_cast<uint64_t *>(uintptr_t(t.control)) + 1024;
    Publisher publisher;
    const auto publish = [&] {
        Loan loan;
        for (int tried = 0; tried < tries_max; ++tried) {
            if (publisher.try_loan(lane, 8, &loan) != Status::ok) {
                explorer().yield();
                continue;
            }
            memory::store(payload + loan.block, publisher.next_sequence());
            publisher.publish(lane, &loan);
            return;
        }
    };
    Subscriber hung;
    const int joined = explorer().spawn([&] { hung.attach(lane, t, 0, reliable); });
    explorer().spawn([&] {
        explorer().wait_for([=] { return explorer().has_ended(joined); });
        explorer().see_end_of(joined);
        Sample sample;
        for (int tried = 0; tried < tries_max; ++tried) {
            if (hung.try_recv(lane, &sample) != Status::ok) {
                explorer().yield();
                continue;
            }
            const uint64_t read = memory::load(payload + sample.block), sequence = sample.sequence;
            if (hung.release(lane, &sample) == Status::ok && read != sequence) explorer().fail("other bytes are not told");
        }
    });
    explorer().spawn([&] {
        explorer().wait_for([=] { return explorer().has_ended(joined); });
        explorer().see_end_of(joined);
        publisher.attach(lane, t);
        publish();
        publish();
        memory::fetch_or(detail::Words::at(t.control + RGAPS_DEVICE_CONTROL_EVICTED), 1);
        for (int message = 0; message < 3; ++message) publish();
    });
    explorer().run();
}

/* Subscribers keep a sample while more messages come, and may be overrun. */
template <uint32_t Readers, int Messages>
void held_stays() {
    const auto t = topic(1, 1 + Readers);
    Publisher publisher;
    Reader readers[Readers];
    uint64_t published = 0;
    explorer().spawn([&] {
        publisher.attach(lane, t);
        for (int message = 0; message < Messages; ++message) published += publish_one(publisher);
    });
    for (uint32_t seat = 0; seat < Readers; ++seat)
        explorer().spawn([&, seat] {
            Reader &me = readers[seat];
            me.join(t, seat, seat == 0 ? best_effort : history);
            Sample held, next;
            for (int tried = 0; tried < tries_max; ++tried) {
                if (!me.receive(&held)) {
                    explorer().yield();
                    continue;
                }
                const bool is_next = me.receive(&next);
                me.release(&held);
                if (is_next) me.release(&next);
                return;
            }
        });
    explorer().run();
    for (Reader &reader : readers) {
        reader.drain();
        if (published && reader.first + reader.got + reader.missed != published + 1) explorer().fail("a message is lost untold");
    }
    check_holders(t);
}

/* A loan that is given back, and two loans at once. */
void loans_return() {
    const auto t = topic(2, 4);
    Publisher publisher;
    Reader reader;
    explorer().spawn([&] {
        publisher.attach(lane, t);
        Loan kept, other;
        if (publisher.try_loan(lane, 8, &kept) != Status::ok) explorer().fail("a loan failed");
        for (int message = 0; message < 3; ++message) publish_one(publisher);
        if (publisher.try_loan(lane, 8, &other) == Status::ok) {
            if (other.block == kept.block) explorer().fail("a block was loaned twice");
            publisher.discard(lane, &other);
        }
        publisher.discard(lane, &kept);
        publish_one(publisher);
        if (publisher.try_loan(lane, 257, &other) != Status::too_large) explorer().fail("a loan is too large");
    });
    explorer().spawn([&] {
        reader.join(t, 1, best_effort);
        reader.read(2);
    });
    explorer().run();
    reader.drain();
    check_holders(t);
}

/* A subscriber stops without releasing. It is evicted, and its seat given to another, who keeps what it receives. */
void evicted_make_room(uint32_t fresh_mode) {
    const auto t = topic(2, 3);
    const detail::Words words{t};
    uint64_t *evicted = detail::Words::at(t.control + RGAPS_DEVICE_CONTROL_EVICTED);
    Publisher publisher;
    Reader hung, fresh;
    Sample held, second;
    uint64_t published = 0;
    const int hung_thread = explorer().spawn([&] {
        hung.join(t, 0, reliable);
        for (int tried = 0; tried < tries_max && !hung.receive(&held); ++tried) explorer().yield();
        /* Then it holds the first by its bit, and the second, if there is one, by its cursor. */
        if (held.data && explorer().choose(2)) hung.receive(&second);
    });
    explorer().spawn([&] {
        publisher.attach(lane, t);
        for (int message = 0; message < 6; ++message) published += publish_one(publisher);
    });
    explorer().spawn([&] {
        explorer().wait_for([=] { return explorer().has_ended(hung_thread); });
        explorer().see_end_of(hung_thread);
        /* As crates/device does it. */
        memory::fence_release();
        memory::fetch_or(evicted, 1);
        explorer().yield();
        memory::store(words.seat(0, RGAPS_DEVICE_SEAT_CURSOR), 0);
        memory::store(words.seat(0, RGAPS_DEVICE_SEAT_MISSED), 0);
        memory::fence_release();
        memory::fetch_and(evicted, ~uint64_t(1));
        fresh.join(t, 0, fresh_mode);
        Sample samples[2];
        int count = 0;
        for (int tried = 0; tried < 2 * tries_max && count < 2; ++tried) {
            if (fresh.receive(&samples[count])) ++count;
            explorer().yield();
        }
        while (count > 0) fresh.release(&samples[--count]);
    });
    explorer().run();
    fresh.drain();
    if (fresh_mode & reliable && !(fresh_mode & history) && fresh.missed != 0) explorer().fail("a reliable subscriber missed a message");
    if (fresh.first + fresh.got + fresh.missed != published + 1 && fresh.first <= published) explorer().fail("lost untold");
    check_holders(t);
}

/* Whoever is evicted and not replaced keeps neither blocks nor the publisher. */
void evicted_hold_nothing_up() {
    const auto t = topic(1, 2);
    Publisher publisher;
    Reader hung;
    Sample held;
    explorer().spawn([&] {
        publisher.attach(lane, t);
        for (int message = 0; message < 2; ++message) publish_one(publisher);
    });
    explorer().spawn([&] {
        hung.join(t, 0, reliable | history);
        for (int tried = 0; tried < tries_max && !hung.receive(&held); ++tried) explorer().yield();
    });
    explorer().run();
    memory::fence_release();
    memory::fetch_or(detail::Words::at(t.control + RGAPS_DEVICE_CONTROL_EVICTED), 1);
    for (int message = 0; message < 3; ++message)
        if (!publish_one(publisher)) explorer().fail("who was evicted holds the publisher up");
    if (held.data && hung.subscriber.release(lane, &held) != Status::evicted) explorer().fail("eviction is not told");
    Subscriber again;
    if (again.attach(lane, t, 0, reliable) != Status::evicted) explorer().fail("eviction is not told");
    check_holders(t);
}

/* A publisher dies at any step; another takes the topic over. */
template <int Messages>
void publisher_dies() {
    const auto t = topic(2, 4);
    Publisher first, second;
    Reader reader;
    const int dies_after = explorer().choose(16 + 16 * Messages);
    const int dead = explorer().spawn(
        [&] {
            first.attach(lane, t);
            for (int message = 0; message < Messages; ++message) publish_one(first);
        },
        dies_after);
    explorer().spawn([&] {
        explorer().wait_for([=] { return explorer().has_ended(dead); });
        explorer().see_end_of(dead);
        second.attach(lane, t);
        for (int message = 1; message < Messages; ++message) publish_one(second);
    });
    explorer().spawn([&] {
        reader.join(t, 0, reliable);
        reader.read(2);
    });
    explorer().run();
    reader.drain();
    for (int message = 0; message < 3; ++message) {
        if (!publish_one(second)) explorer().fail("no room although nothing is held");
        reader.drain();
    }
    if (reader.missed != 0) explorer().fail("a reliable subscriber missed a message");
    check_holders(t);
}

const model::Scenario scenarios[] = {
    {"reliable_gets_all", reliable_gets_all<false>, 2}, {"waits_for_all", reliable_gets_all<true>, 2},
    {"one_holds", held_stays<1, 2>, 4},
    {"reliable_holds_two", reliable_holds_two<reliable, false>, 2},
    {"history_may_leave", reliable_holds_two<reliable | history, false>, 2},
    {"launched_again", reliable_holds_two<reliable | history, true>, 2},
    {"evicted_are_told", evicted_are_told, 2},
    {"held_stays", held_stays<2, 4>, 2},         {"loans_return", loans_return, 3},
    {"publisher_dies_early", publisher_dies<1>, 1}, {"publisher_dies", publisher_dies<3>, 1},
    {"evicted_hold_nothing_up", evicted_hold_nothing_up, 2},
    {"evicted_by_history", [] { evicted_make_room(history); }, 2},
    {"evicted_by_reliable", [] { evicted_make_room(reliable); }, 2},
};

}  // namespace

int main(int count, char **arguments) { return model::search(scenarios, count, arguments); }
