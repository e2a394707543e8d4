/* A queue pair as kernels see it. Written by crates/gpu-verbs/src/view.rs, which explains it: do not edit. */
#ifndef RGAPS_DEVICE_RDMA_LAYOUT_H
#define RGAPS_DEVICE_RDMA_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define RGAPS_RDMA_ENTRY_BYTES 64
#define RGAPS_RDMA_BYTES_MAX 1073741824
#define RGAPS_RDMA_CAN_WRITE 1
#define RGAPS_RDMA_CAN_READ 2
#define RGAPS_RDMA_CAN_CHANGE 4
#define RGAPS_RDMA_RECORD_RECEIVE 0
#define RGAPS_RDMA_RECORD_SEND 4
#define RGAPS_RDMA_STATE_RESERVED 0
#define RGAPS_RDMA_STATE_READY 64
#define RGAPS_RDMA_STATE_RINGER 128
#define RGAPS_RDMA_STATE_COMPLETED 192
#define RGAPS_RDMA_STATE_FAILURE 200
#define RGAPS_RDMA_STATE_TAKEN 256
#define RGAPS_RDMA_STATE_DRAINER 320
#define RGAPS_RDMA_STATE_RECEIVED 384
#define RGAPS_RDMA_STATE_FILLED 448
#define RGAPS_RDMA_SYNDROME_LOCAL_LENGTH 0x01
#define RGAPS_RDMA_SYNDROME_LOCAL_OPERATION 0x02
#define RGAPS_RDMA_SYNDROME_LOCAL_PROTECTION 0x04
#define RGAPS_RDMA_SYNDROME_FLUSHED 0x05
#define RGAPS_RDMA_SYNDROME_REMOTE_INVALID 0x12
#define RGAPS_RDMA_SYNDROME_REMOTE_ACCESS 0x13
#define RGAPS_RDMA_SYNDROME_REMOTE_OPERATION 0x14
#define RGAPS_RDMA_SYNDROME_UNREACHABLE 0x15
#define RGAPS_RDMA_SYNDROME_RECEIVER_NOT_READY 0x16
#define RGAPS_RDMA_SYNDROME_CORRUPT 0xff

/* A queue pair as kernels of one process see it. Passed to them by value. */
typedef struct rgaps_queue_pair {
    uint64_t sends;
    uint64_t completions;
    uint64_t receive_completions;
    uint64_t record;
    uint64_t completion_record;
    uint64_t receive_completion_record;
    uint64_t doorbell;
    uint64_t state;
    uint32_t number;
    uint32_t sends_log2;
    uint32_t completions_log2;
    uint32_t receives_log2;
    uint32_t abilities;
    uint32_t reserved;
} rgaps_queue_pair_t;

#ifdef __cplusplus
static_assert(offsetof(rgaps_queue_pair_t, sends) == 0, "layout of sends");
static_assert(offsetof(rgaps_queue_pair_t, completions) == 8, "layout of completions");
static_assert(offsetof(rgaps_queue_pair_t, receive_completions) == 16, "layout of receive_completions");
static_assert(offsetof(rgaps_queue_pair_t, record) == 24, "layout of record");
static_assert(offsetof(rgaps_queue_pair_t, completion_record) == 32, "layout of completion_record");
static_assert(offsetof(rgaps_queue_pair_t, receive_completion_record) == 40, "layout of receive_completion_record");
static_assert(offsetof(rgaps_queue_pair_t, doorbell) == 48, "layout of doorbell");
static_assert(offsetof(rgaps_queue_pair_t, state) == 56, "layout of state");
static_assert(offsetof(rgaps_queue_pair_t, number) == 64, "layout of number");
static_assert(offsetof(rgaps_queue_pair_t, sends_log2) == 68, "layout of sends_log2");
static_assert(offsetof(rgaps_queue_pair_t, completions_log2) == 72, "layout of completions_log2");
static_assert(offsetof(rgaps_queue_pair_t, receives_log2) == 76, "layout of receives_log2");
static_assert(offsetof(rgaps_queue_pair_t, abilities) == 80, "layout of abilities");
static_assert(offsetof(rgaps_queue_pair_t, reserved) == 84, "layout of reserved");
static_assert(sizeof(rgaps_queue_pair_t) == 88, "layout of a queue pair");
#endif

#endif
