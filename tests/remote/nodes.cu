// Graphs that the program makes of nodes.
#include "case.h"

__global__ void add(int *to, int value) { atomicAdd(to, value); }
__global__ void times(int *to, int factor) { *to = *to * factor; }

static cudaKernelNodeParams kernel(void *function, void **arguments) {
    cudaKernelNodeParams parameters = {};
    parameters.func = function;
    parameters.gridDim = dim3(1);
    parameters.blockDim = dim3(1);
    parameters.kernelParams = arguments;
    return parameters;
}

static cudaGraph_t graph() {
    cudaGraph_t made;
    OK(cudaGraphCreate(&made, 0));
    return made;
}

static cudaGraphNode_t adds(cudaGraph_t graph, std::vector<cudaGraphNode_t> behind, int *to, int value) {
    void *arguments[] = {&to, &value};
    cudaKernelNodeParams parameters = kernel((void *)add, arguments);
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, behind.data(), behind.size(), &parameters));
    return node;
}

static cudaGraphNode_t multiplies(cudaGraph_t graph, std::vector<cudaGraphNode_t> behind, int *to, int factor) {
    void *arguments[] = {&to, &factor};
    cudaKernelNodeParams parameters = kernel((void *)times, arguments);
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, behind.data(), behind.size(), &parameters));
    return node;
}

static void run(cudaGraph_t graph, int count = 1) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < count; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaStreamDestroy(stream));
}

CASE(kernels_run_in_the_order_of_their_dependencies) {
    int *at = on_device(std::vector<int>(1, 2));
    cudaGraph_t made = graph();
    // (2 + 5) * 3 + 1, added to the graph in another order.
    cudaGraphNode_t last = adds(made, {}, at, 1);
    cudaGraphNode_t first = adds(made, {}, at, 5);
    cudaGraphNode_t middle = multiplies(made, {first}, at, 3);
    cudaGraphNode_t from[] = {middle}, to[] = {last};
    OK(cudaGraphAddDependencies(made, from, to, nullptr, 1));
    run(made);
    EXPECT(from_device(at, 1)[0] == 22);
    run(made, 2);
    EXPECT(from_device(at, 1)[0] == (((22 + 5) * 3 + 1) + 5) * 3 + 1);
    OK(cudaGraphDestroy(made));
}
CASE(nodes_are_listed) {
    int *at = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph();
    cudaGraphNode_t one = adds(made, {}, at, 1), two = adds(made, {one}, at, 2), three = adds(made, {one, two}, at, 3);
    size_t count = 0;
    OK(cudaGraphGetNodes(made, nullptr, &count));
    EXPECT(count == 3);
    cudaGraphNode_t all[3] = {};
    OK(cudaGraphGetNodes(made, all, &count));
    EXPECT(count == 3 && all[0] == one);
    OK(cudaGraphGetRootNodes(made, nullptr, &count));
    EXPECT(count == 1);
    OK(cudaGraphGetRootNodes(made, all, &count));
    EXPECT(all[0] == one);
    OK(cudaGraphGetEdges(made, nullptr, nullptr, nullptr, &count));
    EXPECT(count == 3);
    OK(cudaGraphNodeGetDependencies(three, nullptr, nullptr, &count));
    EXPECT(count == 2);
    OK(cudaGraphNodeGetDependentNodes(one, nullptr, nullptr, &count));
    EXPECT(count == 2);
    OK(cudaGraphNodeGetDependentNodes(three, nullptr, nullptr, &count));
    EXPECT(count == 0);
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(two, &type));
    EXPECT(type == cudaGraphNodeTypeKernel);
}
CASE(dependencies_come_and_go) {
    int *at = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph();
    cudaGraphNode_t one = adds(made, {}, at, 1), two = adds(made, {one}, at, 2);
    cudaGraphNode_t from[] = {one}, to[] = {two};
    GIVES(cudaErrorInvalidValue, cudaGraphAddDependencies(made, from, to, nullptr, 1));
    OK(cudaGraphRemoveDependencies(made, from, to, nullptr, 1));
    size_t count = 7;
    OK(cudaGraphGetEdges(made, nullptr, nullptr, nullptr, &count));
    EXPECT(count == 0);
    OK(cudaGraphAddDependencies(made, from, to, nullptr, 1));
    OK(cudaGraphDestroyNode(one));
    OK(cudaGraphGetNodes(made, nullptr, &count));
    EXPECT(count == 1);
    run(made);
    EXPECT(from_device(at, 1)[0] == 2);
}
CASE(fills_and_copies_are_nodes) {
    int *a, *b;
    OK(cudaMalloc(&a, 64 * sizeof(int)));
    OK(cudaMalloc(&b, 64 * sizeof(int)));
    int *here;
    OK(cudaMallocHost(&here, 64 * sizeof(int)));
    cudaGraph_t made = graph();
    cudaMemsetParams fill = {};
    fill.dst = a;
    fill.elementSize = 4;
    fill.value = 1234567;
    fill.width = 64;
    fill.height = 1;
    cudaGraphNode_t filled, copied, brought;
    OK(cudaGraphAddMemsetNode(&filled, made, nullptr, 0, &fill));
    OK(cudaGraphAddMemcpyNode1D(&copied, made, &filled, 1, b, a, 64 * sizeof(int), cudaMemcpyDeviceToDevice));
    OK(cudaGraphAddMemcpyNode1D(&brought, made, &copied, 1, here, b, 64 * sizeof(int), cudaMemcpyDeviceToHost));
    run(made);
    for (int i = 0; i < 64; i++) EXPECT(here[i] == 1234567);
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(filled, &type));
    EXPECT(type == cudaGraphNodeTypeMemset);
    OK(cudaGraphNodeGetType(brought, &type));
    EXPECT(type == cudaGraphNodeTypeMemcpy);
}
CASE(a_copy_to_the_device_reads_the_host_at_each_launch) {
    int *at = on_device(std::vector<int>(1, 0));
    int *sum = on_device(std::vector<int>(1, 0));
    int *here;
    OK(cudaMallocHost(&here, sizeof(int)));
    cudaGraph_t made = graph();
    cudaGraphNode_t sent, back;
    OK(cudaGraphAddMemcpyNode1D(&sent, made, nullptr, 0, at, here, sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaGraphAddMemcpyNode1D(&back, made, &sent, 1, sum, at, sizeof(int), cudaMemcpyDeviceToDevice));
    for (int value : {7, 8, 9}) {
        *here = value;
        run(made);
        EXPECT(from_device(sum, 1)[0] == value);
    }
}
CASE(a_copy_of_a_box_is_a_node) {
    std::vector<int> rows = numbers(6 * 4);
    int *from = on_device(rows), *to = on_device(std::vector<int>(24, -1));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(from, 6 * sizeof(int), 6, 4);
    copy.dstPtr = make_cudaPitchedPtr(to, 6 * sizeof(int), 6, 4);
    copy.extent = make_cudaExtent(2 * sizeof(int), 3, 1);
    copy.kind = cudaMemcpyDeviceToDevice;
    cudaGraph_t made = graph();
    cudaGraphNode_t node;
    OK(cudaGraphAddMemcpyNode(&node, made, nullptr, 0, &copy));
    run(made);
    std::vector<int> found = from_device(to, 24);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 6; x++) EXPECT(found[y * 6 + x] == (x < 2 && y < 3 ? y * 6 + x : -1));
}
static void note(void *data) { ++*(int *)data; }
CASE(functions_of_the_host_are_nodes) {
    static int calls = 0;
    int *at = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph();
    cudaGraphNode_t first = adds(made, {}, at, 1), called, empty;
    cudaHostNodeParams host = {note, &calls};
    OK(cudaGraphAddHostNode(&called, made, &first, 1, &host));
    OK(cudaGraphAddEmptyNode(&empty, made, &called, 1));
    adds(made, {empty}, at, 2);
    run(made, 3);
    EXPECT(calls == 3 && from_device(at, 1)[0] == 9);
}
CASE(events_are_nodes) {
    int *at = on_device(std::vector<int>(1, 0));
    cudaEvent_t event;
    OK(cudaEventCreate(&event));
    cudaGraph_t made = graph();
    cudaGraphNode_t first = adds(made, {}, at, 4), recorded, waited;
    OK(cudaGraphAddEventRecordNode(&recorded, made, &first, 1, event));
    OK(cudaGraphAddEventWaitNode(&waited, made, &recorded, 1, event));
    multiplies(made, {waited}, at, 2);
    run(made);
    OK(cudaEventSynchronize(event));
    EXPECT(from_device(at, 1)[0] == 8);
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(recorded, &type));
    EXPECT(type == cudaGraphNodeTypeEventRecord);
    OK(cudaGraphNodeGetType(waited, &type));
    EXPECT(type == cudaGraphNodeTypeWaitEvent);
}
CASE(a_graph_is_a_node_of_another) {
    int *at = on_device(std::vector<int>(1, 1));
    cudaGraph_t inner = graph(), outer = graph();
    cudaGraphNode_t one = adds(inner, {}, at, 1);
    multiplies(inner, {one}, at, 10);
    cudaGraphNode_t first = adds(outer, {}, at, 4), child;
    OK(cudaGraphAddChildGraphNode(&child, outer, &first, 1, inner));
    adds(outer, {child}, at, 3);
    // It is a copy.
    OK(cudaGraphDestroy(inner));
    run(outer);
    EXPECT(from_device(at, 1)[0] == (1 + 4 + 1) * 10 + 3);
}
CASE(a_clone_is_a_graph_of_its_own) {
    int *at = on_device(std::vector<int>(1, 0)), *other = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph(), clone;
    cudaGraphNode_t one = adds(made, {}, at, 1), found;
    OK(cudaGraphClone(&clone, made));
    OK(cudaGraphNodeFindInClone(&found, one, clone));
    EXPECT(found != one);
    int value = 5;
    void *arguments[] = {&other, &value};
    cudaKernelNodeParams parameters = kernel((void *)add, arguments);
    OK(cudaGraphKernelNodeSetParams(found, &parameters));
    run(made);
    run(clone);
    EXPECT(from_device(at, 1)[0] == 1 && from_device(other, 1)[0] == 5);
    OK(cudaGraphDestroy(made));
    run(clone);
    EXPECT(from_device(other, 1)[0] == 10);
}
CASE(what_can_be_launched_is_changed) {
    int *at = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph();
    cudaGraphNode_t one = adds(made, {}, at, 1);
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, made, 0));
    int value = 100;
    void *arguments[] = {&at, &value};
    cudaKernelNodeParams parameters = kernel((void *)add, arguments);
    OK(cudaGraphExecKernelNodeSetParams(exec, one, &parameters));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(at, 1)[0] == 100);
    // The graph itself is as it was.
    run(made);
    EXPECT(from_device(at, 1)[0] == 101);
    cudaGraph_t fits = graph(), other = graph();
    adds(fits, {}, at, 7);
    adds(other, {adds(other, {}, at, 1)}, at, 1);
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphExecUpdate(exec, fits, &info));
    EXPECT(info.result == cudaGraphExecUpdateSuccess);
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    EXPECT(from_device(at, 1)[0] == 108);
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, other, &info));
    EXPECT(info.result == cudaGraphExecUpdateErrorTopologyChanged);
}
CASE(no_launch_is_recorded_by_a_stream) {
    int *at = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph();
    adds(made, {}, at, 1);
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, made, 0));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    GIVES(cudaErrorStreamCaptureUnsupported, cudaGraphLaunch(exec, stream));
}
CASE(a_stream_says_what_it_records) {
    cudaStream_t stream, other;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamCreate(&other));
    cudaStreamCaptureStatus status;
    unsigned long long first = 0, second = 0;
    OK(cudaStreamGetCaptureInfo(stream, &status, &first));
    EXPECT(status == cudaStreamCaptureStatusNone);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamGetCaptureInfo(stream, &status, &first));
    EXPECT(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamGetCaptureInfo(other, &status, &second));
    EXPECT(status == cudaStreamCaptureStatusActive && first != second);
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(other, &graph));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaStreamGetCaptureInfo(stream, &status, &first));
    EXPECT(status == cudaStreamCaptureStatusNone);
}
CASE(wrong_nodes_are_refused) {
    int *at = on_device(std::vector<int>(1, 0));
    cudaGraph_t made = graph(), other = graph();
    cudaGraphNode_t one = adds(made, {}, at, 1), node;
    GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, other, &one, 1));
    GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, made, nullptr, 1));
    GIVES(cudaErrorInvalidValue, cudaGraphAddEmptyNode(nullptr, made, nullptr, 0));
    GIVES(cudaErrorInvalidValue, cudaGraphCreate(&made, 1));
    GIVES(cudaErrorInvalidValue, cudaGraphCreate(nullptr, 0));
}
