/* The six functions of the thesis, in two processes. */
#include <rgaps/thesis.h>

#include "check.h"

enum { MESSAGES = 50, BYTES = 100000 };

static void subscribe(char *name, const struct turns *turns)
{
    rgaps_subscriber_t *subscriber = subscriber_init(name);
    void *previous = NULL;
    uint64_t number;

    CHECK(subscriber != NULL);
    for (number = 0; number < MESSAGES; number++) {
        void *message = subscriber_pull(subscriber);
        size_t bytes;

        CHECK(message != NULL);
        OK(rgaps_subscriber_pulled_bytes(subscriber, message, &bytes));
        CHECK(bytes == BYTES - number);
        CHECK(is_filled(message, bytes, number));
        /* The pull released the message before it. */
        CHECK(rgaps_subscriber_held(subscriber) == 1);
        CHECK(previous != message);
        previous = message;
        turns_pass(turns);
    }
    subscriber_destroy(subscriber);
    CHECK(subscriber_pull(NULL) == NULL);
    subscriber_destroy(NULL);
}

int main(void)
{
    static unsigned char message[BYTES];
    rgaps_publisher_t *publisher;
    struct turns turns;
    uint64_t number;
    char name[128];
    pid_t child;

    snprintf(name, sizeof name, "%s", topic("thesis"));
    turns_init(&turns);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        subscribe(name, &turns);
        return 0;
    }
    publisher = publisher_init(name);
    CHECK(publisher != NULL);
    OK(rgaps_publisher_wait_for_subscribers(publisher, 1, SOON));
    for (number = 0; number < MESSAGES; number++) {
        fill(message, BYTES - number, number);
        CHECK(publisher_push(publisher, BYTES - number, message) == 0);
        /* The thesis has no words for reliability: the subscriber says when it has read. */
        turns_wait(&turns);
    }
    join(child);
    CHECK(publisher_push(publisher, 1, NULL) < 0);
    publisher_destroy(publisher);
    publisher_destroy(NULL);
    CHECK(publisher_init(NULL) == NULL);
    return 0;
}
