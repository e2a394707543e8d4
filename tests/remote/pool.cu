// Pools of device memory.
#include "case.h"

static cudaMemPool_t pool(size_t most = 0) {
    cudaMemPoolProps wanted = {};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location.type = cudaMemLocationTypeDevice;
    wanted.maxSize = most;
    cudaMemPool_t made;
    OK(cudaMemPoolCreate(&made, &wanted));
    return made;
}

CASE(a_device_has_a_pool) {
    cudaMemPool_t first, again, used;
    OK(cudaDeviceGetDefaultMemPool(&first, 0));
    OK(cudaDeviceGetDefaultMemPool(&again, 0));
    OK(cudaDeviceGetMemPool(&used, 0));
    EXPECT(first != nullptr && first == again && first == used);
}
CASE(memory_of_a_pool) {
    cudaMemPool_t from = pool();
    int *address;
    auto values = numbers(1000);
    OK(cudaMallocFromPoolAsync(&address, 4000, from, 0));
    OK(cudaMemcpyAsync(address, values.data(), 4000, cudaMemcpyHostToDevice, 0));
    OK(cudaStreamSynchronize(0));
    EXPECT(from_device(address, 1000) == values);
    OK(cudaFreeAsync(address, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemPoolDestroy(from));
}
CASE(a_device_uses_another_pool) {
    cudaMemPool_t made = pool(), used;
    OK(cudaDeviceSetMemPool(0, made));
    OK(cudaDeviceGetMemPool(&used, 0));
    EXPECT(used == made);
    void *address;
    OK(cudaMallocAsync(&address, 100, 0));
    OK(cudaFreeAsync(address, 0));
    OK(cudaStreamSynchronize(0));
}
CASE(the_threshold_of_release) {
    cudaMemPool_t of;
    OK(cudaDeviceGetDefaultMemPool(&of, 0));
    unsigned long long threshold = 99;
    OK(cudaMemPoolGetAttribute(of, cudaMemPoolAttrReleaseThreshold, &threshold));
    EXPECT(threshold == 0);
    threshold = ~0ull;
    OK(cudaMemPoolSetAttribute(of, cudaMemPoolAttrReleaseThreshold, &threshold));
    threshold = 0;
    OK(cudaMemPoolGetAttribute(of, cudaMemPoolAttrReleaseThreshold, &threshold));
    EXPECT(threshold == ~0ull);
}
CASE(rules_of_reuse) {
    cudaMemPool_t of = pool();
    int rules[2] = {7, 7};
    OK(cudaMemPoolGetAttribute(of, cudaMemPoolReuseFollowEventDependencies, rules));
    EXPECT(rules[0] == 1 && rules[1] == 7);
    rules[0] = 0;
    OK(cudaMemPoolSetAttribute(of, cudaMemPoolReuseAllowOpportunistic, rules));
    rules[0] = 5;
    OK(cudaMemPoolGetAttribute(of, cudaMemPoolReuseAllowOpportunistic, rules));
    EXPECT(rules[0] == 0 && rules[1] == 7);
}
CASE(a_pool_is_trimmed) {
    cudaMemPool_t of = pool();
    void *address;
    OK(cudaMallocFromPoolAsync(&address, 1 << 20, of, 0));
    OK(cudaFreeAsync(address, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemPoolTrimTo(of, 0));
}
CASE(the_first_pool_stays) {
    cudaMemPool_t of;
    OK(cudaDeviceGetDefaultMemPool(&of, 0));
    GIVES(cudaErrorInvalidValue, cudaMemPoolDestroy(of));
}
CASE(wrong_pools) {
    cudaMemPool_t of;
    GIVES(cudaErrorInvalidDevice, cudaDeviceGetDefaultMemPool(&of, 99));
    GIVES(cudaErrorInvalidValue, cudaMemPoolCreate(&of, nullptr));
    cudaMemPoolProps wanted = {};
    GIVES(cudaErrorInvalidValue, cudaMemPoolCreate(&of, &wanted));
}
CASE(many_allocations_of_a_pool) {
    cudaMemPool_t of = pool();
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 0; round < 50; round++) {
        char *address;
        OK(cudaMallocFromPoolAsync(&address, 10000 + round, of, stream));
        OK(cudaMemsetAsync(address, round, 10000, stream));
        char back = -1;
        OK(cudaMemcpyAsync(&back, address + 9999, 1, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        EXPECT(back == round);
        OK(cudaFreeAsync(address, stream));
    }
}
