// cuBLAS.
#include "case.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <thread>

#define BLAS_GIVES(wanted, call)                                                                         \
    do {                                                                                                 \
        cublasStatus_t given_ = (call);                                                                  \
        if (given_ != (wanted)) {                                                                        \
            printf("%s:%d: %s gives %d\n", strrchr("/" __FILE__, '/') + 1, __LINE__, #call, (int)given_); \
            fflush(stdout);                                                                              \
            _Exit(1);                                                                                    \
        }                                                                                                \
    } while (0)
#define BLAS(call) BLAS_GIVES(CUBLAS_STATUS_SUCCESS, call)

struct Blas {
    cublasHandle_t handle;
    Blas() { BLAS(cublasCreate(&handle)); }
    ~Blas() { BLAS(cublasDestroy(handle)); }
    operator cublasHandle_t() const { return handle; }
};

// Small whole numbers, so that every order of additions gives the same.
template <typename T> static std::vector<T> small(int count, int step) {
    std::vector<T> all(count);
    for (int i = 0; i < count; i++) all[i] = (T)((i * step) % 7 - 3);
    return all;
}
// Column by column, as BLAS has it.
template <typename T>
static std::vector<T> product(bool ta, bool tb, int m, int n, int k, T alpha, const T *a, int lda, const T *b, int ldb, T beta, std::vector<T> c, int ldc) {
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            T sum = 0;
            for (int i = 0; i < k; i++) sum += a[ta ? i + row * lda : row + i * lda] * b[tb ? column + i * ldb : i + column * ldb];
            c[row + column * ldc] = alpha * sum + (beta == 0 ? 0 : beta * c[row + column * ldc]);
        }
    return c;
}

CASE(a_product_of_floats) {
    Blas blas;
    const int m = 30, n = 20, k = 17;
    auto a = small<float>(m * k, 3), b = small<float>(k * n, 5), c = small<float>(m * n, 2);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c);
    float alpha = 2, beta = -1;
    BLAS(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &alpha, da, m, db, k, &beta, dc, m));
    alpha = beta = 99; // They were read.
    auto wanted = product<float>(false, false, m, n, k, 2, a.data(), m, b.data(), k, -1, c, m);
    auto found = from_device(dc, m * n);
    EXPECT(found == wanted);
    SAY("%08x", checksum(found.data(), found.size() * 4));
}
CASE(a_product_of_transposed_doubles) {
    Blas blas;
    const int m = 9, n = 11, k = 5;
    auto a = small<double>(m * k, 3), b = small<double>(k * n, 5), c = small<double>(m * n, 2);
    double *da = on_device(a), *db = on_device(b), *dc = on_device(c);
    double alpha = 0.5, beta = 0;
    BLAS(cublasDgemm(blas, CUBLAS_OP_T, CUBLAS_OP_T, m, n, k, &alpha, da, k, db, n, &beta, dc, m));
    EXPECT(from_device(dc, m * n) == product<double>(true, true, m, n, k, 0.5, a.data(), k, b.data(), n, 0, c, m));
}
CASE(scalars_of_the_device) {
    Blas blas;
    const int n = 8;
    auto a = small<float>(n * n, 3), b = small<float>(n * n, 5), c = small<float>(n * n, 2);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c), *scalars = on_device<float>({3, 1});
    cublasPointerMode_t mode;
    BLAS(cublasGetPointerMode(blas, &mode));
    EXPECT(mode == CUBLAS_POINTER_MODE_HOST);
    BLAS(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE));
    BLAS(cublasGetPointerMode(blas, &mode));
    EXPECT(mode == CUBLAS_POINTER_MODE_DEVICE);
    BLAS(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, scalars, da, n, db, n, scalars + 1, dc, n));
    EXPECT(from_device(dc, n * n) == product<float>(false, false, n, n, n, 3, a.data(), n, b.data(), n, 1, c, n));
}
CASE(products_with_types) {
    Blas blas;
    const int n = 6;
    auto a = small<float>(n * n, 3), b = small<float>(n * n, 5), c = small<float>(n * n, 2);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c), alpha = 1, beta = 2;
    BLAS(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &alpha, da, CUDA_R_32F, n, db, CUDA_R_32F, n, &beta, dc, CUDA_R_32F, n,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    EXPECT(from_device(dc, n * n) == product<float>(false, true, n, n, n, 1, a.data(), n, b.data(), n, 2, c, n));
}
CASE(many_products) {
    Blas blas;
    const int n = 4, count = 5;
    auto a = small<float>(n * n * count, 3), b = small<float>(n * n * count, 5), c = small<float>(n * n * count, 2);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c), alpha = 1, beta = 0;
    BLAS(cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &alpha, da, CUDA_R_32F, n, n * n, db, CUDA_R_32F, n, n * n, &beta, dc,
                                    CUDA_R_32F, n, n * n, count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    auto found = from_device(dc, n * n * count);
    for (int i = 0; i < count; i++) {
        auto wanted = product<float>(false, false, n, n, n, 1, &a[i * n * n], n, &b[i * n * n], n, 0, std::vector<float>(n * n), n);
        EXPECT(std::vector<float>(found.begin() + i * n * n, found.begin() + (i + 1) * n * n) == wanted);
    }
}
CASE(vectors) {
    Blas blas;
    auto x = small<float>(100, 3), y = small<float>(100, 5);
    float *dx = on_device(x), *dy = on_device(y), alpha = 2, found = 0, wanted = 0;
    BLAS(cublasSaxpy(blas, 50, &alpha, dx, 2, dy, 1));
    for (int i = 0; i < 50; i++) y[i] += 2 * x[2 * i];
    alpha = -1;
    BLAS(cublasSscal_64(blas, 100, &alpha, dy, 1));
    for (float &one : y) one = -one;
    // Given to the host, so it is waited for.
    BLAS(cublasSdot(blas, 100, dx, 1, dy, 1, &found));
    for (int i = 0; i < 100; i++) wanted += x[i] * y[i];
    EXPECT(found == wanted);
    EXPECT(from_device(dy, 100) == y);
}
CASE(a_result_on_the_device) {
    Blas blas;
    float *dx = on_device<float>({1, 2, 3}), *dy = on_device<float>({4, 5, 6}), *result = on_device<float>({0});
    BLAS(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE));
    BLAS(cublasSdot(blas, 3, dx, 1, dy, 1, result));
    EXPECT(from_device(result, 1)[0] == 32);
}
CASE(values_that_are_read_and_written) {
    Blas blas;
    float a = 0, b = 4, c, s;
    BLAS(cublasSrotg(blas, &a, &b, &c, &s));
    EXPECT(a == 4 && c == 0 && s == 1);
}
CASE(a_stream_keeps_its_order) {
    Blas blas;
    cudaStream_t stream, given;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    BLAS(cublasSetStream(blas, stream));
    BLAS(cublasGetStream(blas, &given));
    EXPECT(given == stream);
    std::vector<float> ones(1000, 1);
    float *dx, *dy, alpha = 1;
    OK(cudaMalloc(&dx, 4000));
    OK(cudaMalloc(&dy, 4000));
    OK(cudaMemcpyAsync(dx, ones.data(), 4000, cudaMemcpyHostToDevice, stream));
    OK(cudaMemsetAsync(dy, 0, 4000, stream));
    for (int i = 0; i < 20; i++) BLAS(cublasSaxpy(blas, 1000, &alpha, dx, 1, dy, 1));
    std::vector<float> found(1000);
    OK(cudaMemcpyAsync(found.data(), dy, 4000, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(found == std::vector<float>(1000, 20));
}
CASE(a_graph_of_products) {
    Blas blas;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    BLAS(cublasSetStream(blas, stream));
    void *workspace;
    OK(cudaMalloc(&workspace, 4 << 20));
    BLAS(cublasSetWorkspace(blas, workspace, 4 << 20));
    float *dx = on_device(std::vector<float>(100, 1)), *dy = on_device(std::vector<float>(100, 0)), alpha = 1;
    BLAS(cublasSaxpy(blas, 100, &alpha, dx, 1, dy, 1));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    BLAS(cublasSaxpy(blas, 100, &alpha, dx, 1, dy, 1));
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable;
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(from_device(dy, 100) == std::vector<float>(100, 4));
}
CASE(matrices_are_copied) {
    auto a = small<float>(12, 3);
    std::vector<float> back(12, 0), row(3, 0);
    float *da;
    OK(cudaMalloc(&da, 15 * 4));
    OK(cudaMemset(da, 0, 15 * 4));
    BLAS(cublasSetMatrix(4, 3, 4, a.data(), 4, da, 5));
    BLAS(cublasGetMatrix(4, 3, 4, da, 5, back.data(), 4));
    EXPECT(back == a);
    BLAS(cublasGetVector(3, 4, da + 1, 5, row.data(), 1));
    EXPECT(row == std::vector<float>({a[1], a[5], a[9]}));
    BLAS(cublasSetVector(3, 4, row.data(), 1, da, 1));
    EXPECT(from_device(da, 3) == row);
    BLAS_GIVES(CUBLAS_STATUS_MAPPING_ERROR, cublasSetMatrix(4, 3, 4, a.data(), 3, da, 5));
    BLAS_GIVES(CUBLAS_STATUS_INVALID_VALUE, cublasSetVector(3, 0, a.data(), 1, da, 1));
}
CASE(statuses_of_wrong_calls) {
    Blas blas;
    float *da = on_device(std::vector<float>(100)), one = 1;
    auto gemm = [&](cublasHandle_t handle, int m, int lda, const float *alpha) {
        return cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, 4, 4, alpha, da, lda, da, 4, &one, da, 4);
    };
    BLAS_GIVES(CUBLAS_STATUS_NOT_INITIALIZED, gemm(nullptr, 4, 4, &one));
    BLAS_GIVES(CUBLAS_STATUS_INVALID_VALUE, gemm(blas, -1, 4, &one));
    BLAS_GIVES(CUBLAS_STATUS_INVALID_VALUE, gemm(blas, 4, 3, &one));
    BLAS_GIVES(CUBLAS_STATUS_INVALID_VALUE, gemm(blas, 4, 4, nullptr));
    BLAS_GIVES(CUBLAS_STATUS_NOT_INITIALIZED, cublasDestroy(nullptr));
    OK(cudaDeviceSynchronize());
}
CASE(state_of_a_handle) {
    Blas blas;
    cublasMath_t math;
    BLAS(cublasGetMathMode(blas, &math));
    EXPECT(math == CUBLAS_DEFAULT_MATH);
    BLAS(cublasSetMathMode(blas, CUBLAS_TF32_TENSOR_OP_MATH));
    BLAS(cublasGetMathMode(blas, &math));
    EXPECT(math == CUBLAS_TF32_TENSOR_OP_MATH);
    int version = 0, major = 0;
    BLAS(cublasGetVersion(blas, &version));
    BLAS(cublasGetProperty(MAJOR_VERSION, &major));
    EXPECT(version > 120000 && major >= 12);
    SAY("%d %s", version, cublasGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED));
    EXPECT(cublasGetStatusString(CUBLAS_STATUS_SUCCESS) == cublasGetStatusString(CUBLAS_STATUS_SUCCESS));
}
CASE(many_handles) {
    for (int i = 0; i < 3; i++) {
        Blas one, other;
        EXPECT(one.handle != other.handle && one.handle != nullptr);
        cublasPointerMode_t mode;
        BLAS(cublasSetPointerMode(one, CUBLAS_POINTER_MODE_DEVICE));
        BLAS(cublasGetPointerMode(other, &mode));
        EXPECT(mode == CUBLAS_POINTER_MODE_HOST);
    }
}

struct Light {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    Light(int m, int n, int k, bool ta) {
        BLAS(cublasLtCreate(&handle));
        BLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        cublasOperation_t transposed = CUBLAS_OP_T;
        if (ta) BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
        BLAS(cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, ta ? k : m, ta ? m : k, ta ? k : m));
        BLAS(cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, k, n, k));
        BLAS(cublasLtMatrixLayoutCreate(&c, CUDA_R_32F, m, n, m));
    }
    ~Light() {
        for (cublasLtMatrixLayout_t layout : {a, b, c}) BLAS(cublasLtMatrixLayoutDestroy(layout));
        BLAS(cublasLtMatmulDescDestroy(operation));
        BLAS(cublasLtDestroy(handle));
    }
};
CASE(a_light_product_with_a_bias) {
    const int m = 16, n = 8, k = 12;
    Light light(m, n, k, true);
    auto a = small<float>(m * k, 3), b = small<float>(k * n, 5), bias = small<float>(m, 2);
    float *da = on_device(a), *db = on_device(b), *dd = on_device(std::vector<float>(m * n)), *dbias = on_device(bias), alpha = 1, beta = 0;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    BLAS(cublasLtMatmulDescSetAttribute(light.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    BLAS(cublasLtMatmulDescSetAttribute(light.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias, sizeof dbias));
    cublasLtMatmulPreference_t preference;
    size_t bytes = 1 << 20;
    BLAS(cublasLtMatmulPreferenceCreate(&preference));
    BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    BLAS(cublasLtMatmulAlgoGetHeuristic(light.handle, light.operation, light.a, light.b, light.c, light.c, preference, 1, &best, &found));
    EXPECT(found == 1 && best.state == CUBLAS_STATUS_SUCCESS);
    void *workspace;
    OK(cudaMalloc(&workspace, bytes));
    BLAS(cublasLtMatmul(light.handle, light.operation, &alpha, da, light.a, db, light.b, &beta, dd, light.c, dd, light.c, &best.algo, workspace, bytes, 0));
    auto wanted = product<float>(true, false, m, n, k, 1, a.data(), k, b.data(), k, 0, std::vector<float>(m * n), m);
    for (int i = 0; i < m * n; i++) wanted[i] += bias[i % m];
    EXPECT(from_device(dd, m * n) == wanted);
    BLAS(cublasLtMatmulPreferenceDestroy(preference));
}
CASE(a_light_product_with_scalars_of_the_device) {
    const int n = 8;
    Light light(n, n, n, false);
    auto a = small<float>(n * n, 3), b = small<float>(n * n, 5), c = small<float>(n * n, 2);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c), *scalars = on_device<float>({2, -1});
    cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE, given = CUBLASLT_POINTER_MODE_HOST;
    size_t written = 0;
    BLAS(cublasLtMatmulDescSetAttribute(light.operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
    BLAS(cublasLtMatmulDescGetAttribute(light.operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, &given, sizeof given, &written));
    EXPECT(given == mode && written == sizeof given);
    BLAS(cublasLtMatmul(light.handle, light.operation, scalars, da, light.a, db, light.b, scalars + 1, dc, light.c, dc, light.c, nullptr, nullptr, 0, 0));
    EXPECT(from_device(dc, n * n) == product<float>(false, false, n, n, n, 2, a.data(), n, b.data(), n, -1, c, n));
}
CASE(a_handle_of_cublas_is_one_of_cublaslt) {
    Blas blas;
    const int n = 4;
    Light light(n, n, n, false);
    auto a = small<float>(n * n, 3);
    float *da = on_device(a), *dc = on_device(a), alpha = 1, beta = 0;
    BLAS(cublasLtMatmul((cublasLtHandle_t)blas.handle, light.operation, &alpha, da, light.a, da, light.b, &beta, dc, light.c, dc, light.c, nullptr, nullptr, 0, 0));
    EXPECT(from_device(dc, n * n) == product<float>(false, false, n, n, n, 1, a.data(), n, a.data(), n, 0, std::vector<float>(n * n), n));
}
// The stand-in counts how often it is asked.
CASE(standin_heuristics_are_asked_for_once) {
    auto asked = [](int n, cublasLtEpilogue_t epilogue) {
        Light light(n, n, n, true);
        cublasLtMatmulPreference_t preference;
        cublasLtMatmulHeuristicResult_t best;
        int found = 0;
        BLAS(cublasLtMatmulDescSetAttribute(light.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        BLAS(cublasLtMatmulPreferenceCreate(&preference));
        BLAS(cublasLtMatmulAlgoGetHeuristic(light.handle, light.operation, light.a, light.b, light.c, light.c, preference, 1, &best, &found));
        BLAS(cublasLtMatmulPreferenceDestroy(preference));
        EXPECT(found == 1);
        return best.algo.data[1];
    };
    auto first = asked(8, CUBLASLT_EPILOGUE_DEFAULT);
    EXPECT(asked(8, CUBLASLT_EPILOGUE_DEFAULT) == first);
    EXPECT(asked(8, CUBLASLT_EPILOGUE_RELU) == first + 1);
    EXPECT(asked(16, CUBLASLT_EPILOGUE_DEFAULT) == first + 2);
    EXPECT(asked(8, CUBLASLT_EPILOGUE_RELU) == first + 1);
}
CASE(threads_have_their_own_handles) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([t] {
            Blas blas;
            BLAS(cublasSetStream(blas, cudaStreamPerThread));
            float *dx = on_device(std::vector<float>(100, t)), *dy = on_device(std::vector<float>(100, 0)), alpha = 1, sum = 0;
            for (int i = 0; i < 10; i++) BLAS(cublasSaxpy(blas, 100, &alpha, dx, 1, dy, 1));
            BLAS(cublasSdot(blas, 100, dx, 1, dy, 1, &sum));
            EXPECT(sum == 1000 * t * t);
        });
    for (auto &one : threads) one.join();
}
