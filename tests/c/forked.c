/* In a forked child everything that was made before refuses, and what the child makes works. */
#include "check.h"

int main(void)
{
    rgaps_node_t *node;
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample, *other;
    rgaps_loan_t *loan;
    rgaps_wait_set_t *set;
    rgaps_publisher_options_t on_node = {.size = sizeof on_node};
    const void *data;
    size_t token;
    int fd;
    const char *name = topic("forked");
    pid_t child;

    OK(rgaps_node_create("parent", NULL, &node));
    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_wait_set_create(NULL, &set));
    OK(rgaps_publisher_push(publisher, "one", 3));
    OK(rgaps_publisher_push(publisher, "two", 3));
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, NULL));
    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    OK(rgaps_publisher_loan(publisher, 5, &loan));

    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        on_node.node = node;
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_publisher_push(publisher, "x", 1));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_subscriber_pull(subscriber, 0, &data, NULL));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_subscriber_release(subscriber, NULL));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_subscriber_fd(subscriber, &fd));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_loan_publish(loan, NULL));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_sample_clone(sample, &other));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_sample_release(sample));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_wait_set_attach(set, subscriber, &token));
        FAILS(RGAPS_ERROR_FORKED, "fork()", rgaps_publisher_create(name, &on_node, &publisher));
        CHECK(rgaps_sample_data(sample) == NULL);
        rgaps_loan_drop(loan);
        rgaps_subscriber_destroy(subscriber);
        rgaps_wait_set_destroy(set);
        rgaps_node_destroy(node);

        /* Of its own it can have all, on a default node of its own. */
        OK(rgaps_publisher_create(name, NULL, &publisher));
        OK(rgaps_publisher_push(publisher, "from the child", 14));
        rgaps_publisher_destroy(publisher);
        exit(0);
    }
    join(child);
    /* The parent's handles are as they were. */
    CHECK(memcmp(data, "one", 3) == 0);
    CHECK(memcmp(rgaps_sample_data(sample), "two", 3) == 0);
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, &token));
    CHECK(token == 14 && memcmp(data, "from the child", 14) == 0);
    memcpy(rgaps_loan_data(loan), "three", 5);
    OK(rgaps_loan_publish(loan, NULL));
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, &token));
    CHECK(token == 5 && memcmp(data, "three", 5) == 0);
    OK(rgaps_sample_release(sample));
    rgaps_wait_set_destroy(set);
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
    rgaps_node_destroy(node);
    return 0;
}
