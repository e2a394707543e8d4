// Small CUDA programs, many in a file: `./file NAME` runs one, `./file` lists them.
//
// A case prints what it finds with SAY, so that a run on a GPU can be compared with a run on another host's, and fails with the line of
// the first EXPECT that does not hold. Kernels keep to what the test driver interprets.
#pragma once
#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

struct Case {
    const char *name;
    void (*body)();
};

inline std::vector<Case> &cases() {
    static std::vector<Case> all;
    return all;
}

struct Added {
    Added(const char *name, void (*body)()) { cases().push_back({name, body}); }
};

#define CASE(name)                                   \
    static void name();                              \
    static Added name##_added(#name, name);          \
    static void name()

#define SAY(...) (printf(__VA_ARGS__), printf("\n"))

#define EXPECT(condition)                                                                    \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            printf("%s:%d: not so: %s\n", strrchr("/" __FILE__, '/') + 1, __LINE__, #condition); \
            fflush(stdout);                                                                  \
            _Exit(1);                                                                        \
        }                                                                                    \
    } while (0)

// The name of an error, or the end of the program where it is another.
#define GIVES(wanted, call)                                                                                            \
    do {                                                                                                               \
        cudaError_t given_ = (call);                                                                                   \
        if (given_ != (wanted)) {                                                                                      \
            printf("%s:%d: %s gives %s\n", strrchr("/" __FILE__, '/') + 1, __LINE__, #call, cudaGetErrorName(given_)); \
            fflush(stdout);                                                                                            \
            _Exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define OK(call) GIVES(cudaSuccess, call)

// Memory of the device that holds a copy of a vector.
template <typename T> T *on_device(const std::vector<T> &values) {
    T *address = nullptr;
    OK(cudaMalloc(&address, values.size() * sizeof(T)));
    OK(cudaMemcpy(address, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    // A copy from pageable memory may still be on its way, and streams that do not block would not wait for it.
    OK(cudaDeviceSynchronize());
    return address;
}

template <typename T> std::vector<T> from_device(const T *address, size_t count) {
    std::vector<T> values(count);
    OK(cudaMemcpy(values.data(), address, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

inline std::vector<int> numbers(int count, int first = 0) {
    std::vector<int> all(count);
    for (int i = 0; i < count; i++) all[i] = first + i;
    return all;
}

inline unsigned checksum(const void *start, size_t bytes) {
    unsigned sum = 2166136261u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const unsigned char *)start)[i]) * 16777619u;
    return sum;
}

int main(int count, char **words) {
    if (count < 2) {
        for (const Case &one : cases()) printf("%s\n", one.name);
        return 0;
    }
    for (const Case &one : cases()) {
        if (!strcmp(one.name, words[1])) {
            one.body();
            return 0;
        }
    }
    fprintf(stderr, "no case %s\n", words[1]);
    return 2;
}
