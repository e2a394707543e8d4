// Host memory that CUDA knows.
#include "case.h"

CASE(pinned_memory_is_memory) {
    int *address = nullptr;
    OK(cudaMallocHost(&address, 4000));
    for (int i = 0; i < 1000; i++) address[i] = i;
    EXPECT(address[999] == 999);
    OK(cudaFreeHost(address));
}
CASE(flags_are_kept) {
    void *address;
    unsigned flags = 99;
    OK(cudaHostAlloc(&address, 100, cudaHostAllocPortable));
    OK(cudaHostGetFlags(&flags, address));
    EXPECT(flags & cudaHostAllocPortable);
    OK(cudaFreeHost(address));
}
CASE(wrong_flags_of_host_memory) {
    void *address;
    GIVES(cudaErrorInvalidValue, cudaHostAlloc(&address, 100, 0x1000));
}
CASE(free_of_null) { OK(cudaFreeHost(nullptr)); }
CASE(free_of_memory_that_is_not_pinned) {
    int here;
    GIVES(cudaErrorInvalidValue, cudaFreeHost(&here));
}
CASE(pointers_to_pinned_memory) {
    char *address;
    OK(cudaMallocHost(&address, 100));
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, address + 10));
    EXPECT(of.type == cudaMemoryTypeHost && of.hostPointer == address + 10);
    OK(cudaFreeHost(address));
}
CASE(memory_of_the_program_is_registered) {
    std::vector<char> here(100000);
    OK(cudaHostRegister(here.data(), here.size(), cudaHostRegisterDefault));
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, here.data() + 5));
    EXPECT(of.type == cudaMemoryTypeHost);
    OK(cudaHostUnregister(here.data()));
}
CASE(registered_twice) {
    std::vector<char> here(100000);
    OK(cudaHostRegister(here.data(), here.size(), cudaHostRegisterDefault));
    GIVES(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(here.data(), here.size(), cudaHostRegisterDefault));
}
CASE(unregistered_twice) {
    std::vector<char> here(100000);
    GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(here.data()));
}
CASE(large_pinned_copies) {
    const size_t bytes = 40 << 20;
    unsigned char *from, *to, *address;
    OK(cudaMallocHost(&from, bytes));
    OK(cudaMallocHost(&to, bytes));
    OK(cudaMalloc(&address, bytes));
    for (size_t i = 0; i < bytes; i += 997) from[i] = i;
    OK(cudaMemcpy(address, from, bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(to, address, bytes, cudaMemcpyDeviceToHost));
    EXPECT(!memcmp(from, to, bytes));
}
