// What the stand-ins for NVIDIA's libraries share: work in the order of a stream, on the test driver's memory.
//
// They are loaded by the server's backend in place of the real ones, and compute with plain loops. They check what the real ones check of
// the functions that tests call, and export nothing else.
#pragma once
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int (*LaunchHost)(void *stream, void (*function)(void *), void *data);

// Runs a function on a copy of its arguments when the stream reaches it.
static int fake_queue(void *stream, void (*function)(void *), const void *arguments, size_t bytes) {
    static LaunchHost launch;
    if (!launch) {
        void *driver = dlopen(getenv("RGAPS_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
        launch = driver ? (LaunchHost)dlsym(driver, "cuLaunchHostFunc") : NULL;
        if (!launch) return -1;
    }
    // Never freed: a graph may run it again.
    void *copy = malloc(bytes);
    memcpy(copy, arguments, bytes);
    return launch(stream, function, copy);
}

// Waits for a stream.
static inline int fake_wait(void *stream) {
    void *driver = dlopen(getenv("RGAPS_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    int (*wait)(void *) = driver ? (int (*)(void *))dlsym(driver, "cuStreamSynchronize") : NULL;
    return wait ? wait(stream) : -1;
}
