// Kernels that read textures and read and write surfaces: only a GPU has what they need.
#include "case.h"

__global__ void read_2d(cudaTextureObject_t from, float *to, int width, float shift, float scale) {
    int x = threadIdx.x, y = blockIdx.x;
    to[y * width + x] = tex2D<float>(from, (x + shift) * scale, (y + shift) * scale);
}
__global__ void read_memory(cudaTextureObject_t from, int *to) { to[threadIdx.x] = tex1Dfetch<int>(from, threadIdx.x); }
__global__ void read_3d(cudaTextureObject_t from, float *to) {
    to[(blockIdx.x * 4 + threadIdx.y) * 8 + threadIdx.x] = tex3D<float>(from, threadIdx.x + 0.5f, threadIdx.y + 0.5f, blockIdx.x + 0.5f);
}
__global__ void read_layers(cudaTextureObject_t from, float *to) {
    to[(blockIdx.x * 4 + threadIdx.y) * 8 + threadIdx.x] = tex2DLayered<float>(from, threadIdx.x + 0.5f, threadIdx.y + 0.5f, blockIdx.x);
}
__global__ void read_colours(cudaTextureObject_t from, float4 *to) { to[threadIdx.x] = tex2D<float4>(from, threadIdx.x + 0.5f, 0.5f); }
__global__ void read_level(cudaTextureObject_t from, float *to, float level) {
    to[threadIdx.x] = tex2DLod<float>(from, (threadIdx.x + 0.5f) / 8, 0.5f, level);
}
__global__ void double_surface(cudaSurfaceObject_t on) {
    float value;
    surf2Dread(&value, on, threadIdx.x * 4, blockIdx.x);
    surf2Dwrite(value * 2, on, threadIdx.x * 4, blockIdx.x);
}
__global__ void fill_surface(cudaSurfaceObject_t on) {
    surf3Dwrite((unsigned)(threadIdx.x + 100 * threadIdx.y + 10000 * blockIdx.x), on, threadIdx.x * 4, threadIdx.y, blockIdx.x);
}

static std::vector<float> ramp(int count) {
    std::vector<float> all(count);
    for (int i = 0; i < count; i++) all[i] = i * 0.5f;
    return all;
}
static cudaArray_t filled(const std::vector<float> &values, int width, unsigned flags = 0) {
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    int height = values.size() / width;
    OK(cudaMallocArray(&array, &format, width, height, flags));
    OK(cudaMemcpy2DToArray(array, 0, 0, values.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    return array;
}
static cudaResourceDesc of_array(cudaArray_t array) {
    cudaResourceDesc of = {};
    of.resType = cudaResourceTypeArray;
    of.res.array.array = array;
    return of;
}
static cudaTextureObject_t texture(const cudaResourceDesc &of, const cudaTextureDesc &sampler) {
    cudaTextureObject_t made;
    OK(cudaCreateTextureObject(&made, &of, &sampler, nullptr));
    return made;
}
template <typename T> static T *room(size_t count) {
    T *address;
    OK(cudaMalloc(&address, count * sizeof(T)));
    return address;
}

CASE(elements_of_an_array) {
    auto values = ramp(32 * 16);
    cudaTextureDesc sampler = {};
    auto from = texture(of_array(filled(values, 32)), sampler);
    float *to = room<float>(values.size());
    read_2d<<<16, 32>>>(from, to, 32, 0.5f, 1);
    EXPECT(from_device(to, values.size()) == values);
    OK(cudaDestroyTextureObject(from));
}
CASE(filtered_and_clamped) {
    auto values = ramp(8 * 8);
    cudaTextureDesc sampler = {};
    sampler.filterMode = cudaFilterModeLinear;
    sampler.addressMode[0] = sampler.addressMode[1] = cudaAddressModeClamp;
    sampler.normalizedCoords = 1;
    auto from = texture(of_array(filled(values, 8)), sampler);
    float *to = room<float>(64);
    read_2d<<<8, 8>>>(from, to, 8, 1, 1.0f / 8);
    for (float value : from_device(to, 64)) SAY("%.4f", value);
}
CASE(a_border) {
    auto values = ramp(4 * 4);
    cudaTextureDesc sampler = {};
    sampler.addressMode[0] = sampler.addressMode[1] = cudaAddressModeBorder;
    sampler.borderColor[0] = 7;
    auto from = texture(of_array(filled(values, 4)), sampler);
    float *to = room<float>(64);
    read_2d<<<8, 8>>>(from, to, 8, -1.5f, 1);
    auto found = from_device(to, 64);
    for (int i = 0; i < 64; i++) {
        int x = i % 8 - 2, y = i / 8 - 2;
        EXPECT(found[i] == (x >= 0 && x < 4 && y >= 0 && y < 4 ? values[y * 4 + x] : 7));
    }
}
CASE(elements_of_memory) {
    auto values = numbers(64, 5);
    cudaResourceDesc of = {};
    of.resType = cudaResourceTypeLinear;
    of.res.linear.devPtr = on_device(values);
    of.res.linear.desc = cudaCreateChannelDesc<int>();
    of.res.linear.sizeInBytes = 256;
    cudaTextureDesc sampler = {};
    int *to = room<int>(64);
    read_memory<<<1, 64>>>(texture(of, sampler), to);
    EXPECT(from_device(to, 64) == values);
}
CASE(rows_of_memory) {
    auto values = ramp(20 * 6);
    float *memory;
    size_t pitch;
    OK(cudaMallocPitch(&memory, &pitch, 80, 6));
    OK(cudaMemcpy2D(memory, pitch, values.data(), 80, 80, 6, cudaMemcpyHostToDevice));
    cudaResourceDesc of = {};
    of.resType = cudaResourceTypePitch2D;
    of.res.pitch2D = {memory, cudaCreateChannelDesc<float>(), 20, 6, pitch};
    cudaTextureDesc sampler = {};
    float *to = room<float>(120);
    read_2d<<<6, 20>>>(texture(of, sampler), to, 20, 0.5f, 1);
    EXPECT(from_device(to, 120) == values);
}
static cudaArray_t box(const std::vector<float> &values, unsigned flags) {
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaExtent extent = make_cudaExtent(8, 4, 3);
    OK(cudaMalloc3DArray(&array, &format, extent, flags));
    cudaMemcpy3DParms there = {};
    there.srcPtr = make_cudaPitchedPtr((void *)values.data(), 32, 8, 4);
    there.dstArray = array;
    there.extent = extent;
    there.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&there));
    return array;
}
CASE(a_box) {
    auto values = ramp(96);
    cudaTextureDesc sampler = {};
    float *to = room<float>(96);
    read_3d<<<3, dim3(8, 4)>>>(texture(of_array(box(values, 0)), sampler), to);
    EXPECT(from_device(to, 96) == values);
}
CASE(layers) {
    auto values = ramp(96);
    cudaTextureDesc sampler = {};
    float *to = room<float>(96);
    read_layers<<<3, dim3(8, 4)>>>(texture(of_array(box(values, cudaArrayLayered)), sampler), to);
    EXPECT(from_device(to, 96) == values);
}
CASE(colours_as_numbers) {
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    OK(cudaMallocArray(&array, &format, 4, 1));
    unsigned char here[16] = {0, 51, 102, 255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    OK(cudaMemcpy2DToArray(array, 0, 0, here, 16, 16, 1, cudaMemcpyHostToDevice));
    cudaTextureDesc sampler = {};
    sampler.readMode = cudaReadModeNormalizedFloat;
    float4 *to = room<float4>(4);
    read_colours<<<1, 4>>>(texture(of_array(array), sampler), to);
    for (float4 colour : from_device(to, 4)) SAY("%.5f %.5f %.5f %.5f", colour.x, colour.y, colour.z, colour.w);
}
CASE(levels) {
    cudaMipmappedArray_t mipmap;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    OK(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(8, 8, 0), 3));
    for (unsigned level = 0; level < 3; level++) {
        cudaArray_t array;
        OK(cudaGetMipmappedArrayLevel(&array, mipmap, level));
        int side = 8 >> level;
        std::vector<float> values(side * side, 1.0f + level);
        OK(cudaMemcpy2DToArray(array, 0, 0, values.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc of = {};
    of.resType = cudaResourceTypeMipmappedArray;
    of.res.mipmap.mipmap = mipmap;
    cudaTextureDesc sampler = {};
    sampler.normalizedCoords = 1;
    sampler.filterMode = sampler.mipmapFilterMode = cudaFilterModeLinear;
    sampler.maxMipmapLevelClamp = 2;
    float *to = room<float>(8);
    auto from = texture(of, sampler);
    for (float level : {0.0f, 0.5f, 1.0f, 2.0f, 5.0f}) {
        read_level<<<1, 8>>>(from, to, level);
        SAY("%.3f", from_device(to, 8)[3]);
    }
}
CASE(a_surface_is_written) {
    auto values = ramp(32 * 8);
    cudaArray_t array = filled(values, 32, cudaArraySurfaceLoadStore);
    cudaResourceDesc of = of_array(array);
    cudaSurfaceObject_t on;
    OK(cudaCreateSurfaceObject(&on, &of));
    double_surface<<<8, 32>>>(on);
    std::vector<float> back(values.size());
    OK(cudaMemcpy2DFromArray(back.data(), 128, array, 0, 0, 128, 8, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < back.size(); i++) EXPECT(back[i] == values[i] * 2);
    OK(cudaDestroySurfaceObject(on));
}
CASE(a_surface_of_a_box) {
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
    cudaExtent extent = make_cudaExtent(16, 4, 3);
    OK(cudaMalloc3DArray(&array, &format, extent, cudaArraySurfaceLoadStore));
    cudaResourceDesc of = of_array(array);
    cudaSurfaceObject_t on;
    OK(cudaCreateSurfaceObject(&on, &of));
    fill_surface<<<3, dim3(16, 4)>>>(on);
    std::vector<unsigned> back(16 * 4 * 3);
    cudaMemcpy3DParms home = {};
    home.srcArray = array;
    home.dstPtr = make_cudaPitchedPtr(back.data(), 64, 16, 4);
    home.extent = extent;
    home.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&home));
    for (unsigned i = 0; i < back.size(); i++) EXPECT(back[i] == i % 16 + 100 * (i / 16 % 4) + 10000 * (i / 64));
}
