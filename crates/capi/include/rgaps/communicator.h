/*
 * The interface of a communicator for GPU remoting: a shared library that carries the bytes between a client of `rgaps gpu` and its server.
 *
 * The configuration of both hosts names the library, and an address mentions it:
 *
 *     [gpu.communicators]
 *     abstract = "/usr/lib/rgaps/abstract.so"
 *
 *     rgaps gpu serve --listen abstract/gpu        rgaps gpu run --on abstract/gpu -- ./program
 *
 * The methods are those of GVirtuS's communicators: Serve, Accept, Connect, Read, Write, Sync, Close, to_string. An object is an endpoint that
 * listens, or one end of a connection, on which bytes keep their order. Several threads may call methods at the same time, but at most
 * one reads and one writes. A method that fails sets errno.
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
    /* Creates an object for the part of an address behind its slash. NULL: failed. */
    void *(*create)(const char *address);
    void (*destroy)(void *self);
    /* Begins to listen. Returns 0, or -1 if that failed. */
    int (*serve)(void *self);
    /* Waits for a client. Returns the server's end of its connection, or NULL if that failed. */
    void *(*accept)(void *self);
    /* Connects to the server. Returns 0, or -1 if that failed. */
    int (*connect)(void *self);
    /* Waits for at least one byte, and reads up to `bytes`. Returns how many, 0 if the other end has closed, or -1 if it failed. */
    ssize_t (*read)(void *self, void *to, size_t bytes);
    /* Waits until there is room for at least one byte, and takes up to `bytes`. Returns how many, or -1 if it failed. */
    ssize_t (*write)(void *self, const void *from, size_t bytes);
    /* Sends all written bytes that this side still buffers. Returns 0, or -1 if that failed. */
    int (*sync)(void *self);
    /* Ends both directions: methods that wait return, and so does the other end's read. The object stays valid until destroy(). */
    void (*close)(void *self);
    /* The address of the listener or of the other end, for people. The text stays valid until destroy(). */
    const char *(*to_string)(void *self);
} rgaps_communicator;

/* The library exports this function. The structure that it returns stays valid while the library is loaded. */
const rgaps_communicator *rgaps_communicator_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
