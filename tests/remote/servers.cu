// Several servers at once: devices 0 and 1 are those of one, device 2 is a GPU of another. suite.sh runs it so.
#include "case.h"
#include <atomic>
#include <csignal>
#include <thread>

static const int NEAR = 0, FAR = 2;

__global__ void fill(int *to, int count, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value + i;
}
__global__ void store(int *to, int value) { *to = value; }
__device__ int variable = 3;
__global__ void raise_variable(int by) { variable += by; }

static int *made(int device, int count, int value, cudaStream_t stream = 0) {
    int *address;
    OK(cudaSetDevice(device));
    OK(cudaMalloc(&address, count * 4));
    fill<<<(count + 255) / 256, 256, 0, stream>>>(address, count, value);
    OK(cudaGetLastError());
    return address;
}
static cudaStream_t stream_of(int device) {
    cudaStream_t stream;
    OK(cudaSetDevice(device));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

CASE(devices_are_numbered_in_one_list) {
    int count = 0, can = 5;
    OK(cudaGetDeviceCount(&count));
    EXPECT(count == 3);
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(3));
    for (int device : {0, 1, 2}) {
        cudaDeviceProp properties;
        OK(cudaGetDeviceProperties(&properties, device));
        EXPECT(properties.totalGlobalMem > 0);
    }
    OK(cudaDeviceCanAccessPeer(&can, NEAR, FAR));
    EXPECT(can == 0);
    OK(cudaDeviceCanAccessPeer(&can, FAR, 1));
    EXPECT(can == 0);
    GIVES(cudaErrorPeerAccessUnsupported, cudaDeviceEnablePeerAccess(FAR, 0));
    GIVES(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(FAR));
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    if (can) OK(cudaDeviceEnablePeerAccess(1, 0));
}
CASE(each_device_computes_in_its_own_memory) {
    std::vector<int *> all;
    for (int round = 0; round < 50; round++) {
        for (int device : {0, 1, 2}) all.push_back(made(device, 1000, device * 100000 + round));
    }
    for (size_t i = 0; i < all.size(); i++) {
        cudaPointerAttributes of;
        OK(cudaPointerGetAttributes(&of, all[i] + 7));
        EXPECT(of.device == (int)i % 3);
        // Whichever is current.
        EXPECT(from_device(all[i], 1000) == numbers(1000, i % 3 * 100000 + i / 3));
        OK(cudaFree(all[i]));
    }
    GIVES(cudaErrorInvalidValue, cudaFree(all[0]));
}
CASE(a_copy_from_server_to_server) {
    // More than goes at a time.
    const int count = 3 << 20;
    OK(cudaSetDevice(NEAR));
    int *one = on_device(numbers(count, 5));
    OK(cudaSetDevice(FAR));
    int *two = on_device(numbers(count));
    OK(cudaMemcpyPeer(two, FAR, one, NEAR, count * 4));
    EXPECT(from_device(two, count) == numbers(count, 5));
    two = made(FAR, 1000, 77);
    OK(cudaSetDevice(1));
    OK(cudaMemcpy(one, two, 4000, cudaMemcpyDeviceToDevice));
    EXPECT(from_device(one, 1000) == numbers(1000, 77));
    OK(cudaMemcpy(two + 10, one, 40, cudaMemcpyDefault));
    EXPECT(from_device(two + 10, 10) == numbers(10, 77));
    GIVES(cudaErrorInvalidValue, cudaMemcpy(two + 990, one, 44, cudaMemcpyDefault));
}
CASE(a_copy_of_rows_from_server_to_server) {
    int *one = made(NEAR, 100 * 100, 0), *two = made(FAR, 100 * 50, 0);
    OK(cudaMemset(two, 0, 100 * 50 * 4));
    OK(cudaMemcpy2D(two, 200, one + 3, 400, 80, 100, cudaMemcpyDeviceToDevice));
    auto back = from_device(two, 100 * 50);
    for (int row = 0; row < 100; row++) {
        for (int x = 0; x < 50; x++) EXPECT(back[row * 50 + x] == (x < 20 ? row * 100 + x + 3 : 0));
    }
}
CASE(a_copy_between_servers_keeps_the_order_of_its_stream) {
    cudaStream_t stream = stream_of(NEAR);
    int *one = made(NEAR, 100000, 9, stream), *two = made(FAR, 100000, 0);
    OK(cudaMemcpyPeerAsync(two, FAR, one, NEAR, 400000, stream));
    OK(cudaSetDevice(NEAR));
    fill<<<400, 256, 0, stream>>>(one, 100000, 1);
    OK(cudaStreamSynchronize(stream));
    EXPECT(from_device(two, 100000) == numbers(100000, 9));
    EXPECT(from_device(one, 100000) == numbers(100000, 1));
}
CASE(a_device_that_is_not_current_is_used) {
    cudaStream_t stream = stream_of(FAR);
    int *two = made(FAR, 1000, 4, stream);
    cudaEvent_t event;
    OK(cudaEventCreate(&event));
    OK(cudaSetDevice(NEAR));
    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamQuery(stream));
    OK(cudaEventQuery(event));
    OK(cudaMemset(two, 0, 40));
    OK(cudaMemsetAsync(two + 20, 0, 40, stream));
    OK(cudaStreamSynchronize(stream));
    auto back = from_device(two, 1000);
    EXPECT(back[0] == 0 && back[9] == 0 && back[10] == 14 && back[20] == 0 && back[30] == 34);
    auto other = numbers(1000, 50);
    OK(cudaMemcpyAsync(two, other.data(), 4000, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(back.data(), two, 4000, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(back == other);
    OK(cudaFreeAsync(two, stream));
    int device = -1;
    OK(cudaStreamGetDevice(stream, &device));
    EXPECT(device == FAR);
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaGetDevice(&device));
    EXPECT(device == NEAR);
}
CASE(a_stream_of_another_server_orders_a_copy) {
    cudaStream_t far = stream_of(FAR);
    int *two = made(FAR, 100000, 8, far), *one = made(NEAR, 100000, 0);
    // The memory is on one server and the stream on the other.
    OK(cudaMemsetAsync(one, 0, 400000, far));
    OK(cudaMemcpyAsync(one, two, 200000, cudaMemcpyDefault, far));
    OK(cudaStreamSynchronize(far));
    auto back = from_device(one, 100000);
    EXPECT(back[0] == 8 && back[49999] == 50007 && back[50000] == 0);
    OK(cudaFreeAsync(one, far));
}
CASE(a_stream_waits_for_an_event_of_another_server) {
    cudaStream_t near = stream_of(NEAR), far = stream_of(FAR);
    int *two = made(FAR, 1000, 31, far);
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventRecord(event, far));
    int *one = made(NEAR, 1000, 0, near);
    OK(cudaStreamWaitEvent(near, event, 0));
    OK(cudaMemcpyAsync(one, two, 4000, cudaMemcpyDefault, near));
    OK(cudaStreamSynchronize(near));
    EXPECT(from_device(one, 1000) == numbers(1000, 31));
}
CASE(what_belongs_to_another_server_is_refused) {
    cudaStream_t near = stream_of(NEAR), far = stream_of(FAR);
    cudaEvent_t event, other;
    int *two = made(FAR, 100, 0);
    OK(cudaEventCreate(&event));
    GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(event, near));
    OK(cudaEventRecord(event, far));
    fill<<<1, 100, 0, near>>>(two, 100, 1);
    GIVES(cudaErrorInvalidResourceHandle, cudaGetLastError());
    OK(cudaSetDevice(NEAR));
    OK(cudaEventCreate(&other));
    OK(cudaEventRecord(other, near));
    OK(cudaEventSynchronize(other));
    OK(cudaEventSynchronize(event));
    float time;
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&time, event, other));
}
CASE(pinned_memory_is_for_all_servers) {
    int *pinned;
    OK(cudaSetDevice(NEAR));
    OK(cudaHostAlloc(&pinned, 400000, cudaHostAllocPortable));
    cudaStream_t near = stream_of(NEAR), far = stream_of(FAR);
    int *two = made(FAR, 100000, 6, far);
    OK(cudaMemcpyAsync(pinned, two, 400000, cudaMemcpyDeviceToHost, far));
    OK(cudaStreamSynchronize(far));
    EXPECT(!memcmp(pinned, numbers(100000, 6).data(), 400000));
    int *one = made(NEAR, 100000, 60, near);
    OK(cudaMemcpyAsync(pinned, one, 400000, cudaMemcpyDeviceToHost, near));
    OK(cudaStreamSynchronize(near));
    EXPECT(!memcmp(pinned, numbers(100000, 60).data(), 400000));
    OK(cudaMemcpyAsync(two, pinned, 400000, cudaMemcpyHostToDevice, far));
    OK(cudaStreamSynchronize(far));
    EXPECT(from_device(two, 100000) == numbers(100000, 60));
    OK(cudaSetDevice(FAR));
    OK(cudaFreeHost(pinned));
}
CASE(managed_memory_of_both) {
    int *one, *two;
    OK(cudaSetDevice(NEAR));
    OK(cudaMallocManaged(&one, 4000));
    OK(cudaSetDevice(FAR));
    OK(cudaMallocManaged(&two, 4000));
    for (int round = 0; round < 3; round++) {
        OK(cudaSetDevice(NEAR));
        fill<<<4, 256>>>(one, 1000, round);
        OK(cudaSetDevice(FAR));
        fill<<<4, 256>>>(two, 1000, 100 + round);
        OK(cudaDeviceSynchronize());
        OK(cudaSetDevice(NEAR));
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < 1000; i++) EXPECT(one[i] == round + i && two[i] == 100 + round + i);
        one[0] = two[0] = -1;
    }
    one[5] = 1234;
    OK(cudaMemcpy(two, one, 4000, cudaMemcpyDefault));
    EXPECT(two[5] == 1234 && two[6] == 8);
    OK(cudaFree(one));
    OK(cudaFree(two));
}
CASE(functions_of_streams_of_both) {
    std::atomic<int> calls{0};
    auto count = [](void *data) { ++*(std::atomic<int> *)data; };
    cudaStream_t near = stream_of(NEAR), far = stream_of(FAR);
    for (int i = 0; i < 20; i++) {
        OK(cudaLaunchHostFunc(near, count, &calls));
        OK(cudaLaunchHostFunc(far, count, &calls));
    }
    OK(cudaStreamSynchronize(near));
    OK(cudaStreamSynchronize(far));
    EXPECT(calls == 40);
}
CASE(variables_are_of_each_device) {
    for (int device : {0, 1, 2}) {
        OK(cudaSetDevice(device));
        raise_variable<<<1, 1>>>(device);
        OK(cudaDeviceSynchronize());
    }
    for (int device : {2, 0, 1}) {
        int here;
        OK(cudaSetDevice(device));
        OK(cudaMemcpyFromSymbol(&here, variable, 4));
        EXPECT(here == 3 + device);
    }
}
CASE(graphs_of_both) {
    cudaStream_t streams[] = {stream_of(NEAR), stream_of(FAR)};
    cudaGraphExec_t executables[2];
    int *places[2];
    for (int i = 0; i < 2; i++) {
        places[i] = made(i ? FAR : NEAR, 100, 0);
        OK(cudaDeviceSynchronize());
        cudaGraph_t graph;
        OK(cudaStreamBeginCapture(streams[i], cudaStreamCaptureModeThreadLocal));
        fill<<<1, 100, 0, streams[i]>>>(places[i], 100, 50 + i);
        OK(cudaStreamEndCapture(streams[i], &graph));
        OK(cudaGraphInstantiateWithFlags(&executables[i], graph, 0));
        OK(cudaGraphDestroy(graph));
    }
    OK(cudaSetDevice(1));
    for (int i = 0; i < 2; i++) {
        OK(cudaGraphLaunch(executables[i], streams[i]));
        OK(cudaStreamSynchronize(streams[i]));
        EXPECT(from_device(places[i], 100) == numbers(100, 50 + i));
    }
    EXPECT(cudaGraphLaunch(executables[0], streams[1]) != cudaSuccess);
    OK(cudaGraphExecDestroy(executables[1]));
}
CASE(memory_in_the_order_of_streams_of_both) {
    for (int device : {NEAR, FAR}) {
        cudaStream_t stream = stream_of(device);
        int *address;
        OK(cudaSetDevice(NEAR));
        OK(cudaMallocAsync(&address, 4000, stream));
        cudaPointerAttributes of;
        OK(cudaPointerGetAttributes(&of, address));
        EXPECT(of.device == device);
        OK(cudaSetDevice(device));
        fill<<<4, 256, 0, stream>>>(address, 1000, device);
        OK(cudaStreamSynchronize(stream));
        EXPECT(from_device(address, 1000) == numbers(1000, device));
        OK(cudaFreeAsync(address, stream));
        cudaMemPool_t pool;
        OK(cudaDeviceGetDefaultMemPool(&pool, device));
        OK(cudaSetDevice(NEAR));
        OK(cudaMemPoolTrimTo(pool, 0));
    }
}
CASE(threads_use_a_server_each) {
    std::vector<std::thread> all;
    for (int number = 0; number < 6; number++) {
        all.emplace_back([number] {
            for (int round = 0; round < 20; round++) {
                int *address = made(number % 3, 500, number * 1000 + round);
                EXPECT(from_device(address, 500) == numbers(500, number * 1000 + round));
                OK(cudaFree(address));
            }
        });
    }
    for (auto &one : all) one.join();
}
CASE(a_reset_of_one_leaves_the_other) {
    int *one = made(NEAR, 1000, 5);
    made(FAR, 1000, 6);
    OK(cudaDeviceReset());
    EXPECT(from_device(one, 1000) == numbers(1000, 5));
    int *two = made(FAR, 1000, 6);
    EXPECT(from_device(two, 1000) == numbers(1000, 6));
}
CASE(an_error_that_ends_a_context_stays_on_its_server) {
    int *one = made(NEAR, 1000, 5), *address;
    OK(cudaSetDevice(FAR));
    store<<<1, 1>>>((int *)16, 1);
    GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    GIVES(cudaErrorIllegalAddress, cudaMalloc(&address, 4));
    OK(cudaSetDevice(NEAR));
    EXPECT(from_device(one, 1000) == numbers(1000, 5));
    OK(cudaMalloc(&address, 4));
    OK(cudaSetDevice(FAR));
    GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
}
// With the process id of the second server in RGAPS_TEST_SERVER, which it kills.
CASE(a_server_that_dies_fails_only_its_devices) {
    const char *server = getenv("RGAPS_TEST_SERVER");
    if (!server) return;
    int *one = made(NEAR, 1000, 5), *two = made(FAR, 1000, 6), *address;
    OK(cudaDeviceSynchronize());
    kill(atoi(server), SIGKILL);
    while (cudaMemcpy(two, one, 4, cudaMemcpyDefault) == cudaSuccess) {
    }
    GIVES(cudaErrorDevicesUnavailable, cudaDeviceSynchronize());
    GIVES(cudaErrorDevicesUnavailable, cudaMalloc(&address, 4));
    GIVES(cudaErrorDevicesUnavailable, cudaGetLastError());
    OK(cudaSetDevice(NEAR));
    EXPECT(from_device(one, 1000) == numbers(1000, 5));
    int *more = made(1, 1000, 7);
    EXPECT(from_device(more, 1000) == numbers(1000, 7));
    GIVES(cudaErrorDevicesUnavailable, cudaMemcpy(more, two, 4, cudaMemcpyDefault));
}
