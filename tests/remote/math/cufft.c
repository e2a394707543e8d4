// A stand-in for libcufft.so: transforms of one dimension, by their definition.
#include "fake.h"
#include <cufftXt.h>
#include <math.h>

enum { PLANS = 64 };
static struct Plan {
    long n, batch;
    int type;
    cudaStream_t stream;
} plans[PLANS];
static int count;

typedef struct {
    struct Plan plan;
    const cufftComplex *from;
    cufftComplex *to;
    int direction;
} Transform;

static void transform(void *arguments) {
    const Transform *t = arguments;
    long n = t->plan.n;
    cufftComplex *sums = malloc(n * sizeof *sums);
    for (long batch = 0; batch < t->plan.batch; batch++) {
        const cufftComplex *from = t->from + batch * n;
        for (long k = 0; k < n; k++) {
            double re = 0, im = 0;
            for (long i = 0; i < n; i++) {
                double angle = t->direction * 2 * M_PI * (double)(k * i % n) / (double)n;
                re += from[i].x * cos(angle) - from[i].y * sin(angle);
                im += from[i].x * sin(angle) + from[i].y * cos(angle);
            }
            sums[k] = (cufftComplex){(float)re, (float)im};
        }
        memcpy(t->to + batch * n, sums, n * sizeof *sums);
    }
    free(sums);
}
static struct Plan *find(cufftHandle plan) { return plan >= 1 && plan <= count ? &plans[plan - 1] : NULL; }
static cufftResult make(cufftHandle plan, long n, int type, long batch) {
    struct Plan *found = find(plan);
    if (!found) return CUFFT_INVALID_PLAN;
    if (n < 1 || batch < 1) return CUFFT_INVALID_SIZE;
    *found = (struct Plan){n, batch, type, found->stream};
    return CUFFT_SUCCESS;
}

cufftResult cufftCreate(cufftHandle *plan) {
    if (count == PLANS) return CUFFT_ALLOC_FAILED;
    *plan = ++count;
    return CUFFT_SUCCESS;
}
cufftResult cufftPlan1d(cufftHandle *plan, int n, cufftType type, int batch) {
    if (n < 1) return CUFFT_INVALID_SIZE;
    cufftResult made = cufftCreate(plan);
    return made ? made : make(*plan, n, type, batch);
}
cufftResult cufftPlanMany(cufftHandle *plan, int rank, int *n, int *inembed, int istride, int idist, int *onembed, int ostride, int odist, cufftType type, int batch) {
    if (rank != 1 || inembed || onembed || istride != 1 || ostride != 1 || idist != n[0] || odist != n[0]) return CUFFT_NOT_SUPPORTED;
    return cufftPlan1d(plan, n[0], type, batch);
}
cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long *n, long long *inembed, long long istride, long long idist, cudaDataType from,
                                long long *onembed, long long ostride, long long odist, cudaDataType to, long long batch, size_t *bytes, cudaDataType execution) {
    if (rank != 1 || inembed || onembed || from != CUDA_C_32F || to != CUDA_C_32F || execution != CUDA_C_32F || istride + ostride != 2 || idist != odist)
        return CUFFT_NOT_SUPPORTED;
    *bytes = 4096;
    return make(plan, (long)n[0], CUFFT_C2C, (long)batch);
}
cufftResult cufftGetSize(cufftHandle plan, size_t *bytes) {
    *bytes = 4096;
    return find(plan) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
cufftResult cufftSetAutoAllocation(cufftHandle plan, int is_automatic) { return find(plan) && is_automatic < 2 ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN; }
cufftResult cufftSetWorkArea(cufftHandle plan, void *area) { return find(plan) && area ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN; }
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream) {
    if (!find(plan)) return CUFFT_INVALID_PLAN;
    find(plan)->stream = stream;
    return CUFFT_SUCCESS;
}
cufftResult cufftExecC2C(cufftHandle plan, cufftComplex *from, cufftComplex *to, int direction) {
    if (!find(plan)) return CUFFT_INVALID_PLAN;
    Transform t = {*find(plan), from, to, direction};
    return fake_queue(t.plan.stream, transform, &t, sizeof t) ? CUFFT_EXEC_FAILED : CUFFT_SUCCESS;
}
cufftResult cufftXtExec(cufftHandle plan, void *from, void *to, int direction) { return cufftExecC2C(plan, from, to, direction); }
cufftResult cufftDestroy(cufftHandle plan) {
    if (!find(plan)) return CUFFT_INVALID_PLAN;
    find(plan)->n = 0;
    return CUFFT_SUCCESS;
}
