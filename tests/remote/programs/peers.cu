// Copies from each GPU to each other one, of one server or of several. Every byte is verified; the last line is JSON: of each pair whether one can access the
// other's memory, and GB/s of the fastest copy. ./peers BYTES REPETITIONS
#include "ok.h"

#include <chrono>
#include <string>
#include <vector>

__global__ void fill(unsigned *to, int count, unsigned value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = i * 2654435761u + value;
}

int main(int count, char **words) {
    const size_t bytes = (count > 1 ? atol(words[1]) : 1 << 20) / 4 * 4;
    const int repetitions = count > 2 ? atoi(words[2]) : 3, numbers = bytes / 4;
    int devices = 0;
    OK(cudaGetDeviceCount(&devices));
    std::vector<unsigned *> from(devices), to(devices);
    for (int device = 0; device < devices; device++) {
        OK(cudaSetDevice(device));
        OK(cudaMalloc(&from[device], bytes));
        OK(cudaMalloc(&to[device], bytes));
        fill<<<(numbers + 255) / 256, 256>>>(from[device], numbers, device * 77);
        OK(cudaDeviceSynchronize());
    }
    std::vector<unsigned> back(numbers);
    long wrong = 0;
    std::string pairs;
    for (int one = 0; one < devices; one++) {
        for (int other = 0; other < devices; other++) {
            if (one == other) continue;
            int can = 0;
            OK(cudaDeviceCanAccessPeer(&can, other, one));
            OK(cudaSetDevice(other));
            OK(cudaMemset(to[other], 0, bytes));
            OK(cudaDeviceSynchronize());
            OK(cudaSetDevice(one));
            cudaStream_t stream;
            OK(cudaStreamCreate(&stream));
            double least = 1e9;
            for (int round = 0; round < repetitions; round++) {
                auto begun = std::chrono::steady_clock::now();
                OK(cudaMemcpyPeerAsync(to[other], other, from[one], one, bytes, stream));
                OK(cudaStreamSynchronize(stream));
                double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
                if (s < least) least = s;
            }
            OK(cudaStreamDestroy(stream));
            OK(cudaSetDevice(other));
            OK(cudaMemcpy(back.data(), to[other], bytes, cudaMemcpyDeviceToHost));
            for (int i = 0; i < numbers; i++) wrong += back[i] != i * 2654435761u + one * 77;
            char line[200];
            snprintf(line, sizeof line, "%s{\"from\":%d,\"to\":%d,\"can_access\":%d,\"gb_per_s\":%.2f}", pairs.empty() ? "" : ",", one, other, can,
                     bytes / least / 1e9);
            pairs += line;
        }
    }
    printf("{\"program\":\"peers\",\"devices\":%d,\"bytes\":%zu,\"wrong\":%ld,\"pairs\":[%s]}\n", devices, bytes, wrong, pairs.c_str());
    return wrong != 0 || devices < 2;
}
