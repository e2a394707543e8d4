/* The words of device topics. Written by crates/layout/src/device.rs, which explains them: do not edit. */
#ifndef RGAPS_DEVICE_LAYOUT_H
#define RGAPS_DEVICE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define RGAPS_DEVICE_LAYOUT_VERSION 1
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
#endif

#endif
