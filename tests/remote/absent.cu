// A server without the libraries above the runtime. Not among the programs of run.py: everywhere else they are there.
#include "case.h"
#include <cublas_v2.h>
#include <cudnn.h>
#include <cufft.h>
#include <curand.h>

CASE(no_library) {
    cublasHandle_t blas;
    curandGenerator_t random;
    cufftHandle fourier;
    cudnnHandle_t deep;
    EXPECT(cublasCreate(&blas) == CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT(cublasCreate(&blas) == CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT(curandCreateGenerator(&random, CURAND_RNG_PSEUDO_DEFAULT) == CURAND_STATUS_INITIALIZATION_FAILED);
    EXPECT(cufftPlan1d(&fourier, 8, CUFFT_C2C, 1) == CUFFT_SETUP_FAILED);
    EXPECT(cudnnCreate(&deep) == CUDNN_STATUS_NOT_INITIALIZED);
    EXPECT(cublasGetStatusString(CUBLAS_STATUS_SUCCESS) != nullptr);
    EXPECT(cudnnGetVersion() == 0);
    // A function that is not forwarded, whatever the server has.
    EXPECT(cublasLoggerConfigure(1, 1, 0, nullptr) == CUBLAS_STATUS_NOT_SUPPORTED);
    OK(cudaDeviceSynchronize());
}
