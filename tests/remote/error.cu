// Errors: where they appear, and what stays.
#include "case.h"

__global__ void store(int *to, int value) { *to = value; }
__global__ void stop() { __trap(); }

CASE(names_and_texts) {
    for (int code : {0, 1, 2, 3, 4, 9, 46, 98, 100, 101, 200, 209, 400, 500, 600, 700, 701, 702, 719, 801, 900, 999}) {
        SAY("%d %s: %s", code, cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code));
    }
    EXPECT(!strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress"));
    EXPECT(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
}
CASE(a_code_that_does_not_exist) {
    EXPECT(!strcmp(cudaGetErrorName((cudaError_t)12345), "unrecognized error code"));
    EXPECT(!strcmp(cudaGetErrorString((cudaError_t)12345), "unrecognized error code"));
}
CASE(the_last_error_is_told_once) {
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
    GIVES(cudaErrorInvalidDevice, cudaPeekAtLastError());
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());
    OK(cudaGetLastError());
}
CASE(success_does_not_clear_the_last_error) {
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
    OK(cudaSetDevice(0));
    OK(cudaDeviceSynchronize());
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());
}
CASE(a_wrong_address_ends_the_context) {
    store<<<1, 1>>>((int *)16, 1);
    OK(cudaGetLastError());
    GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    GIVES(cudaErrorIllegalAddress, cudaGetLastError());
    OK(cudaGetLastError());
    int *address;
    GIVES(cudaErrorIllegalAddress, cudaMalloc(&address, 4));
    GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
}
CASE(a_wrong_address_is_found_by_a_copy) {
    int *good = on_device(std::vector<int>(1)), here;
    store<<<1, 1>>>((int *)16, 1);
    GIVES(cudaErrorIllegalAddress, cudaMemcpy(&here, good, 4, cudaMemcpyDeviceToHost));
}
CASE(a_wrong_address_is_found_by_a_stream) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    store<<<1, 1, 0, stream>>>((int *)16, 1);
    GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
}
CASE(an_address_that_is_not_aligned) {
    char *address;
    OK(cudaMalloc(&address, 64));
    store<<<1, 1>>>((int *)(address + 1), 1);
    GIVES(cudaErrorMisalignedAddress, cudaDeviceSynchronize());
}
CASE(a_trap) {
    stop<<<1, 1>>>();
    EXPECT(cudaDeviceSynchronize() != cudaSuccess);
}
CASE(errors_belong_to_their_call) {
    int *address, here = 3;
    OK(cudaMalloc(&address, 4));
    GIVES(cudaErrorInvalidValue, cudaMemcpy(nullptr, &here, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(address, &here, 4, cudaMemcpyHostToDevice));
    EXPECT(from_device(address, 1)[0] == 3);
}
CASE(use_after_free_in_a_kernel) {
    int *address;
    OK(cudaMalloc(&address, 64 << 20));
    OK(cudaFree(address));
    store<<<1, 1>>>(address, 1);
    EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}
