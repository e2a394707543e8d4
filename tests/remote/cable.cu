// The network goes away while a program uses the GPU. tests/remote/cable.py runs these and pulls the cable; a case says `ready` first.
#include "case.h"

__global__ void endless(volatile int *flag) {
    while (*flag == 0) {
    }
}

static void ready() {
    SAY("ready");
    fflush(stdout);
}

// The connection is idle: the server works, and the program waits.
CASE(while_it_waits_for_a_kernel) {
    int *flag = on_device(std::vector<int>{0});
    endless<<<1, 1>>>(flag);
    OK(cudaGetLastError());
    ready();
    GIVES(cudaErrorDevicesUnavailable, cudaDeviceSynchronize());
    GIVES(cudaErrorDevicesUnavailable, cudaGetLastError());
}
// Bytes are on their way, over all connections.
static void copy_until_the_end(size_t bytes) {
    std::vector<char> here(bytes, 1);
    char *address;
    OK(cudaMalloc(&address, bytes));
    OK(cudaMemcpy(address, here.data(), bytes, cudaMemcpyHostToDevice));
    ready();
    cudaError_t given = cudaSuccess;
    while (given == cudaSuccess) given = cudaMemcpy(address, here.data(), bytes, cudaMemcpyHostToDevice);
    GIVES(cudaErrorDevicesUnavailable, given);
    GIVES(cudaErrorDevicesUnavailable, cudaFree(address));
}
CASE(while_it_copies) { copy_until_the_end(1 << 10); }
CASE(while_it_copies_much) { copy_until_the_end(16 << 20); }
