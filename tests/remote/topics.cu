// Topics of the GPU's host (rgaps/gpu.h). Only a server has them, so these do not run natively. The server's configuration names the topics
// "t/**", and its pool of the GPU is small.
#include "case.h"
#include <rgaps/gpu.h>
#include <string>
#include <unistd.h>

const uint64_t LONG_NS = 30ull * 1000 * 1000 * 1000;

// Says why a call fails where it should not.
#define TOPIC(wanted, call)                                                                                                              \
    do {                                                                                                                                 \
        int given_ = (call);                                                                                                             \
        if (given_ != (wanted)) {                                                                                                        \
            printf("%d: %s gives %s: %s\n", __LINE__, #call, cudaGetErrorName((cudaError_t)given_), rgaps_gpu_error_message());          \
            fflush(stdout);                                                                                                              \
            _Exit(1);                                                                                                                    \
        }                                                                                                                                \
    } while (0)

static bool says(const char *word) { return strstr(rgaps_gpu_error_message(), word) != nullptr; }

// A topic of this process's own: cases run at the same time.
static std::string topic(const char *name) { return "t/" + std::string(name) + "-" + std::to_string(getpid()); }

__global__ void scale(int n, int factor, const int *from, int *to) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = factor * from[i];
}

struct Pair {
    rgaps_gpu_publisher_t *publisher;
    rgaps_gpu_subscriber_t *subscriber;
};

static Pair join(const std::string &topic, uint32_t depth = 0) {
    Pair pair;
    rgaps_gpu_options_t kept = {sizeof kept, depth, 0, 1}, all = {sizeof all, 0, 1, 1};
    TOPIC(0, rgaps_gpu_publisher_create(topic.c_str(), &kept, &pair.publisher));
    TOPIC(0, rgaps_gpu_subscriber_create(topic.c_str(), &all, &pair.subscriber));
    return pair;
}

static void leave(const Pair &pair) {
    TOPIC(0, rgaps_gpu_subscriber_destroy(pair.subscriber));
    TOPIC(0, rgaps_gpu_publisher_destroy(pair.publisher));
}

CASE(what_a_kernel_wrote_is_published_behind_it) {
    const int n = 10000;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int *values = on_device(numbers(n)), *out;
    OK(cudaMalloc(&out, n * sizeof(int)));
    Pair pair = join(topic("behind"));
    for (int round = 1; round <= 5; round++) {
        uint64_t sequence = 99;
        scale<<<(n + 255) / 256, 256, 0, stream>>>(n, round, values, out);
        TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, out, n * sizeof(int), nullptr, stream, &sequence));
        EXPECT(sequence == (uint64_t)round - 1);
        // Later work of the stream does not change the message.
        OK(cudaMemsetAsync(out, 0, n * sizeof(int), stream));
    }
    for (int round = 1; round <= 5; round++) {
        rgaps_gpu_message_t message;
        TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, stream, &message));
        EXPECT(message.bytes == n * sizeof(int) && message.sequence == (uint64_t)round - 1 && message.missed == 0);
        scale<<<(n + 255) / 256, 256, 0, stream>>>(n, 10, (const int *)message.data, out);
        TOPIC(0, rgaps_gpu_message_release(&message, stream));
        OK(cudaStreamSynchronize(stream));
        std::vector<int> found = from_device(out, n);
        for (int i = 0; i < n; i++) EXPECT(found[i] == 10 * round * i);
    }
    leave(pair);
}

CASE(a_message_is_device_memory_that_copies_read) {
    const int n = 3000;
    int *values = on_device(numbers(n, 7)), *other;
    OK(cudaMalloc(&other, n * sizeof(int)));
    Pair pair = join(topic("reads"));
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, values, n * sizeof(int), nullptr, nullptr, nullptr));
    rgaps_gpu_message_t message;
    TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
    EXPECT(from_device((const int *)message.data, n) == numbers(n, 7));
    EXPECT(from_device((const int *)message.data + n - 1, 1)[0] == n + 6);
    OK(cudaMemcpy(other, message.data, n * sizeof(int), cudaMemcpyDeviceToDevice));
    EXPECT(from_device(other, n) == numbers(n, 7));
    std::vector<int> rows(20);
    OK(cudaMemcpy2D(rows.data(), 10 * sizeof(int), message.data, 100 * sizeof(int), 10 * sizeof(int), 2, cudaMemcpyDeviceToHost));
    EXPECT(rows[0] == 7 && rows[10] == 107);
    int *pinned;
    OK(cudaMallocHost(&pinned, n * sizeof(int)));
    OK(cudaMemcpy(pinned, message.data, n * sizeof(int), cudaMemcpyDeviceToHost));
    EXPECT(pinned[n - 1] == n + 6);
    cudaPointerAttributes what;
    OK(cudaPointerGetAttributes(&what, message.data));
    EXPECT(what.type == cudaMemoryTypeDevice && what.device == 0);
    // A message may be published, too.
    uint64_t sequence;
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, message.data, message.bytes, nullptr, nullptr, &sequence));
    EXPECT(sequence == 1);
    TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
    TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
    EXPECT(from_device((const int *)message.data, n) == numbers(n, 7));
    leave(pair);
    // It outlives its subscriber.
    EXPECT(from_device((const int *)message.data, n) == numbers(n, 7));
    TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
}

CASE(a_message_is_not_written_and_not_freed) {
    int *values = on_device(numbers(100));
    Pair pair = join(topic("writes"));
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, values, 100 * sizeof(int), nullptr, nullptr, nullptr));
    rgaps_gpu_message_t message;
    TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
    void *data = (void *)message.data;
    GIVES(cudaErrorInvalidValue, cudaFree(data));
    // The server refuses what nobody waits for, and a later call says so.
    cudaError_t given = cudaMemcpy(data, values, 4, cudaMemcpyDeviceToDevice);
    EXPECT(given == cudaErrorInvalidValue || cudaDeviceSynchronize() == cudaErrorInvalidValue);
    given = cudaMemset(data, 1, 4);
    EXPECT(given == cudaErrorInvalidValue || cudaDeviceSynchronize() == cudaErrorInvalidValue);
    EXPECT(from_device((const int *)data, 100) == numbers(100));
    rgaps_gpu_message_t twice = message;
    TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
    EXPECT(message.data == nullptr && message.bytes == 0);
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_message_release(&message, nullptr));
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_message_release(&twice, nullptr));
    // Released, it is nothing that a copy may read.
    int word;
    EXPECT(cudaMemcpy(&word, data, 4, cudaMemcpyDeviceToHost) != cudaSuccess);
    leave(pair);
}

CASE(a_message_says_what_it_is) {
    int *values = on_device(numbers(24));
    Pair pair = join(topic("tensor"));
    rgaps_gpu_tensor_t tensor = {"int32", 3, {2, 3, 4}};
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, values, 96, &tensor, nullptr, nullptr));
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, values, 96, nullptr, nullptr, nullptr));
    rgaps_gpu_message_t message;
    TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
    EXPECT(!memcmp(&message.tensor, &tensor, sizeof tensor));
    TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
    TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
    EXPECT(!message.tensor.dtype[0] && message.tensor.ndim == 0);
    TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
    tensor.shape[0] = 100;
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_publish(pair.publisher, values, 96, &tensor, nullptr, nullptr));
    tensor = {"int31", 1, {24}};
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_publish(pair.publisher, values, 96, &tensor, nullptr, nullptr));
    EXPECT(says("int31"));
    tensor = {"int32", 9, {24}};
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_publish(pair.publisher, values, 96, &tensor, nullptr, nullptr));
    leave(pair);
}

CASE(an_empty_message_and_no_message) {
    Pair pair = join(topic("empty"));
    rgaps_gpu_message_t message;
    TOPIC(cudaErrorNotReady, rgaps_gpu_subscriber_receive(pair.subscriber, 1000, nullptr, &message));
    EXPECT(message.data == nullptr && says("no message"));
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, nullptr, 0, nullptr, nullptr, nullptr));
    TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
    EXPECT(message.bytes == 0 && message.sequence == 0);
    TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
    leave(pair);
    OK(cudaPeekAtLastError());
}

CASE(wrong_arguments_are_told) {
    rgaps_gpu_publisher_t *publisher = (rgaps_gpu_publisher_t *)7;
    TOPIC(cudaErrorNotPermitted, rgaps_gpu_publisher_create("other", nullptr, &publisher));
    EXPECT(publisher == nullptr && says("gpu.topics") && says("other"));
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_create("t//x", nullptr, &publisher));
    EXPECT(says("empty part"));
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_create(nullptr, nullptr, &publisher));
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_create("t/x", nullptr, nullptr));
    rgaps_gpu_options_t unsized_options = {};
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_create("t/x", &unsized_options, &publisher));
    EXPECT(says("size"));
    rgaps_gpu_options_t deep = {sizeof deep, 1u << 30, 0, 0};
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_create("t/x", &deep, &publisher));
    EXPECT(says("history"));
    Pair pair = join(topic("wrong"));
    int here = 1;
    int *values = on_device(numbers(100));
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_publish(pair.publisher, &here, 4, nullptr, nullptr, nullptr));
    EXPECT(says("device memory"));
    TOPIC(cudaErrorInvalidValue, rgaps_gpu_publisher_publish(pair.publisher, values, 401, nullptr, nullptr, nullptr));
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_publisher_publish((rgaps_gpu_publisher_t *)pair.subscriber, values, 4, nullptr, nullptr, nullptr));
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_publisher_publish(pair.publisher, values, 4, nullptr, (void *)99, nullptr));
    rgaps_gpu_message_t message;
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_subscriber_receive((rgaps_gpu_subscriber_t *)pair.publisher, 0, nullptr, &message));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    TOPIC(cudaErrorStreamCaptureUnsupported, rgaps_gpu_publisher_publish(pair.publisher, values, 4, nullptr, stream, nullptr));
    EXPECT(says("records"));
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(stream, &graph));
    leave(pair);
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_publisher_publish(pair.publisher, values, 4, nullptr, nullptr, nullptr));
    TOPIC(0, rgaps_gpu_publisher_destroy(nullptr));
}

CASE(a_full_pool_is_told_and_comes_back) {
    const size_t bytes = 3 << 20;
    void *values;
    OK(cudaMalloc(&values, bytes));
    Pair pair = join(topic("full"), 64);
    int published = 0, given = 0;
    while ((given = rgaps_gpu_publisher_publish(pair.publisher, values, bytes, nullptr, nullptr, nullptr)) == 0) EXPECT(++published < 64);
    TOPIC(cudaErrorMemoryAllocation, given);
    EXPECT(published > 0 && says("pool.cuda.cap"));
    // The pool is this host's; the program's own memory is not touched by that.
    OK(cudaDeviceSynchronize());
    rgaps_gpu_message_t message;
    for (int i = 0; i < published; i++) {
        TOPIC(0, rgaps_gpu_subscriber_receive(pair.subscriber, LONG_NS, nullptr, &message));
        TOPIC(0, rgaps_gpu_message_release(&message, nullptr));
    }
    // Kept messages stay; without them there is room.
    leave(pair);
}

CASE(a_reset_ends_the_use_of_topics) {
    int *values = on_device(numbers(10));
    Pair pair = join(topic("reset"));
    TOPIC(0, rgaps_gpu_publisher_publish(pair.publisher, values, 40, nullptr, nullptr, nullptr));
    OK(cudaDeviceReset());
    values = on_device(numbers(10));
    TOPIC(cudaErrorInvalidResourceHandle, rgaps_gpu_publisher_publish(pair.publisher, values, 40, nullptr, nullptr, nullptr));
    rgaps_gpu_publisher_t *again;
    TOPIC(cudaErrorNotPermitted, rgaps_gpu_publisher_create(topic("reset").c_str(), nullptr, &again));
    EXPECT(says("reset"));
}
