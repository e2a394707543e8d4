// Device memory.
#include "case.h"

CASE(allocate_and_free) {
    void *address = nullptr;
    OK(cudaMalloc(&address, 1000));
    EXPECT(address != nullptr);
    OK(cudaFree(address));
}
CASE(free_of_null) { OK(cudaFree(nullptr)); }
CASE(nothing_is_allocated) {
    void *address = (void *)1;
    OK(cudaMalloc(&address, 0));
    EXPECT(address == nullptr);
}
CASE(free_twice) {
    void *address;
    OK(cudaMalloc(&address, 1000));
    OK(cudaFree(address));
    GIVES(cudaErrorInvalidValue, cudaFree(address));
}
CASE(free_of_the_middle) {
    char *address;
    OK(cudaMalloc(&address, 1000));
    GIVES(cudaErrorInvalidValue, cudaFree(address + 8));
    OK(cudaFree(address));
}
CASE(free_of_host_memory) {
    int here;
    GIVES(cudaErrorInvalidValue, cudaFree(&here));
}
CASE(more_than_there_is) {
    void *address = nullptr;
    GIVES(cudaErrorMemoryAllocation, cudaMalloc(&address, (size_t)1 << 46));
    GIVES(cudaErrorMemoryAllocation, cudaGetLastError());
    OK(cudaMalloc(&address, 64));
}
CASE(no_place_for_the_address) { GIVES(cudaErrorInvalidValue, cudaMalloc((void **)nullptr, 8)); }
CASE(many_allocations) {
    std::vector<char *> all(300);
    for (size_t i = 0; i < all.size(); i++) OK(cudaMalloc(&all[i], 1 + i * 37));
    for (size_t i = 0; i < all.size(); i++) OK(cudaMemset(all[i], i, 1 + i * 37));
    for (size_t i = 0; i < all.size(); i++) {
        auto bytes = from_device(all[i], 1 + i * 37);
        for (char byte : bytes) EXPECT(byte == (char)i);
    }
    for (char *one : all) OK(cudaFree(one));
}
CASE(allocations_do_not_overlap) {
    std::vector<char *> all(50);
    for (char *&one : all) OK(cudaMalloc(&one, 300));
    for (size_t i = 0; i < all.size(); i++)
        for (size_t j = 0; j < i; j++) EXPECT(all[i] + 300 <= all[j] || all[j] + 300 <= all[i]);
}
CASE(addresses_are_aligned) {
    for (int i = 0; i < 20; i++) {
        char *one;
        OK(cudaMalloc(&one, 1 + i));
        EXPECT((size_t)one % 256 == 0);
    }
}
CASE(a_large_allocation) {
    char *address;
    const size_t bytes = 96 << 20;
    OK(cudaMalloc(&address, bytes));
    OK(cudaMemset(address + bytes - 16, 7, 16));
    EXPECT(from_device(address + bytes - 1, 1)[0] == 7);
    OK(cudaFree(address));
}
CASE(memset_fills) {
    unsigned char *address;
    OK(cudaMalloc(&address, 1001));
    OK(cudaMemset(address, 0x1ab, 1001));
    for (unsigned char byte : from_device(address, 1001)) EXPECT(byte == 0xab);
}
CASE(memset_of_a_part) {
    char *address;
    OK(cudaMalloc(&address, 100));
    OK(cudaMemset(address, 1, 100));
    OK(cudaMemset(address + 10, 2, 5));
    auto bytes = from_device(address, 100);
    for (int i = 0; i < 100; i++) EXPECT(bytes[i] == (i >= 10 && i < 15 ? 2 : 1));
}
CASE(memset_of_nothing) {
    char *address;
    OK(cudaMalloc(&address, 100));
    OK(cudaMemset(address, 1, 0));
}
CASE(memset_over_the_end) {
    char *address;
    OK(cudaMalloc(&address, 4096));
    GIVES(cudaErrorInvalidValue, cudaMemset(address, 1, (size_t)1 << 33));
}
CASE(memset_of_host_memory) {
    char here[10];
    GIVES(cudaErrorInvalidValue, cudaMemset(here, 1, 10));
}
CASE(memset_async) {
    char *address;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&address, 5000));
    OK(cudaMemsetAsync(address, 3, 5000, stream));
    OK(cudaStreamSynchronize(stream));
    for (char byte : from_device(address, 5000)) EXPECT(byte == 3);
}
CASE(allocate_in_a_streams_order) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int *address = nullptr;
    OK(cudaMallocAsync(&address, 4000, stream));
    OK(cudaMemsetAsync(address, 0x11, 4000, stream));
    std::vector<int> out(1000);
    OK(cudaMemcpyAsync(out.data(), address, 4000, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int value : out) EXPECT(value == 0x11111111);
    OK(cudaFreeAsync(address, stream));
    OK(cudaStreamSynchronize(stream));
}
CASE(pointers_know_what_they_are) {
    int *device, here;
    OK(cudaMalloc(&device, 100));
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, device + 3));
    EXPECT(of.type == cudaMemoryTypeDevice && of.device == 0 && of.devicePointer == device + 3);
    OK(cudaPointerGetAttributes(&of, &here));
    EXPECT(of.type == cudaMemoryTypeUnregistered);
    OK(cudaFree(device));
    OK(cudaPointerGetAttributes(&of, device));
    EXPECT(of.type == cudaMemoryTypeUnregistered);
}
CASE(memory_that_is_freed_can_be_had_again) {
    for (int i = 0; i < 40; i++) {
        char *address;
        OK(cudaMalloc(&address, 64 << 20));
        OK(cudaFree(address));
    }
}
