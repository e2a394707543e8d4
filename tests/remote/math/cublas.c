// A stand-in for libcublas.so.
#include "fake.h"
#include <cublas_v2.h>

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t mode;
    cublasMath_t math;
    void *workspace;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = calloc(1, sizeof(struct cublasContext));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    *version = 130100;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
    if (type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
    *value = 13 - type;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "the requested functionality is not supported";
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    handle->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    handle->workspace = workspace;
    return bytes > 0 && ((size_t)workspace & 255) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

// A scalar that is there now, or is to be read when the stream is there.
typedef struct {
    const void *device;
    double value;
} Scalar;

static double read_as(const void *from, int kind) { return kind == CUDA_R_64F ? *(const double *)from : *(const float *)from; }
static Scalar scalar(cublasHandle_t handle, const void *from, int kind) {
    if (handle->mode == CUBLAS_POINTER_MODE_DEVICE) return (Scalar){from, 0};
    return (Scalar){NULL, read_as(from, kind)};
}
static double value(Scalar scalar, int kind) { return scalar.device ? read_as(scalar.device, kind) : scalar.value; }
static double get(const void *from, size_t at, int kind) { return kind == CUDA_R_64F ? ((const double *)from)[at] : ((const float *)from)[at]; }
static void put(void *to, size_t at, int kind, double number) {
    if (kind == CUDA_R_64F) ((double *)to)[at] = number;
    else ((float *)to)[at] = (float)number;
}

typedef struct {
    cublasOperation_t transa, transb;
    long m, n, k, lda, ldb, ldc, step_a, step_b, step_c, count;
    Scalar alpha, beta;
    const char *a, *b;
    char *c;
    int kind;
} Product;

static void multiply(void *arguments) {
    const Product *p = arguments;
    size_t element = p->kind == CUDA_R_64F ? 8 : 4;
    double alpha = value(p->alpha, p->kind), beta = value(p->beta, p->kind);
    for (long batch = 0; batch < p->count; batch++) {
        const char *a = p->a + batch * p->step_a * element, *b = p->b + batch * p->step_b * element;
        char *c = p->c + batch * p->step_c * element;
        for (long column = 0; column < p->n; column++)
            for (long row = 0; row < p->m; row++) {
                double sum = 0;
                for (long i = 0; i < p->k; i++)
                    sum += get(a, p->transa ? i + row * p->lda : row + i * p->lda, p->kind) *
                           get(b, p->transb ? column + i * p->ldb : i + column * p->ldb, p->kind);
                size_t at = row + column * p->ldc;
                put(c, at, p->kind, alpha * sum + (beta == 0 ? 0 : beta * get(c, at, p->kind)));
            }
    }
}

static cublasStatus_t product(cublasHandle_t handle, Product p, const void *alpha, const void *beta) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    // The client has checked the rest.
    if (!p.a || !p.b || !p.c || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
    p.alpha = scalar(handle, alpha, p.kind);
    p.beta = scalar(handle, beta, p.kind);
    return fake_queue(handle->stream, multiply, &p, sizeof p) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const float *alpha,
                              const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
    Product p = {transa, transb, m, n, k, lda, ldb, ldc, 0, 0, 0, 1, {0}, {0}, (const char *)a, (const char *)b, (char *)c, CUDA_R_32F};
    return product(handle, p, alpha, beta);
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const double *alpha,
                              const double *a, int lda, const double *b, int ldb, const double *beta, double *c, int ldc) {
    Product p = {transa, transb, m, n, k, lda, ldb, ldc, 0, 0, 0, 1, {0}, {0}, (const char *)a, (const char *)b, (char *)c, CUDA_R_64F};
    return product(handle, p, alpha, beta);
}
#undef cublasGemmEx
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *a, cudaDataType atype, int lda, const void *b, cudaDataType btype, int ldb, const void *beta, void *c,
                            cudaDataType ctype, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    if (atype != btype || btype != ctype || ctype > CUDA_R_64F || !compute || algo == -2) return CUBLAS_STATUS_NOT_SUPPORTED;
    Product p = {transa, transb, m, n, k, lda, ldb, ldc, 0, 0, 0, 1, {0}, {0}, a, b, c, ctype};
    return product(handle, p, alpha, beta);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType atype, int lda, long long int stridea, const void *b,
                                          cudaDataType btype, int ldb, long long int strideb, const void *beta, void *c, cudaDataType ctype,
                                          int ldc, long long int stridec, int count, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    if (atype != btype || btype != ctype || ctype > CUDA_R_64F || !compute || algo == -2) return CUBLAS_STATUS_NOT_SUPPORTED;
    Product p = {transa, transb, m, n, k, lda, ldb, ldc, stridea, strideb, stridec, count, {0}, {0}, a, b, c, ctype};
    return product(handle, p, alpha, beta);
}

typedef struct {
    long n, incx, incy;
    Scalar alpha;
    const float *x;
    float *y;
} Vectors;

static void add_scaled(void *arguments) {
    const Vectors *v = arguments;
    double alpha = value(v->alpha, CUDA_R_32F);
    for (long i = 0; i < v->n; i++) v->y[i * v->incy] += (float)alpha * v->x[i * v->incx];
}
static void scale(void *arguments) {
    const Vectors *v = arguments;
    double alpha = value(v->alpha, CUDA_R_32F);
    for (long i = 0; i < v->n; i++) v->y[i * v->incy] *= (float)alpha;
}

cublasStatus_t cublasSaxpy_v2(cublasHandle_t handle, int n, const float *alpha, const float *x, int incx, float *y, int incy) {
    Vectors v = {n, incx, incy, scalar(handle, alpha, CUDA_R_32F), x, y};
    return fake_queue(handle->stream, add_scaled, &v, sizeof v) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSscal_v2_64(cublasHandle_t handle, int64_t n, const float *alpha, float *x, int64_t incx) {
    Vectors v = {n, 0, incx, scalar(handle, alpha, CUDA_R_32F), NULL, x};
    return fake_queue(handle->stream, scale, &v, sizeof v) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

typedef struct {
    long n, incx, incy;
    const float *x, *y;
    float *result;
} Dot;

static void dot(void *arguments) {
    const Dot *d = arguments;
    double sum = 0;
    for (long i = 0; i < d->n; i++) sum += d->x[i * d->incx] * d->y[i * d->incy];
    *d->result = (float)sum;
}

cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, const float *x, int incx, const float *y, int incy, float *result) {
    Dot d = {n, incx, incy, x, y, result};
    if (fake_queue(handle->stream, dot, &d, sizeof d)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (handle->mode == CUBLAS_POINTER_MODE_HOST && fake_wait(handle->stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
    return CUBLAS_STATUS_SUCCESS;
}

// As BLAS defines it, for positive numbers; of the host only.
cublasStatus_t cublasSrotg_v2(cublasHandle_t handle, float *a, float *b, float *c, float *s) {
    if (handle->mode != CUBLAS_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
    float r = *a + *b;
    *c = *a / r;
    *s = *b / r;
    *a = r;
    return CUBLAS_STATUS_SUCCESS;
}
