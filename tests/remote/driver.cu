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
CASE(a_context_of_its_own) {
    CU_OK(CU(cuInit)(0));
    CUcontext context = nullptr, now = nullptr;
    CUdeviceptr address;
    CUdevice device = 7;
    unsigned flags = 77;
#if CUDA_VERSION >= 13000
    CU_OK(CU(cuCtxCreate)(&context, nullptr, 0, 0));
#else
    CU_OK(CU(cuCtxCreate)(&context, 0, 0));
#endif
    CU_OK(CU(cuCtxGetCurrent)(&now));
    CU_OK(CU(cuCtxGetDevice)(&device));
    EXPECT(now == context && device == 0);
    CU_OK(CU(cuCtxGetFlags)(&flags));
    CU_OK(CU(cuMemAlloc)(&address, 4000));
    CU_OK(CU(cuMemsetD8)(address, 7, 4000));
    CU_OK(CU(cuCtxSynchronize)());
    CU_OK(CU(cuCtxDestroy)(context));
    CU_OK(CU(cuCtxGetCurrent)(&now));
    EXPECT(now == nullptr);
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, CU(cuCtxGetDevice)(&device));
}
CASE(contexts_again_and_again) {
    CU_OK(CU(cuInit)(0));
    // Their memory ends with them, so it is never too much.
    for (int round = 0; round < 12; round++) {
        CUcontext context;
        CUdeviceptr address;
        size_t left, all;
        CU_OK(((CUresult(*)(CUcontext *, unsigned, CUdevice))found("cuCtxCreate_v2"))(&context, 0, 0));
        CU_OK(CU(cuMemGetInfo)(&left, &all));
        EXPECT(left > all / 2);
        CU_OK(CU(cuMemAlloc)(&address, all / 8));
        CU_OK(CU(cuCtxDestroy)(context));
    }
}
CASE(memory_of_rows) {
    begin();
    CUdeviceptr address;
    size_t pitch = 0;
    CU_OK(CU(cuMemAllocPitch)(&address, &pitch, 400, 50, 4));
    EXPECT(pitch >= 400 && pitch % 16 == 0);
    // What a failed call leaves in these is not said.
    CUdeviceptr nowhere;
    size_t none;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemAllocPitch)(&nowhere, &none, 400, 50, 3));
    CU_OK(CU(cuMemsetD2D32)(address, pitch, 0x01020304, 100, 50));
    CU_OK(CU(cuMemsetD2D8)(address, pitch, 9, 4, 50));
    CU_OK(CU(cuMemsetD2D16)(address + 8, pitch, 0x0a0b, 2, 50));
    std::vector<unsigned> row(100);
    CU_OK(CU(cuMemcpyDtoH)(row.data(), address + 49 * pitch, 400));
    EXPECT(row[0] == 0x09090909 && row[1] == 0x01020304 && row[2] == 0x0a0b0a0b && row[99] == 0x01020304);
    CU_OK(CU(cuMemFree)(address));
}
CASE(memory_in_the_order_of_a_stream) {
    begin();
    CUstream stream;
    CUdeviceptr address;
    CU_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(CU(cuMemAllocAsync)(&address, 4000, stream));
    CU_OK(CU(cuMemsetD16Async)(address, 0x0506, 2000, stream));
    std::vector<unsigned short> back(2000);
    CU_OK(CU(cuMemcpyDtoHAsync)(back.data(), address, 4000, stream));
    CU_OK(CU(cuStreamSynchronize)(stream));
    EXPECT(back[0] == 0x0506 && back[1999] == 0x0506);
    CU_OK(CU(cuMemFreeAsync)(address, stream));
    CU_OK(CU(cuStreamSynchronize)(stream));
}
CASE(memory_of_the_host) {
    begin();
    auto values = numbers(1000);
    unsigned flags = 99;
    void *pinned = nullptr;
    CU_OK(CU(cuMemHostAlloc)(&pinned, 4000, CU_MEMHOSTALLOC_PORTABLE));
    CU_OK(CU(cuMemHostGetFlags)(&flags, pinned));
    EXPECT(flags & CU_MEMHOSTALLOC_PORTABLE);
    CU_OK(CU(cuMemFreeHost)(pinned));
    CU_OK(CU(cuMemHostRegister)(values.data(), 4000, CU_MEMHOSTREGISTER_PORTABLE));
    CUdeviceptr address;
    CU_OK(CU(cuMemAlloc)(&address, 4000));
    CU_OK(CU(cuMemcpyHtoDAsync)(address, values.data(), 4000, nullptr));
    CU_OK(CU(cuCtxSynchronize)());
    std::vector<int> back(1000);
    CU_OK(CU(cuMemcpyDtoH)(back.data(), address, 4000));
    EXPECT(back == values);
    CU_OK(CU(cuMemHostUnregister)(values.data()));
    EXPECT(CU(cuMemHostUnregister)(values.data()) != CUDA_SUCCESS);
}
CASE(launches_by_configuration) {
    begin();
    CUmodule module;
    CUfunction function;
    CUdeviceptr to;
    const char *name = nullptr;
    int first = 5;
    CU_OK(CU(cuModuleLoadData)(&module, TEXT));
    CU_OK(CU(cuModuleGetFunction)(&function, module, "fill"));
    CU_OK(CU(cuFuncGetName)(&name, function));
    EXPECT(!strcmp(name, "fill"));
    CU_OK(CU(cuMemAlloc)(&to, 400));
    void *values[] = {&to, &first};
    CUstream stream;
    CU_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CUlaunchConfig config = {};
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = 100;
    config.hStream = stream;
    CU_OK(CU(cuLaunchKernelEx)(&config, function, values, nullptr));
    CU_OK(CU(cuStreamSynchronize)(stream));
    std::vector<int> back(100);
    CU_OK(CU(cuMemcpyDtoH)(back.data(), to, 400));
    EXPECT(back == numbers(100, 5));
    first = 70;
    CU_OK(CU(cuLaunchCooperativeKernel)(function, 1, 1, 1, 100, 1, 1, 0, stream, values));
    CU_OK(CU(cuStreamSynchronize)(stream));
    CU_OK(CU(cuMemcpyDtoH)(back.data(), to, 400));
    EXPECT(back == numbers(100, 70));
}
// As a program that is compiled for the calling thread's default stream calls them.
CASE(functions_on_the_threads_stream) {
    begin();
    CUmodule module;
    CUfunction function;
    CUdeviceptr to;
    int first = 31;
    CU_OK(CU(cuModuleLoadData)(&module, TEXT));
    CU_OK(CU(cuModuleGetFunction)(&function, module, "fill"));
    CU_OK(CU(cuMemAlloc)(&to, 400));
    void *values[] = {&to, &first};
    CU_OK(((decltype(&cuLaunchKernel))found("cuLaunchKernel_ptsz"))(function, 1, 1, 1, 100, 1, 1, 0, nullptr, values, nullptr));
    std::vector<int> back(100);
    CU_OK(((CUresult(*)(void *, CUdeviceptr, size_t))found("cuMemcpyDtoH_v2_ptds"))(back.data(), to, 400));
    EXPECT(back == numbers(100, 31));
    CU_OK(((CUresult(*)(CUstream))found("cuStreamSynchronize_ptsz"))(nullptr));
    void *address = nullptr, *plain = nullptr;
    CUdriverProcAddressQueryResult status;
    CU_OK(CU(cuGetProcAddress)("cuStreamSynchronize", &plain, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
    CU_OK(CU(cuGetProcAddress)("cuStreamSynchronize", &address, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    EXPECT(address != nullptr && address != plain);
    CU_OK(((CUresult(*)(CUstream))address)(nullptr));
}
CASE(what_a_device_is) {
    begin();
    int major = 0, minor = -1;
    char bus[100];
    CUdevice device = 7;
    CU_OK(((CUresult(*)(int *, int *, CUdevice))found("cuDeviceComputeCapability"))(&major, &minor, 0));
    EXPECT(major >= 3 && minor >= 0);
    CU_OK(CU(cuDeviceGetPCIBusId)(bus, sizeof bus, 0));
    CU_OK(CU(cuDeviceGetByPCIBusId)(&device, bus));
    EXPECT(device == 0);
    CUmemoryPool pool = nullptr, used = nullptr;
    CU_OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
    CU_OK(CU(cuDeviceGetMemPool)(&used, 0));
    EXPECT(pool != nullptr && pool == used);
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
