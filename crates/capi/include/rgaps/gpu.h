/*
 * Topics for CUDA programs whose GPU is on another host ('rgaps gpu run').
 *
 * The program publishes memory of its GPU to a topic of the GPU's host, and receives messages there. The bytes stay in that host's GPU:
 * publishing copies them on the device into the topic's pool, and receivers read a message in that pool. Only calls cross the
 * network. Publishers and subscribers on the GPU's host are ordinary ones, in any language.
 *
 *     rgaps_gpu_publisher_t *publisher;
 *     rgaps_gpu_publisher_create("features", NULL, &publisher);
 *     kernel<<<grid, block, 0, stream>>>(features);
 *     rgaps_gpu_publisher_publish(publisher, features, bytes, NULL, stream, NULL);
 *
 *     rgaps_gpu_subscriber_t *subscriber;
 *     rgaps_gpu_message_t message;
 *     rgaps_gpu_subscriber_create("camera", NULL, &subscriber);
 *     rgaps_gpu_subscriber_receive(subscriber, RGAPS_GPU_FOREVER, stream, &message);
 *     kernel<<<grid, block, 0, stream>>>(message.data);
 *     rgaps_gpu_message_release(&message, stream);
 *
 * The functions are in librgaps_gpu.so, which also holds CUDA's: link with it ('-lrgaps_gpu'). A program whose GPU is in its own host uses
 * rgaps.h instead.
 *
 * Conventions
 *
 *   Errors      Functions return 0 (cudaSuccess) or one of CUDA's errors; rgaps_gpu_error_message() then says what happened and what to do.
 *               cudaGetLastError() does not return them. As with every function of CUDA that waits, the error may be one of earlier work.
 *                   cudaErrorNotPermitted       the server's configuration (gpu.topics) or access rules forbid it
 *                   cudaErrorSystemNotReady     there is no daemon on the GPU's host
 *                   cudaErrorInvalidValue       an argument, the topic's name, or the domain of the topic is wrong
 *                   cudaErrorMemoryAllocation   the pool is full, or a limit is reached
 *                   cudaErrorNotReady           no message arrived before the time-out
 *                   cudaErrorTimeout            reliable subscribers made no room in time, or the message was not complete in time
 *                   cudaErrorInvalidResourceHandle   the handle was destroyed, or the message released
 *   Domain      Messages are in the memory of the device that is current when a publisher or subscriber is created.
 *   Order       Publishing and receiving are ordered with the work of a stream as in rgaps.h: the function does not wait for that work. Streams
 *               that capture a graph are refused.
 *   Rights      The server acts with the rights of its own user, for topics that gpu.topics of its configuration names.
 *   Exit        When the program ends or dies, the server releases everything that the program held.
 *   Threads     Any thread may call any function.
 */
#ifndef RGAPS_GPU_H
#define RGAPS_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A time-out that never ends. */
#define RGAPS_GPU_FOREVER UINT64_MAX

typedef struct rgaps_gpu_publisher rgaps_gpu_publisher_t;
typedef struct rgaps_gpu_subscriber rgaps_gpu_subscriber_t;

/* Leave 0 in fields that should have their default value. */
typedef struct rgaps_gpu_options {
    size_t size;              /* sizeof(rgaps_gpu_options_t) */
    uint32_t depth;           /* publisher: messages that it keeps, 0: 16. Subscriber: its own queue, 0: all that publishers keep */
    uint32_t reliable;        /* subscriber, not 0: it misses no message, and publishers wait for it */
    uint32_t transient_local; /* publisher, not 0: keeps messages for later subscribers. Subscriber, not 0: gets them first */
} rgaps_gpu_options_t;

/* Describes the bytes of a message: an array in row-major order. */
typedef struct rgaps_gpu_tensor {
    char dtype[20]; /* its element type by the names of numpy and torch: "float32", "uint8"; "": none given */
    uint32_t ndim;  /* at most 8 */
    uint64_t shape[8];
} rgaps_gpu_tensor_t;

/* A message. It stays readable and unchanged until you release it; kernels must not write to it. */
typedef struct rgaps_gpu_message {
    const void *data;  /* a device pointer */
    size_t bytes;
    uint64_t sequence; /* its number; each publisher counts from 0 */
    uint64_t missed;   /* messages of that publisher that this subscriber missed before this one */
    uint64_t handle;   /* for rgaps_gpu_message_release() */
    rgaps_gpu_tensor_t tensor; /* the publisher's description of the bytes */
} rgaps_gpu_message_t;

/* Joins `topic` as a publisher. `options` may be NULL. */
int rgaps_gpu_publisher_create(const char *topic, const rgaps_gpu_options_t *options, rgaps_gpu_publisher_t **publisher);
int rgaps_gpu_publisher_destroy(rgaps_gpu_publisher_t *publisher);

/* Publishes a copy of `bytes` bytes of device memory, behind the work of `stream` (a cudaStream_t). Later work of that stream may change
 * the memory. `tensor` describes the bytes to subscribers, and may be NULL; `sequence` may be NULL, too. Costs a round trip to the server. */
int rgaps_gpu_publisher_publish(rgaps_gpu_publisher_t *publisher, const void *data, size_t bytes, const rgaps_gpu_tensor_t *tensor, void *stream,
                                uint64_t *sequence);

/* Joins `topic` as a subscriber. `options` may be NULL. */
int rgaps_gpu_subscriber_create(const char *topic, const rgaps_gpu_options_t *options, rgaps_gpu_subscriber_t **subscriber);
int rgaps_gpu_subscriber_destroy(rgaps_gpu_subscriber_t *subscriber);

/* Waits for the next message, at most `timeout_ns` nanoseconds. Work that you queue on `stream` afterwards reads complete bytes. */
int rgaps_gpu_subscriber_receive(rgaps_gpu_subscriber_t *subscriber, uint64_t timeout_ns, void *stream, rgaps_gpu_message_t *message);

/* Releases a message and clears the structure. Does not wait: the server releases the block when the work queued on `stream` so far is
 * done. */
int rgaps_gpu_message_release(rgaps_gpu_message_t *message, void *stream);

/* What happened in this thread's last failed call, and what to do. Valid until the thread's next failed call. */
const char *rgaps_gpu_error_message(void);

#ifdef __cplusplus
}
#endif

#endif
