/*
 * A TCP relay that adds a delay, for kernels without netem: what comes on a connection leaves on another one so much later, in both
 * directions. It prints the port where it listens. It limits no bandwidth: up to 16 MiB are on their way.
 *
 *     cc -O2 -pthread -o delay delay.c
 *     ./delay ADDRESS PORT MICROSECONDS_ONE_WAY
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNKS = 64, CHUNK_BYTES = 256 << 10, SPIN_NS = 60000 };

struct chunk {
    int64_t due_ns;
    ssize_t bytes; /* 0: the end */
    char data[CHUNK_BYTES];
};

struct way {
    int from, to;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t taken, given;
    struct chunk chunks[CHUNKS];
};

static int64_t delay_ns;
static struct sockaddr_in target = {.sin_family = AF_INET};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void wait_until(int64_t due_ns) {
    int64_t left = due_ns - now();
    if (left > SPIN_NS) {
        struct timespec time = {0, left - SPIN_NS};
        nanosleep(&time, NULL);
    }
    while (now() < due_ns) {
    }
}

static void *take(void *argument) {
    struct way *way = argument;
    for (;;) {
        pthread_mutex_lock(&way->mutex);
        while (way->taken - way->given == CHUNKS) pthread_cond_wait(&way->changed, &way->mutex);
        pthread_mutex_unlock(&way->mutex);
        struct chunk *chunk = &way->chunks[way->taken % CHUNKS];
        chunk->bytes = recv(way->from, chunk->data, CHUNK_BYTES, 0);
        if (chunk->bytes < 0) chunk->bytes = 0;
        chunk->due_ns = now() + delay_ns;
        int is_end = chunk->bytes == 0;
        pthread_mutex_lock(&way->mutex);
        way->taken++;
        pthread_cond_signal(&way->changed);
        pthread_mutex_unlock(&way->mutex);
        if (is_end) return NULL;
    }
}

static void *give(void *argument) {
    struct way *way = argument;
    for (;;) {
        pthread_mutex_lock(&way->mutex);
        while (way->taken == way->given) pthread_cond_wait(&way->changed, &way->mutex);
        pthread_mutex_unlock(&way->mutex);
        struct chunk *chunk = &way->chunks[way->given % CHUNKS];
        wait_until(chunk->due_ns);
        ssize_t sent = 0, more = 0;
        while (sent < chunk->bytes && (more = send(way->to, chunk->data + sent, chunk->bytes - sent, MSG_NOSIGNAL)) > 0) sent += more;
        if (chunk->bytes == 0 || sent < chunk->bytes) {
            /* The other direction ends by itself. Memory and descriptors stay until the relay ends. */
            shutdown(way->to, SHUT_WR);
            if (sent < chunk->bytes) shutdown(way->from, SHUT_RD);
            return NULL;
        }
        pthread_mutex_lock(&way->mutex);
        way->given++;
        pthread_cond_signal(&way->changed);
        pthread_mutex_unlock(&way->mutex);
    }
}

static int relay(int from, int to) {
    struct way *way = calloc(1, sizeof *way);
    pthread_t thread;
    if (way == NULL) return -1;
    way->from = from;
    way->to = to;
    pthread_mutex_init(&way->mutex, NULL);
    pthread_cond_init(&way->changed, NULL);
    return pthread_create(&thread, NULL, take, way) || pthread_create(&thread, NULL, give, way) ? -1 : 0;
}

int main(int count, char **words) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (count != 4 || inet_pton(AF_INET, words[1], &target.sin_addr) != 1) {
        fprintf(stderr, "usage: delay ADDRESS PORT MICROSECONDS_ONE_WAY\n");
        return 2;
    }
    target.sin_port = htons(atoi(words[2]));
    delay_ns = atof(words[3]) * 1000;
    prctl(PR_SET_TIMERSLACK, 1000);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 16) != 0 || getsockname(listener, (struct sockaddr *)&here, &length) != 0) {
        perror("delay");
        return 1;
    }
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    for (;;) {
        int client = accept(listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
        if (client < 0 || connect(server, (struct sockaddr *)&target, sizeof target) != 0) {
            perror("delay");
            return 1;
        }
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (relay(client, server) != 0 || relay(server, client) != 0) {
            perror("delay");
            return 1;
        }
    }
}
