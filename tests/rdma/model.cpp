/*
 * rgaps/device_rdma.cuh under the model checker of tests/device/explorer.h: the shipped source, with a small card in place of
 * hardware, whose accesses are the explorer's, too. Payload is in plain words, which are checked for races: a card that reads a
 * source which is written, a kernel that reads what has not arrived.
 *
 *     model [--only SCENARIO] [--seconds N] [--seed N]
 */
#include "explorer.h"

#define RGAPS_DEVICE_MEMORY "model_memory.h"
#define RGAPS_DEVICE_RDMA_ACCESS "model_access.h"
#include "rgaps/device_rdma.cuh"

#include "search.h"

namespace memory = rgaps::device::memory;
namespace rdma = rgaps::device::rdma;
using model::explorer;
using rdma::Buffer;
using rdma::Status;
using rdma::Ticket;

namespace {

constexpr uint32_t number = 0xabcd01, sends_log2 = 2, receives_log2 = 1;
constexpr uint64_t size = 1 << sends_log2;
/* Times that somebody tries before it gives up, since an execution has to end. */
constexpr int tries_max = 4;
constexpr uint32_t local_key = 0xbeef01, remote_key = 0xc0ffee;
const rgaps::device::Lane lane;

rgaps_queue_pair_t pair() {
    const uint64_t base = reinterpret_cast<uintptr_t>(explorer().arena);
    rgaps_queue_pair_t pair{};
    pair.sends = base;
    pair.completions = base + 512;
    pair.receive_completions = base + 1024;
    pair.record = base + 2048;
    pair.completion_record = base + 2112;
    pair.receive_completion_record = base + 2176;
    pair.doorbell = base + 2240;
    pair.state = base + 4096;
    pair.number = number;
    pair.sends_log2 = pair.completions_log2 = sends_log2;
    pair.receives_log2 = receives_log2;
    pair.abilities = RGAPS_RDMA_CAN_WRITE | RGAPS_RDMA_CAN_READ | RGAPS_RDMA_CAN_CHANGE;
    for (uint64_t entry = 0; entry < size; ++entry) {
        memory::store(rdma::detail::Words::at(pair.completions + 64 * entry + 56), uint64_t(0xf1) << 56);
        memory::store(rdma::detail::Words::at(pair.receive_completions + 64 * entry + 56), uint64_t(0xf1) << 56);
    }
    return pair;
}

/* Bytes of words as a card sees them: no function of the header has a part in it. */
struct Bytes {
    unsigned char all[64];
    uint64_t get(int at, int count) const {
        uint64_t value = 0;
        for (int i = 0; i < count; ++i) value = value << 8 | all[at + i];
        return value;
    }
    void set(int at, int count, uint64_t value) {
        for (int i = count - 1; i >= 0; --i, value >>= 8) all[at + i] = static_cast<unsigned char>(value);
    }
};

/* Writes payload words: local and remote addresses are their numbers. */
struct Card {
    rgaps_queue_pair_t pair;
    uint64_t fetched = 0, completed = 0;
    /* The work that fails. */
    uint64_t fails_at = ~uint64_t(0);
    /* How far works go, the record says, also before the doorbell. */
    bool record_decides = false;

    explicit Card(const rgaps_queue_pair_t &pair) : pair(pair) {}

    uint64_t *word(uint64_t address) const { return rdma::detail::Words::at(address); }

    /* Carries out what the doorbell says. Whether it was anything. */
    bool step() {
        Bytes bell{}, record{};
        if (record_decides) {
            const uint64_t ready = memory::load_acquire(word(pair.record));
            memcpy(record.all, &ready, 8);
            return carry_out(record.get(4, 4));
        }
        const uint64_t rung_word = memory::load_acquire(word(pair.doorbell));
        if (rung_word == 0) return false;
        memcpy(bell.all, &rung_word, 8);
        if (bell.get(4, 3) != number || bell.get(3, 1) || bell.get(7, 1)) explorer().fail("a doorbell of nobody");
        const uint64_t rung = bell.get(1, 2);
        const uint64_t record_word = memory::load_acquire(word(pair.record));
        memcpy(record.all, &record_word, 8);
        if (((record.get(4, 4) - rung) & 0xffff) > size) explorer().fail("the doorbell record is behind the doorbell");
        return carry_out(rung);
    }

    bool carry_out(uint64_t rung) {
        if (((rung - fetched) & 0xffff) > size) explorer().fail("more works than the queue holds");
        if ((fetched & 0xffff) == rung) return false;
        while ((fetched & 0xffff) != rung) fetch();
        return true;
    }

    void fetch() {
        Bytes entry{};
        for (int i = 0; i < 8; ++i) {
            const uint64_t value = memory::load(word(pair.sends + fetched % size * 64 + 8 * i));
            memcpy(entry.all + 8 * i, &value, 8);
        }
        if (entry.get(1, 2) != (fetched & 0xffff)) explorer().fail("an entry of another round");
        if (entry.get(4, 3) != number) explorer().fail("an entry of another queue pair");
        const uint64_t opcode = entry.get(3, 1);
        const bool is_bad = fetched >= fails_at;
        if (opcode == 0x08 && !is_bad) {
            if (entry.get(7, 1) != 3 || entry.get(24, 4) != remote_key || entry.get(36, 4) != local_key || entry.get(32, 4) != 8)
                explorer().fail("an entry with wrong fields");
            explorer().write_plain(entry.get(16, 8), explorer().read_plain(entry.get(40, 8)));
        } else if (opcode != 0 && opcode != 0x08) {
            explorer().fail("no such opcode");
        }
        if (is_bad || (entry.get(11, 1) & 0x08)) complete(is_bad ? (fetched == fails_at ? 0x13 : 0x05) : 0);
        ++fetched;
    }

    void complete(int syndrome) {
        Bytes entry{};
        entry.set(54, 1, syndrome ? 0x77 : 0);
        entry.set(55, 1, syndrome);
        entry.set(57, 3, number);
        entry.set(60, 2, fetched & 0xffff);
        entry.set(63, 1, (syndrome ? 13 : 0) << 4 | (completed >> sends_log2 & 1));
        put(pair.completions + completed % size * 64, entry);
        ++completed;
    }

    void receive(uint64_t count, uint32_t immediate) {
        Bytes entry{};
        entry.set(36, 4, immediate);
        entry.set(44, 4, 8);
        entry.set(63, 1, 1 << 4 | (count >> receives_log2 & 1));
        put(pair.receive_completions + count % (1 << receives_log2) * 64, entry);
    }

    void put(uint64_t address, const Bytes &entry) {
        uint64_t values[8];
        memcpy(values, entry.all, 64);
        for (int i = 4; i < 7; ++i) memory::store(word(address + 8 * i), values[i]);
        memory::store_release(word(address + 56), values[7]);
    }

    void serve(int steps) {
        for (int tried = 0, done = 0; tried < steps + tries_max && done < steps; ++tried) {
            if (step()) ++done;
            else explorer().yield();
        }
    }
};

uint64_t source(uint64_t slot) { return slot; }
uint64_t landing(uint64_t slot) { return 16 + slot; }
uint64_t value(int poster, uint64_t message) { return 1000 * (poster + 1) + message; }

template <class Queue>
bool post(Queue &queue, int poster, uint64_t message, uint64_t slot, Ticket *ticket, uint32_t flags) {
    explorer().write_plain(source(slot), value(poster, message));
    for (int tried = 0; tried < tries_max; ++tried) {
        const Status status =
            queue.write(lane, Buffer{source(slot), local_key}, Buffer{landing(slot), remote_key}, 8, ticket, flags);
        if (status == Status::ok) return true;
        if (status != Status::back_pressured) return false;
        explorer().yield();
    }
    return false;
}

/* Whether the work is done; then its bytes are where they should be, and its source may be used again. */
template <class Queue>
bool is_done(Queue &queue, Ticket *ticket, int poster, uint64_t message, uint64_t slot) {
    for (int tried = 0; tried < tries_max; ++tried) {
        const Status status = queue.poll(lane, ticket);
        if (status == Status::ok) {
            if (explorer().read_plain(landing(slot)) != value(poster, message)) explorer().fail("done, and the bytes are not there");
            return true;
        }
        if (status == Status::failed) explorer().fail("a work failed");
        explorer().yield();
    }
    return false;
}

/* One kernel that owns the queue pair, more works than the queue holds, two sources. */
void owned() {
    const auto p = pair();
    Card card(p);
    card.record_decides = explorer().choose(2);
    uint64_t posted = 0;
    explorer().spawn([&] {
        rdma::QueuePair queue;
        queue.attach(lane, p);
        Ticket tickets[2];
        for (uint64_t message = 0; message < 7; ++message) {
            const uint64_t slot = message % 2;
            if (message >= 2) {
                queue.ring(lane);
                if (!is_done(queue, &tickets[slot], 0, message - 2, slot)) break;
            }
            if (!post(queue, 0, message, slot, &tickets[slot], message % 3 == 1 ? rdma::deferred : rdma::at_once)) break;
            ++posted;
            if (message == 3) {
                queue.detach(lane);
                queue = rdma::QueuePair();
                queue.attach(lane, p);
            }
        }
        queue.detach(lane);
    });
    explorer().spawn([&] { card.serve(6); });
    explorer().run();
    card.step();
    if (card.fetched != posted) explorer().fail("an entry stays behind");
}

/* Works without completions of their own, posted until the queue is full. */
void quiet_fills_up() {
    const auto p = pair();
    Card card(p);
    uint64_t posted = 0;
    explorer().spawn([&] {
        rdma::QueuePair queue;
        queue.attach(lane, p);
        Ticket ticket;
        for (uint64_t message = 0; message < 6; ++message) {
            if (!post(queue, 0, message, message, &ticket, rdma::deferred | rdma::quiet)) {
                if (memory::load(card.word(p.doorbell)) == 0) explorer().fail("a full queue keeps what was deferred");
                break;
            }
            ++posted;
        }
        queue.detach(lane);
    });
    explorer().spawn([&] { card.serve(3); });
    explorer().run();
    card.step();
    if (card.fetched != posted) explorer().fail("an entry stays behind");
    rdma::QueuePair queue;
    queue.attach(lane, p);
    Ticket last;
    if (!post(queue, 0, 9, 9, &last, rdma::at_once)) explorer().fail("a full queue stays full");
    card.step();
    if (!is_done(queue, &last, 0, 9, 9)) explorer().fail("a completion stays behind");
}

/* Whoever waits for what was deferred rings for it. */
void waits_ring() {
    const auto p = pair();
    Card card(p);
    rdma::QueuePair queue;
    queue.attach(lane, p);
    Ticket ticket;
    post(queue, 0, 0, 0, &ticket, rdma::deferred);
    if (card.step()) explorer().fail("a doorbell that was deferred");
    if (queue.wait(lane, &ticket, 0) != Status::timed_out) explorer().fail("done before it was begun");
    if (!card.step()) explorer().fail("a wait for what the card does not know of");
    if (queue.wait(lane, &ticket, 0) != Status::ok) explorer().fail("a completion stays behind");
    post(queue, 0, 1, 1, &ticket, rdma::deferred | rdma::quiet);
    if (queue.flush(lane, 0) != Status::timed_out || !card.step()) explorer().fail("a flush does not ring");
    if (queue.poll(lane, &ticket) != Status::ok) explorer().fail("a flush leaves a work without completion");
}

/* Kernels post one work each: whoever rings, rings for all. */
template <int Posters>
void shared_once() {
    const auto p = pair();
    Card card(p);
    for (int poster = 0; poster < Posters; ++poster)
        explorer().spawn([&, poster] {
            rdma::SharedQueuePair queue;
            queue.attach(lane, p);
            Ticket ticket;
            if (!post(queue, poster, 0, uint64_t(poster), &ticket, rdma::at_once)) explorer().fail("no room in an empty queue");
        });
    explorer().run();
    card.step();
    if (card.fetched != Posters) explorer().fail("an entry stays behind");
}

/* Two kernels share a queue pair that holds fewer works than they post. */
void shared() {
    constexpr uint64_t messages = 3;
    const auto p = pair();
    Card card(p);
    uint64_t posted = 0;
    for (int poster = 0; poster < 2; ++poster)
        explorer().spawn([&, poster] {
            rdma::SharedQueuePair queue;
            queue.attach(lane, p);
            const uint64_t slot = uint64_t(poster);
            Ticket ticket;
            for (uint64_t message = 0; message < messages; ++message) {
                if (!post(queue, poster, message, slot, &ticket, rdma::at_once)) break;
                ++posted;
                if (!is_done(queue, &ticket, poster, message, slot)) break;
            }
        });
    explorer().spawn([&] { card.serve(2 * messages); });
    explorer().run();
    card.step();
    if (card.fetched != posted) explorer().fail("an entry stays behind");
    rdma::SharedQueuePair queue;
    queue.attach(lane, p);
    Ticket last;
    last.end = posted;
    if (queue.poll(lane, &last) != Status::ok) explorer().fail("a completion stays behind");
}

/* The second of three works fails. */
template <class Queue>
void fails() {
    const auto p = pair();
    Card card(p);
    card.fails_at = 1;
    explorer().spawn([&] {
        Queue queue;
        queue.attach(lane, p);
        Ticket tickets[3];
        for (uint64_t message = 0; message < 3; ++message)
            if (!post(queue, 0, message, message, &tickets[message], rdma::at_once) && message < 2) return;
        const Status expected[] = {Status::ok, Status::failed, Status::failed};
        const uint32_t syndromes[] = {0, 0x13, 0x05};
        for (int message = 0; message < 3; ++message) {
            if (tickets[message].end == 0) continue;
            for (int tried = 0; tried < tries_max; ++tried) {
                const Status status = queue.poll(lane, &tickets[message]);
                if (status == Status::pending) {
                    explorer().yield();
                    continue;
                }
                if (status != expected[message] || tickets[message].syndrome != syndromes[message])
                    explorer().fail("a work has another's outcome");
                if (message == 1 && tickets[message].vendor != 0x77) explorer().fail("the vendor's syndrome is lost");
                if (message > 0 && queue.write(lane, Buffer{0, 1}, Buffer{0, 1}, 8, &tickets[0]) != Status::failed)
                    explorer().fail("a queue pair that failed takes works");
                break;
            }
        }
    });
    explorer().spawn([&] { card.serve(3); });
    explorer().run();
}

/* Two kernels share a queue pair and wait for nothing, with more works than it holds. */
void shared_fills_up() {
    const auto p = pair();
    Card card(p);
    uint64_t posted = 0;
    for (int poster = 0; poster < 2; ++poster)
        explorer().spawn([&, poster] {
            rdma::SharedQueuePair queue;
            queue.attach(lane, p);
            Ticket ticket;
            for (uint64_t message = 0; message < 3; ++message)
                posted += post(queue, poster, message, uint64_t(poster) * 3 + message, &ticket, message % 2 ? rdma::deferred : rdma::at_once);
            queue.detach(lane);
        });
    explorer().spawn([&] { card.serve(4); });
    explorer().run();
    card.step();
    if (card.fetched != posted) explorer().fail("an entry stays behind");
}

/* One work after the other, until queues have gone round twice; nothing is done before the card has done it. */
void laps() {
    const auto p = pair();
    Card card(p);
    rdma::QueuePair queue;
    queue.attach(lane, p);
    for (uint64_t message = 0; message < 3 * size; ++message) {
        Ticket ticket;
        post(queue, 0, message, message, &ticket, rdma::at_once);
        if (queue.poll(lane, &ticket) != Status::pending) explorer().fail("done before it was begun");
        card.step();
        if (queue.poll(lane, &ticket) != Status::ok) explorer().fail("a completion stays behind");
    }
}

/* A card that says that a work is done which there is not. */
void nonsense() {
    const auto p = pair();
    Card card(p);
    rdma::QueuePair queue;
    queue.attach(lane, p);
    Ticket ticket;
    post(queue, 0, 0, 0, &ticket, rdma::at_once);
    card.fetched = 3;
    card.complete(0);
    if (queue.poll(lane, &ticket) != Status::failed || ticket.syndrome != RGAPS_RDMA_SYNDROME_CORRUPT)
        explorer().fail("nonsense is believed");
}

/* The peer's writes with immediates, more than there are receives. */
void receives() {
    const auto p = pair();
    Card card(p);
    explorer().spawn([&] {
        rdma::ReceiveQueue queue;
        queue.attach(lane, p);
        uint32_t got = 0;
        for (int tried = 0; tried < 5 + tries_max && got < 5; ++tried) {
            rdma::Received received;
            const Status status = queue.try_receive(lane, &received);
            if (status == Status::failed) explorer().fail("a receive failed");
            if (status != Status::ok) {
                explorer().yield();
                continue;
            }
            if (received.immediate != 100 + got || received.bytes != 8) explorer().fail("another immediate");
            if (explorer().read_plain(landing(got)) != got + 1) explorer().fail("received, and the bytes are not there");
            ++got;
        }
        queue.detach(lane);
    });
    explorer().spawn([&] {
        uint64_t count = 0;
        for (int tried = 0; tried < 5 + tries_max && count < 5; ++tried) {
            Bytes record{};
            const uint64_t word = memory::load_acquire(card.word(p.record));
            memcpy(record.all, &word, 8);
            if (record.get(0, 4) <= count) {
                explorer().yield();
                continue;
            }
            explorer().write_plain(landing(count), count + 1);
            card.receive(count, 100 + uint32_t(count));
            ++count;
        }
    });
    explorer().run();
    if (uint32_t(memory::load(card.word(p.record))) == 0) explorer().fail("receives are not posted");
}

bool equals(const rdma::wire::Entry &entry, const char *text) {
    Bytes bytes{};
    memcpy(bytes.all, entry.words, 64);
    const uint32_t halves = uint32_t(strlen(text) + 1) / 9;
    if (halves != entry.count * 2) return false;
    for (uint32_t half = 0; half < halves; ++half)
        if (bytes.get(int(half) * 4, 4) != strtoul(text + half * 9, nullptr, 16)) return false;
    return true;
}

/* What rdma-core's own functions and structures give: see vectors.c. */
void vectors() {
    using namespace rdma::wire;
    const uint32_t qpn = 0xabcd;
    const Buffer local{0x7f0000001000, 0xbeef01}, remote{0x1122334455667788, 0xc0ffee};
    const struct {
        Entry entry;
        const char *bytes;
    } all[] = {
#include "vectors.h"
    };
    for (const auto &one : all)
        if (!equals(one.entry, one.bytes)) explorer().fail(std::string("not as rdma-core has it: ") + one.bytes);
    const uint64_t bell = doorbell(0x1235, qpn);
    Bytes bytes{};
    memcpy(bytes.all, &bell, 8);
    if (bytes.get(0, 4) != 0x00123500 || bytes.get(4, 4) != 0x00abcd00) explorer().fail("another doorbell");
    const uint32_t send = record(0x71235);
    memcpy(bytes.all, &send, 4);
    if (bytes.get(0, 4) != 0x1235 || RGAPS_RDMA_RECORD_SEND != 4) explorer().fail("another doorbell record");
}

const model::Scenario scenarios[] = {
    {"vectors", vectors, 0},
    {"nonsense", nonsense, 0},
    {"waits_ring", waits_ring, 0},
    {"laps", laps, 0},
    {"owned", owned, 2},
    {"quiet_fills_up", quiet_fills_up, 2},
    {"shared_twice", shared_once<2>, 4},
    {"shared_thrice", shared_once<3>, 2},
    {"shared", shared, 2},
    {"shared_fills_up", shared_fills_up, 2},
    {"fails", fails<rdma::QueuePair>, 3},
    {"shared_fails", fails<rdma::SharedQueuePair>, 2},
    {"receives", receives, 3},
};

}  // namespace

int main(int count, char **arguments) { return model::search(scenarios, count, arguments); }
