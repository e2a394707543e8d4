/* Threads of the host in place of a kernel's lanes: a group as rgaps/device.cuh takes it. */
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

namespace lanes {

/* What the threads of one group share. */
struct Block {
    explicit Block(uint32_t size) : size(size) {}
    const uint32_t size;
    std::atomic<uint32_t> arrived{0};
    std::atomic<uint32_t> round{0};
    alignas(64) unsigned char told[64];
};

class Group {
public:
    Group(Block *block, uint32_t rank) : block_(block), rank_(rank) {}

    uint32_t thread_rank() const { return rank_; }
    uint32_t size() const { return block_->size; }

    void sync() const {
        const uint32_t round = block_->round.load(std::memory_order_acquire);
        if (block_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == block_->size) {
            block_->arrived.store(0, std::memory_order_relaxed);
            block_->round.store(round + 1, std::memory_order_release);
            return;
        }
        while (block_->round.load(std::memory_order_acquire) == round) std::this_thread::yield();
    }

    template <class T>
    T broadcast(T value) const {
        static_assert(sizeof(T) <= sizeof(block_->told), "too large to tell");
        if (rank_ == 0) std::memcpy(block_->told, &value, sizeof(T));
        sync();
        std::memcpy(&value, block_->told, sizeof(T));
        sync();
        return value;
    }

private:
    Block *block_;
    uint32_t rank_;
};

}  // namespace lanes
