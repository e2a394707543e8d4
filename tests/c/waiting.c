/* All ways to wait for messages: a descriptor, a wait set, a listener. */
#include "check.h"

#include <poll.h>
#include <pthread.h>

static int is_readable(int fd, int timeout_ms)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int count = poll(&entry, 1, timeout_ms);

    CHECK(count >= 0);
    return count == 1 && (entry.revents & POLLIN) != 0;
}

static void descriptor(const char *name)
{
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample;
    int fd, again, round;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_subscriber_fd(subscriber, &fd));
    OK(rgaps_subscriber_fd(subscriber, &again));
    CHECK(fd >= 0 && fd == again);
    for (round = 0; round < 3; round++) {
        CHECK(!is_readable(fd, 20));
        OK(rgaps_publisher_push(publisher, "a", 1));
        OK(rgaps_publisher_push(publisher, "b", 1));
        CHECK(is_readable(fd, 20000));
        OK(rgaps_subscriber_try_recv(subscriber, &sample));
        OK(rgaps_sample_release(sample));
        CHECK(is_readable(fd, 0));
        OK(rgaps_subscriber_try_recv(subscriber, &sample));
        OK(rgaps_sample_release(sample));
        FAILS(RGAPS_ERROR_EMPTY, name, rgaps_subscriber_try_recv(subscriber, &sample));
    }
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

static void wait_set(const char *name)
{
    enum { TOPICS = 5 };
    rgaps_publisher_t *publishers[TOPICS];
    rgaps_subscriber_t *subscribers[TOPICS], *stranger;
    rgaps_subscriber_options_t elsewhere = {.size = sizeof elsewhere};
    rgaps_wait_set_t *set;
    size_t tokens[TOPICS], ready[TOPICS], count, i;
    const void *data;
    char one[160];

    OK(rgaps_wait_set_create(NULL, &set));
    FAILS(RGAPS_ERROR_ARGUMENT, "empty", rgaps_wait_set_wait(set, 0, ready, TOPICS, &count));
    for (i = 0; i < TOPICS; i++) {
        snprintf(one, sizeof one, "%s/%d", name, (int)i);
        OK(rgaps_publisher_create(one, NULL, &publishers[i]));
        OK(rgaps_subscriber_create(one, NULL, &subscribers[i]));
        OK(rgaps_wait_set_attach(set, subscribers[i], &tokens[i]));
    }
    OK(rgaps_node_create("stranger", NULL, &elsewhere.node));
    OK(rgaps_subscriber_create(name, &elsewhere, &stranger));
    FAILS(RGAPS_ERROR_ARGUMENT, "another node", rgaps_wait_set_attach(set, stranger, &count));
    rgaps_subscriber_destroy(stranger);
    rgaps_node_destroy(elsewhere.node);

    FAILS(RGAPS_ERROR_TIMED_OUT, "in time",
          rgaps_wait_set_wait(set, 10 * MS, ready, TOPICS, &count));
    OK(rgaps_publisher_push(publishers[3], "x", 1));
    OK(rgaps_wait_set_wait(set, SOON, ready, TOPICS, &count));
    CHECK(count == 1 && ready[0] == tokens[3]);
    OK(rgaps_publisher_push(publishers[1], "y", 1));
    OK(rgaps_wait_set_wait(set, 0, ready, TOPICS, &count));
    CHECK(count == 2 && ready[0] + ready[1] == tokens[1] + tokens[3]);
    OK(rgaps_wait_set_wait(set, 0, ready, 1, &count));
    CHECK(count == 1);
    FAILS(RGAPS_ERROR_ARGUMENT, "room", rgaps_wait_set_wait(set, 0, NULL, 0, &count));

    OK(rgaps_wait_set_detach(set, tokens[3]));
    FAILS(RGAPS_ERROR_NOT_HELD, "token", rgaps_wait_set_detach(set, tokens[3]));
    FAILS(RGAPS_ERROR_NOT_HELD, "token", rgaps_wait_set_detach(set, 12345));
    OK(rgaps_subscriber_pull(subscribers[1], 0, &data, NULL));
    FAILS(RGAPS_ERROR_TIMED_OUT, "in time", rgaps_wait_set_wait(set, 0, ready, TOPICS, &count));
    /* A subscriber that left the set still gets what is for it. */
    OK(rgaps_subscriber_pull(subscribers[3], SOON, &data, NULL));
    CHECK(*(const char *)data == 'x');
    rgaps_wait_set_destroy(set);
    for (i = 0; i < TOPICS; i++) {
        rgaps_subscriber_destroy(subscribers[i]);
        rgaps_publisher_destroy(publishers[i]);
    }
}

struct heard {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t messages, errors, bytes;
    rgaps_sample_t *kept;
};

static void on_message(void *user, rgaps_status_t status, rgaps_sample_t *sample)
{
    struct heard *heard = user;

    pthread_mutex_lock(&heard->lock);
    if (status != RGAPS_OK) {
        /* Two samples are the limit of this subscriber, and both are kept below. */
        check_status(status, RGAPS_ERROR_TOO_MANY_HELD, "listening", __FILE__, __LINE__);
        check_message("max_held", "listening", __FILE__, __LINE__);
        CHECK(sample == NULL);
        heard->errors++;
    } else {
        CHECK(is_filled(rgaps_sample_data(sample), rgaps_sample_bytes(sample), heard->messages));
        heard->bytes += rgaps_sample_bytes(sample);
        if (heard->messages == 0) {
            OK(rgaps_sample_clone(sample, &heard->kept));
        } else if (heard->messages == 1) {
            /* Releasing what is only lent is no harm. */
            OK(rgaps_sample_release(sample));
        }
        heard->messages++;
    }
    pthread_cond_signal(&heard->changed);
    pthread_mutex_unlock(&heard->lock);
}

static void wait_until(struct heard *heard, uint64_t messages, uint64_t errors)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 120;
    pthread_mutex_lock(&heard->lock);
    while (heard->messages < messages || heard->errors < errors) {
        CHECK(pthread_cond_timedwait(&heard->changed, &heard->lock, &end) == 0);
    }
    pthread_mutex_unlock(&heard->lock);
}

/* The listener releases what it lent shortly after the handler has returned. */
static void wait_for_held(const rgaps_subscriber_t *subscriber, uint32_t count)
{
    int tries;

    for (tries = 0; rgaps_subscriber_held(subscriber) != count; tries++) {
        CHECK(tries < 12000);
        sleep_ms(10);
    }
}

static void listener(const char *name)
{
    rgaps_subscriber_options_t options = {.size = sizeof options, .max_held = 2};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_listener_t *listener;
    struct heard heard = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    unsigned char message[300];
    uint64_t number;
    rgaps_sample_t *other;
    const void *data;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, &options, &subscriber));
    FAILS(RGAPS_ERROR_ARGUMENT, "handler",
          rgaps_listener_create(subscriber, NULL, &heard, &listener));
    OK(rgaps_listener_create(subscriber, on_message, &heard, &listener));
    for (number = 0; number < 10; number++) {
        fill(message, sizeof message, number);
        OK(rgaps_publisher_push(publisher, message, sizeof message));
    }
    wait_until(&heard, 10, 0);
    CHECK(heard.messages == 10 && heard.errors == 0 && heard.bytes == 10 * sizeof message);
    /* The first was kept by a clone; with one more held, the listener is told that it is full. */
    wait_for_held(subscriber, 1);
    CHECK(is_filled(rgaps_sample_data(heard.kept), sizeof message, 0));
    OK(rgaps_sample_clone(heard.kept, &other));
    rgaps_listener_destroy(listener);
    OK(rgaps_publisher_push(publisher, message, 1));
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, NULL));
    OK(rgaps_listener_create(subscriber, on_message, &heard, &listener));
    OK(rgaps_publisher_push(publisher, message, 1));
    wait_until(&heard, 10, 1);
    rgaps_listener_destroy(listener);
    /* After that nothing is called. */
    number = heard.errors;
    sleep_ms(120);
    CHECK(heard.messages == 10 && heard.errors == number);
    OK(rgaps_sample_release(heard.kept));
    OK(rgaps_sample_release(other));
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

struct matches {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    rgaps_matched_t last;
};

static void on_matched(void *user, const rgaps_matched_t *matched)
{
    struct matches *matches = user;

    pthread_mutex_lock(&matches->lock);
    matches->last = *matched;
    pthread_cond_signal(&matches->changed);
    pthread_mutex_unlock(&matches->lock);
}

static void wait_for_match(struct matches *matches, uint32_t current, int32_t change, uint64_t total)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 120;
    pthread_mutex_lock(&matches->lock);
    while (matches->last.current_count != current || matches->last.total_count != total) {
        CHECK(pthread_cond_timedwait(&matches->changed, &matches->lock, &end) == 0);
    }
    CHECK(matches->last.current_count_change == change);
    pthread_mutex_unlock(&matches->lock);
}

/* Both sides hear of each other, also of the end. */
static void match_events(const char *name)
{
    struct matches theirs = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct matches ours = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    rgaps_listener_t *publishers_listener, *subscribers_listener;
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "handler",
          rgaps_publisher_on_matched(publisher, NULL, &ours, &publishers_listener));
    OK(rgaps_publisher_on_matched(publisher, on_matched, &ours, &publishers_listener));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    wait_for_match(&ours, 1, 1, 1);
    OK(rgaps_subscriber_on_matched(subscriber, on_matched, &theirs, &subscribers_listener));
    wait_for_match(&theirs, 1, 1, 1);
    rgaps_publisher_destroy(publisher);
    wait_for_match(&theirs, 0, -1, 1);
    rgaps_listener_destroy(publishers_listener);
    rgaps_listener_destroy(subscribers_listener);
    rgaps_subscriber_destroy(subscriber);
}

/* A subscriber that sleeps without end wakes for a message from another process. */
static void asleep(const char *name)
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        rgaps_publisher_t *publisher;

        OK(rgaps_publisher_create(name, NULL, &publisher));
        OK(rgaps_publisher_wait_for_subscribers(publisher, 1, RGAPS_FOREVER));
        sleep_ms(50);
        OK(rgaps_publisher_push(publisher, "wake", 4));
        rgaps_publisher_destroy(publisher);
        exit(0);
    } else {
        rgaps_subscriber_t *subscriber;
        const void *data;
        size_t bytes;

        OK(rgaps_subscriber_create(name, NULL, &subscriber));
        OK(rgaps_subscriber_pull(subscriber, RGAPS_FOREVER, &data, &bytes));
        CHECK(bytes == 4 && memcmp(data, "wake", 4) == 0);
        rgaps_subscriber_destroy(subscriber);
        join(child);
    }
}

int main(void)
{
    asleep(topic("asleep"));
    descriptor(topic("descriptor"));
    wait_set(topic("wait_set"));
    listener(topic("listener"));
    match_events(topic("match_events"));
    return 0;
}
