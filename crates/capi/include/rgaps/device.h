/*
 * Device topics: kernels publish messages to kernels of other processes without a CPU in between. This header sets them up;
 * rgaps/device.cuh has the functions for kernels. The conventions of rgaps.h apply. The daemon takes part only in topics with a
 * bridge.
 *
 * One process creates the topic, and passes its three descriptors to the others (by fork, or over a Unix socket):
 *
 *     rgaps_device_mapping_t *mapping;
 *     rgaps_device_topic_t topic;
 *     int descriptors[3];
 *     rgaps_device_topic_create("cuda", 64, 80, 4096, &mapping);
 *     rgaps_device_mapping_descriptors(mapping, descriptors);
 *     rgaps_device_mapping_topic(mapping, &topic);
 *     publish_kernel<<<1, 128>>>(topic);
 *
 * A subscriber opens the topic and takes a seat, in which its kernel joins:
 *
 *     uint32_t seat;
 *     rgaps_device_topic_open("cuda", descriptors, RGAPS_DEVICE_SUBSCRIBER, &mapping);
 *     rgaps_device_mapping_take_seat(mapping, &seat);
 *     rgaps_device_mapping_topic(mapping, &topic);
 *     receive_kernel<<<1, 128>>>(topic, seat);
 */
#ifndef RGAPS_DEVICE_H
#define RGAPS_DEVICE_H

#include "../rgaps.h"
#include "device_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The memory of a device topic, mapped into this process. */
typedef struct rgaps_device_mapping rgaps_device_mapping_t;

/* Whether kernels of this process publish or receive. */
enum rgaps_device_role {
    RGAPS_DEVICE_PUBLISHER = 0,
    /* Kernels receive; messages are mapped read-only. */
    RGAPS_DEVICE_SUBSCRIBER = 1
};

/* Creates the memory of a new topic in a domain: "host", "cuda", "cuda:1", "cuda:GPU-<uuid>". The ring keeps `depth` messages, a
 * power of two. `blocks` is `depth` plus the number of blocks that are loaned or held at the same time. `block_bytes` is the size
 * of the largest message. */
rgaps_status_t rgaps_device_topic_create(const char *domain, uint32_t depth, uint32_t blocks, uint64_t block_bytes,
                                         rgaps_device_mapping_t **mapping);

/* Maps a topic that another process created, by its three descriptors. You still own and close them. `domain` is "host", or the GPU whose
 * kernels use the topic. */
rgaps_status_t rgaps_device_topic_open(const char *domain, const int *descriptors, int role,
                                       rgaps_device_mapping_t **mapping);

/* Maps the device topic that a bridge forwards to or from the ordinary topic `topic`. `domain` NULL: the device topic's domain.
 * `node` NULL: the default node. RGAPS_ERROR_NOT_FOUND: there is no such bridge. */
rgaps_status_t rgaps_device_topic_attach(const rgaps_node_t *node, const char *topic, const char *domain, int role,
                                         rgaps_device_mapping_t **mapping);

/* Writes the topic as kernels of this process take it as a parameter. */
rgaps_status_t rgaps_device_mapping_topic(const rgaps_device_mapping_t *mapping, rgaps_device_topic_t *topic);

/* Writes the topic's three descriptors to `descriptors`. The mapping owns and closes them; they are close-on-exec. */
rgaps_status_t rgaps_device_mapping_descriptors(const rgaps_device_mapping_t *mapping, int *descriptors);

/* Takes a seat for one subscriber. RGAPS_ERROR_LIMIT: all seats are taken. */
rgaps_status_t rgaps_device_mapping_take_seat(const rgaps_device_mapping_t *mapping, uint32_t *seat);

/* Returns a seat. Call it when the seat's kernels have ended, or when their process and its GPU work have ended. Any process that
 * maps the topic may return the seat of a process that died. The daemon does so if that process mapped the topic by
 * rgaps_device_topic_attach(). */
rgaps_status_t rgaps_device_mapping_leave_seat(const rgaps_device_mapping_t *mapping, uint32_t seat);

/* Evicts a subscriber: takes all its samples, and the publisher stops waiting for it. */
rgaps_status_t rgaps_device_mapping_evict(const rgaps_device_mapping_t *mapping, uint32_t seat);

/* Ends the waits of a kernel with Status::stopped. `endpoint` is a seat, or RGAPS_DEVICE_PUBLISHER_ENDPOINT.
 * rgaps_device_mapping_resume() lets the kernel wait again. */
rgaps_status_t rgaps_device_mapping_stop(const rgaps_device_mapping_t *mapping, uint32_t endpoint);
rgaps_status_t rgaps_device_mapping_resume(const rgaps_device_mapping_t *mapping, uint32_t endpoint);

/* Writes a subscriber's cursor, which is the sequence number of the message that it wants next (0: it has not joined), and how many
 * messages it missed. A subscriber updates both only when it needs to. */
rgaps_status_t rgaps_device_mapping_seat(const rgaps_device_mapping_t *mapping, uint32_t seat, uint64_t *next_sequence,
                                         uint64_t *missed);

/* Writes the sequence number of the newest message; 0: nothing was published yet. */
rgaps_status_t rgaps_device_mapping_newest(const rgaps_device_mapping_t *mapping, uint64_t *sequence);

/* Sets `takes_turns` to 1 if the GPU runs kernels of several processes in turns, because MPS does not run: then a message between
 * two processes takes milliseconds. See 'rgaps up --mps' and 'rgaps run'. Older drivers do not report MPS; the result is then 1. */
rgaps_status_t rgaps_device_mapping_takes_turns(const rgaps_device_mapping_t *mapping, int *takes_turns);

/* Forwards messages between a device topic and an ordinary topic, in a thread of its own. */
typedef struct rgaps_device_bridge rgaps_device_bridge_t;

enum rgaps_device_direction {
    /* Kernels publish. Subscribers of the ordinary topic receive the messages as samples, whose tag is the message's sequence
     * number in the device topic. Reliable subscribers back-pressure the kernel. */
    RGAPS_DEVICE_TO_HOSTS = 0,
    /* Publishers of the ordinary topic publish, and kernels receive. No kernel may publish in the device topic. */
    RGAPS_DEVICE_TO_KERNELS = 1
};

/* Begins to forward. `node` NULL: the default node. RGAPS_ERROR_BUSY: another process forwards this topic already. When that process
 * ends or dies, the next bridge continues after its last message, and may forward one message twice. */
rgaps_status_t rgaps_device_bridge_create(const rgaps_node_t *node, const char *topic, const rgaps_device_mapping_t *mapping,
                                          int direction, rgaps_device_bridge_t **bridge);

/* Writes how many messages the bridge forwarded, and how many it could not forward (larger than a block, or aborted). Fails if the
 * bridge has ended by itself; rgaps_error_message() says why. */
rgaps_status_t rgaps_device_bridge_figures(const rgaps_device_bridge_t *bridge, uint64_t *forwarded, uint64_t *refused);

/* Ends the bridge. You may destroy the mapping before. */
void rgaps_device_bridge_destroy(rgaps_device_bridge_t *bridge);

/* Unmaps the topic. All kernels of this process that use it must have ended. */
void rgaps_device_mapping_destroy(rgaps_device_mapping_t *mapping);

#ifdef __cplusplus
}
#endif

#endif
