// cuRAND, cuFFT, cuDNN.
#include "case.h"
#include <cudnn.h>
#include <cufftXt.h>
#include <curand.h>
#include <math.h>

#define STATUS(wanted, call)                                                                          \
    do {                                                                                              \
        int given_ = (int)(call);                                                                     \
        if (given_ != (int)(wanted)) {                                                                \
            printf("%s:%d: %s gives %d\n", strrchr("/" __FILE__, '/') + 1, __LINE__, #call, given_);   \
            fflush(stdout);                                                                           \
            _Exit(1);                                                                                 \
        }                                                                                             \
    } while (0)
#define GOOD(call) STATUS(0, call)

CASE(random_numbers_on_the_device) {
    curandGenerator_t generator;
    GOOD(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT));
    GOOD(curandSetPseudoRandomGeneratorSeed(generator, 1234));
    float *numbers;
    OK(cudaMalloc(&numbers, 40000));
    GOOD(curandGenerateUniform(generator, numbers, 10000));
    auto first = from_device(numbers, 10000);
    for (float one : first) EXPECT(one > 0 && one <= 1);
    GOOD(curandGenerateUniform(generator, numbers, 10000));
    EXPECT(from_device(numbers, 10000) != first);
    GOOD(curandDestroyGenerator(generator));
    // The same seed gives the same.
    GOOD(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT));
    GOOD(curandSetPseudoRandomGeneratorSeed(generator, 1234));
    GOOD(curandGenerateUniform(generator, numbers, 10000));
    EXPECT(from_device(numbers, 10000) == first);
    GOOD(curandDestroyGenerator(generator));
    SAY("%08x", checksum(first.data(), 40000));
}
CASE(random_numbers_on_the_host) {
    curandGenerator_t generator;
    GOOD(curandCreateGeneratorHost(&generator, CURAND_RNG_PSEUDO_MTGP32));
    GOOD(curandSetPseudoRandomGeneratorSeed(generator, 7));
    std::vector<double> numbers(1000, -1);
    GOOD(curandGenerateUniformDouble(generator, numbers.data(), numbers.size()));
    for (double one : numbers) EXPECT(one > 0 && one <= 1);
    GOOD(curandDestroyGenerator(generator));
    SAY("%08x", checksum(numbers.data(), 8000));
}
CASE(random_numbers_of_a_normal_distribution) {
    curandGenerator_t generator;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GOOD(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10));
    GOOD(curandSetStream(generator, stream));
    float *numbers;
    OK(cudaMalloc(&numbers, 40000));
    GOOD(curandGenerateNormal(generator, numbers, 10000, 5, 2));
    OK(cudaStreamSynchronize(stream));
    double sum = 0;
    for (float one : from_device(numbers, 10000)) sum += one;
    EXPECT(fabs(sum / 10000 - 5) < 0.2);
    GOOD(curandDestroyGenerator(generator));
}
CASE(random_generators_of_a_wrong_kind) {
    curandGenerator_t generator;
    STATUS(CURAND_STATUS_TYPE_ERROR, curandCreateGenerator(&generator, (curandRngType_t)9999));
    STATUS(CURAND_STATUS_NOT_INITIALIZED, curandDestroyGenerator(nullptr));
}

// Far enough from exact for any order of additions.
static bool is_near(const std::vector<cufftComplex> &one, const std::vector<cufftComplex> &other) {
    for (size_t i = 0; i < one.size(); i++)
        if (fabsf(one[i].x - other[i].x) > 0.01f || fabsf(one[i].y - other[i].y) > 0.01f) return false;
    return true;
}
static std::vector<cufftComplex> waves(int n, int batch) {
    std::vector<cufftComplex> all(n * batch);
    for (int i = 0; i < n * batch; i++) all[i] = {cosf(2 * (float)M_PI * (float)(i % n) * (float)(1 + i / n) / (float)n), 0};
    return all;
}
static void check_spectrum(const std::vector<cufftComplex> &found, int n, int batch) {
    std::vector<cufftComplex> wanted(n * batch, cufftComplex{0, 0});
    for (int b = 0; b < batch; b++) wanted[b * n + 1 + b].x = wanted[b * n + n - 1 - b].x = (float)n / 2;
    EXPECT(is_near(found, wanted));
}
CASE(fourier_there_and_back) {
    const int n = 32, batch = 3;
    auto from = waves(n, batch);
    cufftComplex *data = on_device(from);
    cufftHandle plan;
    GOOD(cufftPlan1d(&plan, n, CUFFT_C2C, batch));
    GOOD(cufftExecC2C(plan, data, data, CUFFT_FORWARD));
    check_spectrum(from_device(data, n * batch), n, batch);
    GOOD(cufftExecC2C(plan, data, data, CUFFT_INVERSE));
    for (auto &one : from) one.x *= n;
    EXPECT(is_near(from_device(data, n * batch), from));
    GOOD(cufftDestroy(plan));
}
CASE(fourier_as_torch_does_it) {
    const long long n = 16;
    long long sizes[1] = {n};
    cufftHandle plan;
    size_t bytes = 0, again = 0;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    GOOD(cufftCreate(&plan));
    GOOD(cufftSetAutoAllocation(plan, 0));
    GOOD(cufftXtMakePlanMany(plan, 1, sizes, nullptr, 1, n, CUDA_C_32F, nullptr, 1, n, CUDA_C_32F, 2, &bytes, CUDA_C_32F));
    GOOD(cufftGetSize(plan, &again));
    EXPECT(bytes == again);
    void *area;
    OK(cudaMalloc(&area, bytes + 256));
    GOOD(cufftSetWorkArea(plan, area));
    GOOD(cufftSetStream(plan, stream));
    cufftComplex *from = on_device(waves(n, 2)), *to = on_device(waves(n, 2));
    GOOD(cufftXtExec(plan, from, to, CUFFT_FORWARD));
    OK(cudaStreamSynchronize(stream));
    check_spectrum(from_device(to, n * 2), n, 2);
    GOOD(cufftDestroy(plan));
}
CASE(fourier_with_arrays_of_sizes) {
    int n = 8;
    cufftHandle plan;
    GOOD(cufftPlanMany(&plan, 1, &n, nullptr, 1, n, nullptr, 1, n, CUFFT_C2C, 2));
    cufftComplex *data = on_device(waves(n, 2));
    GOOD(cufftExecC2C(plan, data, data, CUFFT_FORWARD));
    check_spectrum(from_device(data, n * 2), n, 2);
    GOOD(cufftDestroy(plan));
}
CASE(fourier_plans_that_are_wrong) {
    cufftHandle plan = 12345;
    STATUS(CUFFT_INVALID_SIZE, cufftPlan1d(&plan, 0, CUFFT_C2C, 1));
    STATUS(CUFFT_INVALID_PLAN, cufftDestroy(12345));
}

CASE(tensors_are_added) {
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t tensor;
    GOOD(cudnnCreate(&handle));
    GOOD(cudnnCreateTensorDescriptor(&tensor));
    int dims[4] = {2, 3, 4, 5}, strides[4] = {60, 20, 5, 1}, found_dims[4], found_strides[4], count;
    GOOD(cudnnSetTensorNdDescriptor(tensor, CUDNN_DATA_FLOAT, 4, dims, strides));
    cudnnDataType_t type;
    GOOD(cudnnGetTensorNdDescriptor(tensor, 4, &type, &count, found_dims, found_strides));
    EXPECT(type == CUDNN_DATA_FLOAT && count == 4 && !memcmp(dims, found_dims, sizeof dims) && !memcmp(strides, found_strides, sizeof strides));
    float *from = on_device(std::vector<float>(120, 3)), *to = on_device(std::vector<float>(120, 10)), alpha = 2, beta = -1;
    GOOD(cudnnAddTensor(handle, &alpha, tensor, from, &beta, tensor, to));
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(to, 120) == std::vector<float>(120, -4));
    GOOD(cudnnDestroyTensorDescriptor(tensor));
    GOOD(cudnnDestroy(handle));
}
CASE(tensors_of_the_graph_interface) {
    cudnnBackendDescriptor_t tensor;
    GOOD(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor));
    // It is not finished: it has no dimensions.
    EXPECT(cudnnBackendFinalize(tensor) != CUDNN_STATUS_SUCCESS);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int64_t dims[3] = {4, 5, 6}, strides[3] = {30, 6, 1}, id = 'x', alignment = 16, found[3] = {0}, count = 0;
    GOOD(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    GOOD(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, dims));
    GOOD(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, strides));
    GOOD(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    GOOD(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    GOOD(cudnnBackendFinalize(tensor));
    GOOD(cudnnBackendGetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, &count, found));
    EXPECT(count == 3 && !memcmp(found, dims, sizeof dims));
    // As cuDNN's front end does: asked for more elements than there are, and than there is room for.
    int64_t few[5] = {0, 0, 0, 77, 88};
    GOOD(cudnnBackendGetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 5, &count, nullptr));
    EXPECT(count == 3);
    GOOD(cudnnBackendGetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 5, &count, few));
    EXPECT(count == 3 && !memcmp(few, dims, sizeof dims) && few[3] == 77 && few[4] == 88);
    GOOD(cudnnBackendDestroyDescriptor(tensor));
    SAY("%s", cudnnGetErrorString(CUDNN_STATUS_SUCCESS));
}

// On the stand-in only: a plan whose engine is a tensor, which multiplies.
CASE(standin_plans_are_executed) {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t tensor, plan, pack, again;
    GOOD(cudnnCreate(&handle));
    GOOD(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor));
    int64_t dims[1] = {100}, ids[3] = {1, 2, 3}, count, found = 0;
    GOOD(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 1, dims));
    GOOD(cudnnBackendFinalize(tensor));
    GOOD(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
    GOOD(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
    GOOD(cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor));
    GOOD(cudnnBackendFinalize(plan));
    GOOD(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &again));
    GOOD(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &again));
    GOOD(cudnnBackendGetAttribute(again, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 1, &count, &found));
    EXPECT(found == 100);
    // The second is of the host.
    float *from = on_device(std::vector<float>(100, 7)), *to = on_device(std::vector<float>(100)), factor = 3;
    void *pointers[3] = {from, &factor, to};
    GOOD(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    GOOD(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers));
    GOOD(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids));
    GOOD(cudnnBackendFinalize(pack));
    GOOD(cudnnBackendExecute(handle, plan, pack));
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(to, 100) == std::vector<float>(100, 21));
    for (cudnnBackendDescriptor_t one : {tensor, plan, pack, again}) GOOD(cudnnBackendDestroyDescriptor(one));
    GOOD(cudnnDestroy(handle));
}
// A call that nobody waited for, and that the client could not know to be wrong: the next one that is waited for tells it.
CASE(standin_late_statuses) {
    cudnnTensorDescriptor_t tensor;
    GOOD(cudnnCreateTensorDescriptor(&tensor));
    int dims[2] = {2, 3}, count;
    cudnnDataType_t type;
    cudnnStatus_t status = cudnnSetTensorNdDescriptor(tensor, CUDNN_DATA_FLOAT, 2, dims, dims);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnGetTensorNdDescriptor(tensor, 1, &type, &count, dims, dims);
    STATUS(CUDNN_STATUS_BAD_PARAM, status);
    STATUS(CUDNN_STATUS_BAD_PARAM, cudnnSetTensorNdDescriptor((cudnnTensorDescriptor_t)&dims, CUDNN_DATA_FLOAT, 2, dims, dims));
    // And one of CUDA, too, if it is the next.
    status = cudnnSetTensorNdDescriptor(tensor, CUDNN_DATA_FLOAT, 2, dims, dims);
    cudaError_t error = cudaDeviceSynchronize();
    EXPECT(status == CUDNN_STATUS_BAD_PARAM || error == cudaErrorUnknown);
    OK(cudaDeviceSynchronize());
}
