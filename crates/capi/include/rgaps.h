/*
 * rgaps: publish and subscribe messages in host and GPU memory without copies.
 *
 * A publisher's messages lie in a shared pool, in host memory or in the memory of a GPU; its
 * subscribers, in other processes, read the same bytes. A message stays as it is for as long as
 * someone holds it.
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
 *               rgaps_error_message() then says what happened and what to do. What a function
 *               creates it writes to its last arguments, and NULL or 0 where it fails.
 *   Handles     are opaque. Destroying or releasing NULL does nothing; destroying something twice
 *               does nothing but leave a message (it is an error where a code is returned). No
 *               handle may be used after it was destroyed, nor be destroyed while another thread's
 *               call uses it.
 *   Pointers    to text, bytes, arrays and structures point to as much as the function is told, or
 *               as a structure's size says. It stays valid, and no one changes it, until the function
 *               returns (or until the work is done that a stream was given with it). What a function
 *               writes to is its own until it returns.
 *   Order       Handles may be destroyed in any order: what they stand for lives on while a loan,
 *               sample, publisher or subscriber needs it.
 *   Threads     Publishers, subscribers and nodes may be used by several threads at a time. A loan,
 *               a sample's handle and a wait set are used by one thread at a time.
 *   fork()      In a forked child, what was created before refuses with RGAPS_ERROR_FORKED; the
 *               child can create handles of its own.
 *   Time        is in nanoseconds. A time-out of 0 does not wait, RGAPS_FOREVER has no end.
 *   Text        is UTF-8 and ends with a 0 byte. Text that is returned stays valid until its handle
 *               is destroyed.
 *   Addresses   of messages in the memory of a GPU are device pointers (CUdeviceptr).
 *   Streams     A stream (CUstream, cudaStream_t) orders publishing and releasing after the work
 *               that was queued on it; NULL is the default stream. Nothing waits for that work on
 *               the CPU, but where this GPU's driver cannot order streams ('rgaps doctor' says so):
 *               a message may be received while the work that writes it is still queued. What gives
 *               its bytes waits for them: on the CPU (rgaps_subscriber_pull(), rgaps_sample_data(),
 *               rgaps_sample_read(), rgaps_sample_synchronize()), or on a stream of the reader's
 *               (rgaps_sample_data_on(), rgaps_sample_wait_on()). A message whose publisher died
 *               before the work had finished is RGAPS_ERROR_ABORTED. A stream that captures a graph
 *               is refused. In host memory streams are not used.
 *   Options     A structure of options starts with its size, so that programs that were compiled
 *               with an older header go on working. Set it, and leave 0 in every field that is to
 *               have its default value:
 *                   rgaps_publisher_options_t options = {.size = sizeof options};
 */
#ifndef RGAPS_H
#define RGAPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. rgaps_version() is that of the library. */
#define RGAPS_VERSION_MAJOR 0
#define RGAPS_VERSION_MINOR 1
#define RGAPS_VERSION_PATCH 0

/* A time-out without end. */
#define RGAPS_FOREVER UINT64_MAX

/* Most dimensions of a tensor. */
#define RGAPS_MAX_DIMS 8

/* Most bytes of an attachment; a header is an attachment, too. */
#define RGAPS_MAX_ATTACHMENT_BYTES 4096

/* Most parts of a message, and the longest name of one, in bytes without the 0 at its end. */
#define RGAPS_MAX_PARTS 32
#define RGAPS_MAX_PART_NAME 63

/* RGAPS_OK, or one of the codes below; libraries that are newer than this header may have more. */
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
    /* Reliable subscribers made no room before the publisher's deadline. Nothing was published. */
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
    RGAPS_ERROR_DAEMON_GONE = -13,
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

/* The library's version, as "0.1.0". */
const char *rgaps_version(void);

/* The name of a code, as "RGAPS_ERROR_TIMED_OUT"; "RGAPS_ERROR_?" for one that is not known. */
const char *rgaps_status_name(rgaps_status_t status);

/* What happened in this thread's last failed call, why, and what to do; "" before any call
 * has failed. Valid until this thread's next failed call. */
const char *rgaps_error_message(void);

/* ---- Nodes ---------------------------------------------------------------------------------
 * A node is a process's connection to the daemon of its host, which it starts if there is none.
 * Publishers and subscribers use the process's default node unless their options name another. The
 * default node is made, with the configuration of this machine and user, when it is first needed,
 * and ends with its last publisher and subscriber. */

typedef struct rgaps_node_options {
    size_t size;             /* sizeof(rgaps_node_options_t) */
    const char *config_file; /* NULL: rgaps.toml where it is looked for, and the environment */
    const char *socket;      /* path of the daemon's socket; NULL: as configured */
    const char *realm;       /* NULL: as configured */
} rgaps_node_options_t;

/* Connects to the daemon, or starts it. `name` is what listings call the process, at most 63
 * bytes; NULL: the program's name. `options` may be NULL. */
rgaps_status_t rgaps_node_create(const char *name, const rgaps_node_options_t *options,
                                 rgaps_node_t **node);
void rgaps_node_destroy(rgaps_node_t *node);

/* ---- Tensors -------------------------------------------------------------------------------- */

/* An element type, as DLPack's DLDataType. */
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
    const char *name;      /* 1 to RGAPS_MAX_PART_NAME bytes of UTF-8; no two parts have the same */
    rgaps_tensor_t tensor; /* shape and element type */
    size_t offset;         /* bytes from the message's first byte to the part's; a multiple of 256 */
    size_t bytes;          /* bytes of the part */
} rgaps_part_t;

/* The element type of a name: "uint8", "float32", "bfloat16" and so on, as numpy and torch write
 * them. */
rgaps_status_t rgaps_dtype_parse(const char *name, rgaps_dtype_t *dtype);

/* A tensor in row-major order, and how many bytes it has. `bytes` may be NULL. */
rgaps_status_t rgaps_tensor_contiguous(rgaps_dtype_t dtype, uint32_t ndim, const uint64_t *shape,
                                       rgaps_tensor_t *tensor, size_t *bytes);

/* ---- Paths -----------------------------------------------------------------------------------
 * How messages get from a publisher to a subscriber. Both may require a path: whoever joins second is
 * refused with RGAPS_ERROR_PATH_TOO_SLOW where the path between them is slower than either requires;
 * rgaps_error_message() says which path it is, and why it is no better. What is required of other hosts
 * is seen to by the links between them: 'rgaps topic info' says which hosts are not served, and why. */

/* From the slowest to the fastest; numbers stay as they are, so they do not have that order. */
enum rgaps_path {
    RGAPS_PATH_ANY = 0,      /* nothing is required */
    RGAPS_PATH_TCP = 1,      /* to another host, through its TCP stack */
    RGAPS_PATH_RDMA = 2,     /* to another host's memory, through the memory of the hosts */
    /* From a GPU's memory to that of another host's, which network cards read and write themselves. */
    RGAPS_PATH_GPUDIRECT = 6,
    RGAPS_PATH_PINNED = 3,   /* between a GPU and the host, or two GPUs that are no peers */
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
     * "cuda:GPU-<uuid>"; "auto": its first GPU if it can be used, else the host. NULL: where the
     * topic's messages do, or on the host. */
    const char *domain;
    const char *type_name;    /* of the messages, the same for all members of the topic; NULL: any */
    uint32_t history_messages; /* kept for slow and late subscribers; 0: 16, or with
                                  history_bytes as many as can be */
    uint32_t max_loans;       /* open at once; 0: 64 */
    uint64_t history_bytes;   /* 0: keeps the last history_messages messages; else all, up to
                                 this sum of bytes and that number */
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
void rgaps_publisher_destroy(rgaps_publisher_t *publisher);

/* Publishes a copy of `bytes` bytes from `data`, any host or device pointer of this process. First
 * waits for the work queued on the default stream. When the call returns, `data` may be used
 * again. */
rgaps_status_t rgaps_publisher_push(rgaps_publisher_t *publisher, const void *data, size_t bytes);

/* Like rgaps_publisher_push(), but behind the work queued on `stream`, without waiting for it: `data` in GPU memory, or
 * pinned, may be changed by what is queued on `stream` later, or once `stream` has passed the copy. */
rgaps_status_t rgaps_publisher_push_on(rgaps_publisher_t *publisher, const void *data, size_t bytes,
                                       rgaps_stream_t stream);

/* Waits until `count` subscribers match the publisher, or RGAPS_ERROR_TIMED_OUT; rgaps_error_message() then names
 * hosts whose subscribers are not reached, and why. */
rgaps_status_t rgaps_publisher_wait_for_subscribers(rgaps_publisher_t *publisher, uint32_t count,
                                                    uint64_t timeout_ns);

/* Subscribers that match the publisher now; 0 for NULL. */
uint32_t rgaps_publisher_subscribers(const rgaps_publisher_t *publisher);

/* Subscribers of the topic on this host that do not match the publisher, and get none of its messages: they
 * expect another type, or request what it does not offer. 0 for NULL. 'rgaps topic info' names the reasons. */
uint32_t rgaps_publisher_mismatched(const rgaps_publisher_t *publisher);

/* "host" or "cuda:GPU-<uuid>". */
const char *rgaps_publisher_domain(const rgaps_publisher_t *publisher);

/* Returns unused memory to the pools, except for `keep_bytes` in each. `freed_bytes` may be
 * NULL. */
rgaps_status_t rgaps_publisher_trim(rgaps_publisher_t *publisher, uint64_t keep_bytes,
                                    uint64_t *freed_bytes);

/* ---- Loans: messages that are written where they will be read --------------------------------- */

/* Loans a block of `bytes` bytes, aligned to 256. Its contents are undefined until they are written. */
rgaps_status_t rgaps_publisher_loan(rgaps_publisher_t *publisher, size_t bytes, rgaps_loan_t **loan);

/* Like rgaps_publisher_loan(), at a multiple of `alignment`, a power of two of up to 2 MiB. */
rgaps_status_t rgaps_publisher_loan_aligned(rgaps_publisher_t *publisher, size_t bytes,
                                            size_t alignment, rgaps_loan_t **loan);

/* A block for `count` arrays. Of each part `name` and `tensor` say which; the strides are not used, the parts are
 * in row-major order. `offset` and `bytes` are written, and the strides: fill each part at
 * rgaps_loan_data() plus its offset. */
rgaps_status_t rgaps_publisher_loan_parts(rgaps_publisher_t *publisher, rgaps_part_t *parts,
                                          size_t count, rgaps_loan_t **loan);

/* The block's address, to be written to until the loan is published or dropped. NULL for NULL, or
 * if the loan was lost. */
void *rgaps_loan_data(rgaps_loan_t *loan);

/* Its bytes; 0 for NULL. */
size_t rgaps_loan_bytes(const rgaps_loan_t *loan);

/* Copies bytes into the loan from byte `at` on, from any host or device pointer. */
rgaps_status_t rgaps_loan_write(rgaps_loan_t *loan, size_t at, const void *data, size_t bytes);

/* Shortens the message to its first `bytes` bytes. */
rgaps_status_t rgaps_loan_truncate(rgaps_loan_t *loan, size_t bytes);

/* Sets a number that travels with the message; its meaning is yours. Default: 0. */
rgaps_status_t rgaps_loan_set_tag(rgaps_loan_t *loan, uint64_t tag);

/* Describes the message as a tensor, which must not be larger than the loan. */
rgaps_status_t rgaps_loan_set_tensor(rgaps_loan_t *loan, const rgaps_tensor_t *tensor);

/* Attaches bytes of your own that travel beside the message, at most RGAPS_MAX_ATTACHMENT_BYTES. They replace
 * an attachment or a header that was set before; 0 bytes remove it. */
rgaps_status_t rgaps_loan_set_attachment(rgaps_loan_t *loan, const void *data, size_t bytes);

/* The message's header, which replaces an attachment: when the data was captured (nanoseconds since 1970-01-01
 * UTC), the coordinate frame or sensor that it belongs to, and keys of your own. The header is written in
 * MessagePack and has RGAPS_MAX_ATTACHMENT_BYTES at most. */
rgaps_status_t rgaps_loan_set_capture_ns(rgaps_loan_t *loan, uint64_t capture_ns);
rgaps_status_t rgaps_loan_set_frame_id(rgaps_loan_t *loan, const char *frame_id);
rgaps_status_t rgaps_loan_set_int(rgaps_loan_t *loan, const char *key, int64_t value);
rgaps_status_t rgaps_loan_set_double(rgaps_loan_t *loan, const char *key, double value);
rgaps_status_t rgaps_loan_set_text(rgaps_loan_t *loan, const char *key, const char *value);

/* Publishes the loan behind the work queued on the default stream. Where it succeeds the handle is
 * gone; where it fails the handle remains, to be published again or dropped. `sequence`, the
 * message's number among the publisher's, may be NULL. */
rgaps_status_t rgaps_loan_publish(rgaps_loan_t *loan, uint64_t *sequence);

/* The same behind the work queued on `stream`. Reliable subscribers are waited for before anything is
 * queued there. */
rgaps_status_t rgaps_loan_publish_on(rgaps_loan_t *loan, rgaps_stream_t stream, uint64_t *sequence);

/* Gives the block back without publishing it. Where publishing on a stream failed, work queued there
 * may still write it, and else work on the default stream: it is kept until that has finished. */
void rgaps_loan_drop(rgaps_loan_t *loan);

/* The same, kept until the work queued on `stream` so far has finished. */
rgaps_status_t rgaps_loan_drop_on(rgaps_loan_t *loan, rgaps_stream_t stream);

/* ---- Subscribers ------------------------------------------------------------------------------ */

/* What a subscriber gets of what was published before it joined; more than nothing needs publishers
 * with transient_local. */
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
    uint32_t depth;         /* of the messages that wait, the newest so many; others are skipped and
                               missed. 1: the newest. 0: all that publishers keep */
    uint32_t late;          /* enum rgaps_late */
    uint32_t late_messages; /* for RGAPS_LATE_LAST */
    uint32_t max_held;      /* samples held at once, pulled or received; 0: 64; at most 4096 */
    uint32_t require;       /* enum rgaps_path: the slowest acceptable path from publishers */
    uint64_t spin_ns;       /* how long waiting spins before it sleeps; 0: 20 us, 1: not at all */
} rgaps_subscriber_options_t;

/* Joins `topic` as a subscriber. `options` may be NULL. */
rgaps_status_t rgaps_subscriber_create(const char *topic, const rgaps_subscriber_options_t *options,
                                       rgaps_subscriber_t **subscriber);

/* Leaves the topic and releases all pulled pointers; samples that were received stay valid. */
void rgaps_subscriber_destroy(rgaps_subscriber_t *subscriber);

/* Takes the next message, waiting for it and for the work that writes it, or RGAPS_ERROR_TIMED_OUT;
 * then the next call gives it. After RGAPS_ERROR_ABORTED it gives the one behind. `*data` is its first byte, a device pointer where the topic lives on a GPU, and stays readable and unchanged
 * until it is released. `bytes` may be NULL. */
rgaps_status_t rgaps_subscriber_pull(rgaps_subscriber_t *subscriber, uint64_t timeout_ns,
                                     const void **data, size_t *bytes);

/* The size of a message that was pulled and not released. */
rgaps_status_t rgaps_subscriber_pulled_bytes(rgaps_subscriber_t *subscriber, const void *data,
                                             size_t *bytes);

/* Releases a pulled message; NULL: all of them. Releasing one twice is RGAPS_ERROR_NOT_HELD. */
rgaps_status_t rgaps_subscriber_release(rgaps_subscriber_t *subscriber, const void *data);

/* Takes the next message as a sample, or RGAPS_ERROR_TIMED_OUT. */
rgaps_status_t rgaps_subscriber_recv(rgaps_subscriber_t *subscriber, uint64_t timeout_ns,
                                     rgaps_sample_t **sample);

/* Takes the next message, if there is one, or RGAPS_ERROR_EMPTY. */
rgaps_status_t rgaps_subscriber_try_recv(rgaps_subscriber_t *subscriber, rgaps_sample_t **sample);

/* Waits until there is a message, without taking it, or RGAPS_ERROR_TIMED_OUT. */
rgaps_status_t rgaps_subscriber_wait(rgaps_subscriber_t *subscriber, uint64_t timeout_ns);

/* A descriptor that is readable while there are messages, for poll() and event loops: take messages
 * with try_recv until it is empty, and neither read nor close the descriptor, which is the
 * subscriber's. */
rgaps_status_t rgaps_subscriber_fd(rgaps_subscriber_t *subscriber, int *fd);

/* Messages missed so far; 0 for NULL. */
uint64_t rgaps_subscriber_missed(const rgaps_subscriber_t *subscriber);

/* Publishers of the topic that do not match the subscriber, which gets none of their messages: they publish
 * another type, or do not offer what it asks for. 0 for NULL. 'rgaps topic info' names the reasons. */
uint32_t rgaps_subscriber_mismatched(const rgaps_subscriber_t *subscriber);

/* Samples held now, clones counted once; 0 for NULL. */
uint32_t rgaps_subscriber_held(const rgaps_subscriber_t *subscriber);

/* ---- Samples: messages with what is known of them ---------------------------------------------
 * The functions without a code give 0 or NULL for NULL. */

/* The first byte: readable and unchanged until the sample and its clones are released. Waits on the CPU
 * for the work that writes the bytes, for 10 s at most; NULL where it does not finish. */
const void *rgaps_sample_data(const rgaps_sample_t *sample);

/* The same for work that is queued on `stream` from here on, without waiting: see
 * rgaps_sample_wait_on(). NULL where that fails. */
const void *rgaps_sample_data_on(const rgaps_sample_t *sample, rgaps_stream_t stream);

/* Whether the work that writes the bytes has finished (1), or not yet (0), or RGAPS_ERROR_ABORTED. */
rgaps_status_t rgaps_sample_is_ready(const rgaps_sample_t *sample, uint32_t *ready);

/* Waits on the CPU until it has, or RGAPS_ERROR_UNFINISHED in time, or RGAPS_ERROR_ABORTED. */
rgaps_status_t rgaps_sample_synchronize(const rgaps_sample_t *sample, uint64_t timeout_ns);

/* Has the work that is queued on `stream` from here on wait for the work that writes the bytes, and keeps
 * the message until `stream` has passed the point where it is released. If the publisher dies
 * before, `stream` goes on, reads anything, and rgaps_sample_is_ready() says so afterwards. */
rgaps_status_t rgaps_sample_wait_on(const rgaps_sample_t *sample, rgaps_stream_t stream);

/* Keeps the message, after it and its clones are released, until the work queued on `stream` by then has
 * finished. The stream lives at least as long as they. */
rgaps_status_t rgaps_sample_record_stream(const rgaps_sample_t *sample, rgaps_stream_t stream);

/* Where kernels find how far the message is: the device address of two 64-bit numbers, and a point. The
 * message is whole if the first number is at least the point and has the same upper 32 bits, or else if
 * the second is and has. 0 and 0: there is nothing to look at, rgaps_sample_is_ready() says all. */
rgaps_status_t rgaps_sample_gpu_point(const rgaps_sample_t *sample, uint64_t *address,
                                      uint64_t *point);

size_t rgaps_sample_bytes(const rgaps_sample_t *sample);

/* Copies bytes from byte `at` on to host memory, from whichever domain. */
rgaps_status_t rgaps_sample_read(const rgaps_sample_t *sample, size_t at, void *to, size_t bytes);

/* Number among its publisher's messages, from 0. */
uint64_t rgaps_sample_sequence(const rgaps_sample_t *sample);

/* Messages of its publisher that were missed just before it. */
uint64_t rgaps_sample_missed(const rgaps_sample_t *sample);

/* The publisher's number of its own. */
uint64_t rgaps_sample_tag(const rgaps_sample_t *sample);

/* CLOCK_MONOTONIC when it was published. */
uint64_t rgaps_sample_publish_ns(const rgaps_sample_t *sample);

/* A random number that is its publisher's own. */
uint64_t rgaps_sample_publisher_id(const rgaps_sample_t *sample);

/* Shape and element type, or RGAPS_ERROR_NO_TENSOR. */
rgaps_status_t rgaps_sample_tensor(const rgaps_sample_t *sample, rgaps_tensor_t *tensor);

/* The bytes that travelled beside the message, those of a header in MessagePack; NULL and 0 where there are none.
 * Valid until the sample is released. */
rgaps_status_t rgaps_sample_attachment(const rgaps_sample_t *sample, const void **data,
                                       size_t *bytes);

/* What the message's header says, or RGAPS_ERROR_NOT_FOUND where there is no header, or not this in it;
 * RGAPS_ERROR_ARGUMENT where the key's value is of another type; RGAPS_ERROR_PROTOCOL where the publisher marked
 * bytes as a header that are none. Texts are valid until the sample is released. A double is also what an integer is
 * read as, an int also a boolean. */
rgaps_status_t rgaps_sample_capture_ns(const rgaps_sample_t *sample, uint64_t *capture_ns);
rgaps_status_t rgaps_sample_frame_id(const rgaps_sample_t *sample, const char **frame_id);
rgaps_status_t rgaps_sample_header_int(const rgaps_sample_t *sample, const char *key,
                                       int64_t *number);
rgaps_status_t rgaps_sample_header_double(const rgaps_sample_t *sample, const char *key,
                                          double *number);
rgaps_status_t rgaps_sample_header_text(const rgaps_sample_t *sample, const char *key,
                                        const char **words);

/* The message's parts: how many there are, and one by its name or its number from 0, or
 * RGAPS_ERROR_NOT_FOUND. A part's bytes are at rgaps_sample_data() plus its offset; its name is valid until the
 * sample is released. */
size_t rgaps_sample_part_count(const rgaps_sample_t *sample);
rgaps_status_t rgaps_sample_part(const rgaps_sample_t *sample, const char *name,
                                 rgaps_part_t *part);
rgaps_status_t rgaps_sample_part_at(const rgaps_sample_t *sample, size_t index,
                                    rgaps_part_t *part);

/* "host" or "cuda:GPU-<uuid>"; valid until the sample is released. */
const char *rgaps_sample_domain(const rgaps_sample_t *sample);

/* Another handle of the same message, released by itself. */
rgaps_status_t rgaps_sample_clone(const rgaps_sample_t *sample, rgaps_sample_t **clone);

/* Lets go: the message is kept until work on the streams that were recorded (rgaps_sample_wait_on(),
 * rgaps_sample_record_stream()) has finished; where there are none, that on the default stream. */
rgaps_status_t rgaps_sample_release(rgaps_sample_t *sample);

/* The same, and that on `stream`. Where `stream` is none the sample is still held. */
rgaps_status_t rgaps_sample_release_on(rgaps_sample_t *sample, rgaps_stream_t stream);

/* ---- Wait sets: many subscribers at once ------------------------------------------------------- */

/* An empty wait set for the subscribers of `node`; NULL: the default node. */
rgaps_status_t rgaps_wait_set_create(rgaps_node_t *node, rgaps_wait_set_t **wait_set);
void rgaps_wait_set_destroy(rgaps_wait_set_t *wait_set);

/* Adds a subscriber of the same node, and gives its token. A subscriber is in one wait set at a
 * time. One that is destroyed meanwhile stays in its topic until it is detached. */
rgaps_status_t rgaps_wait_set_attach(rgaps_wait_set_t *wait_set, rgaps_subscriber_t *subscriber,
                                     size_t *token);

/* Takes a subscriber out, or RGAPS_ERROR_NOT_HELD. */
rgaps_status_t rgaps_wait_set_detach(rgaps_wait_set_t *wait_set, size_t token);

/* Waits until some subscribers have messages, or RGAPS_ERROR_TIMED_OUT, and writes their tokens,
 * `capacity` of them at most; `count` is how many. */
rgaps_status_t rgaps_wait_set_wait(rgaps_wait_set_t *wait_set, uint64_t timeout_ns, size_t *tokens,
                                   size_t capacity, size_t *count);

/* ---- Listeners: callbacks ---------------------------------------------------------------------- */

/* Called with each message in a thread of the listener's. `status` is RGAPS_OK, or why there is no
 * sample; rgaps_error_message() then says more. The sample is released when the handler returns: to
 * keep it, clone it. The handler must not throw. It may destroy its own listener. */
typedef void (*rgaps_handler_t)(void *user, rgaps_status_t status, rgaps_sample_t *sample);

/* Calls `handler` with `user` for each message until the listener is destroyed. */
rgaps_status_t rgaps_listener_create(rgaps_subscriber_t *subscriber, rgaps_handler_t handler,
                                     void *user, rgaps_listener_t **listener);

/* Returns when the handler has returned and will not be called again (unless called in the
 * handler). */
void rgaps_listener_destroy(rgaps_listener_t *listener);

#ifdef __cplusplus
}
#endif

#endif
