// Two GPUs. With one there is nothing to see, and the cases end at once.
#include "case.h"

__global__ void fill(int *to, int count, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value + i;
}

static bool has_two() {
    int count = 0;
    OK(cudaGetDeviceCount(&count));
    return count > 1;
}
static int *made(int device, int count, int value) {
    int *address;
    OK(cudaSetDevice(device));
    OK(cudaMalloc(&address, count * 4));
    fill<<<(count + 255) / 256, 256>>>(address, count, value);
    OK(cudaDeviceSynchronize());
    return address;
}

CASE(each_device_has_its_memory) {
    if (!has_two()) return;
    int *one = made(0, 1000, 5), *two = made(1, 1000, 9000);
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, two + 3));
    EXPECT(of.device == 1);
    EXPECT(from_device(two, 1000) == numbers(1000, 9000));
    OK(cudaSetDevice(0));
    EXPECT(from_device(one, 1000) == numbers(1000, 5));
}
CASE(a_copy_to_the_other) {
    if (!has_two()) return;
    int *one = made(0, 50000, 7), *two = made(1, 50000, 0);
    OK(cudaMemcpyPeer(two, 1, one, 0, 200000));
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(two, 50000) == numbers(50000, 7));
}
CASE(a_copy_on_a_stream) {
    if (!has_two()) return;
    int *one = made(0, 50000, 7), *two = made(1, 50000, 0);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpyPeerAsync(one, 0, two, 1, 200000, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaSetDevice(0));
    EXPECT(from_device(one, 50000) == numbers(50000, 0));
}
CASE(access_is_given_and_taken) {
    if (!has_two()) return;
    int can = 0;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    if (!can) return;
    int *two = made(1, 100, 3);
    OK(cudaSetDevice(0));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    GIVES(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaMemset(two, 0, 200));
    OK(cudaDeviceSynchronize());
    auto back = from_device(two, 100);
    EXPECT(back[0] == 0 && back[50] == 53);
    OK(cudaDeviceDisablePeerAccess(1));
    GIVES(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
}
CASE(not_to_itself) {
    EXPECT(cudaDeviceEnablePeerAccess(0, 0) != cudaSuccess);
    int can = 1;
    OK(cudaDeviceCanAccessPeer(&can, 0, 0));
    EXPECT(can == 0);
}
CASE(pinned_memory_is_for_all_devices) {
    if (!has_two()) return;
    int *pinned;
    OK(cudaSetDevice(0));
    OK(cudaHostAlloc(&pinned, 40000, cudaHostAllocPortable));
    int *two = made(1, 10000, 11);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpyAsync(pinned, two, 40000, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(!memcmp(pinned, numbers(10000, 11).data(), 40000));
}
CASE(a_reset_of_one_leaves_the_other) {
    if (!has_two()) return;
    std::vector<int> large = numbers(100000);
    int *one = made(0, 100000, 5), *pinned;
    OK(cudaMallocHost(&pinned, 400000));
    made(1, 1000, 9);
    OK(cudaDeviceReset());
    OK(cudaSetDevice(0));
    EXPECT(from_device(one, 100000) == numbers(100000, 5));
    OK(cudaMemcpyAsync(pinned, one, 400000, cudaMemcpyDeviceToHost, 0));
    OK(cudaDeviceSynchronize());
    EXPECT(pinned[99999] == 100004);
}
