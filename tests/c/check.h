/* What the tests of the C interface share. Each program ends with 0 where all of its checks hold. */
#ifndef CHECK_H
#define CHECK_H

#include <rgaps.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
/* Nothing here takes that long, but on a machine that is very busy. */
#define SOON (120000 * MS)

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s does not hold; last message: %s\n", __FILE__, __LINE__, \
                    #condition, rgaps_error_message());                                    \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define OK(call) check_status((call), RGAPS_OK, #call, __FILE__, __LINE__)
/* The call fails with this code, and its message holds this text. */
#define FAILS(code, text, call)                                   \
    do {                                                          \
        check_status((call), (code), #call, __FILE__, __LINE__);  \
        check_message((text), #call, __FILE__, __LINE__);         \
    } while (0)

static inline void check_status(rgaps_status_t got, rgaps_status_t wanted, const char *call,
                                const char *file, int line)
{
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s gave %s, not %s: %s\n", file, line, call, rgaps_status_name(got),
                rgaps_status_name(wanted), rgaps_error_message());
        exit(1);
    }
}

static inline void check_message(const char *text, const char *call, const char *file, int line)
{
    if (strstr(rgaps_error_message(), text) == NULL) {
        fprintf(stderr, "%s:%d: %s: the message '%s' lacks '%s'\n", file, line, call,
                rgaps_error_message(), text);
        exit(1);
    }
}

/* The bytes of message `number`: different in every message and place. */
static inline void fill(unsigned char *bytes, size_t count, uint64_t number)
{
    uint64_t state = number * UINT64_C(0x9e3779b97f4a7c15) + 1;
    size_t i;

    for (i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(state >> 56);
    }
}

/* Whether they are those bytes. */
static inline int is_filled(const void *data, size_t count, uint64_t number)
{
    unsigned char *wanted = malloc(count + 1);
    int same;

    CHECK(wanted != NULL);
    fill(wanted, count, number);
    same = memcmp(data, wanted, count) == 0;
    free(wanted);
    return same;
}

/* A topic name of this run's own. */
static inline const char *topic(const char *name)
{
    static char text[128];

    snprintf(text, sizeof text, "c/%s/%ld", name, (long)getpid());
    return text;
}

/* Waits for a child that has to end with 0. */
static inline void join(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0) {
        CHECK(errno == EINTR);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the child process failed (status %#x)\n", (unsigned)status);
        exit(1);
    }
}

/* Between two processes that take turns: what one writes, the other waits for. Made before fork(). */
struct turns {
    int ends[2];
};

static inline void turns_init(struct turns *turns)
{
    CHECK(pipe(turns->ends) == 0);
}

static inline void turns_pass(const struct turns *turns)
{
    CHECK(write(turns->ends[1], "", 1) == 1);
}

/* Fails where the other process has ended without a word. */
static inline void turns_wait(struct turns *turns)
{
    char byte;

    if (turns->ends[1] >= 0) {
        close(turns->ends[1]);
        turns->ends[1] = -1;
    }
    CHECK(read(turns->ends[0], &byte, 1) == 1);
}

static inline void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

#endif
