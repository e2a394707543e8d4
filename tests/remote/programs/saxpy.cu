// The SAXPY of the thesis: y = a * x + y. Every element is verified; the last line is JSON. ./saxpy ELEMENTS REPETITIONS
#include "ok.h"

#include <chrono>
#include <vector>

__global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

int main(int count, char **words) {
    const int n = count > 1 ? atoi(words[1]) : 1 << 16;
    const int repetitions = count > 2 ? atoi(words[2]) : 1;
    const size_t bytes = n * sizeof(float);
    std::vector<float> x(n), y(n), out(n);
    for (int i = 0; i < n; i++) x[i] = i % 1000, y[i] = i % 77;
    long wrong = 0;
    OK(cudaFree(0));
    double least = 1e9;
    for (int round = 0; round < repetitions; round++) {
        auto begun = std::chrono::steady_clock::now();
        float *on_x, *on_y;
        OK(cudaMalloc(&on_x, bytes));
        OK(cudaMalloc(&on_y, bytes));
        OK(cudaMemcpy(on_x, x.data(), bytes, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(on_y, y.data(), bytes, cudaMemcpyHostToDevice));
        saxpy<<<(n + 255) / 256, 256>>>(n, 2.0f, on_x, on_y);
        OK(cudaGetLastError());
        OK(cudaMemcpy(out.data(), on_y, bytes, cudaMemcpyDeviceToHost));
        OK(cudaFree(on_x));
        OK(cudaFree(on_y));
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
        if (ms < least) least = ms;
        for (int i = 0; i < n; i++) wrong += out[i] != 2.0f * x[i] + y[i];
    }
    printf("{\"program\":\"saxpy\",\"elements\":%d,\"wrong\":%ld,\"ms\":%.3f}\n", n, wrong, least);
    return wrong != 0;
}
