/*
 * rgaps: publish and subscribe messages in host and GPU memory without copies.
 *
 * A publisher writes its messages into a shared pool, in host memory or in the memory of a GPU. Its
 * subscribers, in other processes, read the same bytes. A message does not change while anyone
 * holds it.
 *
 *     rgaps_publisher_t *publisher;
 *     rgaps_publisher_create("camera", NULL, &publisher);
 *     rgaps_publisher_push(publisher, pixels, pixel_bytes);
 *
 *     rgaps_subscriber_t *subscriber;
 *     const void *pixels;
 *     size_t bytes;
 *     rgaps_subscriber_create("camera", NULL, &subscriber);
 *     rgaps_subscriber_pull(subscriber, RGAPS_FOREVER, &pixels, &bytes);
 *     ...
 *     rgaps_subscriber_release(subscriber, pixels);
 *
 * Conventions
 *
 *   Errors      Functions that can fail return RGAPS_OK (0) or a negative code;
 *               rgaps_error_message() then says what happened and what to do. A function writes
 *               its results to its last arguments; if it fails, it writes NULL or 0 (-1 for a file
 *               descriptor, SIZE_MAX for a token).
 *   Handles     are opaque. Destroying or releasing NULL does nothing. Destroying a handle twice does
 *               nothing but set the error message; functions that return a code return an error. Do
 *               not use a handle after you destroyed it, and do not destroy it while another thread
 *               uses it.
 *   Pointers    to text, bytes, arrays and structures must point to at least the number of bytes or
 *               elements that you pass. Keep that memory valid and unchanged until the function
 *               returns, or, for functions with a stream, until the work on the stream is done. While
 *               a function runs, only it may access the memory that it writes to.
 *   Order       You may destroy handles in any order. rgaps keeps a node, publisher or subscriber alive
 *               while a loan or sample needs it.
 *   Threads     Several threads may use a publisher, subscriber or node at the same time. A loan, a
 *               sample's handle and a wait set may be used by one thread at a time.
 *   fork()      In a forked child, the parent's handles fail with RGAPS_ERROR_FORKED; the child can
 *               create handles of its own.
 *   Time        is in nanoseconds. A time-out of 0 does not wait, RGAPS_FOREVER waits without limit.
 *   Text        is UTF-8 and ends with a 0 byte. Returned text stays valid until you destroy its handle.
 *   Addresses   of messages in the memory of a GPU are device pointers (CUdeviceptr).
 *   Streams     A stream (CUstream, cudaStream_t) orders publishing and releasing after the work
 *               that was queued on it; NULL is the default stream. The CPU does not wait for that work,
 *               unless this GPU's driver cannot order streams ('rgaps doctor' says so). So a subscriber
 *               may receive a message while the work that writes it is still queued. The functions that
 *               return its bytes wait for that work: on the CPU (rgaps_subscriber_pull(),
 *               rgaps_sample_data(), rgaps_sample_read(), rgaps_sample_synchronize()), or on the
 *               reader's stream (rgaps_sample_data_on(), rgaps_sample_wait_on()). If the publisher dies
 *               before the work has finished, the message is aborted: RGAPS_ERROR_ABORTED. Streams that
 *               capture a graph are refused. Messages in host memory use no streams.
 *   Options     A structure of options starts with its size, so that programs that were compiled
 *               with an older header continue to work. Set the size, and leave 0 in every field that
 *               should have its default value:
 *                   rgaps_publisher_options_t options = {.size = sizeof options};
 */
#ifndef RGAPS_H
#define RGAPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. rgaps_version() returns the version of the library. */
#define RGAPS_VERSION_MAJOR 0
#define RGAPS_VERSION_MINOR 1
#define RGAPS_VERSION_PATCH 0

/* A time-out that never ends. */
#define RGAPS_FOREVER UINT64_MAX

/* The largest number of dimensions of a tensor. */
#define RGAPS_MAX_DIMS 8

/* The largest attachment in bytes. A header is an attachment, too. */
#define RGAPS_MAX_ATTACHMENT_BYTES 4096

/* The largest number of parts of a message, and the longest name of a part, in bytes without the final 0. */
#define RGAPS_MAX_PARTS 32
#define RGAPS_MAX_PART_NAME 63

/* RGAPS_OK, or one of the codes below. A library that is newer than this header may have more codes. */
typedef int32_t rgaps_status_t;

enum rgaps_status {
    RGAPS_OK = 0,
    /* An argument is NULL, outside its limits, or text that is not UTF-8. */
    RGAPS_ERROR_ARGUMENT = -1,
    /* No message arrived, or fewer subscribers than requested were there, before the time-out. */
    RGAPS_ERROR_TIMED_OUT = -2,
    /* No message is waiting. */
    RGAPS_ERROR_EMPTY = -3,
    /* The message is larger than the pool, or than the limit of the history. */
    RGAPS_ERROR_TOO_LARGE = -4,
    /* The pool is at its cap, and no memory was returned within loan_timeout_ns. */
    RGAPS_ERROR_POOL_FULL = -5,
    /* All blocks of the publisher are in use, or max_loans loans are open. */
    RGAPS_ERROR_TOO_MANY_LOANS = -6,
    /* The subscriber holds max_held samples. */
    RGAPS_ERROR_TOO_MANY_HELD = -7,
    /* Reliable subscribers made no room within the publisher's deadline. Nothing was published. */
    RGAPS_ERROR_BACK_PRESSURED = -8,
    /* The pointer or handle is not valid: it was released or destroyed before, or rgaps never returned it. */
    RGAPS_ERROR_NOT_HELD = -9,
    /* The message is not a tensor. */
    RGAPS_ERROR_NO_TENSOR = -10,
    /* Another thread is using the handle. */
    RGAPS_ERROR_BUSY = -11,
    /* There is no daemon, and none could be started. */
    RGAPS_ERROR_NO_DAEMON = -12,
    /* The daemon has died or was stopped; existing publishers and subscribers continue. */
    RGAPS_ERROR_DAEMON_LOST = -13,
    /* Access rules, or the permissions of the daemon's socket, forbid it. */
    RGAPS_ERROR_PERMISSION = -14,
    /* The message is not of the type that its publisher declares. */
    RGAPS_ERROR_TYPE_MISMATCH = -15,
    /* The topic is in another domain. */
    RGAPS_ERROR_DOMAIN_MISMATCH = -16,
    /* The domain cannot be used: there is no such GPU, no driver, or no free GPU memory. */
    RGAPS_ERROR_DOMAIN_UNAVAILABLE = -17,
    /* A limit (publishers or subscribers of a topic, topics, clients) is reached. */
    RGAPS_ERROR_LIMIT = -19,
    /* There is no topic, part or key of this name. */
    RGAPS_ERROR_NOT_FOUND = -20,
    /* Daemon and library have different versions or realms. */
    RGAPS_ERROR_VERSION = -21,
    /* The handle was created before fork(), in another process. */
    RGAPS_ERROR_FORKED = -22,
    /* Another member of the topic, or the daemon, violates the protocol. */
    RGAPS_ERROR_PROTOCOL = -23,
    /* A system call failed. */
    RGAPS_ERROR_SYSTEM = -24,
    /* A call of the CUDA driver failed. */
    RGAPS_ERROR_CUDA = -25,
    /* A defect of the library; please report it. */
    RGAPS_ERROR_INTERNAL = -26,
    /* The message is aborted: its publisher died or lost its CUDA context before the work that writes the
     * message finished. Its bytes are undefined. */
    RGAPS_ERROR_ABORTED = -27,
    /* The work that writes the message did not finish before the time-out. */
    RGAPS_ERROR_UNFINISHED = -28,
    /* The path between publisher and subscriber is slower than one of them requires. */
    RGAPS_ERROR_PATH_TOO_SLOW = -29
};

typedef struct rgaps_node rgaps_node_t;
typedef struct rgaps_publisher rgaps_publisher_t;
typedef struct rgaps_loan rgaps_loan_t;
typedef struct rgaps_subscriber rgaps_subscriber_t;
typedef struct rgaps_sample rgaps_sample_t;
typedef struct rgaps_wait_set rgaps_wait_set_t;
typedef struct rgaps_listener rgaps_listener_t;

/* A CUstream or cudaStream_t. */
typedef void *rgaps_stream_t;
/* For rgaps_loan_publish_on(): no stream; the caller has waited for all work that writes the message. */
#define RGAPS_NO_STREAM ((rgaps_stream_t)-1)

/* ---- Library ------------------------------------------------------------------------------- */

/* The library's version, such as "0.1.0". */
const char *rgaps_version(void);

/* The name of a code, such as "RGAPS_ERROR_TIMED_OUT"; "RGAPS_ERROR_?" for an unknown code. */
const char *rgaps_status_name(rgaps_status_t status);

/* What happened in this thread's last failed call, why, and what to do; "" if no call of this thread
 * has failed yet. Valid until this thread's next failed call. */
const char *rgaps_error_message(void);

/* ---- Nodes ---------------------------------------------------------------------------------
 * A node is a process's connection to the daemon of its host. It starts the daemon if none runs.
 * Publishers and subscribers use the process's default node unless their options name another one.
 * rgaps creates the default node, with the configuration of this machine and user, when a publisher or
 * subscriber first needs it, and closes it with the last of them. */

typedef struct rgaps_node_options {
    size_t size;             /* sizeof(rgaps_node_options_t) */
    const char *config_file; /* NULL: the usual rgaps.toml, and the environment */
    const char *socket;      /* path of the daemon's socket; NULL: as configured */
    const char *realm;       /* NULL: as configured */
    /* Topics are below this name, unless their names begin with '/'. NULL: as configured (RGAPS_NAMESPACE) */
    const char *topic_namespace;
    /* Topics to use instead of others: remap_count texts such as "camera:=front/camera". NULL: as configured */
    const char *const *remap;
    size_t remap_count;
} rgaps_node_options_t;

/* Connects to the daemon, or starts it. `name` is the name of the process in listings, at most 63
 * bytes; NULL: the program's name. `options` may be NULL. */
rgaps_status_t rgaps_node_create(const char *name, const rgaps_node_options_t *options,
                                 rgaps_node_t **node);

/* Destroys the handle. The connection ends with the node's last publisher, subscriber, loan and sample. */
void rgaps_node_destroy(rgaps_node_t *node);

/* ---- Tensors -------------------------------------------------------------------------------- */

/* An element type, like DLPack's DLDataType. */
typedef struct rgaps_dtype {
    uint8_t code;   /* enum rgaps_dtype_code, or another of DLPack's DLDataTypeCode */
    uint8_t bits;   /* of one lane */
    uint16_t lanes; /* 1 except for vector types */
} rgaps_dtype_t;

enum rgaps_dtype_code {
    RGAPS_DTYPE_INT = 0,
    RGAPS_DTYPE_UINT = 1,
    RGAPS_DTYPE_FLOAT = 2,
    RGAPS_DTYPE_BFLOAT = 4,
    RGAPS_DTYPE_COMPLEX = 5,
    RGAPS_DTYPE_BOOL = 6
};

/* Shape and element type of a message. */
typedef struct rgaps_tensor {
    rgaps_dtype_t dtype;
    uint32_t ndim; /* at most RGAPS_MAX_DIMS */
    uint64_t shape[RGAPS_MAX_DIMS];
    int64_t strides[RGAPS_MAX_DIMS]; /* in elements; none is negative */
} rgaps_tensor_t;

/* A part of a message: a named array in its block. */
typedef struct rgaps_part {
    const char *name;      /* 1 to RGAPS_MAX_PART_NAME bytes of UTF-8; unique within the message */
    rgaps_tensor_t tensor; /* shape and element type */
    size_t offset;         /* bytes from the message's first byte to the part's; a multiple of 256 */
    size_t bytes;          /* bytes of the part */
} rgaps_part_t;

/* The element type with this name: "uint8", "float32", "bfloat16" and so on, the names of numpy and
 * torch. */
rgaps_status_t rgaps_dtype_parse(const char *name, rgaps_dtype_t *dtype);

/* Describes a tensor in row-major order, and returns its size in bytes. `bytes` may be NULL. */
rgaps_status_t rgaps_tensor_contiguous(rgaps_dtype_t dtype, uint32_t ndim, const uint64_t *shape,
                                       rgaps_tensor_t *tensor, size_t *bytes);

/* ---- Paths -----------------------------------------------------------------------------------
 * How messages get from a publisher to a subscriber. Both may require a path. If the path between them is
 * slower than either requires, the second of the two to join fails with RGAPS_ERROR_PATH_TOO_SLOW;
 * rgaps_error_message() says which path there is, and why there is no faster one. Between hosts, the links
 * check the requirement: 'rgaps topic info' says which hosts get no messages, and why. */

/* From the slowest to the fastest. The numbers are not in that order, since they never change. */
enum rgaps_path {
    RGAPS_PATH_ANY = 0,      /* nothing is required */
    RGAPS_PATH_TCP = 1,      /* to another host, through its TCP stack */
    RGAPS_PATH_RDMA = 2,     /* to another host's memory, through the memory of the hosts */
    /* From a GPU's memory to the memory of another host's GPU, read and written by the network cards. */
    RGAPS_PATH_GPUDIRECT = 6,
    RGAPS_PATH_PINNED = 3,   /* between a GPU and the host, or GPUs without peer access */
    RGAPS_PATH_PEER = 4,     /* between two GPUs, over their connection */
    RGAPS_PATH_ZERO_COPY = 5 /* in the same memory */
};

/* ---- Publishers ------------------------------------------------------------------------------ */

/* What a publish does when reliable subscribers have made no room within the deadline. */
enum rgaps_slow_reader {
    RGAPS_SLOW_READER_FAIL = 0, /* it fails with RGAPS_ERROR_BACK_PRESSURED and publishes nothing */
    RGAPS_SLOW_READER_DROP = 1  /* the publisher continues without them; their samples say how many they missed,
                                   and the publisher waits for them again once they have read everything */
};

typedef struct rgaps_publisher_options {
    size_t size;              /* sizeof(rgaps_publisher_options_t) */
    rgaps_node_t *node;       /* NULL: the default node */
    /* Where messages live: "host"; "cuda" (the process's first GPU), "cuda:1" (its second),
     * "cuda:GPU-<uuid>"; "auto": its first GPU if it can be used, else the host. NULL: the domain
     * of the topic, or the host if the topic has none yet. */
    const char *domain;
    const char *type_name;    /* the type of the messages, which subscribers may expect; NULL: none */
    uint32_t history_messages; /* how many messages it keeps for slow and late subscribers;
                                  0: 16, or with history_bytes 32768 */
    uint32_t max_loans;       /* how many loans may be open at once; 0: 64 */
    uint64_t history_bytes;   /* 0: keeps the last history_messages messages; else all, up to
                                 this many bytes and that many messages */
    uint32_t best_effort;     /* not 0: never waits; reliable subscribers do not match */
    uint32_t transient_local; /* not 0: late subscribers get the history */
    uint64_t deadline_ns;     /* how long publishing waits for reliable subscribers; 0: 1 s */
    uint64_t loan_timeout_ns; /* how long a loan waits for memory; 0: not at all */
    uint32_t require;         /* enum rgaps_path: the slowest acceptable path to subscribers */
    uint32_t slow_reader;     /* enum rgaps_slow_reader */
} rgaps_publisher_options_t;

/* Joins `topic` as a publisher. `options` may be NULL. */
rgaps_status_t rgaps_publisher_create(const char *topic, const rgaps_publisher_options_t *options,
                                      rgaps_publisher_t **publisher);

/* Leaves the topic once all open loans are published or dropped. */
void rgaps_publisher_destroy(rgaps_publisher_t *publisher);

/* Publishes a copy of `bytes` bytes from `data`, any host or device pointer of this process. First
 * waits for the work queued on the default stream. You may change `data` when the call returns. */
rgaps_status_t rgaps_publisher_push(rgaps_publisher_t *publisher, const void *data, size_t bytes);

/* Like rgaps_publisher_push(), but queues the copy on `stream`, behind its work, and does not wait. If `data` is in GPU
 * memory or pinned, only work that you queue on `stream` later may change it, or the CPU after the copy is done. */
rgaps_status_t rgaps_publisher_push_on(rgaps_publisher_t *publisher, const void *data, size_t bytes,
                                       rgaps_stream_t stream);

/* Waits until `count` subscribers match the publisher, or RGAPS_ERROR_TIMED_OUT; rgaps_error_message() then names
 * the hosts whose subscribers it cannot reach, and why. */
rgaps_status_t rgaps_publisher_wait_for_subscribers(rgaps_publisher_t *publisher, uint32_t count,
                                                    uint64_t timeout_ns);

/* Subscribers that match the publisher now; 0 for NULL. */
uint32_t rgaps_publisher_subscribers(const rgaps_publisher_t *publisher);

/* Subscribers of the topic on this host that do not match the publisher: they expect another type, or request a quality of
 * service that it does not offer. They get none of its messages. 0 for NULL. 'rgaps topic info' names the reasons. */
uint32_t rgaps_publisher_mismatched(const rgaps_publisher_t *publisher);

/* The domain of the messages: "host" or "cuda:GPU-<uuid>". NULL for NULL. */
const char *rgaps_publisher_domain(const rgaps_publisher_t *publisher);

/* Returns unused memory to the pools, except for `keep_bytes` in each. `freed_bytes` may be
 * NULL. */
rgaps_status_t rgaps_publisher_trim(rgaps_publisher_t *publisher, uint64_t keep_bytes,
                                    uint64_t *freed_bytes);

/* ---- Loans: messages that are written where they will be read --------------------------------- */

/* Loans a block of `bytes` bytes, aligned to 256 bytes. Its contents are undefined until you write them. */
rgaps_status_t rgaps_publisher_loan(rgaps_publisher_t *publisher, size_t bytes, rgaps_loan_t **loan);

/* Like rgaps_publisher_loan(), aligned to `alignment` bytes, a power of two of up to 2 MiB. */
rgaps_status_t rgaps_publisher_loan_aligned(rgaps_publisher_t *publisher, size_t bytes,
                                            size_t alignment, rgaps_loan_t **loan);

/* Loans one block for `count` arrays. Set `name` and `tensor` of each part; the function ignores the strides, because parts
 * are in row-major order. It writes `offset`, `bytes` and the strides. Fill each part at rgaps_loan_data() plus its
 * offset. */
rgaps_status_t rgaps_publisher_loan_parts(rgaps_publisher_t *publisher, rgaps_part_t *parts,
                                          size_t count, rgaps_loan_t **loan);

/* The block's address. You may write to it until you publish or drop the loan. NULL for NULL, or if the loan
 * was lost. */
void *rgaps_loan_data(rgaps_loan_t *loan);

/* The size of the message in bytes, as rgaps_loan_truncate() left it; 0 for NULL, or if the loan was lost. */
size_t rgaps_loan_bytes(const rgaps_loan_t *loan);

/* Copies bytes into the loan, to byte `at` and those behind it, from any host or device pointer. */
rgaps_status_t rgaps_loan_write(rgaps_loan_t *loan, size_t at, const void *data, size_t bytes);

/* Shortens the message to its first `bytes` bytes. Its attachment stays. Publishing fails if its tensor or a part then lies
 * outside of it. */
rgaps_status_t rgaps_loan_truncate(rgaps_loan_t *loan, size_t bytes);

/* Sets a number that travels with the message; its meaning is yours. Default: 0. */
rgaps_status_t rgaps_loan_set_tag(rgaps_loan_t *loan, uint64_t tag);

/* Describes the message as a tensor, which must not be larger than the loan. */
rgaps_status_t rgaps_loan_set_tensor(rgaps_loan_t *loan, const rgaps_tensor_t *tensor);

/* Attaches bytes of your own, at most RGAPS_MAX_ATTACHMENT_BYTES, which travel beside the message. They replace an
 * earlier attachment or header; 0 bytes remove it. */
rgaps_status_t rgaps_loan_set_attachment(rgaps_loan_t *loan, const void *data, size_t bytes);

/* Sets a field of the message's header, which replaces an attachment: the time of capture (nanoseconds since 1970-01-01
 * UTC), the coordinate frame or sensor of the data, and keys of your own. The header is encoded in MessagePack and has
 * at most RGAPS_MAX_ATTACHMENT_BYTES. */
rgaps_status_t rgaps_loan_set_capture_ns(rgaps_loan_t *loan, uint64_t capture_ns);
rgaps_status_t rgaps_loan_set_frame_id(rgaps_loan_t *loan, const char *frame_id);
rgaps_status_t rgaps_loan_set_int(rgaps_loan_t *loan, const char *key, int64_t value);
rgaps_status_t rgaps_loan_set_double(rgaps_loan_t *loan, const char *key, double value);
rgaps_status_t rgaps_loan_set_text(rgaps_loan_t *loan, const char *key, const char *value);

/* Publishes the loan behind the work queued on the default stream. If this succeeds, the handle is no longer valid. If it
 * fails, the loan is still open: publish it again, or drop it. `sequence` gets the message's number, which each
 * publisher counts from 0; it may be NULL. */
rgaps_status_t rgaps_loan_publish(rgaps_loan_t *loan, uint64_t *sequence);

/* The same behind the work queued on `stream`. The function waits for reliable subscribers before it queues anything
 * there. */
rgaps_status_t rgaps_loan_publish_on(rgaps_loan_t *loan, rgaps_stream_t stream, uint64_t *sequence);

/* Returns the block without publishing it. Work that is queued on the default stream, or on the stream on which publishing
 * failed, may still write it: the block is not reused before that work has finished. */
void rgaps_loan_drop(rgaps_loan_t *loan);

/* The same; the block is not reused before the work queued on `stream` so far has finished. */
rgaps_status_t rgaps_loan_drop_on(rgaps_loan_t *loan, rgaps_stream_t stream);

/* ---- Subscribers ------------------------------------------------------------------------------ */

/* Which earlier messages a subscriber gets. Every value but RGAPS_LATE_NOTHING matches only publishers with
 * transient_local. */
enum rgaps_late {
    RGAPS_LATE_NOTHING = 0,
    RGAPS_LATE_LATEST = 1,  /* the newest message */
    RGAPS_LATE_LAST = 2,    /* the newest late_messages of the topic, in order */
    RGAPS_LATE_ALL_KEPT = 3 /* all that publishers keep, in order */
};

typedef struct rgaps_subscriber_options {
    size_t size;            /* sizeof(rgaps_subscriber_options_t) */
    rgaps_node_t *node;     /* NULL: the default node */
    const char *domain;     /* as for publishers; NULL: the domain of the messages */
    const char *type_name;  /* NULL: any */
    uint32_t reliable;      /* not 0: misses no message; publishers wait for it */
    uint32_t depth;         /* length of its own queue, in messages; it skips older ones, and counts
                               them as missed. 1: the newest. 0: all that publishers keep */
    uint32_t late;          /* enum rgaps_late */
    uint32_t late_messages; /* for RGAPS_LATE_LAST */
    uint32_t max_held;      /* samples held at once, pulled or received; 0: 64; at most 4096 */
    uint32_t require;       /* enum rgaps_path: the slowest acceptable path from publishers */
    uint64_t spin_ns;       /* how long waiting spins before it sleeps; 0: 20 us, 1: not at all */
} rgaps_subscriber_options_t;

/* Joins `topic` as a subscriber. `options` may be NULL. */
rgaps_status_t rgaps_subscriber_create(const char *topic, const rgaps_subscriber_options_t *options,
                                       rgaps_subscriber_t **subscriber);

/* Leaves the topic and releases all pulled messages. Samples that you received stay valid. */
void rgaps_subscriber_destroy(rgaps_subscriber_t *subscriber);

/* Takes the next message. Waits for it and for the work that writes it. After RGAPS_ERROR_TIMED_OUT the next call returns
 * the same message, after RGAPS_ERROR_ABORTED the message behind it. `*data` is its first byte, a device pointer if
 * the topic is on a GPU. The message stays readable and unchanged until you release it. `bytes` may be NULL. */
rgaps_status_t rgaps_subscriber_pull(rgaps_subscriber_t *subscriber, uint64_t timeout_ns,
                                     const void **data, size_t *bytes);

/* The size of a message that you pulled and have not released. */
rgaps_status_t rgaps_subscriber_pulled_bytes(rgaps_subscriber_t *subscriber, const void *data,
                                             size_t *bytes);

/* Releases a pulled message; NULL: all of them. Releasing a message twice is RGAPS_ERROR_NOT_HELD. */
rgaps_status_t rgaps_subscriber_release(rgaps_subscriber_t *subscriber, const void *data);

/* Takes the next message as a sample, or RGAPS_ERROR_TIMED_OUT. */
rgaps_status_t rgaps_subscriber_recv(rgaps_subscriber_t *subscriber, uint64_t timeout_ns,
                                     rgaps_sample_t **sample);

/* Takes the next message, if there is one, or RGAPS_ERROR_EMPTY. */
rgaps_status_t rgaps_subscriber_try_recv(rgaps_subscriber_t *subscriber, rgaps_sample_t **sample);

/* Waits until a message is waiting, without taking it; RGAPS_ERROR_TIMED_OUT if none arrives. */
rgaps_status_t rgaps_subscriber_wait(rgaps_subscriber_t *subscriber, uint64_t timeout_ns);

/* A file descriptor that is readable while messages are waiting, for poll() and event loops. When it is readable, take
 * messages with rgaps_subscriber_try_recv() until RGAPS_ERROR_EMPTY. The descriptor belongs to the subscriber: do not
 * read or close it. */
rgaps_status_t rgaps_subscriber_fd(rgaps_subscriber_t *subscriber, int *fd);

/* Messages missed so far; 0 for NULL. */
uint64_t rgaps_subscriber_missed(const rgaps_subscriber_t *subscriber);

/* Publishers of the topic that do not match the subscriber: they publish another type, or do not offer the quality of
 * service that it requests. It gets none of their messages. 0 for NULL. 'rgaps topic info' names the reasons. */
uint32_t rgaps_subscriber_mismatched(const rgaps_subscriber_t *subscriber);

/* Samples that the subscriber holds now; a sample and its clones count once. 0 for NULL. */
uint32_t rgaps_subscriber_held(const rgaps_subscriber_t *subscriber);

/* ---- Samples: received messages ----------------------------------------------------------------
 * Functions that return no code return 0 or NULL for NULL. */

/* The first byte: readable and unchanged until you release the sample and its clones. Waits on the CPU for the work that
 * writes the message, for at most 10 s; NULL if that work does not finish. */
const void *rgaps_sample_data(const rgaps_sample_t *sample);

/* The same for work that you queue on `stream` from now on; the CPU does not wait: see rgaps_sample_wait_on(). NULL if
 * that fails. */
const void *rgaps_sample_data_on(const rgaps_sample_t *sample, rgaps_stream_t stream);

/* Writes 1 if the work that writes the message has finished, else 0. */
rgaps_status_t rgaps_sample_is_ready(const rgaps_sample_t *sample, uint32_t *ready);

/* Waits on the CPU until the work that writes the message has finished; RGAPS_ERROR_UNFINISHED after the time-out. */
rgaps_status_t rgaps_sample_synchronize(const rgaps_sample_t *sample, uint64_t timeout_ns);

/* Makes work that you queue on `stream` from now on wait, on the GPU, for the work that writes the message. The block is not
 * reused before the work that is queued on `stream` when you release the sample has finished. If the publisher dies first,
 * `stream` continues and reads undefined bytes; afterwards rgaps_sample_is_ready() returns RGAPS_ERROR_ABORTED. */
rgaps_status_t rgaps_sample_wait_on(const rgaps_sample_t *sample, rgaps_stream_t stream);

/* Delays the release of the block until the work that is queued on `stream`, when you release the last clone, has finished.
 * `stream` must live as long as the sample and its clones. */
rgaps_status_t rgaps_sample_record_stream(const rgaps_sample_t *sample, rgaps_stream_t stream);

/* For GPU kernels that check by themselves whether the message is complete: the device address of two 64-bit numbers, and
 * the message's point. The message is complete if one of the two numbers is at least the point and has the same upper 32
 * bits. 0 and 0 if there is nothing to wait for; rgaps_sample_is_ready() then says whether the message is complete. */
rgaps_status_t rgaps_sample_gpu_point(const rgaps_sample_t *sample, uint64_t *address,
                                      uint64_t *point);

/* The size of the message in bytes. */
size_t rgaps_sample_bytes(const rgaps_sample_t *sample);

/* Copies `bytes` bytes, starting at byte `at` of the message, to host memory. The message may be in any domain. */
rgaps_status_t rgaps_sample_read(const rgaps_sample_t *sample, size_t at, void *to, size_t bytes);

/* The message's sequence number: each publisher counts its messages from 0. */
uint64_t rgaps_sample_sequence(const rgaps_sample_t *sample);

/* How many messages of its publisher the subscriber missed between the previous sample and this one. */
uint64_t rgaps_sample_missed(const rgaps_sample_t *sample);

/* The number that the publisher set with rgaps_loan_set_tag(); 0 if it set none. */
uint64_t rgaps_sample_tag(const rgaps_sample_t *sample);

/* When it was published, in nanoseconds of this host's CLOCK_MONOTONIC. For a message of another host, rgaps converts the time by
 * both hosts' wall clocks; as an int64_t it is negative if that was before this host started. */
uint64_t rgaps_sample_publish_ns(const rgaps_sample_t *sample);

/* A random number that identifies the publisher. */
uint64_t rgaps_sample_publisher_id(const rgaps_sample_t *sample);

/* Shape and element type, or RGAPS_ERROR_NO_TENSOR. */
rgaps_status_t rgaps_sample_tensor(const rgaps_sample_t *sample, rgaps_tensor_t *tensor);

/* The attachment, or the MessagePack bytes of the header; NULL and 0 if the message has neither. Valid until you release
 * the sample. */
rgaps_status_t rgaps_sample_attachment(const rgaps_sample_t *sample, const void **data,
                                       size_t *bytes);

/* Fields of the message's header. RGAPS_ERROR_NOT_FOUND if there is no header, or if it lacks this field or key;
 * RGAPS_ERROR_ARGUMENT if the value has another type; RGAPS_ERROR_PROTOCOL if the publisher marked bytes as a header
 * that do not decode. Texts are valid until you release the sample. rgaps_sample_header_double() also reads integers,
 * rgaps_sample_header_int() also reads booleans. */
rgaps_status_t rgaps_sample_capture_ns(const rgaps_sample_t *sample, uint64_t *capture_ns);
rgaps_status_t rgaps_sample_frame_id(const rgaps_sample_t *sample, const char **frame_id);
rgaps_status_t rgaps_sample_header_int(const rgaps_sample_t *sample, const char *key,
                                       int64_t *number);
rgaps_status_t rgaps_sample_header_double(const rgaps_sample_t *sample, const char *key,
                                          double *number);
rgaps_status_t rgaps_sample_header_text(const rgaps_sample_t *sample, const char *key,
                                        const char **words);

/* The number of the message's parts, and a part by its name or its number, which counts from 0; RGAPS_ERROR_NOT_FOUND if
 * there is no such part. The bytes of a part are at rgaps_sample_data() plus its offset; its name is valid until you
 * release the sample. */
size_t rgaps_sample_part_count(const rgaps_sample_t *sample);
rgaps_status_t rgaps_sample_part(const rgaps_sample_t *sample, const char *name,
                                 rgaps_part_t *part);
rgaps_status_t rgaps_sample_part_at(const rgaps_sample_t *sample, size_t index,
                                    rgaps_part_t *part);

/* "host" or "cuda:GPU-<uuid>"; valid until you release the sample. */
const char *rgaps_sample_domain(const rgaps_sample_t *sample);

/* Another handle of the same message; release both. */
rgaps_status_t rgaps_sample_clone(const rgaps_sample_t *sample, rgaps_sample_t **clone);

/* Releases the sample. After the last clone, the block is not reused before the work on all recorded streams
 * (rgaps_sample_wait_on(), rgaps_sample_record_stream()) has finished; without such streams, the work on the default
 * stream. */
rgaps_status_t rgaps_sample_release(rgaps_sample_t *sample);

/* The same, and also waits for the work on `stream`. If `stream` is not a stream, this fails and the sample is still held. */
rgaps_status_t rgaps_sample_release_on(rgaps_sample_t *sample, rgaps_stream_t stream);

/* ---- Wait sets: many subscribers at once ------------------------------------------------------- */

/* An empty wait set for the subscribers of `node`; NULL: the default node. */
rgaps_status_t rgaps_wait_set_create(rgaps_node_t *node, rgaps_wait_set_t **wait_set);

/* Destroys the wait set; its subscribers stay in their topics. */
void rgaps_wait_set_destroy(rgaps_wait_set_t *wait_set);

/* Adds a subscriber of the same node, and returns its token. A subscriber may be in one wait set at a time. If you destroy it
 * before you detach it, it stays in its topic until then. */
rgaps_status_t rgaps_wait_set_attach(rgaps_wait_set_t *wait_set, rgaps_subscriber_t *subscriber,
                                     size_t *token);

/* Removes a subscriber; RGAPS_ERROR_NOT_HELD if the wait set has no such token. */
rgaps_status_t rgaps_wait_set_detach(rgaps_wait_set_t *wait_set, size_t token);

/* Waits until at least one subscriber has a message. Writes the tokens of all that have one, at most `capacity` tokens, and
 * their number to `count`. RGAPS_ERROR_TIMED_OUT if no message arrives, RGAPS_ERROR_ARGUMENT if the wait set is empty. */
rgaps_status_t rgaps_wait_set_wait(rgaps_wait_set_t *wait_set, uint64_t timeout_ns, size_t *tokens,
                                   size_t capacity, size_t *count);

/* ---- Listeners: callbacks ---------------------------------------------------------------------- */

/* The listener calls this with each message, in a thread of its own. If `status` is not RGAPS_OK, there is no sample, and
 * rgaps_error_message() says why. The listener releases the sample when the handler returns: clone the sample to keep
 * it. The handler must not throw. It may destroy its own listener. */
typedef void (*rgaps_handler_t)(void *user, rgaps_status_t status, rgaps_sample_t *sample);

/* Calls `handler` with `user` for each message until the listener is destroyed. */
rgaps_status_t rgaps_listener_create(rgaps_subscriber_t *subscriber, rgaps_handler_t handler,
                                     void *user, rgaps_listener_t **listener);

/* ---- Match events: members that join and leave ----------------------------------------------------------- */

/* How many members of the other side match, and what has changed since the handler's last call. The names of the fields are
 * those of ROS 2. */
typedef struct rgaps_matched {
    uint64_t total_count;        /* members that have matched since the listener began; one that came and went between two calls
                                    may be missing */
    uint32_t total_count_change; /* how many of these began to match since the last call */
    uint32_t current_count;      /* members that match now */
    int32_t current_count_change; /* the difference to the last call; negative if fewer match */
    uint32_t reserved;
} rgaps_matched_t;

/* Called in a thread of the listener's own. It must not throw. It may destroy its own listener. */
typedef void (*rgaps_matched_handler_t)(void *user, const rgaps_matched_t *matched);

/* Calls `handler` with `user` and the subscribers that match already, if there are any, and then whenever subscribers come or go,
 * until the listener is destroyed or the publisher has left its topic. Subscribers on other hosts count, and observers such as
 * 'rgaps topic echo'. */
rgaps_status_t rgaps_publisher_on_matched(rgaps_publisher_t *publisher, rgaps_matched_handler_t handler,
                                          void *user, rgaps_listener_t **listener);

/* The same for the publishers of a subscriber. Those on other hosts count one by one. */
rgaps_status_t rgaps_subscriber_on_matched(rgaps_subscriber_t *subscriber, rgaps_matched_handler_t handler,
                                           void *user, rgaps_listener_t **listener);

/* Returns when the handler has returned and will not be called again; inside the handler it returns at once. */
void rgaps_listener_destroy(rgaps_listener_t *listener);

#ifdef __cplusplus
}
#endif

#endif
