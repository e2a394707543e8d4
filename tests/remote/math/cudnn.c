// A stand-in for libcudnn.so: sums of tensors, and of its graphs one operation, a product of a tensor with a scalar of the host.
#include "fake.h"
#include <cudnn.h>

struct cudnnContext {
    cudaStream_t stream;
};
struct cudnnTensorStruct {
    cudnnDataType_t type;
    int count, dims[8], strides[8];
};

size_t cudnnGetVersion(void) { return 91900; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_SUCCESS"; }
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = calloc(1, sizeof **handle);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensor) {
    *tensor = calloc(1, sizeof **tensor);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
    free(tensor);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int count, const int dims[], const int strides[]) {
    if (count < 3 || count > 8) return CUDNN_STATUS_BAD_PARAM;
    tensor->type = type;
    tensor->count = count;
    memcpy(tensor->dims, dims, count * sizeof(int));
    memcpy(tensor->strides, strides, count * sizeof(int));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int requested, cudnnDataType_t *type, int *count, int dims[], int strides[]) {
    *type = tensor->type;
    *count = tensor->count;
    int given = requested < tensor->count ? requested : tensor->count;
    memcpy(dims, tensor->dims, given * sizeof(int));
    memcpy(strides, tensor->strides, given * sizeof(int));
    return CUDNN_STATUS_SUCCESS;
}

typedef struct {
    float alpha, beta;
    const float *from;
    float *to;
    long count;
} Sum;

static void add(void *arguments) {
    const Sum *s = arguments;
    for (long i = 0; i < s->count; i++) s->to[i] = s->alpha * s->from[i] + (s->beta ? s->beta * s->to[i] : 0);
}
cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t a, const void *from, const void *beta,
                             const cudnnTensorDescriptor_t c, void *to) {
    if (a->count != c->count) return CUDNN_STATUS_BAD_PARAM;
    Sum s = {*(const float *)alpha, *(const float *)beta, from, to, (long)c->dims[0] * c->strides[0]};
    return fake_queue(handle->stream, add, &s, sizeof s) ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// A descriptor of the graph API keeps elements of each attribute.
enum { ATTRIBUTES = 16 };
typedef struct {
    cudnnBackendDescriptorType_t type;
    int is_final, used;
    struct {
        int name, type;
        int64_t count;
        char elements[128];
    } attributes[ATTRIBUTES];
} Descriptor;

static size_t bytes_of(int type) { return type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_BACKEND_DESCRIPTOR || type == CUDNN_TYPE_HANDLE ? 8 : 4; }
static void *elements_of(Descriptor *descriptor, int name) {
    for (int i = 0; i < descriptor->used; i++)
        if (descriptor->attributes[i].name == name) return descriptor->attributes[i].elements;
    return NULL;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
    Descriptor *made = calloc(1, sizeof *made);
    made->type = type;
    *descriptor = made;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
    Descriptor *of = descriptor;
    if (of->is_final || of->used == ATTRIBUTES || count * bytes_of(type) > 128) return CUDNN_STATUS_BAD_PARAM;
    of->attributes[of->used].name = name;
    of->attributes[of->used].type = type;
    of->attributes[of->used].count = count;
    memcpy(of->attributes[of->used++].elements, elements, count * bytes_of(type));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements) {
    Descriptor *of = descriptor;
    for (int i = 0; i < of->used; i++)
        if (of->attributes[i].name == (int)name && of->attributes[i].type == (int)type) {
            *count = of->attributes[i].count;
            if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
                // Into a descriptor that the program has made.
                memcpy(((void **)elements)[0], *(void **)of->attributes[i].elements, sizeof(Descriptor));
            } else if (elements) {
                memcpy(elements, of->attributes[i].elements, (requested < *count ? requested : *count) * bytes_of(type));
            }
            return CUDNN_STATUS_SUCCESS;
        }
    return CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    Descriptor *of = descriptor;
    // A tensor needs its dimensions.
    if (of->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !elements_of(of, CUDNN_ATTR_TENSOR_DIMENSIONS)) return CUDNN_STATUS_BAD_PARAM;
    of->is_final = 1;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    void **pointers = elements_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    Descriptor *tensor = elements_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (!pointers || !tensor) return CUDNN_STATUS_BAD_PARAM;
    tensor = *(Descriptor **)tensor;
    int64_t *dims = elements_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    Sum s = {*(float *)pointers[1], 0, pointers[0], pointers[2], (long)dims[0]};
    return fake_queue(handle->stream, add, &s, sizeof s) ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}
