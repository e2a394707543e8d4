/* Runs jobs of jobs.h: by nvcc as a kernel, by a C++ compiler as threads. A library that crates/gpu-verbs's gpu-verbs-check loads. */
#include "jobs.h"

#include <stdio.h>

#include <thread>
#include <vector>

#if defined(__CUDACC__)

/* One job for each warp. */
__global__ void run_jobs(const jobs::Job *all, uint32_t count) {
    const uint32_t job = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0 && job < count) jobs::run(all[job]);
}

static int failed(cudaError_t error, const char *call) {
    if (error != cudaSuccess) fprintf(stderr, "jobs: %s: %s\n", call, cudaGetErrorString(error));
    return error != cudaSuccess;
}

/* Boards and queues are where all[i] says, which is memory that the GPU reaches. Returns when all are done. */
extern "C" int rgaps_rdma_jobs_run(const jobs::Job *all, uint32_t count, uint32_t warps_per_block) {
    jobs::Job *there = nullptr;
    const uint32_t blocks = (count + warps_per_block - 1) / warps_per_block;
    if (failed(cudaMalloc(&there, count * sizeof(jobs::Job)), "cudaMalloc")) return 1;
    int error = failed(cudaMemcpy(there, all, count * sizeof(jobs::Job), cudaMemcpyHostToDevice), "cudaMemcpy");
    cudaStream_t stream;
    error |= failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (!error) {
        run_jobs<<<blocks, warps_per_block * 32, 0, stream>>>(there, count);
        error |= failed(cudaGetLastError(), "launch") || failed(cudaStreamSynchronize(stream), "kernel");
    }
    failed(cudaFree(there), "cudaFree");
    return error;
}

extern "C" const char *rgaps_rdma_jobs_kind() { return "cuda"; }

#else

extern "C" int rgaps_rdma_jobs_run(const jobs::Job *all, uint32_t count, uint32_t) {
    std::vector<std::thread> lanes;
    for (uint32_t job = 0; job < count; ++job) lanes.emplace_back([=] { jobs::run(all[job]); });
    for (std::thread &lane : lanes) lane.join();
    return 0;
}

extern "C" const char *rgaps_rdma_jobs_kind() { return "host"; }

#endif
