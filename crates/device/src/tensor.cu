/*
 * Kernels that publish a range of GPU memory in a device topic, and receive into one: for programs that bring no kernels of
 * their own, such as Python's. Each is launched with one block, on a stream, for one message; what a publisher or subscriber
 * knows stays in the GPU's memory between them. tools/device/tensor.sh compiles this to tensor.ptx.
 */
#include "rgaps/device.cuh"

using namespace rgaps::device;

/* As crates/device/src/tensor.rs has it. */
struct Outcome {
    uint64_t calls;  /* that ended */
    uint64_t failed; /* of these */
    int64_t status;  /* of the last one */
    uint64_t sequence, bytes, missed;
};

template <class Handle>
struct State {
    rgaps_device_topic_t topic;
    Outcome outcome;
    uint64_t is_attached;
    uint64_t padding;
    Handle handle;
};

constexpr size_t state_bytes = 512;
static_assert(sizeof(State<Publisher>) <= state_bytes && sizeof(State<Subscriber>) <= state_bytes, "tensor.rs allocates 512 bytes");
static_assert(offsetof(State<Publisher>, outcome) == 64 && offsetof(State<Subscriber>, outcome) == 64, "tensor.rs reads it there");

template <class Group>
__device__ void copy(const Group &group, void *to, const void *from, uint64_t bytes) {
    const uint64_t rank = group.thread_rank(), size = group.size();
    uint64_t whole = 0;
    if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15) == 0) {
        whole = bytes / 16;
        uint4 *const target = static_cast<uint4 *>(to);
        const uint4 *const source = static_cast<const uint4 *>(from);
#pragma unroll 4
        for (uint64_t i = rank; i < whole; i += size) target[i] = source[i];
    }
    for (uint64_t i = whole * 16 + rank; i < bytes; i += size) static_cast<char *>(to)[i] = static_cast<const char *>(from)[i];
}

template <class Handle>
__device__ void end(State<Handle> *state, const Handle &handle, Status status, uint64_t sequence, uint64_t bytes, uint64_t missed) {
    state->handle = handle;
    state->is_attached = 1;
    state->outcome = Outcome{state->outcome.calls + 1, state->outcome.failed + (status != Status::ok),
                             static_cast<int64_t>(status), sequence, bytes, missed};
}

extern "C" __global__ void __launch_bounds__(512, 1)
rgaps_device_publish(State<Publisher> *state, const void *from, uint64_t bytes, uint64_t ticks_max) {
    const auto group = cooperative_groups::this_thread_block();
    Publisher publisher = state->handle;
    if (!state->is_attached) publisher.attach(group, state->topic);
    Loan loan;
    const Status status = publisher.loan(group, bytes, &loan, ticks_max);
    const uint64_t sequence = publisher.next_sequence();
    if (status == Status::ok) {
        copy(group, loan.data, from, bytes);
        publisher.publish(group, &loan);
    }
    if (group.thread_rank() == 0) end(state, publisher, status, sequence, bytes, 0);
}

extern "C" __global__ void __launch_bounds__(512, 1)
rgaps_device_receive(State<Subscriber> *state, void *to, uint64_t room, uint64_t ticks_max, uint64_t seat, uint64_t mode) {
    const auto group = cooperative_groups::this_thread_block();
    Subscriber subscriber = state->handle;
    Status status = Status::ok;
    if (!state->is_attached)
        status = subscriber.attach(group, state->topic, static_cast<uint32_t>(seat), static_cast<uint32_t>(mode));
    Sample sample;
    uint64_t bytes = 0;
    if (status == Status::ok) status = subscriber.recv(group, &sample, ticks_max);
    if (status == Status::ok) {
        bytes = sample.bytes(state->topic);
        /* The message is longer than there is room for: its first bytes, and told. */
        copy(group, to, sample.data, bytes < room ? bytes : room);
        status = subscriber.release(group, &sample);
        if (status == Status::ok && bytes > room) status = Status::too_large;
    }
    if (group.thread_rank() == 0) end(state, subscriber, status, sample.sequence, bytes, sample.missed);
}
