/* NVRTC: programs, names, and the parameters of kernels that are loaded and launched. */
#include "library_test.h"
#include "cuda_types.h"

typedef void *program_t;
int nvrtcVersion(int *, int *);
int nvrtcCreateProgram(program_t *, const char *, const char *, int, const char *const *,
                       const char *const *);
int nvrtcDestroyProgram(program_t *);
int nvrtcCompileProgram(program_t, int, const char *const *);
int nvrtcAddNameExpression(program_t, const char *);
int nvrtcGetLoweredName(program_t, const char *, const char **);
int nvrtcGetPTXSize(program_t, size_t *);
int nvrtcGetPTX(program_t, char *);
int nvrtcGetProgramLogSize(program_t, size_t *);
int nvrtcGetProgramLog(program_t, char *);
int cuInit(unsigned);
int cuModuleLoadData(void **, const void *);
int cuModuleUnload(void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuFuncGetParamInfo(void *, size_t, size_t *, size_t *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);

/* Functions of unloaded modules stay, on purpose: launches may still be coming. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

static const char source[] =
    "#define QUOTE \"__global__ void no(\"\n"
    "// __global__ void neither(int x) {}\n"
    "typedef unsigned long long int u64; using real = double;\n"
    "template <typename T, int size> struct Array { T data[size]; };\n"
    "extern \"C\" __global__ __launch_bounds__(128, 2)\n"
    "void plain(const int n, Array<char*, 1+2> data, float a = 1.f, u64 b, real c,\n"
    "           const float *__restrict__ x, char flag, unsigned short int y[]) { }\n"
    "__global__ void empty() {}\n"
    "extern \"C\" __global__ void odd(Unknown u, int n) {}\n"
    "namespace ns { template <typename T, int N> __global__ void add(T x, Array<T, N> y) {} }\n";

static void check_parameters(void *function, const size_t *expected, size_t count) {
    size_t offset, bytes;
    for (size_t i = 0; i < count; i++) {
        CHECK(cuFuncGetParamInfo(function, i, &offset, &bytes) == 0);
        CHECK(offset == expected[2 * i] && bytes == expected[2 * i + 1]);
    }
    CHECK(cuFuncGetParamInfo(function, count, &offset, &bytes) != 0);
}

static void test_program(void) {
    program_t program;
    void *module, *function;
    const char *lowered;
    size_t bytes;
    CHECK(nvrtcCreateProgram(&program, NULL, NULL, 0, NULL, NULL) == 3);
    CHECK(nvrtcCreateProgram(&program, source, "s.cu", 0, NULL, NULL) == 0);
    CHECK(nvrtcGetPTXSize(program, &bytes) == 4); /* not compiled */
    CHECK(nvrtcAddNameExpression(program, "&ns::add<float, 4>") == 0);
    CHECK(nvrtcGetLoweredName(program, "&ns::add<float, 4>", &lowered) == 9);
    CHECK(nvrtcCompileProgram(program, 1, (const char *const[]){"--gpu-architecture=sm_90a"}) == 0);
    CHECK(nvrtcAddNameExpression(program, "x") == 8);
    CHECK(nvrtcGetLoweredName(program, "none", &lowered) == 10);
    CHECK(nvrtcGetPTXSize(program, &bytes) == 0);
    char *ptx = malloc(bytes);
    CHECK(ptx != NULL && nvrtcGetPTX(program, ptx) == 0 && strlen(ptx) + 1 == bytes);
    CHECK(strstr(ptx, ".target sm_90a\n") != NULL && strstr(ptx, "neither") == NULL);
    CHECK(cuInit(0) == 0 && cuModuleLoadData(&module, ptx) == 0);
    free(ptx);
    CHECK(cuModuleGetFunction(&function, module, "plain") == 0);
    check_parameters(function,
                     (const size_t[]){0, 4, 8, 24, 32, 4, 40, 8, 48, 8, 56, 8, 64, 1, 72, 8}, 8);
    CHECK(cuModuleGetFunction(&function, module, "_Z5emptyv") == 0);
    check_parameters(function, NULL, 0);
    CHECK(cuModuleGetFunction(&function, module, "odd") == 0);
    check_parameters(function, NULL, 0); /* a type that is not understood: no parameters */
    CHECK(cuModuleGetFunction(&function, module, "no") == 500);
    CHECK(nvrtcGetLoweredName(program, "&ns::add<float, 4>", &lowered) == 0);
    CHECK(cuModuleGetFunction(&function, module, lowered) == 0);
    check_parameters(function, (const size_t[]){0, 4, 4, 16}, 2);
    open_trace();
    float x = 1, y[4] = {0};
    CHECK(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, NULL, (void *[]){&x, y}, NULL) == 0);
    CHECK(count_of(US_API_LAUNCH_KERNEL) == 1);
    close_trace();
    CHECK(cuModuleUnload(module) == 0);
    CHECK(nvrtcDestroyProgram(&program) == 0 && program == NULL);
}

static void test_errors(void) {
    program_t program;
    char log[256];
    size_t bytes;
    int major, minor;
    CHECK(nvrtcVersion(&major, &minor) == 0 && major >= 12);
    CHECK(nvrtcCreateProgram(&program, source, NULL, 0, NULL, NULL) == 0);
    CHECK(nvrtcAddNameExpression(program, "nothing<int>") == 0);
    CHECK(nvrtcCompileProgram(program, 0, NULL) == 6);
    CHECK(nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes <= sizeof log);
    CHECK(nvrtcGetProgramLog(program, log) == 0 && strstr(log, "nothing<int>") != NULL);
    CHECK(nvrtcDestroyProgram(&program) == 0);
}

/* Sources that end in the middle of something, and damaged PTX. */
static void test_damaged(void) {
    program_t program;
    for (size_t i = 0; i < sizeof source; i++) {
        char *cut = strndup(source, i);
        CHECK(cut != NULL && nvrtcCreateProgram(&program, cut, NULL, 0, NULL, NULL) == 0);
        CHECK(nvrtcCompileProgram(program, 0, NULL) == 0);
        CHECK(nvrtcDestroyProgram(&program) == 0);
        free(cut);
    }
    static const char ptx[] = " /* c */ .version 8.0 .visible .entry k(.param .u64 .ptr .align 1 "
                              "k_0, .param .align 16 .b8 k_1[40]) .maxntid 64, 2, 1 { ret; }";
    void *module, *function;
    for (size_t i = 0; i <= sizeof ptx; i++) {
        char *cut = strndup(ptx, i);
        CHECK(cut != NULL && cuModuleLoadData(&module, cut) == 0);
        free(cut);
        if (i == sizeof ptx) {
            CHECK(cuModuleGetFunction(&function, module, "k") == 0);
            check_parameters(function, (const size_t[]){0, 8, 16, 40}, 2);
        }
        CHECK(cuModuleUnload(module) == 0);
    }
}

int main(void) {
    test_program();
    test_errors();
    test_damaged();
    puts("nvrtc ok");
    return 0;
}
