// A stand-in for libcurand.so: numbers that count from the seed.
#include "fake.h"
#include <curand.h>

struct curandGenerator_st {
    int is_host;
    unsigned long long next;
    cudaStream_t stream;
};
typedef struct {
    void *to;
    size_t count, bytes;
    unsigned long long first;
    double mean, deviation;
} Numbers;

static void fill(void *arguments) {
    const Numbers *n = arguments;
    for (size_t i = 0; i < n->count; i++) {
        // Between 0 and 1, and never 0.
        double number = ((n->first + i) % 997 + 1) / 1000.0;
        if (n->deviation) number = n->mean + n->deviation * (number - 0.5);
        if (n->bytes == 0) ((unsigned *)n->to)[i] = (unsigned)(n->first + i);
        else if (n->bytes == 4) ((float *)n->to)[i] = (float)number;
        else ((double *)n->to)[i] = number;
    }
}
static curandStatus_t give(curandGenerator_t generator, Numbers numbers) {
    numbers.first = generator->next;
    generator->next += numbers.count;
    if (generator->is_host) fill(&numbers);
    else if (fake_queue(generator->stream, fill, &numbers, sizeof numbers)) return CURAND_STATUS_LAUNCH_FAILURE;
    return CURAND_STATUS_SUCCESS;
}
static curandStatus_t make(curandGenerator_t *generator, curandRngType_t type, int is_host) {
    if (type < CURAND_RNG_PSEUDO_DEFAULT || type > CURAND_RNG_QUASI_SCRAMBLED_SOBOL64) return CURAND_STATUS_TYPE_ERROR;
    *generator = calloc(1, sizeof **generator);
    (*generator)->is_host = is_host;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandCreateGenerator(curandGenerator_t *generator, curandRngType_t type) { return make(generator, type, 0); }
curandStatus_t curandCreateGeneratorHost(curandGenerator_t *generator, curandRngType_t type) { return make(generator, type, 1); }
curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
    free(generator);
    return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) {
    generator->stream = stream;
    return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed) {
    generator->next = seed;
    return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGenerate(curandGenerator_t generator, unsigned *to, size_t count) { return give(generator, (Numbers){to, count, 0, 0, 0, 0}); }
curandStatus_t curandGenerateUniform(curandGenerator_t generator, float *to, size_t count) { return give(generator, (Numbers){to, count, 4, 0, 0, 0}); }
curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double *to, size_t count) { return give(generator, (Numbers){to, count, 8, 0, 0, 0}); }
curandStatus_t curandGenerateNormal(curandGenerator_t generator, float *to, size_t count, float mean, float deviation) {
    if (count % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
    return give(generator, (Numbers){to, count, 4, 0, mean, deviation});
}
