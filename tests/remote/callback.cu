// Functions of the program that streams call.
#include "case.h"
#include <atomic>
#include <thread>

__global__ void add(int *to, int value) { atomicAdd(to, value); }

static void count(void *data) { ++*(std::atomic<int> *)data; }

CASE(a_function_runs_before_the_stream_is_done) {
    std::atomic<int> calls{0};
    OK(cudaLaunchHostFunc(0, count, &calls));
    OK(cudaDeviceSynchronize());
    EXPECT(calls == 1);
}
CASE(functions_run_in_order) {
    static std::vector<int> seen;
    static int numbers_[100];
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int i = 0; i < 100; i++) {
        numbers_[i] = i;
        OK(cudaLaunchHostFunc(stream, [](void *data) { seen.push_back(*(int *)data); }, &numbers_[i]));
    }
    OK(cudaStreamSynchronize(stream));
    EXPECT(seen == numbers(100));
}
struct Seen {
    int *pinned;
    int first, last;
};
static void look(void *data) {
    Seen *seen = (Seen *)data;
    seen->first = seen->pinned[0];
    seen->last = seen->pinned[99999];
}
CASE(a_function_sees_what_was_copied_before) {
    int *address = on_device(numbers(100000, 5));
    Seen seen{};
    OK(cudaMallocHost(&seen.pinned, 400000));
    memset(seen.pinned, 0, 400000);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemcpyAsync(seen.pinned, address, 400000, cudaMemcpyDeviceToHost, stream));
    OK(cudaLaunchHostFunc(stream, look, &seen));
    OK(cudaStreamSynchronize(stream));
    EXPECT(seen.first == 5 && seen.last == 100004);
}
CASE(work_behind_a_function_waits_for_it) {
    std::atomic<bool> go{false};
    int *address = on_device(std::vector<int>(1, 0));
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // A kernel's first launch loads its code, which may wait for all that runs.
    add<<<1, 1>>>(address, 0);
    OK(cudaDeviceSynchronize());
    OK(cudaLaunchHostFunc(
        stream,
        [](void *data) {
            while (!*(std::atomic<bool> *)data) {}
        },
        &go));
    add<<<1, 1, 0, stream>>>(address, 7);
    GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
    // The other streams go on.
    EXPECT(from_device(address, 1)[0] == 0);
    go = true;
    OK(cudaStreamSynchronize(stream));
    EXPECT(from_device(address, 1)[0] == 7);
}
CASE(functions_of_two_streams) {
    std::atomic<int> calls{0};
    cudaStream_t one, two;
    cudaEvent_t event;
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreate(&two));
    OK(cudaEventCreate(&event));
    for (int i = 0; i < 20; i++) {
        OK(cudaLaunchHostFunc(one, count, &calls));
        OK(cudaEventRecord(event, one));
        OK(cudaStreamWaitEvent(two, event, 0));
        OK(cudaLaunchHostFunc(two, count, &calls));
    }
    OK(cudaStreamSynchronize(two));
    EXPECT(calls == 40);
}
static cudaStream_t told;
static cudaError_t status = cudaErrorUnknown;
CASE(a_callback_gets_its_stream) {
    cudaStream_t stream;
    int here = 0;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamAddCallback(
        stream,
        [](cudaStream_t of, cudaError_t code, void *data) {
            told = of;
            status = code;
            *(int *)data = 9;
        },
        &here, 0));
    OK(cudaStreamSynchronize(stream));
    EXPECT(told == stream && status == cudaSuccess && here == 9);
}
CASE(wrong_callbacks) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    GIVES(cudaErrorInvalidValue, cudaLaunchHostFunc(stream, nullptr, nullptr));
    GIVES(cudaErrorInvalidValue, cudaStreamAddCallback(stream, nullptr, nullptr, 0));
    GIVES(cudaErrorInvalidValue, cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t, void *) {}, nullptr, 1));
}
static cudaError_t inner = cudaSuccess;
CASE(a_function_may_not_call_cuda) {
    OK(cudaLaunchHostFunc(
        0,
        [](void *) {
            void *address;
            inner = cudaMalloc(&address, 4);
        },
        nullptr));
    OK(cudaDeviceSynchronize());
    EXPECT(inner == cudaErrorNotPermitted);
}
CASE(functions_of_many_threads) {
    std::atomic<int> calls{0};
    std::vector<std::thread> all;
    for (int i = 0; i < 8; i++) {
        all.emplace_back([&] {
            cudaStream_t stream;
            OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            for (int round = 0; round < 20; round++) OK(cudaLaunchHostFunc(stream, count, &calls));
            OK(cudaStreamSynchronize(stream));
        });
    }
    for (auto &one : all) one.join();
    EXPECT(calls == 160);
}
CASE(an_event_behind_a_function) {
    std::atomic<int> calls{0};
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaLaunchHostFunc(cudaStreamPerThread, count, &calls));
    OK(cudaEventRecord(event, cudaStreamPerThread));
    OK(cudaEventSynchronize(event));
    EXPECT(calls == 1);
}
