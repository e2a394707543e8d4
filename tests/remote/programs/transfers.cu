// Copies of many sizes, each verified; the last line is JSON: microseconds of a copy, in and out, of ordinary memory (waited for) and of
// pinned memory (several queued, then waited for). ./transfers LARGEST REPETITIONS
#include "ok.h"

#include <chrono>
#include <string.h>
#include <string>
#include <vector>

// Copies that are queued before one waits.
const int QUEUED = 8;

template <typename Body> double us(int repetitions, Body body) {
    double least = 1e12;
    for (int i = 0; i < repetitions; i++) {
        auto begun = std::chrono::steady_clock::now();
        body();
        double took = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
        if (took < least) least = took;
    }
    return least;
}

int main(int count, char **words) {
    const size_t largest = count > 1 ? atol(words[1]) : 1 << 20;
    const int repetitions = count > 2 ? atoi(words[2]) : 3;
    char *device, *pinned;
    OK(cudaMalloc(&device, largest));
    OK(cudaMallocHost(&pinned, largest));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    std::vector<char> from(largest), to(largest);
    long wrong = 0;
    std::string sizes;
    for (size_t bytes = 1024; bytes <= largest; bytes *= 2) {
        // 5 KiB is the thesis's threshold of registered buffers.
        for (size_t size : {bytes, bytes + bytes / 4}) {
            if (size > largest) continue;
            for (size_t i = 0; i < size; i++) from[i] = i * 7 + size;
            double in = us(repetitions, [&] {
                OK(cudaMemcpy(device, from.data(), size, cudaMemcpyHostToDevice));
                OK(cudaDeviceSynchronize());
            });
            double out = us(repetitions, [&] { OK(cudaMemcpy(to.data(), device, size, cudaMemcpyDeviceToHost)); });
            wrong += memcmp(from.data(), to.data(), size) != 0;
            for (size_t i = 0; i < size; i++) pinned[i] = i * 3 + size;
            double pinned_in = us(repetitions, [&] {
                for (int i = 0; i < QUEUED; i++) OK(cudaMemcpyAsync(device, pinned, size, cudaMemcpyHostToDevice, stream));
                OK(cudaStreamSynchronize(stream));
            });
            memset(pinned, 0, size);
            double pinned_out = us(repetitions, [&] {
                for (int i = 0; i < QUEUED; i++) OK(cudaMemcpyAsync(pinned, device, size, cudaMemcpyDeviceToHost, stream));
                OK(cudaStreamSynchronize(stream));
            });
            for (size_t i = 0; i < size; i++) wrong += pinned[i] != (char)(i * 3 + size);
            char line[300];
            snprintf(line, sizeof line, "%s{\"bytes\":%zu,\"in_us\":%.2f,\"out_us\":%.2f,\"pinned_in_us\":%.2f,\"pinned_out_us\":%.2f}",
                     sizes.empty() ? "" : ",", size, in, out, pinned_in / QUEUED, pinned_out / QUEUED);
            sizes += line;
        }
    }
    printf("{\"program\":\"transfers\",\"wrong\":%ld,\"sizes\":[%s]}\n", wrong, sizes.c_str());
    return wrong != 0;
}
