/* Devices, errors, memory, values, streams, events, captures and launches, without a trace file. */
#include "support.h"

static char add_host, fill_host, unknown_host;
static const struct test_kernel kernels[] = {
    {.name = "_Z3addiPKfPf",
     .registers = 64,
     .max_threads = 512,
     .static_shared_bytes = 1024,
     .parameter_count = 3,
     .parameters = {{0, 4}, {8, 8}, {16, 8}}},
    /* vectorized_elementwise_kernel<4, FillFunctor<float>, std::array<char*, 1>, false> */
    {.name = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1"
             "EELb0EEEviT0_T1_",
     .registers = 20,
     .max_threads = 1024,
     .parameter_count = 3,
     .parameters = {{0, 4}, {4, 4}, {8, 8}}},
};

static const dim3 one = {1, 1, 1}, block = {128, 1, 1};

static void test_devices_and_errors(void) {
    int value = -1, device = -1;
    CHECK(cudaGetDeviceCount(&value) == cudaSuccess && value == 1);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    CHECK(cudaDeviceGetAttribute(&value, 16, 0) == cudaSuccess && value == 132);
    CHECK(cudaDeviceGetAttribute(&value, 75, 0) == cudaSuccess && value == 9);
    CHECK(cudaDeviceGetAttribute(&value, 9999, 0) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    CHECK(cudaSetDevice(7) == cudaErrorInvalidDevice);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
    CHECK(cudaMalloc((void **)&(void *){NULL}, 0) == cudaSuccess);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice); /* a success clears nothing */
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaPeekAtLastError() == cudaSuccess);
    CHECK(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
}

static void test_capacity(void) {
    size_t free_bytes, total, after;
    void *first, *second, *third, *host;
    CHECK(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
    CHECK(total == 85028896768ull && free_bytes < total && total - free_bytes > 400u << 20);
    CHECK(cudaMalloc(&first, total) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    CHECK(cudaMalloc(&first, 40ull << 30) == cudaSuccess);
    CHECK(cudaMalloc(&second, 40ull << 30) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&second, 30ull << 30) == cudaSuccess);
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess && free_bytes - after == 70ull << 30);
    CHECK((uintptr_t)first % 512 == 0 && (char *)second >= (char *)first + (40ull << 30));
    struct cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, (char *)first + 12345) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
    CHECK(cudaPointerGetAttributes(&attributes, &total) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    CHECK(cudaMallocHost(&host, 100) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, (char *)host + 99) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(cudaFree(first) == cudaSuccess && cudaFree(first) == cudaErrorInvalidValue);
    CHECK(cudaMalloc(&third, 40ull << 30) == cudaSuccess && third == first); /* first fit */
    CHECK(cudaFree((char *)third + 1) == cudaErrorInvalidValue);
    CHECK(cudaFree(third) == cudaSuccess && cudaFree(second) == cudaSuccess);
    CHECK(cudaFree(NULL) == cudaSuccess && cudaFreeHost(host) == cudaSuccess);
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess && after == free_bytes);
    cudaGetLastError();
}

static void test_pools(void) {
    cudaMemPool_t pool;
    void *pointer;
    uint64_t used = 1, high = 1;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
    CHECK(cudaMallocAsync(&pointer, 64u << 20, NULL) == cudaSuccess);
    CHECK(cudaMemPoolGetAttribute(pool, 7, &used) == cudaSuccess && used == 64u << 20);
    CHECK(cudaFreeAsync(pointer, NULL) == cudaSuccess);
    CHECK(cudaMemPoolGetAttribute(pool, 7, &used) == cudaSuccess && used == 0);
    CHECK(cudaMemPoolGetAttribute(pool, 8, &high) == cudaSuccess && high == 64u << 20);
}

static float read_float(const void *pointer) {
    float value = -1;
    CHECK(cudaMemcpy(&value, pointer, sizeof value, cudaMemcpyDeviceToHost) == cudaSuccess);
    return value;
}

static void test_values(void) {
    float *a, *b, numbers[16], out[16];
    static char large[100000];
    CHECK(cudaMalloc((void **)&a, 1 << 20) == 0 && cudaMalloc((void **)&b, 1 << 20) == 0);
    for (int i = 0; i < 16; i++)
        numbers[i] = (float)i + 1;
    CHECK(read_float(a) == 0); /* never written */
    CHECK(cudaMemcpy(a, numbers, sizeof numbers, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(read_float(a + 3) == 4);
    /* A copy on the device takes what is known of the source, at any offset. */
    CHECK(cudaMemcpy(b, a + 2, 8 * sizeof *a, cudaMemcpyDefault) == cudaSuccess);
    CHECK(read_float(b) == 3 && read_float(b + 7) == 10 && read_float(b + 8) == 0);
    /* Overlapping copy within one range. */
    CHECK(cudaMemcpy(a + 1, a, 8 * sizeof *a, cudaMemcpyDefault) == cudaSuccess);
    CHECK(cudaMemcpy(out, a, sizeof out, cudaMemcpyDefault) == cudaSuccess);
    CHECK(out[0] == 1 && out[1] == 1 && out[8] == 8 && out[9] == 10 && out[15] == 16);
    /* A fill in the middle splits the range. */
    CHECK(cudaMemset(a + 4, 0, 2 * sizeof *a) == cudaSuccess);
    CHECK(read_float(a + 3) == 3 && read_float(a + 4) == 0 && read_float(a + 6) == 6);
    CHECK(cudaMemset(a + 4, 0xff, 1) == cudaSuccess);
    unsigned char byte = 0;
    CHECK(cudaMemcpy(&byte, a + 4, 1, cudaMemcpyDefault) == cudaSuccess && byte == 0xff);
    /* A large copy is not kept and hides what was there. */
    memset(large, 1, sizeof large);
    CHECK(cudaMemcpy(a, large, sizeof large, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(read_float(a) == 0 && read_float(a + 6) == 0);

    int n = 5;
    float value = 2.5f;
    void *fill[] = {&n, &value, &a};
    CHECK(cudaLaunchKernel(&fill_host, one, block, fill, 0, NULL) == cudaSuccess);
    CHECK(read_float(a) == 2.5f && read_float(a + 4) == 2.5f && read_float(a + 5) == 0);
    /* A kernel with unknown results: what it may write is forgotten. */
    float *source = b;
    void *add[] = {&n, &source, &a};
    CHECK(cudaLaunchKernel(&add_host, one, block, add, 0, NULL) == cudaSuccess);
    CHECK(read_float(a) == 0);
    /* Freed and allocated again: old values do not come back. */
    CHECK(cudaMemcpy(a, numbers, sizeof numbers, cudaMemcpyHostToDevice) == cudaSuccess);
    float *again;
    CHECK(cudaFree(a) == 0 && cudaMalloc((void **)&again, 1 << 20) == 0 && again == a);
    CHECK(read_float(again) == 0);
    CHECK(cudaMemcpy(again, numbers, 4, 17) == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemset(numbers, 0, 4) == cudaErrorInvalidValue && cudaGetLastError() != 0);
    unsigned char *managed;
    CHECK(cudaMallocManaged((void **)&managed, 100, 1) == 0);
    CHECK(cudaMemset(managed, 5, 100) == 0 && managed[0] == 5 && managed[99] == 5);
    CHECK(cudaFree(again) == 0 && cudaFree(b) == 0 && cudaFree(managed) == 0);
}

/* Many small random writes, fills and copies against a plain array. */
static void test_values_against_model(void) {
    enum { BYTES = 4096, STEPS = 20000 };
    static unsigned char model[BYTES], read[BYTES], data[BYTES];
    unsigned char *device;
    unsigned seed = 12345;
    CHECK(cudaMalloc((void **)&device, BYTES) == 0);
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        size_t start = (seed >> 8) % BYTES;
        seed = seed * 1664525u + 1013904223u;
        size_t bytes = 1 + (seed >> 8) % 200;
        bytes = start + bytes > BYTES ? BYTES - start : bytes;
        size_t from = (seed >> 4) % (BYTES - bytes + 1);
        switch (seed >> 30) {
        case 0:
            memset(data, (int)(seed >> 16), bytes);
            memcpy(model + start, data, bytes);
            CHECK(cudaMemcpy(device + start, data, bytes, cudaMemcpyHostToDevice) == 0);
            break;
        case 1:
            memset(model + start, (int)(step % 3), bytes);
            CHECK(cudaMemset(device + start, step % 3, bytes) == 0);
            break;
        default:
            memmove(model + start, model + from, bytes);
            CHECK(cudaMemcpy(device + start, device + from, bytes, cudaMemcpyDeviceToDevice) == 0);
        }
    }
    CHECK(cudaMemcpy(read, device, BYTES, cudaMemcpyDeviceToHost) == 0);
    CHECK(!memcmp(read, model, BYTES));
    CHECK(cudaFree(device) == 0);
}

static void test_streams_and_events(void) {
    cudaStream_t stream;
    cudaEvent_t start, end, untimed;
    float milliseconds = 0;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&start, 0) == 0 && cudaEventCreateWithFlags(&end, 0) == 0);
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming) == 0);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(start, stream) == 0 && cudaEventRecord(end, stream) == 0);
    CHECK(cudaEventRecord(untimed, NULL) == 0);
    CHECK(cudaEventQuery(end) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == 0 && milliseconds > 0);
    CHECK(cudaEventElapsedTime(&milliseconds, untimed, end) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamWaitEvent(stream, start, 0) == 0 && cudaStreamQuery(stream) == 0);
    CHECK(cudaStreamSynchronize(NULL) == 0 && cudaStreamSynchronize(cudaStreamPerThread) == 0);
    /* Handles that are none: never created, destroyed, misaligned. */
    CHECK(cudaStreamSynchronize((cudaStream_t)0xdead0) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord((cudaEvent_t)((char *)start + 8), NULL) ==
          cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord((cudaEvent_t)stream, NULL) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventDestroy(start) == 0);
    CHECK(cudaEventDestroy(start) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamDestroy(stream) == 0);
    CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaLaunchKernel(&add_host, one, block, NULL, 0, stream) ==
          cudaErrorInvalidResourceHandle);
    CHECK(cudaEventDestroy(end) == 0 && cudaEventDestroy(untimed) == 0);
    cudaGetLastError();
}

static void test_capture(void) {
    cudaStream_t stream, other;
    cudaEvent_t fork;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int status = -1;
    CHECK(cudaStreamCreateWithFlags(&stream, 0) == 0);
    CHECK(cudaStreamCreateWithFlags(&other, 0) == 0);
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming) == 0);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(stream, 0) == cudaSuccess);
    CHECK(cudaStreamIsCapturing(stream, &status) == 0 && status == cudaStreamCaptureStatusActive);
    CHECK(cudaStreamIsCapturing(other, &status) == 0 && status == cudaStreamCaptureStatusNone);
    CHECK(cudaEventRecord(fork, stream) == 0 && cudaStreamWaitEvent(other, fork, 0) == 0);
    CHECK(cudaStreamIsCapturing(other, &status) == 0 && status == cudaStreamCaptureStatusActive);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaStreamIsCapturing(other, &status) == 0 && status == cudaStreamCaptureStatusNone);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == 0 && cudaGraphLaunch(exec, stream) == 0);
    CHECK(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(other) == 0);
    CHECK(cudaEventDestroy(fork) == 0);
    cudaGetLastError();
}

static void test_launches(void) {
    int n = 4;
    void *a = NULL, *b = NULL, *arguments[] = {&n, &a, &b};
    CHECK(cudaLaunchKernel(&add_host, one, block, arguments, 0, NULL) == cudaSuccess);
    CHECK(cudaLaunchKernel(&n, one, block, arguments, 0, NULL) == cudaErrorInvalidDeviceFunction);
    CHECK(cudaLaunchKernel(&add_host, (dim3){0, 1, 1}, block, arguments, 0, NULL) ==
          cudaErrorInvalidConfiguration);
    CHECK(cudaLaunchKernel(&add_host, one, (dim3){2048, 1, 1}, arguments, 0, NULL) ==
          cudaErrorInvalidConfiguration);
    CHECK(cudaLaunchKernel(&add_host, one, (dim3){1024, 1, 1}, arguments, 0, NULL) ==
          cudaErrorLaunchOutOfResources); /* the kernel allows 512 */
    CHECK(cudaLaunchKernel(&add_host, one, block, arguments, 1 << 20, NULL) ==
          cudaErrorInvalidValue);
    /* A kernel that no table has can still be launched. */
    CHECK(cudaLaunchKernel(&unknown_host, one, (dim3){1024, 1, 1}, NULL, 0, NULL) == 0);

    /* As code of CUDA 13 does it. */
    dim3 grid_out, block_out;
    size_t shared;
    cudaStream_t stream;
    cudaKernel_t kernel;
    CHECK(__cudaPushCallConfiguration((dim3){7, 1, 1}, block, 16, cudaStreamPerThread) == 0);
    CHECK(__cudaPopCallConfiguration(&grid_out, &block_out, &shared, &stream) == cudaSuccess);
    CHECK(grid_out.x == 7 && block_out.x == 128 && shared == 16 && stream == cudaStreamPerThread);
    CHECK(__cudaPopCallConfiguration(&grid_out, &block_out, &shared, &stream) ==
          cudaErrorMissingConfiguration);
    CHECK(__cudaGetKernel(&kernel, &add_host) == cudaSuccess);
    CHECK(__cudaLaunchKernel(kernel, grid_out, block_out, arguments, shared, stream) == 0);
    /* A handle is accepted where a host function is. */
    CHECK(cudaLaunchKernel(kernel, one, block, arguments, 0, NULL) == cudaSuccess);

    struct cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, &add_host) == cudaSuccess);
    CHECK(attributes.numRegs == 64 && attributes.sharedSizeBytes == 1024);
    CHECK(attributes.maxThreadsPerBlock == 512);
    CHECK(cudaFuncSetAttribute(&add_host, 8, 232448 - 1024) == cudaSuccess);
    CHECK(cudaFuncSetAttribute(&add_host, 8, 232448) == cudaErrorInvalidValue);
    /* 64 registers x 256 threads: 4 blocks of 65536 registers; 1024 + 1024 + 72 KiB: 3 blocks. */
    int blocks = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &add_host, 256, 0) == 0);
    CHECK(blocks == 4);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &add_host, 256, 72 << 10) == 0);
    CHECK(blocks == 3);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &unknown_host, 64, 0) == 0);
    CHECK(blocks == 32);
    cudaGetLastError();
}

int main(void) {
    char folder[] = "/tmp/understudy-test-XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/k.ktab", folder);
    use_kernel_table(path, kernels, 2);
    __cudaRegisterFunction(NULL, &add_host, NULL, kernels[0].name, -1, NULL, NULL, NULL, NULL,
                           NULL);
    __cudaRegisterFunction(NULL, &fill_host, NULL, kernels[1].name, -1, NULL, NULL, NULL, NULL,
                           NULL);
    __cudaRegisterFunction(NULL, &unknown_host, NULL, "_Z7unknownv", -1, NULL, NULL, NULL, NULL,
                           NULL);
    test_devices_and_errors();
    test_capacity();
    test_pools();
    test_values();
    test_values_against_model();
    test_streams_and_events();
    test_capture();
    test_launches();
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
    puts("core: ok");
    return 0;
}
