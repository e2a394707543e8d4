// Streams and events.
#include "case.h"

__global__ void add(int *to, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] += value;
}
__global__ void spin(long long ns, int *done) {
    long long begun = clock64();
    while (clock64() - begun < ns) {
    }
    *done = 1;
}

CASE(a_stream_lives_and_dies) {
    cudaStream_t stream = nullptr;
    OK(cudaStreamCreate(&stream));
    EXPECT(stream != nullptr);
    OK(cudaStreamQuery(stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}
CASE(flags_and_priorities_are_kept) {
    cudaStream_t stream;
    unsigned flags = 9;
    int priority = 9;
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    OK(cudaStreamGetFlags(stream, &flags));
    OK(cudaStreamGetPriority(stream, &priority));
    EXPECT(flags == cudaStreamNonBlocking && priority == 0);
}
CASE(wrong_flags) {
    cudaStream_t stream;
    GIVES(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 99));
    GIVES(cudaErrorInvalidValue, cudaStreamCreate(nullptr));
}
CASE(work_of_a_stream_is_in_order) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int *address = on_device(std::vector<int>(256));
    for (int i = 0; i < 100; i++) add<<<1, 256, 0, stream>>>(address, i, 256);
    OK(cudaStreamSynchronize(stream));
    for (int value : from_device(address, 256)) EXPECT(value == 4950);
}
CASE(many_streams) {
    std::vector<cudaStream_t> streams(20);
    std::vector<int *> places(20);
    for (int i = 0; i < 20; i++) {
        OK(cudaStreamCreate(&streams[i]));
        places[i] = on_device(std::vector<int>(64));
        add<<<1, 64, 0, streams[i]>>>(places[i], i, 64);
    }
    for (int i = 0; i < 20; i++) {
        OK(cudaStreamSynchronize(streams[i]));
        EXPECT(from_device(places[i], 64)[63] == i);
        OK(cudaStreamDestroy(streams[i]));
    }
}
CASE(a_busy_stream_says_so) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int *done = on_device(std::vector<int>(1));
    spin<<<1, 1, 0, stream>>>(300000000, done);
    GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamQuery(stream));
    EXPECT(from_device(done, 1)[0] == 1);
}
CASE(events_say_when) {
    cudaEvent_t start, end;
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    int *done = on_device(std::vector<int>(1));
    OK(cudaEventRecord(start));
    spin<<<1, 1>>>(20000000, done);
    OK(cudaEventRecord(end));
    OK(cudaEventSynchronize(end));
    float ms = -1;
    OK(cudaEventElapsedTime(&ms, start, end));
    EXPECT(ms > 1);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
}
CASE(an_event_that_was_not_recorded) {
    cudaEvent_t event;
    OK(cudaEventCreate(&event));
    OK(cudaEventQuery(event));
    OK(cudaEventSynchronize(event));
}
CASE(times_of_events_without_times) {
    cudaEvent_t one, other;
    OK(cudaEventCreateWithFlags(&one, cudaEventDisableTiming));
    OK(cudaEventCreate(&other));
    OK(cudaEventRecord(one));
    OK(cudaEventRecord(other));
    OK(cudaDeviceSynchronize());
    float ms;
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, one, other));
}
CASE(streams_wait_for_events) {
    cudaStream_t first, second;
    cudaEvent_t event;
    OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    int *address = on_device(std::vector<int>(32));
    int *done = on_device(std::vector<int>(1));
    for (int i = 0; i < 10; i++) {
        spin<<<1, 1, 0, first>>>(1000000, done);
        add<<<1, 32, 0, first>>>(address, 1, 32);
        OK(cudaEventRecord(event, first));
        OK(cudaStreamWaitEvent(second, event, 0));
        add<<<1, 32, 0, second>>>(address, 1, 32);
        OK(cudaEventRecord(event, second));
        OK(cudaStreamWaitEvent(first, event, 0));
    }
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(address, 32)[0] == 20);
}
CASE(the_default_stream_waits_for_blocking_streams) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int *done = on_device(std::vector<int>(1));
    spin<<<1, 1, 0, stream>>>(30000000, done);
    EXPECT(from_device(done, 1)[0] == 1);
}
CASE(events_are_recorded_again) {
    cudaEvent_t event;
    OK(cudaEventCreate(&event));
    int *address = on_device(std::vector<int>(1));
    for (int i = 0; i < 30; i++) {
        add<<<1, 1>>>(address, 1, 1);
        OK(cudaEventRecord(event));
        OK(cudaEventSynchronize(event));
        EXPECT(from_device(address, 1)[0] == i + 1);
    }
}
CASE(a_stream_is_destroyed_with_work_in_it) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int *done = on_device(std::vector<int>(1));
    spin<<<1, 1, 0, stream>>>(5000000, done);
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(done, 1)[0] == 1);
}
CASE(no_stream_captures) {
    cudaStream_t stream;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamIsCapturing(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
}
CASE(the_threads_own_stream) {
    int *address = on_device(std::vector<int>(8));
    add<<<1, 8, 0, cudaStreamPerThread>>>(address, 4, 8);
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT(from_device(address, 8)[7] == 4);
}
CASE(streams_know_their_device_and_number) {
    cudaStream_t one, other;
    unsigned long long first = 0, second = 0;
    int device = -1;
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreate(&other));
    OK(cudaStreamGetId(one, &first));
    OK(cudaStreamGetId(other, &second));
    OK(cudaStreamGetDevice(one, &device));
    EXPECT(first != second && device == 0);
}
CASE(events_are_recorded_with_flags) {
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
    OK(cudaEventSynchronize(event));
    GIVES(cudaErrorInvalidValue, cudaEventRecordWithFlags(event, stream, 77));
}
