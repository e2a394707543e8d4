// Several threads of one program.
#include "case.h"
#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

__global__ void add(int *to, int value) { atomicAdd(to, value); }
__global__ void spin(long long ns) {
    long long begun = clock64();
    while (clock64() - begun < ns) {
    }
}

static void together(int count, void (*body)(int)) {
    std::vector<std::thread> all;
    for (int i = 0; i < count; i++) all.emplace_back(body, i);
    for (auto &one : all) one.join();
}
static int *place;

CASE(threads_allocate_and_copy) {
    together(8, [](int number) {
        for (int round = 0; round < 20; round++) {
            auto values = numbers(500, number * 1000 + round);
            int *address = on_device(values);
            EXPECT(from_device(address, 500) == values);
            OK(cudaFree(address));
        }
    });
}
CASE(threads_launch) {
    place = on_device(std::vector<int>(1));
    together(8, [](int) {
        for (int i = 0; i < 100; i++) add<<<1, 1>>>(place, 1);
        OK(cudaGetLastError());
        OK(cudaDeviceSynchronize());
    });
    EXPECT(from_device(place, 1)[0] == 800);
}
CASE(threads_with_streams_of_their_own) {
    together(6, [](int number) {
        cudaStream_t stream;
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        int *address = on_device(std::vector<int>(1));
        for (int i = 0; i < 50; i++) add<<<1, 1, 0, stream>>>(address, number);
        OK(cudaStreamSynchronize(stream));
        EXPECT(from_device(address, 1)[0] == 50 * number);
        OK(cudaStreamDestroy(stream));
    });
}
CASE(each_thread_has_its_last_error) {
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(1000));
    together(1, [](int) {
        OK(cudaGetLastError());
        GIVES(cudaErrorInvalidValue, cudaFree((void *)8));
    });
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());
}
CASE(a_thread_that_waits_holds_nobody_up) {
    cudaStream_t slow;
    OK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking));
    spin<<<1, 1, 0, slow>>>(400000000);
    OK(cudaGetLastError());
    std::atomic<bool> waits{true};
    std::thread other([&] {
        OK(cudaStreamSynchronize(slow));
        waits = false;
    });
    int calls = 0;
    while (waits && calls < 50) {
        cudaStream_t quick;
        OK(cudaStreamCreateWithFlags(&quick, cudaStreamNonBlocking));
        OK(cudaStreamSynchronize(quick));
        OK(cudaStreamDestroy(quick));
        calls++;
    }
    other.join();
    EXPECT(calls >= 2);
}
CASE(memory_crosses_threads) {
    together(1, [](int) { place = on_device(numbers(100)); });
    EXPECT(from_device(place, 100) == numbers(100));
    OK(cudaFree(place));
}
CASE(per_thread_streams_are_apart) {
    place = on_device(std::vector<int>(1));
    together(4, [](int) {
        for (int i = 0; i < 25; i++) add<<<1, 1, 0, cudaStreamPerThread>>>(place, 1);
        OK(cudaStreamSynchronize(cudaStreamPerThread));
    });
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(place, 1)[0] == 100);
}
CASE(many_short_threads) {
    for (int round = 0; round < 30; round++) {
        together(4, [](int) {
            int device;
            OK(cudaGetDevice(&device));
            OK(cudaDeviceSynchronize());
        });
    }
}
CASE(a_forked_child_is_refused) {
    OK(cudaFree(0));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int *address;
        _exit(cudaMalloc(&address, 4) == cudaErrorInitializationError ? 0 : 1);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    int *address;
    OK(cudaMalloc(&address, 4));
}
CASE(a_child_forked_before_may_use_it) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int *address;
        _exit(cudaMalloc(&address, 4) == cudaSuccess ? 0 : 1);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    OK(cudaFree(0));
}
CASE(large_copies_of_many_threads) {
    // More copies at a time than there are slots for.
    std::vector<std::thread> all;
    for (int number = 0; number < 12; number++) {
        all.emplace_back([number] {
            cudaStream_t stream;
            OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            const int count = 700000;
            int *address;
            OK(cudaMalloc(&address, count * 4));
            for (int round = 0; round < 3; round++) {
                auto values = numbers(count, number * 1000 + round);
                OK(cudaMemcpyAsync(address, values.data(), count * 4, cudaMemcpyHostToDevice, stream));
                std::vector<int> back(count);
                OK(cudaMemcpyAsync(back.data(), address, count * 4, cudaMemcpyDeviceToHost, stream));
                OK(cudaStreamSynchronize(stream));
                EXPECT(back == values);
            }
        });
    }
    for (auto &one : all) one.join();
}
CASE(copies_to_pinned_memory_of_many_threads) {
    std::vector<std::thread> all;
    for (int number = 0; number < 8; number++) {
        all.emplace_back([number] {
            cudaStream_t stream;
            OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            const int count = 100000;
            int *address, *pinned;
            OK(cudaMalloc(&address, count * 4));
            OK(cudaMallocHost(&pinned, count * 4));
            for (int round = 0; round < 10; round++) {
                auto values = numbers(count, number * 1000 + round);
                OK(cudaMemcpyAsync(address, values.data(), count * 4, cudaMemcpyHostToDevice, stream));
                OK(cudaMemcpyAsync(pinned, address, count * 4, cudaMemcpyDeviceToHost, stream));
                OK(cudaStreamSynchronize(stream));
                EXPECT(!memcmp(pinned, values.data(), count * 4));
            }
        });
    }
    for (auto &one : all) one.join();
}
