/*
 * The six functions of the RGAPS thesis (3.7 Programming Interface), over rgaps.h.
 *
 * Messages live in the memory of the process's first GPU if it can be used, else in host memory.
 * The environment variable RGAPS_DOMAIN ("host", "cuda", "cuda:1", "cuda:GPU-<uuid>") overrides
 * this. The functions are inline, so that the library does not export their names. If one fails,
 * rgaps_error_message() says why.
 */
#ifndef RGAPS_THESIS_H
#define RGAPS_THESIS_H

#include <stdlib.h>
#include <string.h>

#include "../rgaps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attaches the process as a publisher to the topic. NULL: failed. */
static inline rgaps_publisher_t *publisher_init(char *topic_name)
{
    rgaps_publisher_options_t options;
    const char *domain = getenv("RGAPS_DOMAIN");
    rgaps_publisher_t *publisher;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.domain = domain != NULL && domain[0] != '\0' ? domain : "auto";
    return rgaps_publisher_create(topic_name, &options, &publisher) == RGAPS_OK ? publisher : NULL;
}

/* Publishes a copy of `message_size` bytes from `device_pointer`, which may be a host pointer, too.
 * 0, or a negative code of rgaps.h. */
static inline int publisher_push(rgaps_publisher_t *publisher, size_t message_size,
                                 void *device_pointer)
{
    return rgaps_publisher_push(publisher, device_pointer, message_size);
}

/* Detaches the publisher from its topic. */
static inline void publisher_destroy(rgaps_publisher_t *publisher)
{
    rgaps_publisher_destroy(publisher);
}

/* Attaches the process as a subscriber to the topic. NULL: failed. */
static inline rgaps_subscriber_t *subscriber_init(char *topic_name)
{
    rgaps_subscriber_options_t options;
    const char *domain = getenv("RGAPS_DOMAIN");
    rgaps_subscriber_t *subscriber;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    /* NULL: the subscriber reads in the topic's domain, which its publishers choose. */
    options.domain = domain != NULL && domain[0] != '\0' ? domain : NULL;
    return rgaps_subscriber_create(topic_name, &options, &subscriber) == RGAPS_OK ? subscriber
                                                                                   : NULL;
}

/* Waits for a message and returns the address of its payload, a device pointer where the topic lives
 * on a GPU, valid until the next pull or destroy of this subscriber. rgaps_subscriber_pulled_bytes()
 * gives its size. NULL: failed. */
static inline void *subscriber_pull(rgaps_subscriber_t *subscriber)
{
    const void *data;

    if (rgaps_subscriber_release(subscriber, NULL) != RGAPS_OK) {
        return NULL;
    }
    if (rgaps_subscriber_pull(subscriber, RGAPS_FOREVER, &data, NULL) != RGAPS_OK) {
        return NULL;
    }
    return (void *)data;
}

/* Detaches the subscriber from its topic. */
static inline void subscriber_destroy(rgaps_subscriber_t *subscriber)
{
    rgaps_subscriber_destroy(subscriber);
}

#ifdef __cplusplus
}
#endif

#endif
