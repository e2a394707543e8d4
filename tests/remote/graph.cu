// Graphs that streams record.
#include "case.h"

__global__ void add(int *to, int value) { atomicAdd(to, value); }
__global__ void twice(int *to, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] *= 2;
}

static cudaStream_t stream() {
    cudaStream_t made;
    OK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
}

CASE(a_graph_runs_when_it_is_launched) {
    int *address = on_device(std::vector<int>(1, 0));
    cudaStream_t on = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, on>>>(address, 3);
    add<<<1, 2, 0, on>>>(address, 10);
    OK(cudaStreamEndCapture(on, &graph));
    OK(cudaStreamSynchronize(on));
    EXPECT(from_device(address, 1)[0] == 0);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 5; i++) OK(cudaGraphLaunch(exec, on));
    OK(cudaStreamSynchronize(on));
    EXPECT(from_device(address, 1)[0] == 5 * 23);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}
CASE(nodes_are_counted) {
    int *address = on_device(std::vector<int>(1, 0));
    cudaStream_t on = stream();
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 7; i++) add<<<1, 1, 0, on>>>(address, i);
    OK(cudaStreamEndCapture(on, &graph));
    size_t count = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &count));
    EXPECT(count == 7);
    std::vector<cudaGraphNode_t> nodes(count);
    OK(cudaGraphGetNodes(graph, nodes.data(), &count));
    EXPECT(count == 7);
    for (size_t i = 1; i < count; i++) EXPECT(nodes[i] && nodes[i] != nodes[i - 1]);
}
CASE(what_the_next_node_depends_on) {
    int *address = on_device(std::vector<int>(1, 0));
    cudaStream_t on = stream();
    cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph, ended;
    const cudaGraphNode_t *nodes;
    size_t count = 99;
    OK(cudaStreamGetCaptureInfo(on, &status, &id, &graph, &nodes, nullptr, &count));
    EXPECT(status == cudaStreamCaptureStatusNone);
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamGetCaptureInfo(on, &status, &id, &graph, &nodes, nullptr, &count));
    EXPECT(status == cudaStreamCaptureStatusActive && count == 0);
    add<<<1, 1, 0, on>>>(address, 1);
    OK(cudaStreamGetCaptureInfo(on, &status, &id, nullptr, &nodes, nullptr, &count));
    EXPECT(count == 1);
    cudaGraphNode_t first = nodes[0];
    add<<<1, 1, 0, on>>>(address, 2);
    const cudaGraphEdgeData *edges;
    OK(cudaStreamGetCaptureInfo(on, &status, &id, &graph, &nodes, &edges, &count));
    EXPECT(count == 1 && nodes[0] != first);
    OK(cudaStreamEndCapture(on, &ended));
    EXPECT(ended == graph);
}
CASE(a_thread_has_a_mode_for_captures) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == cudaStreamCaptureModeGlobal);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == cudaStreamCaptureModeRelaxed);
    // What torch does when it allocates while it records.
    cudaStream_t on = stream();
    cudaGraph_t graph;
    void *memory;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    mode = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaMalloc(&memory, 4096));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaStreamEndCapture(on, &graph));
}
CASE(a_graph_outlives_what_made_it) {
    int *address = on_device(std::vector<int>(1, 1));
    cudaStream_t on = stream(), other = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    add<<<1, 1, 0, on>>>(address, 3);
    OK(cudaStreamEndCapture(on, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(on));
    OK(cudaGraphLaunch(exec, other));
    OK(cudaStreamSynchronize(other));
    EXPECT(from_device(address, 1)[0] == 4);
}
CASE(copies_and_fills_on_the_device) {
    int *from = on_device(numbers(1000)), *to;
    OK(cudaMalloc(&to, 4000));
    cudaStream_t on = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(to, 255, 4000, on));
    OK(cudaMemcpyAsync(to, from, 2000, cudaMemcpyDeviceToDevice, on));
    twice<<<4, 256, 0, on>>>(to, 1000);
    OK(cudaStreamEndCapture(on, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, on));
    OK(cudaGraphLaunch(exec, on));
    OK(cudaStreamSynchronize(on));
    auto back = from_device(to, 1000);
    for (int i = 0; i < 1000; i++) EXPECT(back[i] == (i < 500 ? 2 * i : -2));
}
CASE(streams_fork_and_join) {
    int *address = on_device(std::vector<int>(2, 0));
    cudaStream_t one = stream(), two = stream();
    cudaEvent_t fork, join;
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(fork, one));
    OK(cudaStreamWaitEvent(two, fork, 0));
    add<<<1, 1, 0, one>>>(address, 1);
    add<<<1, 1, 0, two>>>(address + 1, 2);
    OK(cudaEventRecord(join, two));
    OK(cudaStreamWaitEvent(one, join, 0));
    add<<<1, 1, 0, one>>>(address, 4);
    OK(cudaStreamEndCapture(one, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, two));
    OK(cudaStreamSynchronize(two));
    auto back = from_device(address, 2);
    EXPECT(back[0] == 15 && back[1] == 6);
}
CASE(who_captures) {
    cudaStream_t on = stream(), other = stream();
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(on, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamIsCapturing(on, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamIsCapturing(other, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(on, &graph));
    OK(cudaStreamIsCapturing(on, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
}
CASE(an_empty_graph) {
    cudaStream_t on = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    OK(cudaStreamEndCapture(on, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, on));
    OK(cudaStreamSynchronize(on));
}
CASE(the_default_stream_does_not_capture) {
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(0, cudaStreamCaptureModeRelaxed));
}
CASE(captures_begin_and_end_once) {
    cudaStream_t on = stream();
    cudaGraph_t graph;
    EXPECT(cudaStreamEndCapture(on, &graph) != cudaSuccess);
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamEndCapture(on, &graph));
    EXPECT(graph != nullptr);
}
CASE(waiting_spoils_a_capture) {
    cudaStream_t on = stream();
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(on));
    GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(on, &graph));
    OK(cudaStreamSynchronize(on));
}
CASE(wrong_graphs) {
    cudaGraphExec_t exec;
    GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(nullptr, nullptr, 0));
    GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, nullptr, 0));
    GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, 0));
    GIVES(cudaErrorInvalidValue, cudaGraphDestroy(nullptr));
}
CASE(many_launches) {
    int *address = on_device(std::vector<int>(1, 0));
    cudaStream_t on = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 20; i++) add<<<1, 1, 0, on>>>(address, 1);
    OK(cudaStreamEndCapture(on, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 100; i++) OK(cudaGraphLaunch(exec, on));
    OK(cudaStreamSynchronize(on));
    EXPECT(from_device(address, 1)[0] == 2000);
}
CASE(copies_of_pinned_memory) {
    int *in, *out, *address;
    OK(cudaMallocHost(&in, 4000));
    OK(cudaMallocHost(&out, 4000));
    OK(cudaMalloc(&address, 4000));
    cudaStream_t on = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    if (cudaMemcpyAsync(address, in, 4000, cudaMemcpyHostToDevice, on) == cudaErrorStreamCaptureUnsupported) return;
    twice<<<4, 256, 0, on>>>(address, 1000);
    OK(cudaMemcpyAsync(out, address, 4000, cudaMemcpyDeviceToHost, on));
    // Over TCP the memory is not the server's, and the graph is refused.
    if (cudaStreamEndCapture(on, &graph) == cudaErrorStreamCaptureUnsupported) return;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round < 5; round++) {
        for (int i = 0; i < 1000; i++) in[i] = i * round;
        OK(cudaGraphLaunch(exec, on));
        OK(cudaStreamSynchronize(on));
        for (int i = 0; i < 1000; i++) EXPECT(out[i] == 2 * i * round);
    }
}
CASE(copies_of_other_memory) {
    std::vector<int> here(100000);
    int *address = on_device(numbers(100000));
    cudaStream_t on = stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeRelaxed));
    cudaError_t copied = cudaMemcpyAsync(here.data(), address, 400000, cudaMemcpyDeviceToHost, on);
    cudaError_t ended = cudaStreamEndCapture(on, &graph);
    if (copied == cudaSuccess) {
        OK(ended);
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphLaunch(exec, on));
    } else {
        // The memory is not the server's.
        EXPECT(copied == cudaErrorStreamCaptureUnsupported);
    }
    OK(cudaStreamSynchronize(on));
    EXPECT(copied != cudaSuccess || here == numbers(100000));
}
CASE(a_graph_gets_other_parameters) {
    int *address = on_device(std::vector<int>(1, 0));
    cudaStream_t on = stream();
    cudaGraph_t first, second, longer;
    cudaGraphExec_t exec;
    auto record = [&](cudaGraph_t *graph, int value, int nodes) {
        OK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < nodes; i++) add<<<1, 1, 0, on>>>(address, value);
        OK(cudaStreamEndCapture(on, graph));
    };
    record(&first, 1, 2);
    record(&second, 100, 2);
    record(&longer, 1000, 3);
    OK(cudaGraphInstantiate(&exec, first, 0));
    OK(cudaGraphUpload(exec, on));
    OK(cudaGraphLaunch(exec, on));
    cudaGraphExecUpdateResultInfo updated;
    OK(cudaGraphExecUpdate(exec, second, &updated));
    EXPECT(updated.result == cudaGraphExecUpdateSuccess);
    OK(cudaGraphLaunch(exec, on));
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, longer, &updated));
    EXPECT(updated.result != cudaGraphExecUpdateSuccess);
    OK(cudaGraphLaunch(exec, on));
    OK(cudaStreamSynchronize(on));
    EXPECT(from_device(address, 1)[0] == 2 + 200 + 200);
}
