/*
 * A communicator of GPU remoting in a library of its own: how the bytes of `rgaps gpu` get from a client to its server and back.
 *
 * The configuration of both hosts names the library, and an address mentions it:
 *
 *     [gpu.communicators]
 *     abstract = "/usr/lib/rgaps/abstract.so"
 *
 *     rgaps gpu serve --listen abstract/gpu        rgaps gpu run --on abstract/gpu -- ./program
 *
 * The methods are those of GVirtuS's communicators: Serve, Accept, Connect, Read, Write, Sync, Close, to_string. An object is an endpoint that
 * listens, or one end of a connection, on which bytes keep their order. Methods may be called from any thread and from several at a
 * time, except that one thread reads and one writes. A method that fails sets errno.
 */
#ifndef RGAPS_COMMUNICATOR_H
#define RGAPS_COMMUNICATOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RGAPS_COMMUNICATOR_VERSION 1

typedef struct rgaps_communicator {
    /* RGAPS_COMMUNICATOR_VERSION, and 0. */
    uint32_t version;
    uint32_t reserved;
    /* Makes an object for what follows the slash of an address; NULL fails. */
    void *(*create)(const char *address);
    void (*destroy)(void *self);
    /* Begins to listen; 0, or -1. */
    int (*serve)(void *self);
    /* Waits for a client; the server's end of its connection, or NULL. */
    void *(*accept)(void *self);
    /* Connects to the server; 0, or -1. */
    int (*connect)(void *self);
    /* Some bytes: how many, 0 if the other end has closed, or -1. Waits for the first one. */
    ssize_t (*read)(void *self, void *to, size_t bytes);
    /* Takes some bytes: how many, at least one, or -1. Waits until there is room for one. */
    ssize_t (*write)(void *self, const void *from, size_t bytes);
    /* Sends what was written and is still here; 0, or -1. */
    int (*sync)(void *self);
    /* Ends both directions: methods that wait return, and so does the other end's read. The object stays until destroy. */
    void (*close)(void *self);
    /* Where it listens or where the other end is, for people; stays until destroy. */
    const char *(*to_string)(void *self);
} rgaps_communicator;

/* The library exports this. What it returns stays. */
const rgaps_communicator *rgaps_communicator_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
