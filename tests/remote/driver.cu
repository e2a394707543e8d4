// The driver's API, found as programs find it: in libcuda.so.1, at run time.
#include "case.h"
#include <cuda.h>
#include <dlfcn.h>

static void *library() {
    static void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(handle != nullptr);
    return handle;
}
#define STRING_(name) #name
#define STRING(name) STRING_(name)
// The header's macros give each function the name of its newest version.
#define CU(name) ((decltype(&name))found(STRING(name)))
static void *found(const char *name) {
    void *address = dlsym(library(), name);
    EXPECT(address != nullptr);
    return address;
}
#define CU_GIVES(wanted, call)                                                                            \
    do {                                                                                                  \
        CUresult given_ = (call);                                                                         \
        if (given_ != (wanted)) {                                                                         \
            printf("%s:%d: %s gives %d\n", strrchr("/" __FILE__, '/') + 1, __LINE__, #call, given_);      \
            fflush(stdout);                                                                               \
            _Exit(1);                                                                                     \
        }                                                                                                 \
    } while (0)
#define CU_OK(call) CU_GIVES(CUDA_SUCCESS, call)

static const char *TEXT = R"(.version 6.3
.target sm_70
.address_size 64
.global .align 4 .u32 number = 17;
.visible .entry fill(.param .u64 to, .param .u32 first)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [first];
    mov.u32 %r2, %tid.x;
    add.u32 %r3, %r1, %r2;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
)";

static void begin() {
    CU_OK(CU(cuInit)(0));
    CUdevice device;
    CUcontext context;
    CU_OK(CU(cuDeviceGet)(&device, 0));
    CU_OK(CU(cuDevicePrimaryCtxRetain)(&context, device));
    CU_OK(CU(cuCtxSetCurrent)(context));
}

CASE(devices) {
    CU_OK(CU(cuInit)(0));
    int count = 0, value = 0;
    CU_OK(CU(cuDeviceGetCount)(&count));
    EXPECT(count >= 1);
    CUdevice device;
    CU_OK(CU(cuDeviceGet)(&device, 0));
    char name[100];
    CU_OK(CU(cuDeviceGetName)(name, sizeof name, device));
    EXPECT(strlen(name) > 0);
    size_t bytes = 0;
    CU_OK(CU(cuDeviceTotalMem)(&bytes, device));
    CU_OK(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    EXPECT(bytes > 0 && value == 32);
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceGet)(&device, 1000));
}
CASE(names_of_errors) {
    const char *text = nullptr;
    CU_OK(CU(cuGetErrorName)(CUDA_ERROR_INVALID_VALUE, &text));
    EXPECT(!strcmp(text, "CUDA_ERROR_INVALID_VALUE"));
    CU_OK(CU(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT(!strcmp(text, "out of memory"));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuGetErrorName)((CUresult)12345, &text));
}
CASE(contexts_are_current) {
    begin();
    CUcontext now = nullptr, other = nullptr;
    CUdevice device = 7;
    CU_OK(CU(cuCtxGetCurrent)(&now));
    CU_OK(CU(cuCtxGetDevice)(&device));
    EXPECT(now != nullptr && device == 0);
    CU_OK(CU(cuCtxPushCurrent)(now));
    CU_OK(CU(cuCtxPopCurrent)(&other));
    EXPECT(other == now);
    CU_OK(CU(cuCtxSynchronize)());
}
CASE(memory_and_copies) {
    begin();
    CUdeviceptr address, start;
    size_t bytes = 0;
    CU_OK(CU(cuMemAlloc)(&address, 4000));
    CU_OK(CU(cuMemsetD32)(address, 0x01020304, 1000));
    std::vector<unsigned> back(1000);
    CU_OK(CU(cuMemcpyDtoH)(back.data(), address, 4000));
    EXPECT(back[999] == 0x01020304);
    auto values = numbers(1000);
    CU_OK(CU(cuMemcpyHtoD)(address, values.data(), 4000));
    CU_OK(CU(cuMemcpyDtoH)(back.data(), address, 4000));
    EXPECT(!memcmp(back.data(), values.data(), 4000));
    CU_OK(CU(cuMemGetAddressRange)(&start, &bytes, address + 40));
    EXPECT(start == address && bytes >= 4000);
    CU_OK(CU(cuMemFree)(address));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(address));
}
CASE(a_module_of_text) {
    begin();
    CUmodule module;
    CUfunction function;
    CUdeviceptr to;
    int first = 5;
    CU_OK(CU(cuModuleLoadData)(&module, TEXT));
    CU_OK(CU(cuModuleGetFunction)(&function, module, "fill"));
    CU_OK(CU(cuMemAlloc)(&to, 400));
    void *values[] = {&to, &first};
    CU_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 100, 1, 1, 0, nullptr, values, nullptr));
    std::vector<int> back(100);
    CU_OK(CU(cuMemcpyDtoH)(back.data(), to, 400));
    EXPECT(back == numbers(100, 5));
    struct { CUdeviceptr to; int first; } packed = {to, 9};
    size_t bytes = 12;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CU_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 100, 1, 1, 0, nullptr, nullptr, extra));
    CU_OK(CU(cuMemcpyDtoH)(back.data(), to, 400));
    EXPECT(back == numbers(100, 9));
    CU_OK(CU(cuModuleUnload)(module));
}
CASE(variables_of_a_module) {
    begin();
    CUmodule module;
    CUdeviceptr address;
    size_t bytes = 0;
    int value = 0;
    CU_OK(CU(cuModuleLoadData)(&module, TEXT));
    CU_OK(CU(cuModuleGetGlobal)(&address, &bytes, module, "number"));
    CU_OK(CU(cuMemcpyDtoH)(&value, address, 4));
    EXPECT(bytes == 4 && value == 17);
    CU_GIVES(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetGlobal)(&address, &bytes, module, "other"));
}
CASE(what_a_module_does_not_have) {
    begin();
    CUmodule module;
    CUfunction function;
    CU_OK(CU(cuModuleLoadData)(&module, TEXT));
    CU_GIVES(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&function, module, "other"));
    CU_OK(CU(cuModuleGetFunction)(&function, module, "fill"));
}
CASE(text_that_is_no_module) {
    begin();
    CUmodule module;
    EXPECT(CU(cuModuleLoadData)(&module, "this is no PTX") != CUDA_SUCCESS);
}
CASE(streams_and_events) {
    begin();
    CUstream stream;
    CUevent start, end;
    float ms = -1;
    CU_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(CU(cuEventCreate)(&start, 0));
    CU_OK(CU(cuEventCreate)(&end, 0));
    CU_OK(CU(cuEventRecord)(start, stream));
    CU_OK(CU(cuEventRecord)(end, stream));
    CU_OK(CU(cuStreamSynchronize)(stream));
    CU_OK(CU(cuEventElapsedTime)(&ms, start, end));
    EXPECT(ms >= 0);
    CU_OK(CU(cuEventDestroy)(start));
    CU_OK(CU(cuStreamDestroy)(stream));
}
CASE(runtime_and_driver_share_memory) {
    int *address = on_device(numbers(50));
    std::vector<int> back(50);
    begin();
    CU_OK(CU(cuMemcpyDtoH)(back.data(), (CUdeviceptr)address, 200));
    EXPECT(back == numbers(50));
    CUdeviceptr other;
    CU_OK(CU(cuMemAlloc)(&other, 200));
    OK(cudaMemcpy((void *)other, address, 200, cudaMemcpyDeviceToDevice));
    EXPECT(from_device((int *)other, 50) == numbers(50));
}
CASE(functions_are_found_by_name) {
    begin();
    void *address = nullptr;
    CUdriverProcAddressQueryResult status;
    CU_OK(CU(cuGetProcAddress)("cuMemAlloc", &address, 12000, 0, &status));
    CUdeviceptr memory;
    CU_OK(((CUresult(*)(CUdeviceptr *, size_t))address)(&memory, 64));
    CU_OK(CU(cuGetProcAddress)("cuThereIsNoSuchFunction", &address, 12000, 0, &status));
    EXPECT(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && address == nullptr);
}
// What libraries above the runtime ask it.
CASE(functions_of_the_driver_by_the_runtime) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    int count = 0, wanted = 0;
    OK(cudaGetDeviceCount(&wanted));
    OK(cudaGetDriverEntryPointByVersion("cuDeviceGetCount", &found, 12000, cudaEnableDefault, &result));
    EXPECT(result == cudaDriverEntryPointSuccess && found != nullptr);
    EXPECT(((CUresult(*)(int *))found)(&count) == CUDA_SUCCESS);
    EXPECT(count == wanted);
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &found, 12000, cudaEnableDefault, &result));
    EXPECT(result == cudaDriverEntryPointSymbolNotFound && found == nullptr);
}
CASE(what_is_known_of_a_capture) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaStreamCaptureStatus status;
    unsigned long long first = 0, second = 0;
    OK(cudaStreamGetCaptureInfo(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    for (unsigned long long *id : {&first, &second}) {
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
        OK(cudaStreamGetCaptureInfo(stream, &status, id));
        EXPECT(status == cudaStreamCaptureStatusActive && *id != 0);
        cudaGraph_t graph;
        OK(cudaStreamEndCapture(stream, &graph));
    }
    EXPECT(first != second);
}
CASE(the_runtime_makes_a_context_current) {
    CUcontext context = nullptr, primary;
    OK(cudaFree(nullptr));
    CU_OK(CU(cuCtxGetCurrent)(&context));
    CU_OK(CU(cuDevicePrimaryCtxRetain)(&primary, 0));
    EXPECT(context != nullptr && context == primary);
}
