// Functions of C around rgaps/device.cuh, for kernels of Numba and Triton, which call no templates. A block is one group: all its threads call
// each function. nvcc -std=c++17 -ptx -rdc=true -arch=sm_90 -I INCLUDE makes the PTX that device_topic_numba.py and device_topic_triton.py link.
#include <rgaps/device.cuh>
#include <string.h>

using namespace rgaps::device;
typedef unsigned long long word;

// A publisher and a subscriber of the block, as the thread of rank 0 has them.
struct Sender {
    Publisher publisher;
    Loan loan;
};
struct Receiver {
    Subscriber subscriber;
    Sample sample;
};

template <class State> static __device__ State *kept() {
    __shared__ __align__(16) unsigned char bytes[sizeof(State)];
    return reinterpret_cast<State *>(bytes);
}

template <class State, class Act> static __device__ int call(Act act) {
    const auto group = cooperative_groups::this_thread_block();
    State state = *kept<State>();
    group.sync();
    const Status status = act(group, state);
    if (group.thread_rank() == 0) *kept<State>() = state;
    group.sync();
    return static_cast<int>(status);
}

// The topic comes as its eight words, as DeviceTopic.words has them.
static __device__ rgaps_device_topic_t topic_of(const word (&words)[8]) {
    rgaps_device_topic_t topic;
    memcpy(&topic, words, sizeof topic);
    return topic;
}

extern "C" {
__device__ int rgaps_publisher(word w0, word w1, word w2, word w3, word w4, word w5, word w6, word w7) {
    const rgaps_device_topic_t topic = topic_of({w0, w1, w2, w3, w4, w5, w6, w7});
    return call<Sender>([&](const auto &group, Sender &state) { return state.publisher.attach(group, topic); });
}
__device__ int rgaps_loan(word bytes, word ticks_max) {
    return call<Sender>([=](const auto &group, Sender &state) { return state.publisher.loan(group, bytes, &state.loan, ticks_max); });
}
// Where all threads write the message, between rgaps_loan() and rgaps_publish().
__device__ void *rgaps_loan_data() { return kept<Sender>()->loan.data; }
__device__ int rgaps_publish() {
    return call<Sender>([](const auto &group, Sender &state) { return state.publisher.publish(group, &state.loan); });
}

// `seat` is DeviceSubscriber.seat.
__device__ int rgaps_subscriber(word w0, word w1, word w2, word w3, word w4, word w5, word w6, word w7, word seat) {
    const rgaps_device_topic_t topic = topic_of({w0, w1, w2, w3, w4, w5, w6, w7});
    return call<Receiver>([&](const auto &group, Receiver &state) {
        return state.subscriber.attach(group, topic, static_cast<uint32_t>(seat), reliable);
    });
}
__device__ int rgaps_recv(word ticks_max) {
    return call<Receiver>([=](const auto &group, Receiver &state) { return state.subscriber.recv(group, &state.sample, ticks_max); });
}
// Where all threads read the message, between rgaps_recv() and rgaps_release().
__device__ const void *rgaps_sample_data() { return kept<Receiver>()->sample.data; }
__device__ int rgaps_release() {
    return call<Receiver>([](const auto &group, Receiver &state) { return state.subscriber.release(group, &state.sample); });
}
}
