/* rgaps/device.h from C: a topic in host memory, its seats, and what is refused. What kernels do with it, tests/device runs. */
#include "check.h"

#include <rgaps/device.h>

int main(void) {
    rgaps_device_mapping_t *made, *opened, *none;
    rgaps_device_topic_t topic;
    rgaps_device_bridge_t *bridge, *second;
    int descriptors[3], wrong[3] = {-1, 0, 1}, turns;
    uint32_t seat, number;
    uint64_t next, missed, newest;

    CHECK(rgaps_device_topic_create("host", 4, 4, 100, &none) == RGAPS_ERROR_ARGUMENT && none == NULL);
    CHECK(rgaps_device_topic_create("nowhere", 4, 8, 100, &none) == RGAPS_ERROR_ARGUMENT);
    CHECK(rgaps_device_topic_create("auto", 4, 8, 100, &none) == RGAPS_ERROR_ARGUMENT);
    CHECK(rgaps_device_topic_create("host", 4, 8, 100, NULL) == RGAPS_ERROR_ARGUMENT);
    OK(rgaps_device_topic_create("host", 4, 8, 100, &made));
    OK(rgaps_device_mapping_topic(made, &topic));
    CHECK(topic.depth == 4 && topic.blocks == 8 && topic.block_bytes == 256 && topic.blocks_at % 256 == 0);

    OK(rgaps_device_mapping_descriptors(made, descriptors));
    OK(rgaps_device_topic_open("host", descriptors, RGAPS_DEVICE_SUBSCRIBER, &opened));
    CHECK(rgaps_device_topic_open("host", descriptors, 7, &none) == RGAPS_ERROR_ARGUMENT);
    CHECK(rgaps_device_topic_open("host", wrong, RGAPS_DEVICE_SUBSCRIBER, &none) == RGAPS_ERROR_ARGUMENT);
    CHECK(rgaps_device_topic_open("host", NULL, RGAPS_DEVICE_SUBSCRIBER, &none) == RGAPS_ERROR_ARGUMENT);

    for (number = 0; number < RGAPS_DEVICE_MAX_SUBSCRIBERS; number++) {
        OK(rgaps_device_mapping_take_seat(number % 2 ? made : opened, &seat));
        CHECK(seat == number);
    }
    CHECK(rgaps_device_mapping_take_seat(opened, &seat) == RGAPS_ERROR_LIMIT);
    OK(rgaps_device_mapping_evict(made, 5));
    OK(rgaps_device_mapping_leave_seat(made, 5));
    OK(rgaps_device_mapping_take_seat(opened, &seat));
    CHECK(seat == 5);
    OK(rgaps_device_mapping_seat(made, 5, &next, &missed));
    CHECK(next == 0 && missed == 0);
    OK(rgaps_device_mapping_newest(opened, &newest));
    CHECK(newest == 0);
    OK(rgaps_device_mapping_takes_turns(opened, &turns));
    CHECK(turns == 0);
    OK(rgaps_device_mapping_leave_seat(made, 0));
    CHECK(rgaps_device_topic_attach(NULL, "c/device", NULL, RGAPS_DEVICE_PUBLISHER, &none) == RGAPS_ERROR_NOT_FOUND);
    CHECK(rgaps_device_bridge_create(NULL, "c/device", made, 2, &bridge) == RGAPS_ERROR_ARGUMENT && bridge == NULL);
    OK(rgaps_device_bridge_create(NULL, "c/device", made, RGAPS_DEVICE_TO_HOSTS, &bridge));
    CHECK(rgaps_device_bridge_create(NULL, "c/other", opened, RGAPS_DEVICE_TO_HOSTS, &second) == RGAPS_ERROR_BUSY);
    OK(rgaps_device_topic_attach(NULL, "c/device", NULL, RGAPS_DEVICE_PUBLISHER, &none));
    OK(rgaps_device_mapping_topic(none, &topic));
    CHECK(topic.depth == 4 && topic.blocks == 8);
    rgaps_device_mapping_destroy(none);
    OK(rgaps_device_bridge_figures(bridge, &next, &missed));
    CHECK(next == 0 && missed == 0);
    rgaps_device_bridge_destroy(bridge);
    rgaps_device_bridge_destroy(bridge);
    OK(rgaps_device_mapping_stop(opened, RGAPS_DEVICE_PUBLISHER_ENDPOINT));
    OK(rgaps_device_mapping_resume(opened, RGAPS_DEVICE_PUBLISHER_ENDPOINT));
    CHECK(rgaps_device_mapping_stop(opened, RGAPS_DEVICE_PUBLISHER_ENDPOINT + 1) == RGAPS_ERROR_ARGUMENT);

    rgaps_device_mapping_destroy(made);
    rgaps_device_mapping_destroy(made);
    /* The memory is there while anyone has it. */
    OK(rgaps_device_mapping_newest(opened, &newest));
    rgaps_device_mapping_destroy(opened);
    rgaps_device_mapping_destroy(NULL);
    return 0;
}
