/* The words of device topics. Written by crates/layout/src/device.rs, which explains them: do not edit. */
#ifndef RGAPS_DEVICE_LAYOUT_H
#define RGAPS_DEVICE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define RGAPS_DEVICE_LAYOUT_VERSION 3
#define RGAPS_DEVICE_MAX_SUBSCRIBERS 16
#define RGAPS_DEVICE_MAX_DEPTH 32768
#define RGAPS_DEVICE_MAX_BLOCKS 65535
#define RGAPS_DEVICE_BLOCK_ALIGN 256
#define RGAPS_DEVICE_PRODUCER_BIT 16
#define RGAPS_DEVICE_RING_BIT 17
#define RGAPS_DEVICE_GENERATION_SHIFT 18
#define RGAPS_DEVICE_SEQUENCE_SHIFT 16
#define RGAPS_DEVICE_HOLDER_BYTES 64
#define RGAPS_DEVICE_CURSOR_SHIFT 2
#define RGAPS_DEVICE_CURSOR_RELIABLE 1
#define RGAPS_DEVICE_CURSOR_JOINED 2
#define RGAPS_DEVICE_CURSOR_FLAGS 3
#define RGAPS_DEVICE_PUBLISHER_ENDPOINT 16
#define RGAPS_DEVICE_CONTROL_EVICTED 256
#define RGAPS_DEVICE_CONTROL_STOPPED 384
#define RGAPS_DEVICE_SEAT_BYTES 128
#define RGAPS_DEVICE_SEAT_CURSOR 0
#define RGAPS_DEVICE_SEAT_MISSED 8

/* A device topic as kernels of one process see it. Passed to them by value. */
typedef struct rgaps_device_topic {
    uint64_t control;
    uint64_t slots;
    uint64_t lengths;
    uint64_t blocks_at;
    uint64_t seats;
    uint64_t holders;
    uint64_t block_bytes;
    uint32_t depth;
    uint32_t blocks;
} rgaps_device_topic_t;

#ifdef __cplusplus
static_assert(offsetof(rgaps_device_topic_t, control) == 0, "layout of control");
static_assert(offsetof(rgaps_device_topic_t, slots) == 8, "layout of slots");
static_assert(offsetof(rgaps_device_topic_t, lengths) == 16, "layout of lengths");
static_assert(offsetof(rgaps_device_topic_t, blocks_at) == 24, "layout of blocks_at");
static_assert(offsetof(rgaps_device_topic_t, seats) == 32, "layout of seats");
static_assert(offsetof(rgaps_device_topic_t, holders) == 40, "layout of holders");
static_assert(offsetof(rgaps_device_topic_t, block_bytes) == 48, "layout of block_bytes");
static_assert(offsetof(rgaps_device_topic_t, depth) == 56, "layout of depth");
static_assert(offsetof(rgaps_device_topic_t, blocks) == 60, "layout of blocks");
static_assert(sizeof(rgaps_device_topic_t) == 64, "layout of the topic");
#endif

#endif
