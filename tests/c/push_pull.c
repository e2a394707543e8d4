/* Two processes: one pushes messages of all sizes, the other pulls them and looks at every byte. */
#include "check.h"

enum { MESSAGES = 200, HELD = 40 };

static size_t size_of_message(uint64_t number)
{
    static const size_t sizes[] = {0, 1, 17, 255, 256, 257, 4096, 65537, 1u << 20, (3u << 20) + 5};

    return sizes[number % (sizeof sizes / sizeof sizes[0])];
}

static void subscribe(const char *name)
{
    rgaps_subscriber_options_t options = {.size = sizeof options, .reliable = 1, .max_held = HELD};
    const void *held[HELD] = {0};
    rgaps_subscriber_t *subscriber;
    uint64_t number;
    size_t bytes;

    OK(rgaps_subscriber_create(name, &options, &subscriber));
    for (number = 0; number < MESSAGES; number++) {
        const void **place = &held[number % HELD];
        const void *data;
        size_t asked;

        /* A message stays as it was while others come. */
        if (number >= HELD) {
            OK(rgaps_subscriber_pulled_bytes(subscriber, *place, &asked));
            CHECK(asked == size_of_message(number - HELD));
            CHECK(is_filled(*place, asked, number - HELD));
            OK(rgaps_subscriber_release(subscriber, *place));
            FAILS(RGAPS_ERROR_NOT_HELD, "released already",
                  rgaps_subscriber_release(subscriber, *place));
        }
        OK(rgaps_subscriber_pull(subscriber, SOON, &data, &bytes));
        CHECK(bytes == size_of_message(number));
        CHECK(is_filled(data, bytes, number));
        *place = data;
    }
    CHECK(rgaps_subscriber_held(subscriber) == HELD);
    FAILS(RGAPS_ERROR_TIMED_OUT, name, rgaps_subscriber_pull(subscriber, 0, &held[0], NULL));
    CHECK(held[0] == NULL);
    OK(rgaps_subscriber_release(subscriber, NULL));
    CHECK(rgaps_subscriber_held(subscriber) == 0);
    CHECK(rgaps_subscriber_missed(subscriber) == 0);
    rgaps_subscriber_destroy(subscriber);
}

static void publish(const char *name)
{
    rgaps_publisher_options_t options = {.size = sizeof options,
                                         .history_messages = 8,
                                         .deadline_ns = SOON,
                                         .loan_timeout_ns = SOON};
    unsigned char *message = malloc(4u << 20);
    rgaps_publisher_t *publisher;
    uint64_t number;

    CHECK(message != NULL);
    OK(rgaps_publisher_create(name, &options, &publisher));
    CHECK(strcmp(rgaps_publisher_domain(publisher), "host") == 0);
    OK(rgaps_publisher_wait_for_subscribers(publisher, 1, SOON));
    CHECK(rgaps_publisher_subscribers(publisher) == 1);
    for (number = 0; number < MESSAGES; number++) {
        fill(message, size_of_message(number), number);
        OK(rgaps_publisher_push(publisher, message, size_of_message(number)));
    }
    free(message);
    /* What was published stays until it is read, also without its publisher. */
    rgaps_publisher_destroy(publisher);
}

int main(void)
{
    const char *name = topic("push_pull");
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        subscribe(name);
        return 0;
    }
    publish(name);
    join(child);
    return 0;
}
