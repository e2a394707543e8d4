/*
 * Device topics: kernels publish messages to kernels of other processes, with no CPU on the way. This header sets them up;
 * rgaps/device.cuh has what kernels call. Conventions are those of rgaps.h. No daemon takes part, but in topics with a bridge.
 *
 * One process makes the topic, and passes its three descriptors to the others (by fork, or over a Unix socket):
 *
 *     rgaps_device_mapping_t *mapping;
 *     rgaps_device_topic_t topic;
 *     int descriptors[3];
 *     rgaps_device_topic_create("cuda", 64, 80, 4096, &mapping);
 *     rgaps_device_mapping_descriptors(mapping, descriptors);
 *     rgaps_device_mapping_topic(mapping, &topic);
 *     publish_kernel<<<1, 128>>>(topic);
 *
 * A subscriber opens it, takes a seat, and has its kernel join there:
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

/* What kernels of this process do with the topic. */
enum rgaps_device_role {
    RGAPS_DEVICE_PUBLISHER = 0,
    /* Messages are mapped for reading only. */
    RGAPS_DEVICE_SUBSCRIBER = 1
};

/* Makes the memory of a new topic in a domain: "host", "cuda", "cuda:1", "cuda:GPU-<uuid>". The ring keeps `depth` messages, a
 * power of two; `blocks` is more than that by as many as are loaned and held at once; `block_bytes` is the largest message. */
rgaps_status_t rgaps_device_topic_create(const char *domain, uint32_t depth, uint32_t blocks, uint64_t block_bytes,
                                         rgaps_device_mapping_t **mapping);

/* Maps a topic that another process made, by its three descriptors, which stay yours. `domain` is "host", or the GPU whose
 * kernels use the topic. */
rgaps_status_t rgaps_device_topic_open(const char *domain, const int *descriptors, int role,
                                       rgaps_device_mapping_t **mapping);

/* Maps a topic that a bridge forwards to or from the ordinary topic of this name. `domain` may be NULL: where the topic lies;
 * `node` may be NULL: the process's default one. RGAPS_ERROR_NOT_FOUND: there is no such bridge. */
rgaps_status_t rgaps_device_topic_attach(const rgaps_node_t *node, const char *topic, const char *domain, int role,
                                         rgaps_device_mapping_t **mapping);

/* What kernels of this process take as a parameter. */
rgaps_status_t rgaps_device_mapping_topic(const rgaps_device_mapping_t *mapping, rgaps_device_topic_t *topic);

/* Writes three descriptors to `descriptors`, which stay the mapping's and close with it. They are close-on-exec. */
rgaps_status_t rgaps_device_mapping_descriptors(const rgaps_device_mapping_t *mapping, int *descriptors);

/* A seat for one subscriber. RGAPS_ERROR_LIMIT: all are taken. */
rgaps_status_t rgaps_device_mapping_take_seat(const rgaps_device_mapping_t *mapping, uint32_t *seat);

/* Gives a seat back. Its kernels have ended, or their process has and its GPU work with it. Any process with the topic may do
 * this for one that died; the daemon does for one that had the topic by its name (rgaps_device_topic_attach()). */
rgaps_status_t rgaps_device_mapping_leave_seat(const rgaps_device_mapping_t *mapping, uint32_t seat);

/* Takes from a subscriber what it holds, and has the publisher wait for it no longer. */
rgaps_status_t rgaps_device_mapping_evict(const rgaps_device_mapping_t *mapping, uint32_t seat);

/* Ends the waits of a kernel with Status::stopped: a seat's, or the publisher's (RGAPS_DEVICE_PUBLISHER_ENDPOINT). The second
 * takes that back. */
rgaps_status_t rgaps_device_mapping_stop(const rgaps_device_mapping_t *mapping, uint32_t endpoint);
rgaps_status_t rgaps_device_mapping_resume(const rgaps_device_mapping_t *mapping, uint32_t endpoint);

/* The sequence number of the message that a subscriber wants next, as far as it has said so (0: it has not joined), and how
 * many it missed. */
rgaps_status_t rgaps_device_mapping_seat(const rgaps_device_mapping_t *mapping, uint32_t seat, uint64_t *next_sequence,
                                         uint64_t *missed);

/* The sequence number of the newest message; 0: there was none. */
rgaps_status_t rgaps_device_mapping_newest(const rgaps_device_mapping_t *mapping, uint64_t *sequence);

/* Sets `takes_turns` to 1 where the GPU runs kernels of several processes in turns, since there is no MPS: a message between two
 * of them then takes milliseconds. See 'rgaps up --mps' and 'rgaps run'. Older drivers do not say, and count as without. */
rgaps_status_t rgaps_device_mapping_takes_turns(const rgaps_device_mapping_t *mapping, int *takes_turns);

/* Forwards messages between a device topic and an ordinary topic, in a thread of its own. */
typedef struct rgaps_device_bridge rgaps_device_bridge_t;

enum rgaps_device_direction {
    /* Kernels publish: subscribers of the ordinary topic receive the messages as samples, which have the message's sequence
     * number in the device topic as their tag. Reliable ones hold the kernel back. */
    RGAPS_DEVICE_TO_HOSTS = 0,
    /* Publishers of the ordinary topic publish, kernels receive. No kernel publishes in the device topic. */
    RGAPS_DEVICE_TO_KERNELS = 1
};

/* Begins to forward. `node` may be NULL: the process's default one. RGAPS_ERROR_BUSY: another process forwards already. When
 * that process ends or dies, the next bridge goes on where it was; the message that was on its way may then come twice. */
rgaps_status_t rgaps_device_bridge_create(const rgaps_node_t *node, const char *topic, const rgaps_device_mapping_t *mapping,
                                          int direction, rgaps_device_bridge_t **bridge);

/* How many messages were forwarded, and how many could not be (larger than a block, or aborted). Fails if the bridge has
 * ended by itself, and says why. */
rgaps_status_t rgaps_device_bridge_figures(const rgaps_device_bridge_t *bridge, uint64_t *forwarded, uint64_t *refused);

/* Ends it. The mapping may be destroyed before. */
void rgaps_device_bridge_destroy(rgaps_device_bridge_t *bridge);

/* Unmaps the topic. This process's kernels that use it have ended. */
void rgaps_device_mapping_destroy(rgaps_device_mapping_t *mapping);

#ifdef __cplusplus
}
#endif

#endif
