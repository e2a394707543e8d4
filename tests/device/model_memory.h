/* Included by device.cuh in rgaps::device::memory: every access is the explorer's. */
inline uint64_t load(const uint64_t *at) { return model::explorer().load(at, false); }
inline uint64_t load_acquire(const uint64_t *at) { return model::explorer().load(at, true); }
inline void store(uint64_t *at, uint64_t value) { model::explorer().store(at, value, false); }
inline void store_release(uint64_t *at, uint64_t value) { model::explorer().store(at, value, true); }
inline uint64_t fetch_or(uint64_t *at, uint64_t bits) {
    return model::explorer().change(at, false, [&](uint64_t &value) { value |= bits; return true; });
}
inline uint64_t fetch_and(uint64_t *at, uint64_t bits) {
    return model::explorer().change(at, false, [&](uint64_t &value) { value &= bits; return true; });
}
inline void clear(uint64_t *at, uint64_t bits) { fetch_and(at, ~bits); }
inline void fence_acquire() { model::explorer().fence_acquire(); }
inline void fence_release() { model::explorer().fence(false); }
inline void fence_both() {
    fence_acquire();
    fence_release();
}
inline void fence_all() { model::explorer().fence(true); }
inline uint64_t ticks() { return 0; }
inline void pause() {}
