/*
 * A link between device topics of two hosts: kernels carry the messages, and post the RDMA writes themselves.
 *
 *     using namespace rgaps::device;
 *     __global__ void send(rgaps_device_topic_t topic, uint32_t seat, rdma::LinkEnd end, uint64_t ticks_max) {
 *         auto group = cooperative_groups::this_thread_block();
 *         rdma::Egress egress;
 *         Status status = egress.attach(group, topic, seat, end);
 *         while (status == Status::ok || status == Status::timed_out || status == Status::back_pressured)
 *             status = egress.forward(group, ticks_max);
 *         egress.detach(group);
 *     }
 *
 * An Egress is a reliable subscriber of its host's topic. It copies each message into a slot of its registered memory, and posts one RDMA
 * write with an immediate, into the same slot of the other host's memory. The Ingress there is the publisher of its host's topic. It copies
 * the message out of the slot into a block and publishes it; then it writes into the Egress's memory how many messages it has taken.
 *
 * Full        A slot is used again when the Ingress has taken its message. So a full topic on one host back-pressures the publisher on
 *             the other, and no message is dropped.
 * Errors      `failed`: the queue pair has failed, or the other host has gone. To find that out, each wait that times out posts a small
 *             write. Messages that were in flight are lost; the host makes a new link.
 * Queue pair  must be used by the link alone, which counts its works. One group at a time uses an end.
 * Kernels     may end and be launched again: detach() keeps the counts in the end's memory.
 *
 * The host makes both ends (crate rgaps-gpu-verbs, `LinkEnd`); threads take the place of lanes in a build for the host.
 */
#ifndef RGAPS_DEVICE_LINK_CUH
#define RGAPS_DEVICE_LINK_CUH

#include "device_rdma.cuh"

#include <stddef.h>

namespace rgaps {
namespace device {
namespace rdma {

/* One end of a link, as the host passes it to its kernel. */
struct LinkEnd {
    rgaps_queue_pair_t pair;
    /* The registered memory of this end and of the other end: slots, then words. */
    Buffer local, remote;
    uint64_t slots, message_bytes;
};
static_assert(offsetof(LinkEnd, local) == 88 && offsetof(LinkEnd, slots) == 120 && sizeof(LinkEnd) == 136, "crates/gpu-verbs/src/link.rs");

namespace detail {

/* The layout of an end's memory. A slot has the message's length, its number on the link (from 1), and its bytes. */
struct LinkMemory {
    LinkEnd end;

    static constexpr uint64_t head_bytes = 16, line_bytes = 64;
    RGAPS_DEVICE_FN uint64_t slot(uint64_t number) const {
        return number % end.slots * ((head_bytes + end.message_bytes + line_bytes - 1) / line_bytes * line_bytes);
    }
    RGAPS_DEVICE_FN uint64_t word(uint64_t number) const {
        return end.slots * ((head_bytes + end.message_bytes + line_bytes - 1) / line_bytes * line_bytes) + number * line_bytes;
    }
    RGAPS_DEVICE_FN uint64_t *at(uint64_t offset) const { return Words::at(end.local.address + offset); }
    /* The word, in the Egress's memory, to which the Ingress writes how many messages it has taken. In the Ingress's memory nobody
     * reads this word. */
    RGAPS_DEVICE_FN uint64_t taken() const { return word(0); }
    /* The word in which detach() leaves the number of forwarded messages for the next kernel. */
    RGAPS_DEVICE_FN uint64_t forwarded() const { return word(1); }
};

/* Whether the other host seems alive. When the last such write is done, writes a word of its memory again, as a heartbeat. */
template <class Group>
RGAPS_DEVICE_FN bool is_alive(const Group &group, Queue<false> *queue, uint64_t value, const LinkMemory &memory, Ticket *beat) {
    Status status = queue->poll(group, beat);
    if (status == Status::ok) status = queue->write_word(group, value, memory.end.remote.at(memory.taken()), beat);
    return status != Status::failed;
}

template <class Group>
RGAPS_DEVICE_FN void copy(const Group &group, void *to, const void *from, uint64_t bytes) {
    const uint64_t words = bytes / sizeof(uint64_t);
    for (uint64_t word = group.thread_rank(); word < words; word += group.size())
        static_cast<uint64_t *>(to)[word] = static_cast<const uint64_t *>(from)[word];
    for (uint64_t byte = words * sizeof(uint64_t) + group.thread_rank(); byte < bytes; byte += group.size())
        static_cast<unsigned char *>(to)[byte] = static_cast<const unsigned char *>(from)[byte];
}

}  // namespace detail

/* Carries the messages of a device topic to the other host. */
class Egress {
public:
    /* Joins the topic in `seat`, or continues where an earlier kernel ended. */
    template <class Group>
    RGAPS_DEVICE_FN device::Status attach(const Group &group, const rgaps_device_topic_t &topic, uint32_t seat, const LinkEnd &end) {
        topic_ = topic;
        memory_ = detail::LinkMemory{end};
        sample_ = Sample{};
        beat_ = Ticket{};
        queue_.attach(group, end.pair);
        posted_ = memory::load(memory_.at(memory_.forwarded()));
        beats_ = memory::load(detail::Words{end.pair}.state(RGAPS_RDMA_STATE_RESERVED)) - posted_;
        if (topic.block_bytes > end.message_bytes) return device::Status::too_large;
        return subscriber_.attach(group, topic, seat, reliable);
    }

    /* Call before the kernel ends. The next kernel receives a message again that was not posted yet. */
    template <class Group>
    RGAPS_DEVICE_FN void detach(const Group &group) {
        if (group.thread_rank() == 0) memory::store(memory_.at(memory_.forwarded()), posted_);
        queue_.detach(group);
    }

    /* Sends the next message. Each of its waits takes at most `ticks_max` ticks. `timed_out`: there is no message.
     * `back_pressured`: the other host has not taken earlier messages. After both, call it again. */
    template <class Group>
    RGAPS_DEVICE_FN device::Status forward(const Group &group, uint64_t ticks_max) {
        device::Status status = device::Status::ok;
        if (sample_.data == nullptr) status = subscriber_.recv(group, &sample_, ticks_max);
        if (status == device::Status::ok) status = wait_for_slot(group, ticks_max);
        if ((status == device::Status::timed_out || status == device::Status::back_pressured) && !is_alive(group)) return device::Status::failed;
        if (status != device::Status::ok) return status;
        const uint64_t slot = memory_.slot(posted_), bytes = sample_.bytes(topic_);
        uint64_t *const to = memory_.at(slot);
        detail::copy(group, to + 2, sample_.data, bytes);
        if (group.thread_rank() == 0) {
            to[0] = bytes;
            to[1] = posted_ + 1;
        }
        status = subscriber_.release(group, &sample_);
        if (status != device::Status::ok) return status;
        const LinkEnd &end = memory_.end;
        Ticket ticket;
        const Status posted = queue_.write_immediate(group, end.local.at(slot), end.remote.at(slot),
                                                     uint32_t(detail::LinkMemory::head_bytes + bytes), uint32_t(posted_), &ticket);
        /* The queue is never full here: it has room for twice as many works as there are slots. */
        if (posted != Status::ok) return device::Status::failed;
        ++posted_;
        return device::Status::ok;
    }

private:
    struct Credit {
        uint64_t taken, waited;
    };

    template <class Group>
    RGAPS_DEVICE_FN bool is_alive(const Group &group) {
        if (!detail::is_alive(group, &queue_, posted_, memory_, &beat_)) return false;
        if (beat_.end > posted_ + beats_) beats_ = beat_.end - posted_;
        return true;
    }

    /* Waits until the next slot is free: the other host has taken the slot's last message, and the card has read the slot. */
    template <class Group>
    RGAPS_DEVICE_FN device::Status wait_for_slot(const Group &group, uint64_t ticks_max) {
        const uint64_t start = memory::ticks();
        RGAPS_DEVICE_ROLLED
        for (;;) {
            Credit credit{0, 0};
            if (group.thread_rank() == 0) credit = Credit{memory::load_acquire(memory_.at(memory_.taken())), memory::ticks() - start};
            credit = detail::broadcast(group, credit);
            if (posted_ - credit.taken < memory_.end.slots) break;
            if (credit.waited >= ticks_max) return device::Status::back_pressured;
            memory::pause();
        }
        if (posted_ < memory_.end.slots) return device::Status::ok;
        Ticket before;
        before.end = posted_ + beats_ - memory_.end.slots + 1;
        const Status status = queue_.wait(group, &before, ticks_max);
        if (status == Status::timed_out) return device::Status::back_pressured;
        return status == Status::ok ? device::Status::ok : device::Status::failed;
    }

    detail::LinkMemory memory_{};
    rgaps_device_topic_t topic_{};
    Subscriber subscriber_;
    QueuePair queue_;
    Sample sample_;
    /* The number of posted messages, and of other works of the queue (heartbeats). */
    uint64_t posted_ = 0, beats_ = 0;
    Ticket beat_;
};

/* Publishes the messages of the other host in a device topic, of which it is the one publisher. */
class Ingress {
public:
    /* Takes the topic over, and continues where an earlier kernel ended. */
    template <class Group>
    RGAPS_DEVICE_FN device::Status attach(const Group &group, const rgaps_device_topic_t &topic, const LinkEnd &end) {
        memory_ = detail::LinkMemory{end};
        queue_.attach(group, end.pair);
        receives_.attach(group, end.pair);
        taken_ = memory::load(memory_.at(memory_.forwarded()));
        is_there_ = memory::load(detail::Words{end.pair}.state(RGAPS_RDMA_STATE_RECEIVED)) > taken_;
        is_told_ = false;
        beat_ = Ticket{};
        if (end.message_bytes > topic.block_bytes) return device::Status::too_large;
        return publisher_.attach(group, topic);
    }

    /* Call before the kernel ends. */
    template <class Group>
    RGAPS_DEVICE_FN void detach(const Group &group) {
        if (group.thread_rank() == 0) memory::store(memory_.at(memory_.forwarded()), taken_);
        receives_.detach(group);
        queue_.detach(group);
    }

    /* Publishes the next message. Each of its waits takes at most `ticks_max` ticks. `timed_out`: there is no message.
     * `back_pressured`, `no_block`: the topic has no room. After these, call it again. */
    template <class Group>
    RGAPS_DEVICE_FN device::Status forward(const Group &group, uint64_t ticks_max) {
        if (!tell(group)) return device::Status::failed;
        if (!is_there_) {
            Received received;
            const Status status = receives_.receive(group, &received, ticks_max);
            if (status == Status::timed_out && publisher_.is_stopped(group)) return device::Status::stopped;
            if (status == Status::timed_out && detail::is_alive(group, &queue_, taken_, memory_, &beat_)) return device::Status::timed_out;
            if (status != Status::ok) return device::Status::failed;
            is_there_ = true;
        }
        const uint64_t *const from = memory_.at(memory_.slot(taken_));
        const uint64_t bytes = memory::load(from);
        if (bytes > memory_.end.message_bytes || memory::load(from + 1) != taken_ + 1) return device::Status::corrupt;
        Loan loan;
        const device::Status status = publisher_.loan(group, bytes, &loan, ticks_max);
        if (status != device::Status::ok) return status;
        detail::copy(group, loan.data, from + 2, bytes);
        publisher_.publish(group, &loan);
        is_there_ = is_told_ = false;
        ++taken_;
        return tell(group) ? device::Status::ok : device::Status::failed;
    }

private:
    /* Writes into the Egress's memory how many messages were taken; if the queue is full, the next call does it. False: the queue
     * pair has failed. */
    template <class Group>
    RGAPS_DEVICE_FN bool tell(const Group &group) {
        if (is_told_) return true;
        Ticket ticket;
        const Status status = queue_.write_word(group, taken_, memory_.end.remote.at(memory_.taken()), &ticket, quiet);
        is_told_ = status == Status::ok;
        return is_told_ || status == Status::back_pressured;
    }

    detail::LinkMemory memory_{};
    Publisher publisher_;
    QueuePair queue_;
    ReceiveQueue receives_;
    uint64_t taken_ = 0;
    /* Whether the next message is in its slot; and whether the Egress knows `taken_`. */
    bool is_there_ = false, is_told_ = false;
    Ticket beat_;
};

}  // namespace rdma
}  // namespace device
}  // namespace rgaps

#endif
