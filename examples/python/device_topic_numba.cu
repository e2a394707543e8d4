// Functions of a publisher for kernels of Numba, which calls no templates. Numba's convention: the result by the first pointer, and 0 for "no
// exception". A block is one group: all its threads call each function. nvcc -std=c++17 -ptx -rdc=true -arch=sm_90 -I INCLUDE makes what Numba links.
#include <rgaps/device.cuh>
#include <string.h>

using namespace rgaps::device;
typedef unsigned long long word;

// Kept between calls, as the thread of rank 0 has it.
struct State {
    Publisher publisher;
    Loan loan;
};

static __device__ State *kept() {
    __shared__ __align__(16) unsigned char bytes[sizeof(State)];
    return reinterpret_cast<State *>(bytes);
}

template <class Act> static __device__ int call(int *result, Act act) {
    const auto group = cooperative_groups::this_thread_block();
    State state = *kept();
    group.sync();
    *result = static_cast<int>(act(group, state));
    if (group.thread_rank() == 0) *kept() = state;
    group.sync();
    return 0;
}

// The topic comes as its eight words, as DeviceTopic.words has them.
extern "C" __device__ int rgaps_attach(int *result, word w0, word w1, word w2, word w3, word w4, word w5, word w6, word w7) {
    const word words[8] = {w0, w1, w2, w3, w4, w5, w6, w7};
    rgaps_device_topic_t topic;
    memcpy(&topic, words, sizeof topic);
    return call(result, [&](const auto &group, State &state) { return state.publisher.attach(group, topic); });
}
extern "C" __device__ int rgaps_loan(int *result, word bytes, word ticks_max) {
    return call(result, [=](const auto &group, State &state) { return state.publisher.loan(group, bytes, &state.loan, ticks_max); });
}
extern "C" __device__ int rgaps_publish(int *result) {
    return call(result, [](const auto &group, State &state) { return state.publisher.publish(group, &state.loan); });
}
// By any thread, between rgaps_loan() and rgaps_publish(): one element of the message.
extern "C" __device__ int rgaps_put_f32(int *result, word index, float value) {
    static_cast<float *>(kept()->loan.data)[index] = value;
    *result = 0;
    return 0;
}
