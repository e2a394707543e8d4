// Variables of the device.
#include "case.h"

__device__ int counter = 7;
__device__ int table[100];
__device__ float floats[3] = {1.5f, -2.5f, 1e10f};
__device__ double precise = 0.1;
__constant__ int constants[4] = {10, 20, 30, 40};
__device__ char text[8] = "abc";
static __device__ unsigned long long wide = 0x123456789abcdef0ull;

__global__ void read(int *to) { to[0] = counter, to[1] = constants[3], to[2] = table[99], to[3] = text[1]; }
__global__ void count() { atomicAdd(&counter, 1); }
__global__ void reals(double *to) { to[0] = floats[1], to[1] = floats[2], to[2] = precise, to[3] = (double)(wide >> 32); }

CASE(first_values) {
    int *to = on_device(std::vector<int>(4));
    read<<<1, 1>>>(to);
    auto got = from_device(to, 4);
    EXPECT(got[0] == 7 && got[1] == 40 && got[2] == 0 && got[3] == 'b');
}
CASE(first_values_of_reals) {
    double *to = on_device(std::vector<double>(4));
    reals<<<1, 1>>>(to);
    auto got = from_device(to, 4);
    EXPECT(got[0] == -2.5 && got[1] == 1e10f && got[2] == 0.1 && got[3] == 0x12345678);
}
CASE(written_from_the_host) {
    int values[4] = {1, 2, 3, 4}, nine = 9;
    OK(cudaMemcpyToSymbol(constants, values, sizeof values));
    OK(cudaMemcpyToSymbol(counter, &nine, 4));
    int *to = on_device(std::vector<int>(4));
    read<<<1, 1>>>(to);
    auto got = from_device(to, 4);
    EXPECT(got[0] == 9 && got[1] == 4);
}
CASE(read_on_the_host) {
    int got = 0;
    count<<<10, 10>>>();
    OK(cudaMemcpyFromSymbol(&got, counter, 4));
    EXPECT(got == 107);
}
CASE(a_part_of_a_variable) {
    int value = 5;
    OK(cudaMemcpyToSymbol(table, &value, 4, 99 * 4));
    int *to = on_device(std::vector<int>(4));
    read<<<1, 1>>>(to);
    EXPECT(from_device(to, 4)[2] == 5);
    int back = 0;
    OK(cudaMemcpyFromSymbol(&back, table, 4, 99 * 4));
    EXPECT(back == 5);
}
CASE(over_the_end_of_a_variable) {
    int value = 5;
    GIVES(cudaErrorInvalidValue, cudaMemcpyToSymbol(table, &value, 4, 100 * 4));
    GIVES(cudaErrorInvalidValue, cudaMemcpyFromSymbol(&value, counter, 8));
}
CASE(address_and_size) {
    size_t bytes = 0;
    void *address = nullptr;
    OK(cudaGetSymbolSize(&bytes, table));
    OK(cudaGetSymbolAddress(&address, table));
    EXPECT(bytes == 400 && address != nullptr);
    OK(cudaMemset(address, 1, 4));
    int back = 0;
    OK(cudaMemcpyFromSymbol(&back, table, 4));
    EXPECT(back == 0x01010101);
}
CASE(a_symbol_that_is_none) {
    size_t bytes;
    int here;
    GIVES(cudaErrorInvalidSymbol, cudaGetSymbolSize(&bytes, &here));
    GIVES(cudaErrorInvalidSymbol, cudaMemcpyToSymbol(&here, &here, 4));
}
CASE(variables_are_not_freed) {
    void *address;
    OK(cudaGetSymbolAddress(&address, table));
    EXPECT(cudaFree(address) != cudaSuccess);
}
CASE(a_wrong_direction) {
    int value = 5;
    GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpyToSymbol(counter, &value, 4, 0, cudaMemcpyDeviceToHost));
}
CASE(on_a_stream) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int value = 31, back = 0;
    OK(cudaMemcpyToSymbolAsync(counter, &value, 4, 0, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyFromSymbolAsync(&back, counter, 4, 0, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(back == 31);
}
