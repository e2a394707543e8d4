/*
 * A communicator in its own library: Unix sockets with abstract names, which have no file, so processes that share a network
 * namespace and no folder can use them. Build it with
 *
 *     cc -shared -fPIC -I include -o abstract.so abstract.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <rgaps/communicator.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct abstract {
    int socket;
    socklen_t length;
    struct sockaddr_un address;
    char text[sizeof(((struct sockaddr_un *)0)->sun_path) + 10];
};

static struct abstract *make(const char *name, int socket) {
    struct abstract *self = calloc(1, sizeof *self);
    size_t length = strlen(name);
    if (self == NULL) return NULL;
    if (length == 0 || length + 1 > sizeof self->address.sun_path) {
        free(self);
        errno = ENAMETOOLONG;
        return NULL;
    }
    self->socket = socket;
    self->address.sun_family = AF_UNIX;
    /* A name that begins with a zero is abstract. */
    memcpy(self->address.sun_path + 1, name, length);
    self->length = offsetof(struct sockaddr_un, sun_path) + 1 + length;
    strcpy(self->text, "abstract/");
    strcat(self->text, name);
    return self;
}

static void *create(const char *name) {
    int one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct abstract *self = one < 0 ? NULL : make(name, one);
    if (self == NULL && one >= 0) close(one);
    return self;
}

static void destroy(void *object) {
    struct abstract *self = object;
    close(self->socket);
    free(self);
}

static int serve(void *object) {
    struct abstract *self = object;
    int bound = bind(self->socket, (struct sockaddr *)&self->address, self->length);
    return bound == 0 ? listen(self->socket, 16) : bound;
}

static void *accept_client(void *object) {
    struct abstract *self = object;
    int one = accept4(self->socket, NULL, NULL, SOCK_CLOEXEC);
    struct abstract *client = one < 0 ? NULL : make(self->address.sun_path + 1, one);
    if (client == NULL && one >= 0) close(one);
    return client;
}

static int connect_server(void *object) {
    struct abstract *self = object;
    return connect(self->socket, (struct sockaddr *)&self->address, self->length);
}

static ssize_t read_some(void *object, void *to, size_t bytes) {
    return recv(((struct abstract *)object)->socket, to, bytes, 0);
}

static ssize_t write_some(void *object, const void *from, size_t bytes) {
    return send(((struct abstract *)object)->socket, from, bytes, MSG_NOSIGNAL);
}

/* The kernel has everything already. */
static int sync_all(void *object) {
    (void)object;
    return 0;
}

static void close_both(void *object) {
    shutdown(((struct abstract *)object)->socket, SHUT_RDWR);
}

static const char *to_string(void *object) {
    return ((struct abstract *)object)->text;
}

const rgaps_communicator *rgaps_communicator_plugin(void) {
    static const rgaps_communicator methods = {
        .version = RGAPS_COMMUNICATOR_VERSION,
        .create = create,
        .destroy = destroy,
        .serve = serve,
        .accept = accept_client,
        .connect = connect_server,
        .read = read_some,
        .write = write_some,
        .sync = sync_all,
        .close = close_both,
        .to_string = to_string,
    };
    return &methods;
}
