// A stand-in for libcublasLt.so: products of matrices of floats, column by column.
#include "fake.h"
#include <cublasLt.h>

struct cublasLtContext;
typedef struct {
    int compute, scale, transa, transb, mode, epilogue;
    const float *bias;
} Operation;
typedef struct {
    int type;
    long rows, columns, ld;
} Layout;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = calloc(1, 8);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130100; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    Operation *made = calloc(1, sizeof *made);
    made->compute = compute;
    made->scale = scale;
    *desc = (cublasLtMatmulDesc_t)made;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}
static int *number_of(Operation *operation, cublasLtMatmulDescAttributes_t attribute) {
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return &operation->mode;
    case CUBLASLT_MATMUL_DESC_TRANSA: return &operation->transa;
    case CUBLASLT_MATMUL_DESC_TRANSB: return &operation->transb;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return &operation->epilogue;
    default: return NULL;
    }
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *buf, size_t bytes) {
    Operation *operation = (Operation *)desc;
    int *number = number_of(operation, attribute);
    if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER && bytes == 8) memcpy(&operation->bias, buf, 8);
    else if (number && bytes == 4) memcpy(number, buf, 4);
    else return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, void *buf, size_t bytes, size_t *written) {
    int *number = number_of((Operation *)desc, attribute);
    if (!number || bytes != 4) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(buf, number, 4);
    *written = 4;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
    Layout *made = calloc(1, sizeof *made);
    *made = (Layout){type, (long)rows, (long)columns, ld};
    *layout = (cublasLtMatrixLayout_t)made;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = calloc(1, 64);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *buf, size_t bytes) {
    return preference && buf && bytes ? CUBLAS_STATUS_SUCCESS : attribute ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    if (!handle || !desc || !a || !b || !c || !d || !preference || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
    memset(results, 0, sizeof results[0]);
    results[0].algo.data[0] = 4711;
    // How often it was asked.
    static unsigned long long asked;
    results[0].algo.data[1] = ++asked;
    results[0].wavesCount = 0.5f;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

typedef struct {
    Operation operation;
    Layout a_layout, b_layout, d_layout;
    float alpha, beta;
    const float *alpha_at, *beta_at, *a, *b, *c;
    float *d;
} Product;

static void multiply(void *arguments) {
    const Product *p = arguments;
    float alpha = p->alpha_at ? *p->alpha_at : p->alpha, beta = p->beta_at ? *p->beta_at : p->beta;
    long inner = p->operation.transa ? p->a_layout.rows : p->a_layout.columns;
    for (long column = 0; column < p->d_layout.columns; column++)
        for (long row = 0; row < p->d_layout.rows; row++) {
            float sum = 0;
            for (long i = 0; i < inner; i++)
                sum += p->a[p->operation.transa ? i + row * p->a_layout.ld : row + i * p->a_layout.ld] *
                       p->b[p->operation.transb ? column + i * p->b_layout.ld : i + column * p->b_layout.ld];
            size_t at = row + column * p->d_layout.ld;
            p->d[at] = alpha * sum + (beta ? beta * p->c[at] : 0) + (p->operation.bias ? p->operation.bias[row] : 0);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream) {
    if (!handle || !desc || !c_layout || !workspace != !bytes) return CUBLAS_STATUS_INVALID_VALUE;
    // What the heuristic gave comes back whole.
    if (algo && algo->data[0] != 4711) return CUBLAS_STATUS_NOT_SUPPORTED;
    Product p = {*(Operation *)desc, *(Layout *)a_layout, *(Layout *)b_layout, *(Layout *)d_layout, 0, 0, NULL, NULL, a, b, c, d};
    if (p.operation.mode == CUBLASLT_POINTER_MODE_DEVICE) {
        p.alpha_at = alpha;
        p.beta_at = beta;
    } else {
        p.alpha = *(const float *)alpha;
        p.beta = *(const float *)beta;
    }
    return fake_queue(stream, multiply, &p, sizeof p) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
