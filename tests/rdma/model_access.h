/* Included by device_rdma.cuh in rgaps::device::rdma::access: every access is the explorer's. */
inline uint64_t compare_exchange(uint64_t *at, uint64_t expected, uint64_t desired) {
    return model::explorer().change(at, false, [&](uint64_t &value) {
        if (value != expected) return false;
        value = desired;
        return true;
    });
}
/* Half of a word whose other half nobody writes. */
inline void store_half(uint32_t *at, uint32_t value) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(at);
    model::explorer().store(reinterpret_cast<uint64_t *>(address & ~uintptr_t(7)), uint64_t(value) << (address & 4 ? 32 : 0), false);
}
inline void ring(uint64_t *at, uint64_t value) { model::explorer().store(at, value, false); }
