// The matrix product of the thesis, with tiles in shared memory. Every element is verified; the last line is JSON. ./matmul SIDE REPETITIONS
#include "ok.h"

#include <chrono>
#include <vector>

const int TILE = 16;

__global__ void product(int n, const float *a, const float *b, float *c) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < n; tile += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

int main(int count, char **words) {
    const int n = (count > 1 ? atoi(words[1]) : 64) / TILE * TILE;
    const int repetitions = count > 2 ? atoi(words[2]) : 1;
    const size_t bytes = (size_t)n * n * sizeof(float);
    std::vector<float> a(n * n), b(n * n), out(n * n);
    // Small whole numbers, so that sums are exact in any order: each column of b is 1, 2 or 3 all over.
    for (int i = 0; i < n * n; i++) a[i] = i % 5, b[i] = 1 + i % n % 3;
    std::vector<float> sums(n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) sums[i] += a[i * n + j];
    long wrong = 0;
    OK(cudaFree(0));
    double least = 1e9;
    for (int round = 0; round < repetitions; round++) {
        auto begun = std::chrono::steady_clock::now();
        float *on_a, *on_b, *on_c;
        OK(cudaMalloc(&on_a, bytes));
        OK(cudaMalloc(&on_b, bytes));
        OK(cudaMalloc(&on_c, bytes));
        OK(cudaMemcpy(on_a, a.data(), bytes, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(on_b, b.data(), bytes, cudaMemcpyHostToDevice));
        product<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE)>>>(n, on_a, on_b, on_c);
        OK(cudaGetLastError());
        OK(cudaMemcpy(out.data(), on_c, bytes, cudaMemcpyDeviceToHost));
        OK(cudaFree(on_a));
        OK(cudaFree(on_b));
        OK(cudaFree(on_c));
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
        if (ms < least) least = ms;
        for (int i = 0; i < n * n; i++) wrong += out[i] != sums[i / n] * (1 + i % n % 3);
    }
    printf("{\"program\":\"matmul\",\"side\":%d,\"wrong\":%ld,\"ms\":%.3f}\n", n, wrong, least);
    return wrong != 0;
}
