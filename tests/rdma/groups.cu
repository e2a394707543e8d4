/* The header with each kind of group, for tools/device/ptx.py: it has to compile for every GPU without a warning. */
#include "rgaps/device_link.cuh"

using namespace rgaps::device;
namespace cg = cooperative_groups;

/* Every kind of work, by one group or by many. */
template <class Queue, class Group>
__device__ void post(const Group &group, const rgaps_queue_pair_t &pair, rdma::Buffer local, rdma::Buffer remote, uint64_t ticks,
                     uint32_t *syndrome) {
    Queue queue;
    queue.attach(group, pair);
    rdma::Ticket write, told, read, sum, swap, word;
    if (queue.write(group, local, remote, 4096, &write, rdma::deferred | rdma::quiet) == rdma::Status::ok &&
        queue.write_immediate(group, local, remote, 4096, 7, &told) == rdma::Status::ok &&
        queue.read(group, local, remote, 64, &read) == rdma::Status::ok &&
        queue.fetch_add(group, local, remote, 1, &sum) == rdma::Status::ok &&
        queue.compare_swap(group, local, remote, 1, 2, &swap) == rdma::Status::ok &&
        queue.write_word(group, 8, remote, &word) == rdma::Status::ok) {
        if (queue.wait(group, &told, ticks) == rdma::Status::failed) *syndrome = told.syndrome;
        queue.flush(group, ticks);
    }
    queue.detach(group);
}

template <class Group>
__device__ void receive(const Group &group, const rgaps_queue_pair_t &pair, uint64_t ticks, uint32_t *sum) {
    rdma::ReceiveQueue queue;
    queue.attach(group, pair);
    rdma::Received received;
    while (queue.receive(group, &received, ticks) == rdma::Status::ok) sum[group.thread_rank()] += received.immediate;
    queue.detach(group);
}

template <class Group>
__device__ void egress(const Group &group, const rgaps_device_topic_t &topic, uint32_t seat, const rdma::LinkEnd &end, uint64_t ticks) {
    rdma::Egress egress;
    if (egress.attach(group, topic, seat, end) != Status::ok) return;
    while (egress.forward(group, ticks) == Status::ok) {
    }
    egress.detach(group);
}

template <class Group>
__device__ void ingress(const Group &group, const rgaps_device_topic_t &topic, const rdma::LinkEnd &end, uint64_t ticks) {
    rdma::Ingress ingress;
    if (ingress.attach(group, topic, end) != Status::ok) return;
    while (ingress.forward(group, ticks) == Status::ok) {
    }
    ingress.detach(group);
}

#define KERNELS(name, group)                                                                                                 \
    __global__ void post_by_##name(rgaps_queue_pair_t pair, rdma::Buffer local, rdma::Buffer remote, uint64_t ticks,         \
                                   uint32_t *syndrome) {                                                                     \
        post<rdma::QueuePair>(group, pair, local, remote, ticks, syndrome);                                                  \
    }                                                                                                                        \
    __global__ void share_by_##name(rgaps_queue_pair_t pair, rdma::Buffer local, rdma::Buffer remote, uint64_t ticks,        \
                                    uint32_t *syndrome) {                                                                    \
        post<rdma::SharedQueuePair>(group, pair, local, remote, ticks, syndrome);                                            \
    }                                                                                                                        \
    __global__ void receive_by_##name(rgaps_queue_pair_t pair, uint64_t ticks, uint32_t *sum) { receive(group, pair, ticks, sum); } \
    __global__ void egress_by_##name(rgaps_device_topic_t topic, uint32_t seat, rdma::LinkEnd end, uint64_t ticks) {          \
        egress(group, topic, seat, end, ticks);                                                                              \
    }                                                                                                                        \
    __global__ void ingress_by_##name(rgaps_device_topic_t topic, rdma::LinkEnd end, uint64_t ticks) {                       \
        ingress(group, topic, end, ticks);                                                                                   \
    }

KERNELS(thread, Lane{})
KERNELS(warp, cg::tiled_partition<32>(cg::this_thread_block()))
KERNELS(coalesced, cg::coalesced_threads())
KERNELS(block, cg::this_thread_block())
