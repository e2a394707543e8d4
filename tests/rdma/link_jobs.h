/* What kernels do at the ends of a link between device topics: one publishes, one carries to the other host; there one carries into
 * the topic, one receives and verifies every byte. Part of jobs.h. */
#pragma once

namespace jobs {

RGAPS_DEVICE_FN bool want_topic(Board *board, uint32_t step, rgaps::device::Status status) {
    if (status == rgaps::device::Status::ok) return true;
    want(board, step, static_cast<Status>(status));
    return false;
}

/* Of any length, also none. */
RGAPS_DEVICE_FN uint32_t topic_length(const Job &job, uint64_t sequence) { return uint32_t(pattern(sequence, 99) % (job.slot_bytes + 1)); }
RGAPS_DEVICE_FN uint8_t topic_byte(uint64_t sequence, uint32_t at) { return uint8_t(pattern(sequence, at / 8) >> at % 8 * 8); }

/* What is published before the subscriber has joined does not reach it. */
RGAPS_DEVICE_FN bool wait_for_subscriber(const Job &job) {
    return wait_for_word(job, rgaps::device::detail::Words{job.topic}.seat(job.seat, RGAPS_DEVICE_SEAT_CURSOR), RGAPS_DEVICE_CURSOR_JOINED);
}

RGAPS_DEVICE_FN void topic_publish(const Job &job) {
    const Lane lane;
    Board *board = job.board;
    if (!want(board, 1, wait_for_subscriber(job))) return;
    Publisher publisher;
    publisher.attach(lane, job.topic);
    for (uint64_t sequence = 1; sequence <= job.messages; ++sequence) {
        Loan loan;
        const uint32_t bytes = topic_length(job, sequence);
        if (!want_topic(board, 2, publisher.loan(lane, bytes, &loan, job.ticks_max))) return;
        for (uint32_t at = 0; at < bytes; ++at) static_cast<uint8_t *>(loan.data)[at] = topic_byte(sequence, at);
        publisher.publish(lane, &loan);
        ++board->messages;
    }
}

RGAPS_DEVICE_FN void topic_receive(const Job &job) {
    const Lane lane;
    Board *board = job.board;
    Subscriber subscriber;
    if (!want_topic(board, 1, subscriber.attach(lane, job.topic, job.seat, reliable))) return;
    for (uint64_t sequence = 1; sequence <= job.messages; ++sequence) {
        Sample sample;
        if (!want_topic(board, 2, subscriber.recv(lane, &sample, job.ticks_max))) return;
        const uint32_t bytes = topic_length(job, sequence);
        if (!want(board, 3, sample.sequence == sequence && sample.missed == 0)) return;
        if (!want(board, 4, sample.bytes(job.topic) == bytes)) return;
        for (uint32_t at = 0; at < bytes; ++at) board->corrupt += static_cast<const uint8_t *>(sample.data)[at] != topic_byte(sequence, at);
        if (!want_topic(board, 5, subscriber.release(lane, &sample))) return;
        ++board->messages;
    }
}

RGAPS_DEVICE_FN rgaps::device::Status begin(rdma::Egress *end, const Job &job, const rdma::LinkEnd &link) {
    return end->attach(Lane{}, job.topic, job.seat, link);
}
RGAPS_DEVICE_FN rgaps::device::Status begin(rdma::Ingress *end, const Job &job, const rdma::LinkEnd &link) {
    return end->attach(Lane{}, job.topic, link);
}

/* Carries all messages, as several kernels one after the other. */
template <class End>
RGAPS_DEVICE_FN void carry(const Job &job, End end) {
    const Lane lane;
    Board *board = job.board;
    const rdma::LinkEnd link{job.pair, job.local, job.remote, job.slots, job.slot_bytes};
    if (job.task == Task::ingress && !job.fault && !want(board, 1, wait_for_subscriber(job))) return;
    if (!want_topic(board, 2, begin(&end, job, link))) return;
    while (board->messages < job.messages) {
        const rgaps::device::Status status = end.forward(lane, job.ticks_max);
        const bool waits = status == rgaps::device::Status::timed_out || status == rgaps::device::Status::back_pressured;
        if (job.fault && waits) continue; /* until the other host is known to have gone */
        if (!want_topic(board, 3, status)) break;
        ++board->messages;
        if (board->messages % 64 == 40) {
            end.detach(lane);
            end = End();
            if (!want_topic(board, 4, begin(&end, job, link))) return;
        }
    }
    end.detach(lane);
}

}  // namespace jobs
