// Launches: parameters, shapes, limits, attributes.
#include "case.h"

struct Odd {
    char a;
    double b;
    short c[3];
};
__global__ void store(int *to, int value) { *to = value; }
__global__ void nothing() {}
__global__ void mixed(char a, short b, int c, long long d, float e, double f, Odd odd, double *to) {
    to[0] = a, to[1] = b, to[2] = c, to[3] = d, to[4] = e, to[5] = f, to[6] = odd.a, to[7] = odd.b, to[8] = odd.c[2];
}
__global__ void where(int *to) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int threads = blockDim.x * blockDim.y * blockDim.z;
    to[block * threads + thread] = block * threads + thread;
}
__global__ void reverse(int *values, int count) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = shared[count - 1 - threadIdx.x];
}
__global__ void __launch_bounds__(128) bounded(int *to) { *to = 1; }
template <typename T> __global__ void twice(T *values) { values[threadIdx.x] *= 2; }
namespace inner {
__global__ void store(int *to) { *to = 77; }
}
struct Big { int values[200]; };
__global__ void sum(Big big, int *to) {
    int all = 0;
    for (int i = 0; i < 200; i++) all += big.values[i];
    *to = all;
}

CASE(a_value_arrives) {
    int *to = on_device(std::vector<int>(1));
    store<<<1, 1>>>(to, -12345);
    OK(cudaGetLastError());
    EXPECT(from_device(to, 1)[0] == -12345);
}
CASE(no_parameters) {
    nothing<<<3, 5>>>();
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
}
CASE(parameters_of_all_kinds) {
    double *to = on_device(std::vector<double>(9));
    Odd odd = {7, 1.25, {1, 2, 3}};
    mixed<<<1, 1>>>('a', -2, 3, 1ll << 40, 0.5f, -0.125, odd, to);
    auto got = from_device(to, 9);
    double wanted[] = {'a', -2, 3, 1099511627776.0, 0.5, -0.125, 7, 1.25, 3};
    for (int i = 0; i < 9; i++) EXPECT(got[i] == wanted[i]);
}
CASE(a_large_parameter) {
    Big big;
    int wanted = 0;
    for (int i = 0; i < 200; i++) wanted += big.values[i] = i * i;
    int *to = on_device(std::vector<int>(1));
    sum<<<1, 1>>>(big, to);
    EXPECT(from_device(to, 1)[0] == wanted);
}
CASE(threads_know_where_they_are) {
    for (auto shape : {dim3(1), dim3(7), dim3(3, 4), dim3(2, 3, 4)}) {
        for (auto grid : {dim3(1), dim3(5), dim3(2, 2), dim3(2, 1, 3)}) {
            int count = shape.x * shape.y * shape.z * grid.x * grid.y * grid.z;
            int *to = on_device(std::vector<int>(count, -1));
            where<<<grid, shape>>>(to);
            EXPECT(from_device(to, count) == numbers(count));
            OK(cudaFree(to));
        }
    }
}
CASE(shared_memory_of_the_launch) {
    for (int count : {1, 32, 100, 256}) {
        int *values = on_device(numbers(count));
        reverse<<<1, count, count * sizeof(int)>>>(values, count);
        auto back = from_device(values, count);
        for (int i = 0; i < count; i++) EXPECT(back[i] == count - 1 - i);
    }
}
CASE(too_many_threads) {
    int *to = on_device(std::vector<int>(1));
    store<<<1, 1025>>>(to, 1);
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaGetLastError());
    EXPECT(from_device(to, 1)[0] == 0);
}
CASE(no_blocks) {
    int *to = on_device(std::vector<int>(1));
    store<<<0, 1>>>(to, 1);
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
    store<<<1, 0>>>(to, 1);
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
    store<<<dim3(1, 1 << 20), 1>>>(to, 1);
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
}
CASE(too_much_shared_memory) {
    int *values = on_device(numbers(32));
    reverse<<<1, 32, 200 << 10>>>(values, 32);
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaDeviceSynchronize());
}
CASE(more_shared_memory_by_attribute) {
    int most = 0;
    OK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    int *values = on_device(numbers(32));
    if (most >= 64 << 10) {
        OK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10));
        reverse<<<1, 32, 60 << 10>>>(values, 32);
        OK(cudaGetLastError());
        EXPECT(from_device(values, 32)[0] == 31);
    }
    GIVES(cudaErrorInvalidValue, cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30));
}
CASE(attributes_of_a_kernel) {
    cudaFuncAttributes of;
    OK(cudaFuncGetAttributes(&of, reverse));
    EXPECT(of.maxThreadsPerBlock >= 256 && of.maxThreadsPerBlock <= 1024 && of.sharedSizeBytes == 0 && of.numRegs > 0);
    OK(cudaFuncGetAttributes(&of, bounded));
    EXPECT(of.maxThreadsPerBlock == 128);
}
CASE(more_threads_than_the_kernel_is_for) {
    int *to = on_device(std::vector<int>(1));
    bounded<<<1, 256>>>(to);
    EXPECT(cudaGetLastError() != cudaSuccess);
    bounded<<<1, 128>>>(to);
    OK(cudaGetLastError());
    EXPECT(from_device(to, 1)[0] == 1);
}
CASE(templates) {
    auto *ints = on_device(numbers(10));
    auto *floats = on_device(std::vector<float>(10, 1.5f));
    twice<<<1, 10>>>(ints);
    twice<<<1, 10>>>(floats);
    EXPECT(from_device(ints, 10)[9] == 18 && from_device(floats, 10)[9] == 3.0f);
}
CASE(names_in_namespaces) {
    int *to = on_device(std::vector<int>(1));
    inner::store<<<1, 1>>>(to);
    EXPECT(from_device(to, 1)[0] == 77);
}
CASE(launch_by_function) {
    int *to = on_device(std::vector<int>(1)), value = 99;
    void *arguments[] = {&to, &value};
    OK(cudaLaunchKernel((void *)store, dim3(1), dim3(1), arguments, 0, 0));
    EXPECT(from_device(to, 1)[0] == 99);
}
CASE(launch_with_a_configuration) {
    int *to = on_device(std::vector<int>(1));
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    OK(cudaLaunchKernelEx(&config, store, to, 55));
    EXPECT(from_device(to, 1)[0] == 55);
}
CASE(launch_with_an_attribute) {
    int *to = on_device(std::vector<int>(1));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributePriority;
    attribute.val.priority = 0;
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, store, to, 56));
    EXPECT(from_device(to, 1)[0] == 56);
}
CASE(cooperative_launch) {
    int *to = on_device(std::vector<int>(1)), value = 5;
    void *arguments[] = {&to, &value};
    OK(cudaLaunchCooperativeKernel((void *)store, dim3(1), dim3(1), arguments, 0, 0));
    EXPECT(from_device(to, 1)[0] == 5);
}
CASE(a_function_that_is_no_kernel) {
    void *arguments[] = {nullptr};
    GIVES(cudaErrorInvalidResourceHandle, cudaLaunchKernel((void *)printf, dim3(1), dim3(1), arguments, 0, 0));
    cudaFuncAttributes of;
    GIVES(cudaErrorInvalidResourceHandle, cudaFuncGetAttributes(&of, (void *)printf));
}
CASE(thousands_of_launches) {
    int *to = on_device(std::vector<int>(1));
    for (int i = 0; i < 3000; i++) store<<<1, 1>>>(to, i);
    OK(cudaGetLastError());
    EXPECT(from_device(to, 1)[0] == 2999);
}
CASE(parameters_are_described) {
    size_t offset = 9, size = 9;
    OK(cudaFuncGetParamInfo((void *)store, 0, &offset, &size));
    EXPECT(offset == 0 && size == 8);
    OK(cudaFuncGetParamInfo((void *)store, 1, &offset, &size));
    EXPECT(offset == 8 && size == 4);
    GIVES(cudaErrorInvalidValue, cudaFuncGetParamInfo((void *)store, 2, &offset, &size));
}
CASE(names_of_kernels) {
    const char *name = nullptr;
    OK(cudaFuncGetName(&name, (void *)nothing));
    SAY("%s", name);
    EXPECT(!strcmp(name, "_Z7nothingv"));
}
CASE(occupancy_is_plausible) {
    int blocks = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 256, 0));
    EXPECT(blocks >= 1 && blocks <= 32);
    int more = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&more, nothing, 1024, 0));
    EXPECT(more >= 1 && more <= blocks);
    int grid = 0, block = 0;
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, nothing, 0, 0));
    EXPECT(block >= 32 && block <= 1024 && grid >= 1);
    size_t bytes = 0;
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, nothing, 1, 128));
    EXPECT(bytes >= 48 << 10);
}
