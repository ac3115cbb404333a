/*
 * One traced situation per run; tests/interceptor/test_trace.py reads what it left behind.
 *
 *     scenario <name> <scratch folder> [number]
 */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "support.h"

static char add_host;
static const struct test_kernel kernel = {
    .name = "_Z3addiPKfPf",
    .registers = 40,
    .max_threads = 1024,
    .static_shared_bytes = 256,
    .parameter_count = 3,
    .parameters = {{0, 4}, {8, 8}, {16, 8}}, /* four bytes of padding after the first */
};

static void launch(int n, unsigned grid, cudaStream_t stream) {
    void *a = (void *)0x200000400000, *b = (void *)0x200000600000, *arguments[] = {&n, &a, &b};
    CHECK(cudaLaunchKernel(&add_host, (dim3){grid, 1, 1}, (dim3){256, 1, 1}, arguments, 64,
                           stream) == cudaSuccess);
}

/* A known sequence of calls of most kinds. */
static void calls(void) {
    cudaStream_t stream;
    cudaEvent_t event;
    void *device, *pinned;
    char pageable[64] = {0};
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == 0);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == 0);
    CHECK(cudaMalloc(&device, 4 << 20) == 0 && cudaMallocHost(&pinned, 4096) == 0);
    CHECK(cudaMemcpyAsync(device, pinned, 4096, cudaMemcpyHostToDevice, stream) == 0);
    CHECK(cudaMemcpyAsync(pageable, device, 64, cudaMemcpyDeviceToHost, stream) == 0);
    CHECK(cudaMemsetAsync(device, 7, 128, stream) == 0);
    launch(1, 10, stream);
    launch(1, 10, stream);
    launch(2, 10, stream);
    CHECK(cudaEventRecord(event, stream) == 0 && cudaStreamWaitEvent(NULL, event, 0) == 0);
    launch(1, 11, NULL);
    CHECK(cudaEventSynchronize(event) == 0 && cudaDeviceSynchronize() == 0);
    CHECK(cudaStreamSynchronize(stream) == 0);
    understudy_annotate("half way");
    understudy_mark_iteration();
    void *none;
    CHECK(cudaMalloc(&none, 1ull << 40) == cudaErrorMemoryAllocation);
    CHECK(cudaEventDestroy(event) == 0 && cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
    CHECK(cudaStreamDestroy(stream) == 0);
    understudy_mark_iteration();
}

/* Every kind of copy and fill that makes the host wait, or not. */
static void copies(void) {
    void *device, *pinned;
    static char pageable[4096];
    CHECK(cudaMalloc(&device, 4096) == 0 && cudaMallocHost(&pinned, 4096) == 0);
    struct {
        void *destination;
        const void *source;
        int kind;
    } directions[] = {
        {device, pageable, cudaMemcpyHostToDevice}, {device, pinned, cudaMemcpyHostToDevice},
        {pageable, device, cudaMemcpyDeviceToHost}, {pinned, device, cudaMemcpyDeviceToHost},
        {device, device, cudaMemcpyDeviceToDevice}, {pinned, pageable, cudaMemcpyHostToHost},
    };
    for (size_t i = 0; i < sizeof directions / sizeof *directions; i++) {
        CHECK(cudaMemcpy(directions[i].destination, directions[i].source, 64,
                         directions[i].kind) == 0);
        CHECK(cudaMemcpyAsync(directions[i].destination, directions[i].source, 64,
                              directions[i].kind, NULL) == 0);
    }
    CHECK(cudaMemset(device, 0, 64) == 0 && cudaMemset(pinned, 0, 64) == 0);
    CHECK(cudaMemsetAsync(pinned, 0, 64, NULL) == 0);
}

static void *launch_many(void *count) {
    for (int i = 0; i < *(int *)count; i++)
        launch(i % 5, 1 + (unsigned)(i % 7), cudaStreamPerThread);
    return NULL;
}

static void threads(int count) {
    pthread_t ids[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&ids[i], NULL, launch_many, &count) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(ids[i], NULL) == 0);
}

/* The child of a fork records nothing and disturbs nothing. */
static void forked(void) {
    launch(1, 1, NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        for (int i = 0; i < 1000; i++)
            launch(i, 2, NULL);
        exit(0); /* runs destructors, as Python's multiprocessing may */
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    launch(1, 3, NULL);
}

CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleGetFunction(cudaFunction_t *function, CUmodule module, const char *name);
CUresult cuModuleUnload(CUmodule module);
CUresult cuFuncGetAttribute(int *value, int attribute, cudaFunction_t function);
CUresult cuFuncGetParamInfo(cudaFunction_t function, size_t index, size_t *offset, size_t *bytes);

/* Loads cubin files one after the other and prints what is known of kernel `name`, or the error. */
static void modules(const char *name, char **paths, int count) {
    for (int i = 0; i < count; i++) {
        CUmodule module;
        cudaFunction_t function;
        CUresult code = cuModuleLoad(&module, paths[i]);
        if (!code)
            code = cuModuleGetFunction(&function, module, name);
        if (code) {
            printf("error %d\n", code);
            continue;
        }
        int registers = 0, shared = 0, most = 0;
        CHECK(cuFuncGetAttribute(&most, 0, function) == 0);
        CHECK(cuFuncGetAttribute(&shared, 1, function) == 0);
        CHECK(cuFuncGetAttribute(&registers, 4, function) == 0);
        printf("registers %d shared %d threads %d parameters", registers, shared, most);
        size_t offset, bytes;
        for (size_t p = 0; p < 8 && !cuFuncGetParamInfo(function, p, &offset, &bytes); p++)
            printf(" %zu+%zu", offset, bytes);
        printf("\n");
        CHECK(cuModuleUnload(module) == 0);
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    const char *name = argv[1];
    int number = argc > 3 ? atoi(argv[3]) : 0;
    char path[4096], stem[4096];
    snprintf(path, sizeof path, "%s/k.ktab", argv[2]);
    snprintf(stem, sizeof stem, "%s/trace", argv[2]);
    use_kernel_table(path, &kernel, 1);
    __cudaRegisterFunction(NULL, &add_host, NULL, kernel.name, -1, NULL, NULL, NULL, NULL, NULL);
    if (!strcmp(name, "environment")) { /* the test has set UNDERSTUDY_TRACE */
        CHECK(!getenv("UNDERSTUDY_TRACE"));
        launch(1, 1, NULL);
        return 0;
    }
    if (!strcmp(name, "devices")) {
        int count = -1;
        cudaError_t code = cudaGetDeviceCount(&count);
        printf("%d %d\n", count, code);
        return 0;
    }
    if (!strcmp(name, "modules")) { /* kernel name, cubin files */
        CHECK(argc >= 5);
        modules(argv[3], argv + 4, argc - 4);
        return 0;
    }
    if (!strcmp(name, "untraced")) {
        calls();
        return 0;
    }
    if (!strcmp(name, "bad_table")) {
        CHECK(truncate(path, 150) == 0); /* ends inside its entries */
        CHECK(understudy_trace_open(stem) == 0);
        launch(1, 9, NULL);
        return 0;
    }
    if (!strcmp(name, "late")) { /* a stream and an event from before the trace */
        cudaStream_t stream;
        cudaEvent_t event;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == 0);
        CHECK(cudaEventCreateWithFlags(&event, 0) == 0);
        CHECK(understudy_trace_open(stem) == 0);
        launch(1, 1, stream);
        CHECK(cudaEventRecord(event, stream) == 0);
        return 0;
    }
    int error = understudy_trace_open(stem);
    if (error) {
        printf("%s\n", strerror(error));
        return 3;
    }
    if (!strcmp(name, "calls"))
        calls();
    else if (!strcmp(name, "copies"))
        copies();
    else if (!strcmp(name, "threads"))
        threads(number);
    else if (!strcmp(name, "fork"))
        forked();
    else if (!strcmp(name, "full_disk"))
        for (int i = 0; i < number; i++)
            launch(i, 1, NULL);
    else if (!strcmp(name, "die")) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        for (int i = 0; i < number; i++)
            launch(i % 100, 1, NULL);
        if (argc > 4 && !strcmp(argv[4], "abort"))
            abort();
        if (argc > 4 && !strcmp(argv[4], "exit"))
            _exit(0);
        raise(argc > 4 && !strcmp(argv[4], "segv") ? SIGSEGV : SIGKILL);
    } else
        CHECK(!"a known scenario");
    return 0;
}
