// Arrays, and the objects of textures and surfaces; kernels that use those are in texture.cu.
#include "case.h"
#include <cuda.h>
#include <dlfcn.h>

// CUDA calls copies of runs of bytes deprecated, and has them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma nv_diag_suppress 1444

#define CU(name) ((decltype(&name))dlsym(dlopen("libcuda.so.1", RTLD_NOW), STRING(name)))
#define STRING_(name) #name
#define STRING(name) STRING_(name)
#define CU_OK(call) EXPECT((call) == CUDA_SUCCESS)

template <typename T> static cudaArray_t array_of(int width, int height, unsigned flags = 0) {
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<T>();
    OK(cudaMallocArray(&array, &format, width, height, flags));
    return array;
}
static std::vector<unsigned char> bytes(size_t count, int factor = 7) {
    std::vector<unsigned char> all(count);
    for (size_t i = 0; i < count; i++) all[i] = i * factor >> 2;
    return all;
}
static void say(cudaChannelFormatDesc of) { SAY("%d %d %d %d %d", of.x, of.y, of.z, of.w, of.f); }

CASE(rows_there_and_back) {
    const int width = 37, height = 11;
    auto here = numbers(width * height);
    std::vector<int> back(here.size());
    cudaArray_t array = array_of<int>(width, height);
    OK(cudaMemcpy2DToArray(array, 0, 0, here.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(back.data(), width * 4, array, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    EXPECT(here == back);
    OK(cudaFreeArray(array));
}
CASE(a_part_of_an_array) {
    cudaArray_t array = array_of<unsigned char>(20, 10);
    std::vector<unsigned char> zeros(200), here = bytes(15), back(200);
    OK(cudaMemcpy2DToArray(array, 0, 0, zeros.data(), 20, 20, 10, cudaMemcpyDefault));
    OK(cudaMemcpy2DToArray(array, 7, 4, here.data(), 5, 5, 3, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(back.data(), 20, array, 0, 0, 20, 10, cudaMemcpyDefault));
    for (int i = 0; i < 200; i++) {
        int x = i % 20 - 7, y = i / 20 - 4;
        bool is_inside = x >= 0 && x < 5 && y >= 0 && y < 3;
        EXPECT(back[i] == (is_inside ? here[y * 5 + x] : 0));
    }
    unsigned char one[4] = {};
    OK(cudaMemcpy2DFromArray(one, 2, array, 8, 5, 2, 2, cudaMemcpyDeviceToHost));
    EXPECT(one[0] == here[6] && one[1] == here[7] && one[2] == here[11] && one[3] == here[12]);
}
CASE(formats) {
    say(cudaCreateChannelDesc<float4>());
    say(cudaCreateChannelDesc(8, 8, 0, 0, cudaChannelFormatKindUnsigned));
    cudaChannelFormatDesc all[] = {cudaCreateChannelDesc<char>(), cudaCreateChannelDesc<ushort2>(), cudaCreateChannelDesc<int4>(),
                                   cudaCreateChannelDesc<float>(), cudaCreateChannelDescHalf4()};
    for (auto &format : all) {
        cudaArray_t array;
        OK(cudaMallocArray(&array, &format, 8, 4));
        cudaChannelFormatDesc found;
        OK(cudaGetChannelDesc(&found, array));
        say(found);
        cudaExtent extent;
        unsigned flags;
        OK(cudaArrayGetInfo(&found, &extent, &flags, array));
        SAY("%zu %zu %zu flags %u", extent.width, extent.height, extent.depth, flags);
        OK(cudaFreeArray(array));
    }
}
CASE(formats_that_are_none) {
    cudaArray_t array;
    cudaChannelFormatDesc wrong[] = {cudaCreateChannelDesc(8, 8, 8, 0, cudaChannelFormatKindUnsigned),
                                     cudaCreateChannelDesc(8, 16, 0, 0, cudaChannelFormatKindUnsigned)};
    for (auto &format : wrong) GIVES(cudaErrorInvalidChannelDescriptor, cudaMallocArray(&array, &format, 8, 4));
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    GIVES(cudaErrorInvalidValue, cudaMallocArray(nullptr, &format, 8, 4));
    OK(cudaFreeArray(nullptr));
}
CASE(copies_that_leave_an_array) {
    cudaArray_t array = array_of<int>(8, 4);
    int here[64] = {};
    GIVES(cudaErrorInvalidValue, cudaMemcpy2DToArray(array, 0, 0, here, 36, 36, 4, cudaMemcpyHostToDevice));
    GIVES(cudaErrorInvalidValue, cudaMemcpy2DToArray(array, 4, 0, here, 32, 32, 4, cudaMemcpyHostToDevice));
    GIVES(cudaErrorInvalidValue, cudaMemcpy2DFromArray(here, 32, array, 0, 1, 32, 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy2DFromArray(here, 32, array, 0, 1, 32, 3, cudaMemcpyDeviceToHost));
}
CASE(between_arrays_and_memory) {
    auto here = numbers(64);
    std::vector<int> back(64);
    int *memory = on_device(here);
    cudaArray_t one = array_of<int>(8, 8), other = array_of<int>(16, 16);
    OK(cudaMemcpy2DToArray(one, 0, 0, memory, 32, 32, 8, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy2DArrayToArray(other, 16, 5, one, 0, 0, 32, 8, cudaMemcpyDeviceToDevice));
    OK(cudaMemset(memory, 0, 256));
    OK(cudaMemcpy2DFromArray(memory, 32, other, 16, 5, 32, 8, cudaMemcpyDeviceToDevice));
    EXPECT(from_device(memory, 64) == here);
}
CASE(bytes_row_after_row) {
    cudaArray_t array = array_of<unsigned char>(10, 6), other = array_of<unsigned char>(15, 4);
    auto here = bytes(60);
    std::vector<unsigned char> back(60), part(23);
    OK(cudaMemcpyToArray(array, 0, 0, here.data(), 60, cudaMemcpyHostToDevice));
    OK(cudaMemcpyFromArray(back.data(), array, 0, 0, 60, cudaMemcpyDeviceToHost));
    EXPECT(here == back);
    OK(cudaMemcpyFromArray(part.data(), array, 4, 1, 23, cudaMemcpyDeviceToHost));
    EXPECT(std::vector<unsigned char>(&here[14], &here[37]) == part);
    OK(cudaMemcpyArrayToArray(other, 0, 0, array, 0, 0, 60));
    std::vector<unsigned char> again(60);
    OK(cudaMemcpyFromArray(again.data(), other, 0, 0, 60, cudaMemcpyDeviceToHost));
    EXPECT(here == again);
}
CASE(a_box_there_and_back) {
    cudaExtent extent = make_cudaExtent(9, 7, 5);
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float2>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &format, extent));
    auto here = bytes(9 * 7 * 5 * 8);
    std::vector<unsigned char> back(here.size());
    cudaMemcpy3DParms there = {};
    there.srcPtr = make_cudaPitchedPtr(here.data(), 72, 9, 7);
    there.dstArray = array;
    there.extent = extent;
    there.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&there));
    cudaMemcpy3DParms home = {};
    home.srcArray = array;
    home.dstPtr = make_cudaPitchedPtr(back.data(), 72, 9, 7);
    home.extent = extent;
    home.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&home));
    EXPECT(here == back);
    // Positions in an array count elements, those in memory bytes.
    std::vector<unsigned char> part(2 * 3 * 2 * 8);
    home.srcPos = make_cudaPos(4, 3, 2);
    home.dstPtr = make_cudaPitchedPtr(part.data(), 16, 2, 3);
    home.extent = make_cudaExtent(2, 3, 2);
    OK(cudaMemcpy3D(&home));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 3; y++)
            EXPECT(!memcmp(&part[(z * 3 + y) * 16], &here[(((z + 2) * 7 + y + 3) * 9 + 4) * 8], 16));
    std::vector<unsigned char> wider(6 * 3 * 2 * 8);
    home.dstPtr = make_cudaPitchedPtr(wider.data(), 48, 6, 3);
    home.extent = make_cudaExtent(6, 3, 2);
    GIVES(cudaErrorInvalidValue, cudaMemcpy3D(&home));
    OK(cudaFreeArray(array));
}
CASE(a_box_between_arrays) {
    cudaExtent extent = make_cudaExtent(6, 5, 4);
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    cudaArray_t one, other;
    OK(cudaMalloc3DArray(&one, &format, extent));
    OK(cudaMalloc3DArray(&other, &format, extent));
    auto here = numbers(120);
    std::vector<int> back(120, -1);
    cudaMemcpy3DParms there = {};
    there.srcPtr = make_cudaPitchedPtr(here.data(), 24, 6, 5);
    there.dstArray = one;
    there.extent = extent;
    there.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&there));
    cudaMemcpy3DParms over = {};
    over.srcArray = one;
    over.dstArray = other;
    over.extent = extent;
    over.kind = cudaMemcpyDeviceToDevice;
    OK(cudaMemcpy3D(&over));
    cudaMemcpy3DParms home = {};
    home.srcArray = other;
    home.dstPtr = make_cudaPitchedPtr(back.data(), 24, 6, 5);
    home.extent = extent;
    home.kind = cudaMemcpyDefault;
    OK(cudaMemcpy3D(&home));
    EXPECT(here == back);
}
CASE(layers) {
    cudaExtent extent = make_cudaExtent(16, 8, 3);
    cudaChannelFormatDesc format = cudaCreateChannelDesc<short>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &format, extent, cudaArrayLayered));
    auto here = bytes(16 * 8 * 2);
    std::vector<unsigned char> back(here.size());
    cudaMemcpy3DParms there = {}, home = {};
    there.srcPtr = make_cudaPitchedPtr(here.data(), 32, 16, 8);
    there.dstArray = array;
    there.dstPos = make_cudaPos(0, 0, 2);
    there.extent = make_cudaExtent(16, 8, 1);
    there.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&there));
    home.srcArray = array;
    home.srcPos = make_cudaPos(0, 0, 2);
    home.dstPtr = make_cudaPitchedPtr(back.data(), 32, 16, 8);
    home.extent = make_cudaExtent(16, 8, 1);
    home.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&home));
    EXPECT(here == back);
    unsigned flags;
    OK(cudaArrayGetInfo(nullptr, &extent, &flags, array));
    SAY("%zu %zu %zu flags %u", extent.width, extent.height, extent.depth, flags);
}
CASE(levels) {
    cudaMipmappedArray_t mipmap;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
    OK(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(32, 12, 0), 4));
    for (unsigned level = 0; level < 4; level++) {
        cudaArray_t array;
        OK(cudaGetMipmappedArrayLevel(&array, mipmap, level));
        cudaExtent extent;
        OK(cudaArrayGetInfo(nullptr, &extent, nullptr, array));
        SAY("%zu %zu %zu", extent.width, extent.height, extent.depth);
        auto here = bytes(extent.width * extent.height, level + 3);
        std::vector<unsigned char> back(here.size());
        size_t width = extent.width;
        OK(cudaMemcpy2DToArray(array, 0, 0, here.data(), width, width, extent.height, cudaMemcpyHostToDevice));
        OK(cudaMemcpy2DFromArray(back.data(), width, array, 0, 0, width, extent.height, cudaMemcpyDeviceToHost));
        EXPECT(here == back);
    }
    cudaArray_t none;
    GIVES(cudaErrorInvalidValue, cudaGetMipmappedArrayLevel(&none, mipmap, 4));
    OK(cudaFreeMipmappedArray(mipmap));
}
CASE(on_a_stream_with_pinned_memory) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned char *there, *home;
    OK(cudaMallocHost(&there, 64 * 64));
    OK(cudaMallocHost(&home, 64 * 64));
    auto here = bytes(64 * 64);
    memcpy(there, here.data(), here.size());
    cudaArray_t array = array_of<unsigned char>(64, 64);
    OK(cudaMemcpy2DToArrayAsync(array, 0, 0, there, 64, 64, 64, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpy2DFromArrayAsync(home, 64, array, 0, 0, 64, 64, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(!memcmp(home, here.data(), here.size()));
}
CASE(a_large_array) {
    const size_t width = 3001, height = 2003;
    std::vector<unsigned char> here = bytes(width * height * 4), back(here.size());
    cudaArray_t array = array_of<uchar4>(width, height);
    OK(cudaMemcpy2DToArray(array, 0, 0, here.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(back.data(), width * 4, array, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    EXPECT(here == back);
}
CASE(what_a_texture_was_made_of) {
    cudaArray_t array = array_of<float>(16, 16);
    cudaResourceDesc of = {}, found;
    of.resType = cudaResourceTypeArray;
    of.res.array.array = array;
    cudaTextureDesc sampler = {}, sampling;
    sampler.addressMode[0] = cudaAddressModeClamp;
    sampler.addressMode[1] = cudaAddressModeBorder;
    sampler.filterMode = cudaFilterModeLinear;
    sampler.readMode = cudaReadModeElementType;
    sampler.normalizedCoords = 1;
    sampler.borderColor[1] = 0.5f;
    cudaTextureObject_t texture = 0;
    OK(cudaCreateTextureObject(&texture, &of, &sampler, nullptr));
    EXPECT(texture != 0);
    OK(cudaGetTextureObjectResourceDesc(&found, texture));
    EXPECT(found.resType == cudaResourceTypeArray && found.res.array.array == array);
    OK(cudaGetTextureObjectTextureDesc(&sampling, texture));
    // Not the border's colour: CUDA leaves that field as it was.
    SAY("%d %d %d %d %d", sampling.addressMode[0], sampling.addressMode[1], sampling.filterMode, sampling.readMode,
        sampling.normalizedCoords);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
}
CASE(textures_of_memory) {
    float *memory;
    size_t pitch;
    OK(cudaMallocPitch(&memory, &pitch, 100 * 4, 20));
    cudaResourceDesc of = {}, found;
    of.resType = cudaResourceTypeLinear;
    of.res.linear.devPtr = memory;
    of.res.linear.desc = cudaCreateChannelDesc<float>();
    of.res.linear.sizeInBytes = 400;
    cudaTextureDesc sampler = {};
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &of, &sampler, nullptr));
    OK(cudaGetTextureObjectResourceDesc(&found, texture));
    EXPECT(found.res.linear.devPtr == memory && found.res.linear.sizeInBytes == 400);
    say(found.res.linear.desc);
    OK(cudaDestroyTextureObject(texture));
    of.resType = cudaResourceTypePitch2D;
    of.res.pitch2D = {memory, cudaCreateChannelDesc<float>(), 100, 20, pitch};
    OK(cudaCreateTextureObject(&texture, &of, &sampler, nullptr));
    OK(cudaGetTextureObjectResourceDesc(&found, texture));
    EXPECT(found.res.pitch2D.devPtr == memory && found.res.pitch2D.height == 20 && found.res.pitch2D.pitchInBytes == pitch);
    OK(cudaDestroyTextureObject(texture));
}
CASE(surfaces_of_arrays) {
    cudaArray_t array = array_of<float>(16, 16, cudaArraySurfaceLoadStore);
    cudaResourceDesc of = {}, found;
    of.resType = cudaResourceTypeArray;
    of.res.array.array = array;
    cudaSurfaceObject_t surface = 0;
    OK(cudaCreateSurfaceObject(&surface, &of));
    EXPECT(surface != 0);
    OK(cudaGetSurfaceObjectResourceDesc(&found, surface));
    EXPECT(found.resType == cudaResourceTypeArray && found.res.array.array == array);
    OK(cudaDestroySurfaceObject(surface));
    of.resType = cudaResourceTypeLinear;
    EXPECT(cudaCreateSurfaceObject(&surface, &of) != cudaSuccess);
}

// The same by the driver's API.

CASE(drivers_arrays) {
    OK(cudaFree(nullptr));
    CUDA_ARRAY_DESCRIPTOR wanted = {40, 6, CU_AD_FORMAT_UNSIGNED_INT16, 2}, found;
    CUarray array, row;
    CU_OK(CU(cuArrayCreate)(&array, &wanted));
    CU_OK(CU(cuArrayGetDescriptor)(&found, array));
    SAY("%zu %zu %d %u", found.Width, found.Height, found.Format, found.NumChannels);
    auto here = bytes(200 * 6);
    std::vector<unsigned char> back(160 * 6);
    CUDA_MEMCPY2D there = {}, home = {};
    there.srcMemoryType = CU_MEMORYTYPE_HOST, there.srcHost = here.data(), there.srcPitch = 200, there.srcXInBytes = 20;
    there.dstMemoryType = CU_MEMORYTYPE_ARRAY, there.dstArray = array;
    there.WidthInBytes = 160, there.Height = 6;
    CU_OK(CU(cuMemcpy2D)(&there));
    home.srcMemoryType = CU_MEMORYTYPE_ARRAY, home.srcArray = array;
    home.dstMemoryType = CU_MEMORYTYPE_HOST, home.dstHost = back.data(), home.dstPitch = 160;
    home.WidthInBytes = 160, home.Height = 6;
    CU_OK(CU(cuMemcpy2DUnaligned)(&home));
    for (int y = 0; y < 6; y++) EXPECT(!memcmp(&back[y * 160], &here[y * 200 + 20], 160));
    wanted.Height = 0;
    CU_OK(CU(cuArrayCreate)(&row, &wanted));
    CU_OK(CU(cuMemcpyHtoA)(row, 40, here.data(), 80));
    CU_OK(CU(cuMemcpyAtoH)(back.data(), row, 44, 60));
    EXPECT(!memcmp(back.data(), here.data() + 4, 60));
    CUdeviceptr memory;
    CU_OK(CU(cuMemAlloc)(&memory, 160));
    CU_OK(CU(cuMemcpyAtoD)(memory, row, 40, 80));
    CU_OK(CU(cuMemcpyDtoA)(row, 0, memory, 40));
    CU_OK(CU(cuMemcpyAtoA)(row, 120, row, 0, 40));
    CU_OK(CU(cuMemcpyAtoH)(back.data(), row, 120, 40));
    EXPECT(!memcmp(back.data(), here.data(), 40));
    CU_OK(CU(cuArrayDestroy)(array));
    CU_OK(CU(cuArrayDestroy)(row));
}
CASE(drivers_boxes) {
    OK(cudaFree(nullptr));
    CUDA_ARRAY3D_DESCRIPTOR wanted = {10, 8, 4, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST}, found;
    CUarray array;
    CU_OK(CU(cuArray3DCreate)(&array, &wanted));
    CU_OK(CU(cuArray3DGetDescriptor)(&found, array));
    SAY("%zu %zu %zu %d %u %u", found.Width, found.Height, found.Depth, found.Format, found.NumChannels, found.Flags);
    auto here = bytes(40 * 8 * 4);
    std::vector<unsigned char> back(here.size());
    CUDA_MEMCPY3D there = {}, home = {};
    there.srcMemoryType = CU_MEMORYTYPE_HOST, there.srcHost = here.data(), there.srcPitch = 40, there.srcHeight = 8;
    there.dstMemoryType = CU_MEMORYTYPE_ARRAY, there.dstArray = array;
    there.WidthInBytes = 40, there.Height = 8, there.Depth = 4;
    CU_OK(CU(cuMemcpy3D)(&there));
    home.srcMemoryType = CU_MEMORYTYPE_ARRAY, home.srcArray = array;
    home.dstMemoryType = CU_MEMORYTYPE_HOST, home.dstHost = back.data(), home.dstPitch = 40, home.dstHeight = 8;
    home.WidthInBytes = 40, home.Height = 8, home.Depth = 4;
    CU_OK(CU(cuMemcpy3DAsync)(&home, nullptr));
    OK(cudaDeviceSynchronize());
    EXPECT(here == back);
    CUDA_RESOURCE_DESC of = {}, again;
    of.resType = CU_RESOURCE_TYPE_ARRAY;
    of.res.array.hArray = array;
    CUDA_TEXTURE_DESC sampler = {}, sampling;
    sampler.filterMode = CU_TR_FILTER_MODE_LINEAR;
    sampler.flags = CU_TRSF_NORMALIZED_COORDINATES;
    CUtexObject texture;
    CUsurfObject surface;
    CU_OK(CU(cuTexObjectCreate)(&texture, &of, &sampler, nullptr));
    CU_OK(CU(cuTexObjectGetResourceDesc)(&again, texture));
    EXPECT(again.resType == of.resType && again.res.array.hArray == array);
    CU_OK(CU(cuTexObjectGetTextureDesc)(&sampling, texture));
    EXPECT(sampling.filterMode == sampler.filterMode && sampling.flags == sampler.flags);
    CU_OK(CU(cuTexObjectDestroy)(texture));
    CU_OK(CU(cuSurfObjectCreate)(&surface, &of));
    CU_OK(CU(cuSurfObjectGetResourceDesc)(&again, surface));
    EXPECT(again.res.array.hArray == array);
    CU_OK(CU(cuSurfObjectDestroy)(surface));
    CU_OK(CU(cuArrayDestroy)(array));
}
CASE(drivers_levels) {
    OK(cudaFree(nullptr));
    CUDA_ARRAY3D_DESCRIPTOR wanted = {16, 16, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
    CUmipmappedArray mipmap;
    CU_OK(CU(cuMipmappedArrayCreate)(&mipmap, &wanted, 3));
    CUarray array;
    CU_OK(CU(cuMipmappedArrayGetLevel)(&array, mipmap, 2));
    CUDA_ARRAY3D_DESCRIPTOR found;
    CU_OK(CU(cuArray3DGetDescriptor)(&found, array));
    SAY("%zu %zu %zu %u", found.Width, found.Height, found.Depth, found.NumChannels);
    CU_OK(CU(cuMipmappedArrayDestroy)(mipmap));
}
