/* A publisher or subscriber of the soak, in C, which links with librgaps. The arguments are those of `programs.rs`, in its order.
 *
 * It writes the same files as the members in Rust (tests/soak/src/journal.rs, board.rs), and messages hold the same bytes
 * (tests/chaos/src/pattern.rs). */

#include <rgaps.h>

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { JOINED = 1, READY = 2, WHOLE = 3, WRONG = 4, ABORTED = 5 };
enum { PUBLISHERS_MAX = 65536, PATH_BYTES = 4096 };

#define MS UINT64_C(1000000)
#define REST_NS (100 * MS)
#define PAUSE_MAX_NS (20 * MS)
#define JOIN_S 240
#define SYNCHRONIZE_NS (10000 * MS)

static struct {
    int publishes;
    uint32_t id;
    const char *name, *host, *topic, *topic_name, *config, *folder;
    uint64_t seed;
    /* A publisher's: reliable, drops, transient-local, depth, bytes. A subscriber's: reliable, depth, late. */
    uint64_t service[5];
} spec;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s failed: %s\n", spec.name, what, rgaps_error_message());
    exit(1);
}

static void check(int is_so, const char *what) {
    if (!is_so) {
        fprintf(stderr, "%s: ", spec.name);
        perror(what);
        exit(1);
    }
}

static void rest(uint64_t ns) {
    struct timespec pause = {(time_t)(ns / (1000 * MS)), (long)(ns % (1000 * MS))};
    nanosleep(&pause, NULL);
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t most) {
    spec.seed += UINT64_C(0x9e3779b97f4a7c15);
    return mix(spec.seed) % most;
}

/* Byte `at` onwards of what a message with this tag and length holds; memory is little-endian, as everywhere in rgaps. */
static uint64_t content(uint64_t tag, uint64_t bytes, uint64_t at) {
    return ((mix(tag ^ mix(bytes))) ^ at) * UINT64_C(0x9e3779b97f4a7c15);
}

static void fill(uint64_t tag, unsigned char *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = content(tag, bytes, at / 8);
        memcpy(data + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

static int holds(uint64_t tag, const unsigned char *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = content(tag, bytes, at / 8);
        if (memcmp(data + at, &word, bytes - at < 8 ? bytes - at : 8) != 0) return 0;
    }
    return 1;
}

static int file_exists(const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", spec.folder, name);
    return access(path, F_OK) == 0;
}

/* What a daemon looks like that is dead, or stopped. */
static int is_passing(rgaps_status_t status) {
    return status == RGAPS_ERROR_NO_DAEMON || status == RGAPS_ERROR_DAEMON_LOST;
}

static int tries_again(rgaps_status_t status, const char *what, time_t begun) {
    if (status == RGAPS_OK) return 0;
    if (!is_passing(status) || time(NULL) - begun > JOIN_S) fail(what);
    rest(20 * MS);
    return 1;
}

static rgaps_node_t *node(void) {
    rgaps_node_options_t options = {.size = sizeof options, .config_file = spec.config};
    rgaps_node_t *made = NULL;
    time_t begun = time(NULL);
    while (tries_again(rgaps_node_create(spec.name, &options, &made), "rgaps_node_create", begun)) {
    }
    return made;
}

static uint64_t message_bytes(void) {
    uint64_t of = below(100);
    if (of < 3) return 0;
    return below(of < 70 ? 4 << 10 : of < 98 ? 64 << 10 : 1 << 20);
}

/* 1: published. 0: no memory, or readers made no room in time. */
static int publish(rgaps_publisher_t *publisher, uint64_t sequence) {
    uint64_t bytes = message_bytes(), tag = (uint64_t)spec.id << 32 | sequence, number = 0;
    rgaps_loan_t *loan = NULL;
    rgaps_status_t status = rgaps_publisher_loan(publisher, bytes, &loan);
    if (status == RGAPS_ERROR_POOL_FULL || status == RGAPS_ERROR_TOO_MANY_LOANS || is_passing(status)) return 0;
    if (status != RGAPS_OK) fail("rgaps_publisher_loan");
    if (bytes > 0) fill(tag, rgaps_loan_data(loan), bytes);
    if (rgaps_loan_set_tag(loan, tag) != RGAPS_OK) fail("rgaps_loan_set_tag");
    status = rgaps_loan_publish(loan, &number);
    if (status != RGAPS_OK) {
        if (status != RGAPS_ERROR_BACK_PRESSURED && !is_passing(status)) fail("rgaps_loan_publish");
        rgaps_loan_drop(loan);
        return 0;
    }
    if (number != sequence) {
        fprintf(stderr, "%s: message %" PRIu64 " was published as %" PRIu64 "\n", spec.name, sequence, number);
        exit(1);
    }
    return 1;
}

static void count(int file, int word, uint64_t value) {
    check(pwrite(file, &value, sizeof value, word * 8) == sizeof value, "a publisher's file");
}

static void run_publisher(void) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/publisher-%s-%s-%" PRIu32, spec.folder, spec.topic, spec.host, spec.id);
    /* Whoever joins after this knows of us. */
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    check(file >= 0, path);
    for (int word = 0; word < 3; word++) count(file, word, 0);
    rgaps_publisher_options_t options = {
        .size = sizeof options,
        .node = node(),
        .type_name = "soak",
        .best_effort = !spec.service[0],
        .slow_reader = spec.service[1] ? RGAPS_SLOW_READER_DROP : RGAPS_SLOW_READER_FAIL,
        .deadline_ns = spec.service[1] ? 50 * MS : 2000 * MS,
        .loan_timeout_ns = 20 * MS,
        .transient_local = (uint32_t)spec.service[2],
        .history_messages = (uint32_t)spec.service[3],
        .history_bytes = spec.service[4],
    };
    rgaps_publisher_t *publisher = NULL;
    time_t begun = time(NULL);
    while (tries_again(rgaps_publisher_create(spec.topic_name, &options, &publisher), "rgaps_publisher_create", begun)) {
    }
    uint64_t published = 0;
    int is_finishing = 0;
    while (!file_exists("leave")) {
        count(file, 0, published + 1);
        if (publish(publisher, published)) {
            count(file, 1, ++published);
        } else {
            rest(REST_NS);
        }
        if (!is_finishing && published > 0 && file_exists("finish")) {
            is_finishing = 1;
            count(file, 2, published);
        }
        rest(is_finishing ? REST_NS : below(PAUSE_MAX_NS));
    }
    rgaps_publisher_destroy(publisher);
    rgaps_node_destroy(options.node);
}

struct published {
    uint32_t id;
    uint64_t begun, done;
};

/* How far each publisher of our host is. */
static size_t publishers(struct published *all) {
    char prefix[64], path[PATH_BYTES];
    size_t found = 0, length = (size_t)snprintf(prefix, sizeof prefix, "publisher-%s-%s-", spec.topic, spec.host);
    DIR *folder = opendir(spec.folder);
    check(folder != NULL, spec.folder);
    for (struct dirent *entry = readdir(folder); entry && found < PUBLISHERS_MAX; entry = readdir(folder)) {
        if (strncmp(entry->d_name, prefix, length) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", spec.folder, entry->d_name);
        uint64_t words[2];
        int file = open(path, O_RDONLY | O_CLOEXEC);
        check(file >= 0, path);
        if (read(file, words, sizeof words) == sizeof words) {
            all[found++] = (struct published){(uint32_t)strtoul(entry->d_name + length, NULL, 10), words[0], words[1]};
        }
        close(file);
    }
    closedir(folder);
    return found;
}

static void record(int journal, uint64_t kind, uint64_t publisher, uint64_t sequence, uint64_t missed, uint64_t from,
                   uint64_t bytes, uint64_t missed_in_all) {
    uint64_t words[7] = {kind, publisher, sequence, missed, from, bytes, missed_in_all};
    check(write(journal, words, sizeof words) == sizeof words, "a journal");
}

static void record_sample(int journal, const rgaps_subscriber_t *subscriber, rgaps_sample_t *sample) {
    uint64_t tag = rgaps_sample_tag(sample), kind = WRONG;
    size_t bytes = rgaps_sample_bytes(sample);
    rgaps_status_t status = rgaps_sample_synchronize(sample, SYNCHRONIZE_NS);
    if (status == RGAPS_ERROR_ABORTED) {
        kind = ABORTED;
    } else if (status == RGAPS_OK && (bytes == 0 || holds(tag, rgaps_sample_data(sample), bytes))) {
        kind = WHOLE;
    }
    record(journal, kind, tag >> 32, tag & UINT32_MAX, rgaps_sample_missed(sample), rgaps_sample_publisher_id(sample),
           bytes, rgaps_subscriber_missed(subscriber));
}

static void run_subscriber(void) {
    static struct published before[PUBLISHERS_MAX], now[PUBLISHERS_MAX];
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/subscriber-%" PRIu32, spec.folder, spec.id);
    int journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    check(journal >= 0, path);
    rgaps_subscriber_options_t options = {
        .size = sizeof options,
        .node = node(),
        .type_name = "soak",
        .reliable = (uint32_t)spec.service[0],
        .depth = (uint32_t)spec.service[1],
        .late = spec.service[2] ? RGAPS_LATE_ALL_KEPT : RGAPS_LATE_NOTHING,
    };
    size_t earlier = publishers(before);
    rgaps_subscriber_t *subscriber = NULL;
    time_t begun = time(NULL);
    while (
        tries_again(rgaps_subscriber_create(spec.topic_name, &options, &subscriber), "rgaps_subscriber_create", begun)) {
    }
    size_t later = publishers(now);
    for (size_t at = 0; at < later; at++) {
        uint64_t done = 0;
        for (size_t was = 0; was < earlier; was++) {
            if (before[was].id == now[at].id) done = before[was].done;
        }
        record(journal, JOINED, now[at].id, done, now[at].begun, 0, 0, 0);
    }
    record(journal, READY, 0, 0, 0, 0, 0, 0);
    while (!file_exists("leave")) {
        rgaps_sample_t *sample = NULL;
        rgaps_status_t status = rgaps_subscriber_recv(subscriber, 20 * MS, &sample);
        if (status == RGAPS_ERROR_TIMED_OUT || is_passing(status)) continue;
        if (status != RGAPS_OK) fail("rgaps_subscriber_recv");
        record_sample(journal, subscriber, sample);
        if (rgaps_sample_release(sample) != RGAPS_OK) fail("rgaps_sample_release");
    }
    rgaps_subscriber_destroy(subscriber);
    rgaps_node_destroy(options.node);
}

int main(int count, char **words) {
    if (count != 15) {
        fprintf(stderr, "soak-member-c: %d arguments; the soak starts this program\n", count - 1);
        return 2;
    }
    spec.publishes = strcmp(words[1], "publish") == 0;
    spec.id = (uint32_t)strtoul(words[2], NULL, 10);
    spec.name = words[3], spec.host = words[4], spec.topic = words[5], spec.topic_name = words[6];
    spec.config = words[7], spec.folder = words[8];
    spec.seed = strtoull(words[9], NULL, 10);
    for (int at = 0; at < 5; at++) spec.service[at] = strtoull(words[10 + at], NULL, 10);
    if (spec.publishes) {
        run_publisher();
    } else {
        run_subscriber();
    }
    return 0;
}
