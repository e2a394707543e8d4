/* Loans and samples: what travels with a message, and how long it stays. */
#include "check.h"

/* Everything that a message carries arrives. */
static void contents(const char *name)
{
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample, *clone;
    rgaps_loan_t *loan;
    rgaps_tensor_t sent, got;
    rgaps_dtype_t dtype;
    const uint64_t shape[3] = {2, 3, 4};
    unsigned char part[8];
    size_t bytes;
    uint64_t sequence;
    struct timespec now;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_dtype_parse("bfloat16", &dtype));
    OK(rgaps_tensor_contiguous(dtype, 3, shape, &sent, &bytes));
    CHECK(bytes == 48 && sent.strides[0] == 12 && sent.strides[2] == 1);

    OK(rgaps_publisher_loan(publisher, 100, &loan));
    CHECK((uintptr_t)rgaps_loan_data(loan) % 256 == 0);
    fill(rgaps_loan_data(loan), 40, 5);
    OK(rgaps_loan_write(loan, 40, "written!", 8));
    OK(rgaps_loan_truncate(loan, bytes));
    OK(rgaps_loan_set_tag(loan, UINT64_C(0xfeedfacecafebeef)));
    OK(rgaps_loan_set_tensor(loan, &sent));
    OK(rgaps_loan_publish(loan, &sequence));
    CHECK(sequence == 0);
    OK(rgaps_publisher_push(publisher, "next", 4));

    OK(rgaps_subscriber_wait(subscriber, SOON));
    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    CHECK(rgaps_sample_bytes(sample) == 48);
    CHECK(is_filled(rgaps_sample_data(sample), 40, 5));
    CHECK(memcmp((const char *)rgaps_sample_data(sample) + 40, "written!", 8) == 0);
    CHECK(rgaps_sample_tag(sample) == UINT64_C(0xfeedfacecafebeef));
    CHECK(rgaps_sample_sequence(sample) == 0 && rgaps_sample_missed(sample) == 0);
    CHECK(strcmp(rgaps_sample_domain(sample), "host") == 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(rgaps_sample_publish_ns(sample) <=
          (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec);
    CHECK(rgaps_sample_publish_ns(sample) > 0);
    OK(rgaps_sample_tensor(sample, &got));
    CHECK(memcmp(&got, &sent, sizeof got) == 0);
    OK(rgaps_sample_read(sample, 40, part, 8));
    CHECK(memcmp(part, "written!", 8) == 0);
    FAILS(RGAPS_ERROR_ARGUMENT, "", rgaps_sample_read(sample, 41, part, 8));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_sample_read(sample, 0, NULL, 8));

    /* Clones are one hold, which the last of them lets go. */
    OK(rgaps_sample_clone(sample, &clone));
    CHECK(rgaps_sample_data(clone) == rgaps_sample_data(sample));
    CHECK(rgaps_subscriber_held(subscriber) == 1);
    OK(rgaps_sample_release(sample));
    FAILS(RGAPS_ERROR_NOT_HELD, "sample", rgaps_sample_release(sample));
    CHECK(rgaps_subscriber_held(subscriber) == 1);
    CHECK(is_filled(rgaps_sample_data(clone), 40, 5));
    OK(rgaps_sample_release_on(clone, NULL));
    CHECK(rgaps_subscriber_held(subscriber) == 0);

    OK(rgaps_subscriber_try_recv(subscriber, &sample));
    FAILS(RGAPS_ERROR_NO_TENSOR, "", rgaps_sample_tensor(sample, &got));
    CHECK(rgaps_sample_sequence(sample) == 1);
    OK(rgaps_sample_release(sample));
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

/* A lagging subscriber is told what it missed, and what it holds is not overwritten. */
static void held_and_missed(const char *name)
{
    rgaps_publisher_options_t options = {.size = sizeof options, .history_messages = 2};
    static unsigned char message[5000];
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *first, *later;
    uint64_t number;

    OK(rgaps_publisher_create(name, &options, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    for (number = 0; number < 100; number++) {
        fill(message, sizeof message, number);
        OK(rgaps_publisher_push(publisher, message, sizeof message));
        if (number == 0) {
            OK(rgaps_subscriber_recv(subscriber, SOON, &first));
        }
    }
    OK(rgaps_subscriber_recv(subscriber, SOON, &later));
    CHECK(rgaps_sample_sequence(later) == 98 && rgaps_sample_missed(later) == 97);
    CHECK(rgaps_subscriber_missed(subscriber) == 97);
    CHECK(rgaps_sample_publisher_id(later) == rgaps_sample_publisher_id(first));

    /* Handles go in any order: samples outlive their subscriber and publisher. */
    rgaps_publisher_destroy(publisher);
    rgaps_subscriber_destroy(subscriber);
    CHECK(is_filled(rgaps_sample_data(first), sizeof message, 0));
    CHECK(is_filled(rgaps_sample_data(later), sizeof message, 98));
    OK(rgaps_sample_release(first));
    OK(rgaps_sample_release(later));
}

/* A publisher's history serves those who come late, also when it has gone. */
static void late(const char *name)
{
    rgaps_publisher_options_t keeping = {.size = sizeof keeping,
                                         .transient_local = 1,
                                         .history_messages = 5,
                                         .history_bytes = 1 << 20};
    static const struct {
        uint32_t late, messages, first;
    } cases[] = {{RGAPS_LATE_LATEST, 0, 4}, {RGAPS_LATE_LAST, 3, 2}, {RGAPS_LATE_ALL_KEPT, 0, 0}};
    rgaps_publisher_t *publisher;
    uint64_t number;
    size_t i;

    OK(rgaps_publisher_create(name, &keeping, &publisher));
    for (number = 0; number < 5; number++) {
        OK(rgaps_publisher_push(publisher, &number, sizeof number));
    }
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rgaps_subscriber_options_t options = {.size = sizeof options,
                                              .late = cases[i].late,
                                              .late_messages = cases[i].messages};
        rgaps_subscriber_t *subscriber;
        const void *data;

        OK(rgaps_subscriber_create(name, &options, &subscriber));
        for (number = cases[i].first; number < 5; number++) {
            OK(rgaps_subscriber_pull(subscriber, SOON, &data, NULL));
            CHECK(memcmp(data, &number, sizeof number) == 0);
        }
        FAILS(RGAPS_ERROR_TIMED_OUT, name, rgaps_subscriber_pull(subscriber, 0, &data, NULL));
        rgaps_subscriber_destroy(subscriber);
    }
    rgaps_publisher_destroy(publisher);
}

/* A node of one's own, and memory that goes back. */
static void node_and_memory(const char *name)
{
    rgaps_node_options_t node_options = {.size = sizeof node_options, .socket = getenv("RGAPS_SOCKET")};
    rgaps_publisher_options_t options = {.size = sizeof options};
    rgaps_publisher_t *publisher;
    rgaps_loan_t *loan;
    uint64_t freed;

    OK(rgaps_node_create("a C program", &node_options, &options.node));
    OK(rgaps_publisher_create(name, &options, &publisher));
    rgaps_node_destroy(options.node);
    OK(rgaps_publisher_loan(publisher, 1000000, &loan));
    rgaps_loan_drop(loan);
    OK(rgaps_publisher_trim(publisher, 0, &freed));
    CHECK(freed >= 1000000);
    OK(rgaps_publisher_trim(publisher, 0, &freed));
    CHECK(freed == 0);
    OK(rgaps_publisher_push(publisher, "again", 5));
    rgaps_publisher_destroy(publisher);
}

/* A node with a namespace and a rule of remapping. */
static void names(void)
{
    static const char *const rules[] = {"camera:=front/camera", "/clock:=/time"};
    rgaps_node_options_t wrong = {.size = sizeof wrong, .remap_count = 1};
    rgaps_node_options_t own = {
        .size = sizeof own, .topic_namespace = "robot1", .remap = rules, .remap_count = 2};
    rgaps_publisher_options_t options = {.size = sizeof options};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_node_t *node;
    const void *data;
    size_t bytes;

    FAILS(RGAPS_ERROR_ARGUMENT, "remap", rgaps_node_create(NULL, &wrong, &node));
    OK(rgaps_node_create(NULL, &own, &options.node));
    OK(rgaps_subscriber_create("robot1/front/camera", NULL, &subscriber));
    OK(rgaps_publisher_create("camera", &options, &publisher));
    OK(rgaps_publisher_push(publisher, "seen", 4));
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, &bytes));
    CHECK(bytes == 4 && memcmp(data, "seen", 4) == 0);
    OK(rgaps_subscriber_release(subscriber, data));
    rgaps_publisher_destroy(publisher);
    rgaps_subscriber_destroy(subscriber);
    rgaps_node_destroy(options.node);
}

int main(void)
{
    names();
    contents(topic("contents"));
    held_and_missed(topic("held"));
    late(topic("late"));
    node_and_memory(topic("node"));
    return 0;
}
