/* The header with each kind of group, for tools/device/ptx.py: it has to compile for every GPU without a warning. */
#include "rgaps/device.cuh"

using namespace rgaps::device;
namespace cg = cooperative_groups;

template <class Group>
__device__ void publish(const Group &group, const rgaps_device_topic_t &topic, uint64_t ticks) {
    Publisher publisher;
    publisher.attach(group, topic);
    Loan loan;
    while (publisher.loan(group, topic.block_bytes, &loan, ticks) == Status::ok) {
        static_cast<uint32_t *>(loan.data)[group.thread_rank()] = group.thread_rank();
        publisher.publish(group, &loan);
        if (publisher.is_stopped(group)) break;
    }
}

template <class Group>
__device__ void receive(const Group &group, const rgaps_device_topic_t &topic, uint32_t seat, uint64_t ticks, uint32_t *sum) {
    Subscriber subscriber;
    subscriber.attach(group, topic, seat, reliable | history);
    Sample sample;
    while (subscriber.recv(group, &sample, ticks) == Status::ok) {
        sum[group.thread_rank()] += static_cast<const uint32_t *>(sample.data)[group.thread_rank()];
        if (subscriber.release(group, &sample) != Status::ok) break;
    }
}

#define KERNELS(name, group)                                                                                              \
    __global__ void publish_by_##name(rgaps_device_topic_t topic, uint64_t ticks) { publish(group, topic, ticks); }       \
    __global__ void receive_by_##name(rgaps_device_topic_t topic, uint32_t seat, uint64_t ticks, uint32_t *sum) {         \
        receive(group, topic, seat, ticks, sum);                                                                          \
    }

KERNELS(thread, Lane{})
KERNELS(warp, cg::tiled_partition<32>(cg::this_thread_block()))
KERNELS(half_warp, cg::tiled_partition<16>(cg::this_thread_block()))
KERNELS(coalesced, cg::coalesced_threads())
KERNELS(block, cg::this_thread_block())
