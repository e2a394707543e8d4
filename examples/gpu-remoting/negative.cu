// A filter on another host's GPU: it receives images from one topic of that host, inverts them there, and publishes them to another topic.
// No pixel crosses the network. On the GPU's host, with gpu.topics = ["camera", "negative"] in rgaps.toml:
//
//   rgaps gpu serve --listen 10.0.0.7
//   rgaps topic echo negative --domain host --count 1 &
//   rgaps topic pub camera --file image.png --domain cuda --wait-subscribers 1
//
// On a host without a GPU:
//
//   nvcc -cudart shared -o negative negative.cu -lrgaps_gpu       (with the folder of librgaps_gpu.so: -L /usr/local/lib/rgaps/gpu)
//   rgaps gpu run --on 10.0.0.7 -- ./negative camera negative 1
#include <cuda_runtime.h>
#include <rgaps/gpu.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                                                         \
    do {                                                                                                 \
        int given = (call);                                                                              \
        if (given != 0) {                                                                                \
            fprintf(stderr, "%s: error %d: %s\n", #call, given, rgaps_gpu_error_message());              \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

__global__ void invert(size_t bytes, const unsigned char *from, unsigned char *to) {
    size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (at < bytes) to[at] = 255 - from[at];
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: negative FROM TO MESSAGES\n");
        return 2;
    }
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    rgaps_gpu_publisher_t *publisher;
    rgaps_gpu_subscriber_t *subscriber;
    rgaps_gpu_options_t kept = {sizeof kept, 0, 0, 1}, all = {sizeof all, 0, 1, 0};
    OK(rgaps_gpu_publisher_create(words[2], &kept, &publisher));
    OK(rgaps_gpu_subscriber_create(words[1], &all, &subscriber));
    unsigned char *image = nullptr;
    size_t room = 0;
    for (int left = atoi(words[3]); left > 0; left--) {
        rgaps_gpu_message_t message;
        OK(rgaps_gpu_subscriber_receive(subscriber, RGAPS_GPU_FOREVER, stream, &message));
        if (message.bytes > room) {
            OK(cudaFree(image));
            OK(cudaMalloc(&image, room = message.bytes));
        }
        invert<<<(unsigned)((message.bytes + 255) / 256), 256, 0, stream>>>(message.bytes, (const unsigned char *)message.data, image);
        OK(cudaGetLastError());
        const rgaps_gpu_tensor_t *tensor = message.tensor.dtype[0] ? &message.tensor : nullptr;
        OK(rgaps_gpu_publisher_publish(publisher, image, message.bytes, tensor, stream, nullptr));
        printf("message %llu: %zu bytes\n", (unsigned long long)message.sequence, message.bytes);
        fflush(stdout);
        OK(rgaps_gpu_message_release(&message, stream));
    }
    OK(cudaStreamSynchronize(stream));
    OK(rgaps_gpu_subscriber_destroy(subscriber));
    OK(rgaps_gpu_publisher_destroy(publisher));
    return 0;
}
