/* Messages in the memory of a GPU, or of the test driver that RGAPS_CUDA_LIBRARY names. The driver's
 * streams work late there (RGAPS_TEST_DRIVER_DELAY_US), so bytes that nobody waited for are wrong. */
#include <rgaps/thesis.h>

#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

enum { BYTES = 300000, MESSAGES = 20 };

typedef unsigned long long address_t;

static struct {
    int (*init)(unsigned);
    int (*primary)(void **, int);
    int (*set_current)(void *);
    int (*allocate)(address_t *, size_t);
    int (*release)(address_t);
    int (*to_device)(address_t, const void *, size_t);
    int (*to_host)(void *, address_t, size_t);
    int (*set_async)(address_t, unsigned char, size_t, void *);
    int (*create_stream)(void **, unsigned);
    int (*synchronize)(void *);
    int (*attribute)(void *, int, address_t);
    int (*copy_async)(address_t, address_t, size_t, void *);
    int (*query)(void *);
    int (*register_host)(void *, size_t, unsigned);
    int (*device_pointer)(address_t *, void *, unsigned);
    int (*wait_value)(void *, address_t, uint64_t, unsigned);
} cu;

#define CU(call)                                                                     \
    do {                                                                             \
        int code = (call);                                                           \
        if (code != 0) {                                                             \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, code); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static void *library;

static void find(void *function, const char *symbol)
{
    void *found = dlsym(library, symbol);

    CHECK(found != NULL);
    memcpy(function, &found, sizeof found);
}

/* Makes the first GPU's primary context current, as the CUDA runtime does. */
static void start_cuda(void)
{
    const char *path = getenv("RGAPS_CUDA_LIBRARY");
    void *context;

    library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    CHECK(library != NULL);
    find(&cu.init, "cuInit");
    find(&cu.primary, "cuDevicePrimaryCtxRetain");
    find(&cu.set_current, "cuCtxSetCurrent");
    find(&cu.allocate, "cuMemAlloc_v2");
    find(&cu.release, "cuMemFree_v2");
    find(&cu.to_device, "cuMemcpyHtoD_v2");
    find(&cu.to_host, "cuMemcpyDtoH_v2");
    find(&cu.set_async, "cuMemsetD8Async");
    find(&cu.create_stream, "cuStreamCreate");
    find(&cu.synchronize, "cuStreamSynchronize");
    find(&cu.attribute, "cuPointerGetAttribute");
    find(&cu.copy_async, "cuMemcpyAsync");
    find(&cu.query, "cuStreamQuery");
    find(&cu.register_host, "cuMemHostRegister_v2");
    find(&cu.device_pointer, "cuMemHostGetDevicePointer_v2");
    find(&cu.wait_value, "cuStreamWaitValue64_v2");
    CU(cu.init(0));
    CU(cu.primary(&context, 0));
    CU(cu.set_current(context));
}

static int is_on_device(const void *pointer)
{
    unsigned kind = 0;

    return cu.attribute(&kind, 2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */, (uintptr_t)pointer) == 0 &&
           kind == 2 /* CU_MEMORYTYPE_DEVICE */;
}

/* All bytes, wherever they are, have this value. */
static int is_all(const void *data, size_t bytes, unsigned char value)
{
    unsigned char *copy = malloc(bytes);
    size_t i;

    CHECK(copy != NULL);
    if (is_on_device(data)) {
        CU(cu.to_host(copy, (uintptr_t)data, bytes));
    } else {
        memcpy(copy, data, bytes);
    }
    for (i = 0; i < bytes && copy[i] == value; i++) {
    }
    free(copy);
    return i == bytes;
}

static void subscribe(char *name, const struct turns *turns)
{
    static unsigned char copy[BYTES];
    rgaps_subscriber_t *subscriber;
    uint64_t number;

    start_cuda();
    subscriber = subscriber_init(name);
    CHECK(subscriber != NULL);
    for (number = 0; number < MESSAGES; number++) {
        void *message = subscriber_pull(subscriber);

        CHECK(message != NULL && is_on_device(message));
        CU(cu.to_host(copy, (uintptr_t)message, BYTES));
        CHECK(is_filled(copy, BYTES, number));
        turns_pass(turns);
    }
    subscriber_destroy(subscriber);
}

/* The thesis's functions, from host and device pointers in turn. */
static void publish(char *name, struct turns *turns)
{
    static unsigned char host[BYTES];
    rgaps_publisher_t *publisher;
    address_t device;
    uint64_t number;

    start_cuda();
    CU(cu.allocate(&device, BYTES));
    publisher = publisher_init(name);
    CHECK(publisher != NULL);
    CHECK(strncmp(rgaps_publisher_domain(publisher), "cuda:GPU-", 9) == 0);
    OK(rgaps_publisher_wait_for_subscribers(publisher, 1, SOON));
    for (number = 0; number < MESSAGES; number++) {
        fill(host, BYTES, number);
        if (number % 2 == 0) {
            CHECK(publisher_push(publisher, BYTES, host) == 0);
        } else {
            CU(cu.to_device(device, host, BYTES));
            CHECK(publisher_push(publisher, BYTES, (void *)(uintptr_t)device) == 0);
        }
        turns_wait(turns);
    }
    publisher_destroy(publisher);
    CU(cu.release(device));
}

/* Pushing waits for the stream on which the source is still being written, whether the topic lives
 * on the GPU or on the host. */
static void ordering(const char *name, const char *domain)
{
    rgaps_publisher_options_t options = {.size = sizeof options, .domain = domain};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    address_t device;
    void *stream;
    unsigned char value;

    CU(cu.allocate(&device, BYTES));
    CU(cu.create_stream(&stream, 1 /* CU_STREAM_NON_BLOCKING */));
    OK(rgaps_publisher_create(name, &options, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    for (value = 1; value < 7; value++) {
        void *queue = value % 2 == 0 ? stream : NULL;
        const void *data;
        size_t bytes;

        CU(cu.set_async(device, value, BYTES, queue));
        if (queue != NULL) {
            OK(rgaps_publisher_push_on(publisher, (void *)(uintptr_t)device, BYTES, queue));
        } else {
            OK(rgaps_publisher_push(publisher, (void *)(uintptr_t)device, BYTES));
        }
        /* The copy was made: what comes after does not change it. */
        CU(cu.set_async(device, 99, BYTES, queue));
        OK(rgaps_subscriber_pull(subscriber, SOON, &data, &bytes));
        CHECK(bytes == BYTES && is_all(data, bytes, value));
        CHECK(is_on_device(data) == (strcmp(domain, "host") != 0));
        OK(rgaps_subscriber_release(subscriber, data));
        CU(cu.synchronize(queue));
    }
    /* A pointer into the middle, and a host pointer to the same topic. */
    CU(cu.set_async(device, 50, BYTES, NULL));
    OK(rgaps_publisher_push(publisher, (void *)(uintptr_t)(device + 1000), 77));
    OK(rgaps_publisher_push(publisher, "host", 4));
    {
        rgaps_sample_t *middle, *host;
        char text[4];

        OK(rgaps_subscriber_recv(subscriber, SOON, &middle));
        OK(rgaps_subscriber_recv(subscriber, SOON, &host));
        CHECK(is_all(rgaps_sample_data(middle), 77, 50));
        OK(rgaps_sample_read(host, 0, text, 4));
        CHECK(memcmp(text, "host", 4) == 0);
        OK(rgaps_sample_release(host));
        OK(rgaps_sample_release_on(middle, stream));
    }
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
    CU(cu.release(device));
}

/* A loan on the GPU is filled by work on a stream, and published after it. */
static void loans(const char *name)
{
    rgaps_publisher_options_t options = {.size = sizeof options, .domain = "cuda:0"};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample;
    rgaps_loan_t *loan;
    void *stream;

    CU(cu.create_stream(&stream, 1));
    OK(rgaps_publisher_create(name, &options, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_publisher_loan(publisher, BYTES, &loan));
    CHECK(is_on_device(rgaps_loan_data(loan)));
    CU(cu.set_async((uintptr_t)rgaps_loan_data(loan), 33, BYTES, stream));
    /* What is no stream is refused, and the loan remains. */
    FAILS(RGAPS_ERROR_CUDA, "stream", rgaps_loan_publish_on(loan, (void *)(uintptr_t)12345, NULL));
    OK(rgaps_loan_publish_on(loan, stream, NULL));
    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    CHECK(is_all(rgaps_sample_data(sample), BYTES, 33));
    rgaps_sample_release(sample);
    /* Who has waited names no stream. */
    OK(rgaps_publisher_loan(publisher, BYTES, &loan));
    CU(cu.set_async((uintptr_t)rgaps_loan_data(loan), 34, BYTES, stream));
    CU(cu.synchronize(stream));
    OK(rgaps_loan_publish_on(loan, RGAPS_NO_STREAM, NULL));
    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    uint32_t ready = 0;
    OK(rgaps_sample_is_ready(sample, &ready));
    CHECK(ready);
    CHECK(is_all(rgaps_sample_data(sample), BYTES, 34));
    CHECK(strcmp(rgaps_sample_domain(sample), rgaps_publisher_domain(publisher)) == 0);
    FAILS(RGAPS_ERROR_CUDA, "stream", rgaps_sample_release_on(sample, (void *)(uintptr_t)12345));
    /* It is still held then. */
    CHECK(rgaps_subscriber_held(subscriber) == 1);
    OK(rgaps_sample_release_on(sample, stream));
    CHECK(rgaps_subscriber_held(subscriber) == 0);
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

/* Numbers that streams wait for. */
static volatile uint64_t *gates;
static address_t gates_address;

static void make_gates(void)
{
    void *page = NULL;

    CHECK(posix_memalign(&page, 4096, 4096) == 0);
    memset(page, 0, 4096);
    CU(cu.register_host(page, 4096, 3 /* portable, mapped */));
    CU(cu.device_pointer(&gates_address, page, 0));
    gates = page;
}

/* Holds a stream up until gates[gate] is 1. */
static void close_gate(void *stream, int gate)
{
    CU(cu.wait_value(stream, gates_address + 8 * gate, 1, 0 /* CU_STREAM_WAIT_VALUE_GEQ */));
}

/* Publishes a message whose work is held up, and is killed. */
static void die(const char *name, int begin)
{
    rgaps_publisher_options_t options = {.size = sizeof options, .domain = "cuda:0"};
    rgaps_publisher_t *publisher;
    rgaps_loan_t *loan;
    void *stream;
    char byte;

    if (read(begin, &byte, 1) != 1) {
        _exit(0);
    }
    start_cuda();
    make_gates();
    CU(cu.create_stream(&stream, 1));
    OK(rgaps_publisher_create(name, &options, &publisher));
    OK(rgaps_publisher_loan(publisher, BYTES, &loan));
    close_gate(stream, 0);
    CU(cu.set_async((uintptr_t)rgaps_loan_data(loan), 1, BYTES, stream));
    OK(rgaps_loan_publish_on(loan, stream, NULL));
    /* Until we are killed. */
    while (read(begin, &byte, 1) == 1) {
    }
    _exit(0);
}

/* Its reader's stream goes on, and the sample says what became of it. */
static void aborted(const char *name, pid_t child, int begin)
{
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample, *again;
    const void *data;
    void *stream;
    uint32_t ready;

    CU(cu.create_stream(&stream, 1));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    CHECK(write(begin, "b", 1) == 1);
    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    OK(rgaps_sample_is_ready(sample, &ready));
    CHECK(ready == 0);
    OK(rgaps_sample_wait_on(sample, stream));
    CHECK(cu.query(stream) == 600 /* CUDA_ERROR_NOT_READY */);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    FAILS(RGAPS_ERROR_ABORTED, "is aborted", rgaps_sample_synchronize(sample, SOON));
    CU(cu.synchronize(stream));
    FAILS(RGAPS_ERROR_ABORTED, "is aborted", rgaps_sample_is_ready(sample, &ready));
    FAILS(RGAPS_ERROR_ABORTED, "is aborted", rgaps_sample_wait_on(sample, stream));
    CHECK(rgaps_sample_data(sample) == NULL && rgaps_sample_data_on(sample, stream) == NULL);
    OK(rgaps_sample_clone(sample, &again));
    OK(rgaps_sample_release(again));
    OK(rgaps_sample_release_on(sample, stream));
    CHECK(rgaps_subscriber_pull(subscriber, 0, &data, NULL) == RGAPS_ERROR_TIMED_OUT);
    rgaps_subscriber_destroy(subscriber);
}

/* Messages are received while their work is queued, and waited for on the CPU or on a stream. */
static void streams(const char *name)
{
    rgaps_publisher_options_t options = {.size = sizeof options, .domain = "cuda:0"};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample;
    rgaps_loan_t *loan;
    address_t copy;
    const void *data, *pulled;
    void *writes, *reads, *none = (void *)(uintptr_t)12345;
    uint64_t address, point;
    uint32_t ready;
    size_t bytes;

    CU(cu.allocate(&copy, BYTES));
    CU(cu.create_stream(&writes, 1));
    CU(cu.create_stream(&reads, 1));
    OK(rgaps_publisher_create(name, &options, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_publisher_loan(publisher, BYTES, &loan));
    close_gate(writes, 1);
    CU(cu.set_async((uintptr_t)rgaps_loan_data(loan), 44, BYTES, writes));
    OK(rgaps_loan_publish_on(loan, writes, NULL));
    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    OK(rgaps_sample_is_ready(sample, &ready));
    CHECK(ready == 0);
    FAILS(RGAPS_ERROR_UNFINISHED, "time-out", rgaps_sample_synchronize(sample, 1000000));
    OK(rgaps_sample_gpu_point(sample, &address, &point));
    CHECK(address != 0 && point != 0);
    FAILS(RGAPS_ERROR_CUDA, "stream", rgaps_sample_wait_on(sample, none));
    FAILS(RGAPS_ERROR_CUDA, "stream", rgaps_sample_record_stream(sample, none));
    CHECK(rgaps_sample_data_on(sample, none) == NULL);
    data = rgaps_sample_data_on(sample, reads);
    CHECK(data != NULL);
    CU(cu.copy_async(copy, (uintptr_t)data, BYTES, reads));
    CHECK(cu.query(reads) == 600);
    gates[1] = 1;
    OK(rgaps_sample_synchronize(sample, RGAPS_FOREVER));
    OK(rgaps_sample_is_ready(sample, &ready));
    CHECK(ready == 1 && rgaps_sample_data(sample) == data);
    OK(rgaps_sample_record_stream(sample, writes));
    OK(rgaps_sample_release(sample));
    CU(cu.synchronize(reads));
    CHECK(is_all((void *)(uintptr_t)copy, BYTES, 44));

    /* A message that is pulled too early is the next to be pulled. */
    OK(rgaps_publisher_loan(publisher, BYTES, &loan));
    close_gate(writes, 2);
    CU(cu.set_async((uintptr_t)rgaps_loan_data(loan), 55, BYTES, writes));
    OK(rgaps_loan_publish_on(loan, writes, NULL));
    CHECK(rgaps_subscriber_pull(subscriber, 1000000, &pulled, &bytes) == RGAPS_ERROR_TIMED_OUT);
    CHECK(rgaps_subscriber_pull(subscriber, 0, &pulled, &bytes) == RGAPS_ERROR_TIMED_OUT);
    gates[2] = 1;
    OK(rgaps_subscriber_pull(subscriber, SOON, &pulled, &bytes));
    CHECK(bytes == BYTES && is_all(pulled, BYTES, 55));
    OK(rgaps_subscriber_release(subscriber, NULL));

    OK(rgaps_publisher_loan(publisher, BYTES, &loan));
    OK(rgaps_loan_drop_on(loan, writes));
    OK(rgaps_loan_drop_on(NULL, writes));
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
    CU(cu.release(copy));
}

static void domains(const char *name)
{
    rgaps_publisher_options_t absent = {.size = sizeof absent, .domain = "cuda:9"};
    rgaps_publisher_options_t automatic = {.size = sizeof automatic, .domain = "auto"};
    rgaps_publisher_options_t host = {.size = sizeof host, .domain = "host"};
    rgaps_publisher_t *publisher, *other;

    FAILS(RGAPS_ERROR_DOMAIN_UNAVAILABLE, "no GPU 9",
          rgaps_publisher_create(name, &absent, &publisher));
    OK(rgaps_publisher_create(name, &host, &publisher));
    /* Where the topic is, counts more than where there is a GPU. */
    OK(rgaps_publisher_create(name, &automatic, &other));
    CHECK(strcmp(rgaps_publisher_domain(other), "host") == 0);
    rgaps_publisher_destroy(other);
    rgaps_publisher_destroy(publisher);
    OK(rgaps_publisher_create(topic("auto"), &automatic, &publisher));
    CHECK(strncmp(rgaps_publisher_domain(publisher), "cuda:GPU-", 9) == 0);
    rgaps_publisher_destroy(publisher);
}

/* Whoever comes second is refused where the path is slower than either requires. */
static void paths(const char *name)
{
    rgaps_publisher_options_t strict = {.size = sizeof strict,
                                        .domain = "host",
                                        .require = RGAPS_PATH_PEER};
    rgaps_publisher_options_t lax = {.size = sizeof lax, .domain = "host"};
    rgaps_subscriber_options_t here = {.size = sizeof here,
                                       .domain = "host",
                                       .require = RGAPS_PATH_ZERO_COPY};
    rgaps_subscriber_options_t away = {.size = sizeof away, .domain = "cuda"};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber, *other;
    const void *data;

    OK(rgaps_publisher_create(name, &strict, &publisher));
    OK(rgaps_subscriber_create(name, &here, &subscriber));
    FAILS(RGAPS_ERROR_PATH_TOO_SLOW, "the publisher requires a path of peer or better",
          rgaps_subscriber_create(name, &away, &other));
    CHECK(other == NULL && strstr(rgaps_error_message(), "this one is pinned") != NULL);
    OK(rgaps_publisher_push(publisher, "here", 4));
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, NULL));
    CHECK(memcmp(data, "here", 4) == 0);
    OK(rgaps_subscriber_release(subscriber, data));
    rgaps_publisher_destroy(publisher);

    /* The publisher comes second, and then requires what there is. */
    away.require = RGAPS_PATH_PINNED;
    OK(rgaps_subscriber_create(name, &away, &other));
    FAILS(RGAPS_ERROR_PATH_TOO_SLOW, "peer", rgaps_publisher_create(name, &strict, &publisher));
    CHECK(publisher == NULL);
    strict.require = RGAPS_PATH_PINNED;
    OK(rgaps_publisher_create(name, &strict, &publisher));
    rgaps_publisher_destroy(publisher);
    rgaps_subscriber_destroy(other);
    rgaps_subscriber_destroy(subscriber);

    OK(rgaps_publisher_create(name, &lax, &publisher));
    away.require = RGAPS_PATH_ZERO_COPY;
    FAILS(RGAPS_ERROR_PATH_TOO_SLOW, "the subscriber requires",
          rgaps_subscriber_create(name, &away, &other));
    rgaps_publisher_destroy(publisher);
}

static void *pull_too_early(void *subscriber)
{
    const void *data;

    CHECK(rgaps_subscriber_pull(subscriber, 200000000, &data, NULL) == RGAPS_ERROR_TIMED_OUT);
    return NULL;
}

/* Two threads pull a message each, too early. Both messages are the next to be pulled, in their order. */
static void early_pulls(const char *name)
{
    rgaps_publisher_options_t options = {.size = sizeof options, .domain = "cuda:0"};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_loan_t *loan;
    pthread_t threads[2];
    const void *data;
    void *stream;
    size_t bytes;
    int i;

    CU(cu.create_stream(&stream, 1));
    OK(rgaps_publisher_create(name, &options, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    close_gate(stream, 3);
    for (i = 0; i < 2; i++) {
        OK(rgaps_publisher_loan(publisher, BYTES, &loan));
        CU(cu.set_async((uintptr_t)rgaps_loan_data(loan), 60 + i, BYTES, stream));
        OK(rgaps_loan_publish_on(loan, stream, NULL));
    }
    for (i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, pull_too_early, subscriber) == 0);
    }
    for (i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    gates[3] = 1;
    for (i = 0; i < 2; i++) {
        OK(rgaps_subscriber_pull(subscriber, SOON, &data, &bytes));
        CHECK(bytes == BYTES && is_all(data, BYTES, 60 + i));
    }
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

int main(void)
{
    struct turns turns;
    char name[128], dying[128];
    pid_t child, mortal;
    int begin[2];

    snprintf(name, sizeof name, "%s", topic("cuda"));
    turns_init(&turns);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        subscribe(name, &turns);
        return 0;
    }
    snprintf(dying, sizeof dying, "%s", topic("dying"));
    CHECK(pipe(begin) == 0);
    mortal = fork();
    CHECK(mortal >= 0);
    if (mortal == 0) {
        close(begin[1]);
        die(dying, begin[0]);
    }
    publish(name, &turns);
    join(child);
    ordering(topic("on device"), "cuda");
    ordering(topic("on host"), "host");
    loans(topic("device loans"));
    make_gates();
    streams(topic("streams"));
    early_pulls(topic("early pulls"));
    aborted(dying, mortal, begin[1]);
    domains(topic("domains"));
    paths(topic("paths"));
    return 0;
}
