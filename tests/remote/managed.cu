// Managed memory, used by host and kernels in turn.
#include "case.h"

__global__ void add(int *to, int count, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] += value;
}
struct List {
    int *values;
    int count;
};
__global__ void follow(List *list) {
    int i = threadIdx.x;
    if (i < list->count) list->values[i] = list->values[i] * 2;
}

template <typename T> static T *managed(size_t count) {
    T *address = nullptr;
    OK(cudaMallocManaged(&address, count * sizeof(T)));
    return address;
}

__managed__ int counter = 5;
__managed__ float table[4] = {1, 2, 3, 4};
__managed__ int *list_of_the_program;
__global__ void use_variables() {
    table[threadIdx.x] *= 2;
    if (threadIdx.x == 0) counter += 10;
}
__global__ void use_list(int count) {
    for (int i = 0; i < count; i++) list_of_the_program[i] += counter;
}

CASE(managed_variables_begin_with_their_values) {
    EXPECT(counter == 5 && table[0] == 1 && table[3] == 4 && !list_of_the_program);
    counter = 7;
    use_variables<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    EXPECT(counter == 17 && table[0] == 2 && table[3] == 8);
    for (int i = 0; i < 4; i++) table[i] = i;
    use_variables<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    EXPECT(counter == 27 && table[3] == 6);
    cudaPointerAttributes what;
    OK(cudaPointerGetAttributes(&what, &counter));
    EXPECT(what.type == cudaMemoryTypeManaged);
}
CASE(managed_variables_that_a_kernel_uses_first) {
    use_variables<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    EXPECT(counter == 15 && table[2] == 6);
}
CASE(a_managed_variable_points_to_managed_memory) {
    list_of_the_program = managed<int>(3);
    for (int i = 0; i < 3; i++) list_of_the_program[i] = i;
    use_list<<<1, 1>>>(3);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 3; i++) EXPECT(list_of_the_program[i] == i + 5);
    OK(cudaFree(list_of_the_program));
    GIVES(cudaErrorInvalidValue, cudaFree(&counter));
    EXPECT(counter == 5);
}
CASE(host_and_kernel_take_turns) {
    const int count = 3000;
    int *at = managed<int>(count);
    for (int i = 0; i < count; i++) at[i] = i;
    for (int round = 1; round <= 3; round++) {
        add<<<(count + 255) / 256, 256>>>(at, count, 10);
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < count; i++) EXPECT(at[i] == i + 10 * round + round - 1);
        for (int i = 0; i < count; i++) at[i]++;
    }
    OK(cudaFree(at));
}
CASE(addresses_in_managed_memory_are_followed) {
    List *list = managed<List>(1);
    list->values = managed<int>(8);
    list->count = 8;
    for (int i = 0; i < 8; i++) list->values[i] = i;
    follow<<<1, 8>>>(list);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 8; i++) EXPECT(list->values[i] == 2 * i);
}
CASE(streams_and_events_bring_it_back) {
    int *at = managed<int>(4);
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    for (int i = 0; i < 4; i++) at[i] = 1;
    add<<<1, 4, 0, stream>>>(at, 4, 1);
    OK(cudaStreamSynchronize(stream));
    EXPECT(at[0] == 2);
    at[0] = 50;
    add<<<1, 4, 0, stream>>>(at, 4, 1);
    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    EXPECT(at[0] == 51 && at[3] == 3);
    at[3] = 60;
    add<<<1, 4, 0, stream>>>(at, 4, 1);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    }
    EXPECT(at[0] == 52 && at[3] == 61);
}
CASE(copies_and_fills_take_it) {
    std::vector<int> here = numbers(100);
    int *at = managed<int>(100), *device = on_device(std::vector<int>(100, 7));
    OK(cudaMemcpy(at, here.data(), 400, cudaMemcpyHostToDevice));
    EXPECT(at[99] == 99);
    at[0] = 1000;
    OK(cudaMemcpy(here.data(), at, 400, cudaMemcpyDefault));
    EXPECT(here[0] == 1000 && here[99] == 99);
    OK(cudaMemcpy(at + 50, device, 200, cudaMemcpyDeviceToDevice));
    OK(cudaDeviceSynchronize());
    EXPECT(at[0] == 1000 && at[49] == 49 && at[50] == 7);
    OK(cudaMemset(at, 0, 40));
    OK(cudaDeviceSynchronize());
    EXPECT(at[0] == 0 && at[9] == 0 && at[10] == 10);
    OK(cudaMemcpy(device, at, 400, cudaMemcpyDefault));
    EXPECT(from_device(device, 100)[60] == 7);
}
CASE(it_is_said_to_be_managed) {
    int *at = managed<int>(16);
    cudaPointerAttributes found;
    OK(cudaPointerGetAttributes(&found, at + 3));
    EXPECT(found.type == cudaMemoryTypeManaged && found.device == 0);
    EXPECT(found.devicePointer == at + 3 && found.hostPointer == at + 3);
    int can = 0;
    OK(cudaDeviceGetAttribute(&can, cudaDevAttrManagedMemory, 0));
    SAY("managed memory: %d", can);
    OK(cudaFree(at));
    OK(cudaPointerGetAttributes(&found, at));
    EXPECT(found.type == cudaMemoryTypeUnregistered);
}
CASE(advice_is_taken) {
    int *at = managed<int>(1 << 16);
    cudaMemLocation place = {cudaMemLocationTypeDevice, 0};
    OK(cudaMemPrefetchAsync(at, sizeof(int) << 16, place, 0, 0));
    OK(cudaMemAdvise(at, sizeof(int) << 16, cudaMemAdviseSetReadMostly, place));
    OK(cudaDeviceSynchronize());
    at[5] = 5;
    EXPECT(at[5] == 5);
}
CASE(wrong_requests_are_refused) {
    int *at = (int *)8;
    OK(cudaMallocManaged(&at, 0));
    EXPECT(at == nullptr);
    GIVES(cudaErrorInvalidValue, cudaMallocManaged(&at, 8, 7));
    GIVES(cudaErrorInvalidValue, cudaMallocManaged((int **)nullptr, 8));
}
CASE(graphs_use_it) {
    int *at = managed<int>(1);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    add<<<1, 1, 0, stream>>>(at, 1, 1);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        at[0] = 100 * i;
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        EXPECT(at[0] == 100 * i + 1);
    }
}
CASE(much_of_it) {
    const int count = 3 << 20;
    int *at = managed<int>(count);
    for (int i = 0; i < count; i++) at[i] = i;
    add<<<1, 256>>>(at, 256, 1);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < count; i++) EXPECT(at[i] == i + (i < 256));
}
