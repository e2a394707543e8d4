// A call of CUDA's runtime that must succeed, or the program ends with what it said.
#pragma once
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                                     \
    do {                                                                             \
        cudaError_t given = (call);                                                  \
        if (given != cudaSuccess) {                                                  \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(given));           \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)
