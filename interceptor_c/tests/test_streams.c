/* Graphs from captures, programs that poll, and copies of boxes, without a trace file. */
#include "support.h"

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count);
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                           struct cudaGraphInstantiateParams *parameters);
cudaError_t cudaGraphClone(cudaGraph_t *clone, cudaGraph_t graph);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                struct cudaGraphExecUpdateResultInfo *result);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == 0);
    return stream;
}

static cudaEvent_t new_event(void) {
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == 0);
    return event;
}

static size_t node_count(cudaGraph_t graph) {
    size_t count = 99;
    CHECK(cudaGraphGetNodes(graph, NULL, &count) == 0);
    return count;
}

static void test_graphs(void) {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph, empty, clone;
    cudaGraphExec_t exec;
    void *device;
    char value = -1;
    CHECK(cudaMalloc(&device, 1024) == 0 && cudaMemset(device, 1, 1024) == 0);
    CHECK(cudaStreamBeginCapture(stream, 0) == 0);
    CHECK(cudaMemsetAsync(device, 2, 1024, stream) == 0);
    CHECK(cudaStreamEndCapture(stream, &graph) == 0);
    CHECK(cudaStreamBeginCapture(stream, 0) == 0 && cudaStreamEndCapture(stream, &empty) == 0);
    CHECK(node_count(graph) == 1 && node_count(empty) == 0);
    /* What is captured does not run. */
    CHECK(cudaMemcpy(&value, device, 1, cudaMemcpyDeviceToHost) == 0 && value == 1);

    struct cudaGraphInstantiateParams parameters = {.result_out = 7};
    struct cudaGraphExecUpdateResultInfo result = {.result = 7};
    CHECK(cudaGraphClone(&clone, graph) == 0 && node_count(clone) == 1);
    CHECK(cudaGraphInstantiateWithParams(&exec, clone, NULL) == cudaErrorInvalidValue);
    CHECK(cudaGraphInstantiateWithParams(&exec, clone, &parameters) == 0);
    CHECK(parameters.result_out == 0);
    CHECK(cudaGraphExecUpdate(exec, empty, &result) == 0 && result.result == 0);
    CHECK(cudaGraphExecUpdate(exec, NULL, &result) == cudaErrorInvalidValue);
    CHECK(cudaGraphDestroy(graph) == 0 && cudaGraphDestroy(clone) == 0);
    CHECK(cudaGraphClone(&clone, graph) == cudaErrorInvalidValue);
    CHECK(cudaGraphLaunch(exec, stream) == 0 && cudaGraphExecDestroy(exec) == 0);
    CHECK(cudaGraphLaunch(exec, stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaGraphDestroy(empty) == 0 && cudaStreamDestroy(stream) == 0 && cudaFree(device) == 0);
    cudaGetLastError();
}

/* An external wait does not draw its stream into the capture. */
static void test_external_events(void) {
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t inside = new_event();
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, 0) == 0 && cudaEventRecord(inside, stream) == 0);
    CHECK(cudaStreamWaitEvent(other, inside, cudaEventWaitExternal) == 0);
    CHECK(cudaStreamSynchronize(other) == 0);
    CHECK(cudaStreamWaitEvent(other, inside, 0) == 0);
    CHECK(cudaStreamSynchronize(other) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(stream, &graph) == 0 && cudaStreamSynchronize(other) == 0);
    CHECK(cudaGraphDestroy(graph) == 0 && cudaEventDestroy(inside) == 0);
    CHECK(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(other) == 0);
    cudaGetLastError();
}

static void test_polling(void) {
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    void *device;
    CHECK(cudaMalloc(&device, 1024) == 0);
    CHECK(cudaMemsetAsync(device, 1, 1024, stream) == 0 && cudaEventRecord(event, stream) == 0);
    CHECK(cudaEventQuery(event) == 0 && cudaStreamQuery(stream) == 0); /* not the program's own */
    understudy_polling(1);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady && cudaEventQuery(event) == 0);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady && cudaStreamQuery(stream) == 0);
    /* What the host has waited for is ready at once. */
    CHECK(cudaEventRecord(event, stream) == 0 && cudaMemsetAsync(device, 1, 1024, stream) == 0);
    CHECK(cudaDeviceSynchronize() == 0);
    CHECK(cudaEventQuery(event) == 0 && cudaStreamQuery(stream) == 0);
    CHECK(cudaEventRecord(event, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    CHECK(cudaEventQuery(event) == 0);
    /* An event that was never recorded and a stream that was never used are ready. */
    cudaEvent_t other = new_event();
    CHECK(cudaEventQuery(other) == 0 && cudaStreamQuery(new_stream()) == 0);
    understudy_polling(0);
    CHECK(cudaEventRecord(event, stream) == 0 && cudaEventQuery(event) == 0);
    CHECK(cudaEventDestroy(event) == 0 && cudaStreamDestroy(stream) == 0 && cudaFree(device) == 0);
    cudaGetLastError();
}

enum { WIDTH = 3, HEIGHT = 2, DEPTH = 2, PITCH = 8, ROWS = 4 };

static void test_copies_of_boxes(void) {
    char source[DEPTH * ROWS * PITCH], back[DEPTH * HEIGHT * WIDTH] = {0};
    for (int i = 0; i < (int)sizeof source; i++)
        source[i] = (char)i;
    void *device;
    CHECK(cudaMalloc(&device, sizeof source) == 0);
    struct cudaMemcpy3DParms there = {
        .srcPtr = {source, PITCH, PITCH, ROWS},
        .srcPos = {1, 1, 0},
        .dstPtr = {device, WIDTH, WIDTH, HEIGHT},
        .extent = {WIDTH, HEIGHT, DEPTH},
        .kind = cudaMemcpyHostToDevice,
    };
    CHECK(cudaMemcpy3D(&there) == 0);
    CHECK(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost) == 0);
    for (int z = 0; z < DEPTH; z++)
        for (int y = 0; y < HEIGHT; y++)
            for (int x = 0; x < WIDTH; x++)
                CHECK(back[(z * HEIGHT + y) * WIDTH + x] ==
                      source[(z * ROWS + y + 1) * PITCH + x + 1]);
    there.srcArray = device;
    CHECK(cudaMemcpy3D(&there) == cudaErrorNotSupported);
    CHECK(cudaMemcpy3D(NULL) == cudaErrorInvalidValue);
    CHECK(cudaFree(device) == 0);
    cudaGetLastError();
}

int main(void) {
    test_graphs();
    test_external_events();
    test_polling();
    test_copies_of_boxes();
    return 0;
}
