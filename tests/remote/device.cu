// Devices, properties, limits.
#include "case.h"

CASE(count_is_positive) {
    int count = -1;
    OK(cudaGetDeviceCount(&count));
    EXPECT(count >= 1);
}
CASE(current_device_is_the_first) {
    int device = -1;
    OK(cudaGetDevice(&device));
    SAY("device %d", device);
    EXPECT(device == 0);
}
CASE(a_device_that_is_not_there) {
    int count = 0, device = -1;
    OK(cudaGetDeviceCount(&count));
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(count));
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(-1));
    OK(cudaGetDevice(&device));
    EXPECT(device == 0);
}
CASE(properties_agree_with_attributes) {
    cudaDeviceProp all;
    memset(&all, 0xff, sizeof all);
    OK(cudaGetDeviceProperties(&all, 0));
    struct { int field; cudaDeviceAttr attribute; } both[] = {
        {all.warpSize, cudaDevAttrWarpSize}, {all.major, cudaDevAttrComputeCapabilityMajor},
        {all.minor, cudaDevAttrComputeCapabilityMinor}, {all.multiProcessorCount, cudaDevAttrMultiProcessorCount},
        {all.maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock}, {all.maxThreadsDim[2], cudaDevAttrMaxBlockDimZ},
        {all.maxGridSize[0], cudaDevAttrMaxGridDimX}, {(int)all.totalConstMem, cudaDevAttrTotalConstantMemory},
        {(int)all.sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock}, {all.regsPerBlock, cudaDevAttrMaxRegistersPerBlock},
        {all.maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor}, {all.cooperativeLaunch, cudaDevAttrCooperativeLaunch},
    };
    for (auto &one : both) {
        int value = -1;
        OK(cudaDeviceGetAttribute(&value, one.attribute, 0));
        EXPECT(value == one.field);
    }
    EXPECT(all.warpSize == 32 && all.maxThreadsPerBlock == 1024 && all.major >= 7);
    EXPECT(strlen(all.name) > 0 && strlen(all.name) < 256);
}
CASE(properties_fill_no_more_than_their_structure) {
    struct { cudaDeviceProp all; unsigned char behind[64]; } both;
    memset(&both, 0xa5, sizeof both);
    OK(cudaGetDeviceProperties(&both.all, 0));
    for (unsigned char byte : both.behind) EXPECT(byte == 0xa5);
}
CASE(properties_of_no_device) {
    cudaDeviceProp all;
    GIVES(cudaErrorInvalidDevice, cudaGetDeviceProperties(&all, 1000));
    GIVES(cudaErrorInvalidValue, cudaGetDeviceProperties(nullptr, 0));
}
CASE(attribute_that_does_not_exist) {
    int value;
    GIVES(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, (cudaDeviceAttr)100000, 0));
    GIVES(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1000));
}
CASE(memory_is_reported) {
    size_t free = 0, total = 0;
    OK(cudaMemGetInfo(&free, &total));
    EXPECT(total > 0 && free > 0 && free <= total);
    cudaDeviceProp all;
    OK(cudaGetDeviceProperties(&all, 0));
    EXPECT(all.totalGlobalMem >= total);
}
CASE(bus_ids_lead_back) {
    char text[64];
    OK(cudaDeviceGetPCIBusId(text, sizeof text, 0));
    EXPECT(strlen(text) == 12);
    int device = -1;
    OK(cudaDeviceGetByPCIBusId(&device, text));
    EXPECT(device == 0);
    GIVES(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(text, 3, 0));
}
CASE(versions_are_those_of_the_libraries) {
    int runtime = 0, driver = 0;
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    EXPECT(runtime / 1000 == CUDART_VERSION / 1000);
    EXPECT(driver >= 12000);
}
CASE(limits_can_be_read_and_set) {
    size_t stack = 0;
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    EXPECT(stack > 0);
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    SAY("stack %zu", stack);
}
CASE(a_limit_that_does_not_exist) {
    size_t value = 0;
    EXPECT(cudaDeviceGetLimit(&value, (cudaLimit)0x7f) != cudaSuccess);
}
CASE(no_device_is_its_own_peer) {
    int can = -1;
    OK(cudaDeviceCanAccessPeer(&can, 0, 0));
    EXPECT(can == 0);
    GIVES(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&can, 0, 1000));
}
CASE(synchronize_with_nothing_to_wait_for) {
    OK(cudaDeviceSynchronize());
    OK(cudaDeviceSynchronize());
}
CASE(reset_frees_everything) {
    int *address;
    OK(cudaMalloc(&address, 4096));
    OK(cudaDeviceReset());
    int *other;
    OK(cudaMalloc(&other, 4096));
    OK(cudaMemset(other, 1, 4096));
    OK(cudaDeviceSynchronize());
}
CASE(priorities_of_streams) {
    int least = 9, greatest = 9;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    EXPECT(greatest <= least && least == 0);
}
CASE(setting_the_same_device_again) {
    for (int i = 0; i < 100; i++) OK(cudaSetDevice(0));
}
CASE(a_device_is_chosen) {
    cudaDeviceProp wanted;
    int device = -1;
    OK(cudaGetDeviceProperties(&wanted, 0));
    OK(cudaChooseDevice(&device, &wanted));
    EXPECT(device == 0);
}
// cuda_profiler_api.h is in a package of its own.
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
CASE(a_part_of_the_program_is_profiled) {
    OK(cudaProfilerStart());
    OK(cudaFree(on_device(numbers(10))));
    OK(cudaProfilerStop());
}
CASE(cache_and_bank_configuration) {
    cudaFuncCache cache;
    OK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    OK(cudaDeviceGetCacheConfig(&cache));
}
