// Copies and fills of rows and layers.
#include "case.h"

CASE(pitch_holds_a_row) {
    char *address;
    size_t pitch = 0;
    OK(cudaMallocPitch(&address, &pitch, 100, 7));
    EXPECT(pitch >= 100 && pitch % 256 == 0);
    OK(cudaMemset2D(address, pitch, 5, 100, 7));
    for (int row = 0; row < 7; row++) EXPECT(from_device(address + row * pitch, 100)[99] == 5);
    OK(cudaFree(address));
}
CASE(rows_there_and_back) {
    const int width = 37, height = 11;
    std::vector<unsigned char> here(width * height), back(width * height);
    for (size_t i = 0; i < here.size(); i++) here[i] = i;
    char *address;
    size_t pitch;
    OK(cudaMallocPitch(&address, &pitch, width, height));
    OK(cudaMemcpy2D(address, pitch, here.data(), width, width, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(back.data(), width, address, pitch, width, height, cudaMemcpyDeviceToHost));
    EXPECT(here == back);
}
CASE(rows_with_gaps_on_the_host) {
    unsigned char here[4][10], back[4][20];
    memset(here, 1, sizeof here);
    memset(back, 9, sizeof back);
    char *address;
    OK(cudaMalloc(&address, 4 * 16));
    OK(cudaMemcpy2D(address, 16, here, 10, 7, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(back, 20, address, 16, 7, 4, cudaMemcpyDeviceToHost));
    for (int row = 0; row < 4; row++)
        for (int x = 0; x < 20; x++) EXPECT(back[row][x] == (x < 7 ? 1 : 9));
}
CASE(rows_within_the_device) {
    auto values = numbers(64);
    int *from = on_device(values), *to;
    OK(cudaMalloc(&to, 1024));
    OK(cudaMemset(to, 0, 1024));
    OK(cudaMemcpy2D(to, 64, from, 32, 32, 8, cudaMemcpyDeviceToDevice));
    auto back = from_device(to, 256);
    for (int i = 0; i < 64; i++) EXPECT(back[i / 8 * 16 + i % 8] == i);
}
CASE(a_pitch_below_the_width) {
    char *address, here[100];
    OK(cudaMalloc(&address, 1000));
    GIVES(cudaErrorInvalidPitchValue, cudaMemcpy2D(address, 5, here, 10, 10, 3, cudaMemcpyHostToDevice));
}
CASE(rows_of_nothing) {
    char *address, here[100];
    OK(cudaMalloc(&address, 1000));
    OK(cudaMemcpy2D(address, 10, here, 10, 0, 3, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(address, 10, here, 10, 10, 0, cudaMemcpyHostToDevice));
}
CASE(fill_of_rows_leaves_gaps) {
    unsigned char *address;
    OK(cudaMalloc(&address, 320));
    OK(cudaMemset(address, 1, 320));
    OK(cudaMemset2D(address, 32, 7, 20, 10));
    auto back = from_device(address, 320);
    for (int i = 0; i < 320; i++) EXPECT(back[i] == (i % 32 < 20 ? 7 : 1));
}
CASE(rows_on_a_stream) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    std::vector<char> here(600, 3), back(600);
    char *address;
    OK(cudaMalloc(&address, 64 * 30));
    OK(cudaMemset2DAsync(address, 64, 1, 20, 30, stream));
    OK(cudaMemcpy2DAsync(address, 64, here.data(), 20, 20, 15, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpy2DAsync(back.data(), 20, address, 64, 20, 30, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 600; i++) EXPECT(back[i] == (i < 300 ? 3 : 1));
}
CASE(a_box_there_and_back) {
    cudaExtent extent = make_cudaExtent(20, 6, 4);
    std::vector<unsigned char> here(20 * 6 * 4), back(here.size());
    for (size_t i = 0; i < here.size(); i++) here[i] = i;
    cudaPitchedPtr there;
    OK(cudaMalloc3D(&there, extent));
    EXPECT(there.pitch >= 20 && there.xsize == 20 && there.ysize == 6);
    cudaMemcpy3DParms wanted = {};
    wanted.srcPtr = make_cudaPitchedPtr(here.data(), 20, 20, 6);
    wanted.dstPtr = there;
    wanted.extent = extent;
    wanted.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&wanted));
    cudaMemcpy3DParms home = {};
    home.srcPtr = there;
    home.dstPtr = make_cudaPitchedPtr(back.data(), 20, 20, 6);
    home.extent = extent;
    home.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&home));
    EXPECT(here == back);
}
CASE(a_part_of_a_box) {
    std::vector<unsigned char> here(10 * 10 * 10, 1);
    char *address;
    OK(cudaMalloc(&address, 1000));
    OK(cudaMemset(address, 0, 1000));
    cudaMemcpy3DParms wanted = {};
    wanted.srcPtr = make_cudaPitchedPtr(here.data(), 10, 10, 10);
    wanted.dstPtr = make_cudaPitchedPtr(address, 10, 10, 10);
    wanted.srcPos = make_cudaPos(1, 2, 3);
    wanted.dstPos = make_cudaPos(4, 5, 6);
    wanted.extent = make_cudaExtent(2, 3, 4);
    wanted.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&wanted));
    auto back = from_device(address, 1000);
    for (int i = 0; i < 1000; i++) {
        int x = i % 10, y = i / 10 % 10, z = i / 100;
        EXPECT(back[i] == (x >= 4 && x < 6 && y >= 5 && y < 8 && z >= 6));
    }
}
CASE(fill_of_a_box) {
    cudaPitchedPtr there;
    cudaExtent extent = make_cudaExtent(30, 5, 3);
    OK(cudaMalloc3D(&there, extent));
    OK(cudaMemset3D(there, 8, extent));
    auto back = from_device((char *)there.ptr, there.pitch * 15);
    for (int row = 0; row < 15; row++)
        for (int x = 0; x < 30; x++) EXPECT(back[row * there.pitch + x] == 8);
}
CASE(large_rows) {
    const size_t width = (1 << 20) + 12, height = 9;
    std::vector<unsigned char> here(width * height), back(width * height);
    for (size_t i = 0; i < here.size(); i++) here[i] = i * 7 >> 3;
    char *address;
    size_t pitch;
    OK(cudaMallocPitch(&address, &pitch, width, height));
    OK(cudaMemcpy2D(address, pitch, here.data(), width, width, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(back.data(), width, address, pitch, width, height, cudaMemcpyDeviceToHost));
    EXPECT(here == back);
}
CASE(large_rows_there_and_back) {
    const size_t pitch = 5000, width = 4321, height = 1500;
    std::vector<unsigned char> from(pitch * height), to(pitch * height, 7);
    for (size_t i = 0; i < from.size(); i++) from[i] = i * 2654435761u >> 13;
    char *address;
    size_t there;
    OK(cudaMallocPitch(&address, &there, width, height));
    OK(cudaMemcpy2D(address, there, from.data(), pitch, width, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(to.data(), pitch, address, there, width, height, cudaMemcpyDeviceToHost));
    for (size_t y = 0; y < height; y++) {
        EXPECT(!memcmp(&to[y * pitch], &from[y * pitch], width));
        EXPECT(to[y * pitch + width] == 7 && to[y * pitch + pitch - 1] == 7);
    }
}
CASE(boxes_on_a_stream) {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaExtent extent = make_cudaExtent(40, 5, 3);
    cudaPitchedPtr there;
    OK(cudaMalloc3D(&there, extent));
    OK(cudaMemset3DAsync(there, 6, extent, stream));
    std::vector<char> here(40 * 5 * 3, 0);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = there;
    copy.dstPtr = make_cudaPitchedPtr(here.data(), 40, 40, 5);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(here == std::vector<char>(600, 6));
}
