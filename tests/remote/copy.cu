// Copies of bytes.
#include "case.h"

CASE(there_and_back) {
    auto values = numbers(1000);
    int *address = on_device(values);
    EXPECT(from_device(address, 1000) == values);
}
CASE(one_byte) {
    char *address, byte = 42, back = 0;
    OK(cudaMalloc(&address, 1));
    OK(cudaMemcpy(address, &byte, 1, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(&back, address, 1, cudaMemcpyDeviceToHost));
    EXPECT(back == 42);
}
CASE(sizes_around_powers_of_two) {
    for (size_t size : {15, 16, 17, 4095, 4096, 4097, 16383, 16384, 16385, 65535, 65537, 1 << 20, (1 << 20) + 1}) {
        std::vector<unsigned char> bytes(size);
        for (size_t i = 0; i < size; i++) bytes[i] = i * 31 + size;
        unsigned char *address = on_device(bytes);
        EXPECT(from_device(address, size) == bytes);
        OK(cudaFree(address));
    }
}
CASE(many_megabytes) {
    const size_t count = 9 << 20;
    std::vector<unsigned> values(count);
    for (size_t i = 0; i < count; i++) values[i] = i * 2654435761u;
    unsigned *address = on_device(values);
    EXPECT(from_device(address, count) == values);
}
CASE(nothing_is_copied) {
    char *address;
    OK(cudaMalloc(&address, 10));
    OK(cudaMemcpy(address, nullptr, 0, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(nullptr, address, 0, cudaMemcpyDeviceToHost));
}
CASE(within_the_device) {
    auto values = numbers(500);
    int *from = on_device(values), *to;
    OK(cudaMalloc(&to, 2000));
    OK(cudaMemcpy(to, from, 2000, cudaMemcpyDeviceToDevice));
    EXPECT(from_device(to, 500) == values);
}
CASE(within_the_host) {
    int from[4] = {1, 2, 3, 4}, to[4] = {};
    OK(cudaMemcpy(to, from, sizeof to, cudaMemcpyHostToHost));
    EXPECT(to[3] == 4);
}
CASE(the_direction_follows_from_the_addresses) {
    auto values = numbers(100);
    int *address, *other;
    OK(cudaMalloc(&address, 400));
    OK(cudaMalloc(&other, 400));
    OK(cudaMemcpy(address, values.data(), 400, cudaMemcpyDefault));
    OK(cudaMemcpy(other, address, 400, cudaMemcpyDefault));
    std::vector<int> back(100);
    OK(cudaMemcpy(back.data(), other, 400, cudaMemcpyDefault));
    EXPECT(back == values);
}
CASE(a_direction_that_does_not_exist) {
    int *address, here = 0;
    OK(cudaMalloc(&address, 4));
    GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpy(address, &here, 4, (cudaMemcpyKind)9));
}
CASE(a_part) {
    int *address = on_device(numbers(100));
    int two[2] = {-1, -2};
    OK(cudaMemcpy(address + 50, two, 8, cudaMemcpyHostToDevice));
    auto back = from_device(address, 100);
    EXPECT(back[49] == 49 && back[50] == -1 && back[51] == -2 && back[52] == 52);
}
CASE(more_than_was_allocated) {
    int *address;
    std::vector<int> here(1 << 22);
    OK(cudaMalloc(&address, 4096));
    GIVES(cudaErrorInvalidValue, cudaMemcpy(here.data(), address, 16 << 20, cudaMemcpyDeviceToHost));
    GIVES(cudaErrorInvalidValue, cudaMemcpy(address, here.data(), 16 << 20, cudaMemcpyHostToDevice));
}
CASE(null_addresses) {
    int *address, here = 0;
    OK(cudaMalloc(&address, 4));
    GIVES(cudaErrorInvalidValue, cudaMemcpy(nullptr, &here, 4, cudaMemcpyHostToDevice));
    GIVES(cudaErrorInvalidValue, cudaMemcpy(&here, nullptr, 4, cudaMemcpyDeviceToHost));
}
CASE(the_source_may_change_after_the_call) {
    std::vector<int> values = numbers(100000), wanted = values;
    int *address;
    OK(cudaMalloc(&address, values.size() * 4));
    OK(cudaMemcpy(address, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    memset(values.data(), 0, values.size() * 4);
    EXPECT(from_device(address, wanted.size()) == wanted);
}
CASE(async_on_a_stream) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    auto values = numbers(5000);
    int *address;
    OK(cudaMalloc(&address, 20000));
    OK(cudaMemcpyAsync(address, values.data(), 20000, cudaMemcpyHostToDevice, stream));
    std::vector<int> back(5000);
    OK(cudaMemcpyAsync(back.data(), address, 20000, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(back == values);
}
CASE(async_from_pinned_memory) {
    int *pinned, *back, *address;
    OK(cudaMallocHost(&pinned, 40000));
    OK(cudaMallocHost(&back, 40000));
    OK(cudaMalloc(&address, 40000));
    for (int i = 0; i < 10000; i++) pinned[i] = i * 3;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemcpyAsync(address, pinned, 40000, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(back, address, 40000, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(!memcmp(pinned, back, 40000));
}
CASE(many_small_copies) {
    const int count = 2000;
    int *address;
    OK(cudaMalloc(&address, count * 4));
    for (int i = 0; i < count; i++) {
        int value = i * i;
        OK(cudaMemcpyAsync(address + i, &value, 4, cudaMemcpyHostToDevice, 0));
    }
    auto back = from_device(address, count);
    for (int i = 0; i < count; i++) EXPECT(back[i] == i * i);
}
CASE(peer_copy_on_one_device) {
    auto values = numbers(64);
    int *from = on_device(values), *to;
    OK(cudaMalloc(&to, 256));
    OK(cudaMemcpyPeer(to, 0, from, 0, 256));
    EXPECT(from_device(to, 64) == values);
}
CASE(ranges_that_overlap_in_order) {
    int *address = on_device(numbers(100));
    OK(cudaMemcpy(address, address + 50, 200, cudaMemcpyDeviceToDevice));
    auto back = from_device(address, 100);
    for (int i = 0; i < 100; i++) EXPECT(back[i] == (i < 50 ? i + 50 : i));
}
