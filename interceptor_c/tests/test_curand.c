/* cuRAND's host API: refused arguments, and what a generation records and makes unknown. */
#include "cuda_types.h"
#include "library_test.h"

typedef void *generator_t;
int curandCreateGenerator(generator_t *, int);
int curandCreateGeneratorHost(generator_t *, int);
int curandDestroyGenerator(generator_t);
int curandSetPseudoRandomGeneratorSeed(generator_t, unsigned long long);
int curandSetQuasiRandomGeneratorDimensions(generator_t, unsigned);
int curandGenerate(generator_t, unsigned *, size_t);
int curandGenerateLongLong(generator_t, unsigned long long *, size_t);
int curandGenerateUniform(generator_t, float *, size_t);
int curandGenerateNormal(generator_t, float *, size_t, float, float);
int curandGeneratePoisson(generator_t, unsigned *, size_t, double);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);

enum { OK = 0, NOT_INITIALIZED = 101, TYPE_ERROR = 103, OUT_OF_RANGE = 104, NOT_MULTIPLE = 105 };
enum { PHILOX = 161, SOBOL32 = 201, SOBOL64 = 203 };

static void test_refusals(generator_t pseudo, generator_t quasi, generator_t quasi64, float *out) {
    generator_t made;
    CHECK(curandCreateGenerator(&made, 99) == TYPE_ERROR);
    CHECK(curandCreateGenerator(NULL, PHILOX) == NOT_INITIALIZED);
    CHECK(curandGenerateUniform(NULL, out, 4) == NOT_INITIALIZED);
    CHECK(curandSetPseudoRandomGeneratorSeed(quasi, 1) == TYPE_ERROR);
    CHECK(curandSetQuasiRandomGeneratorDimensions(pseudo, 2) == TYPE_ERROR);
    CHECK(curandSetQuasiRandomGeneratorDimensions(quasi, 0) == OUT_OF_RANGE);
    CHECK(curandSetQuasiRandomGeneratorDimensions(quasi, 20001) == OUT_OF_RANGE);
    CHECK(curandGenerateUniform(pseudo, NULL, 4) == OUT_OF_RANGE);
    CHECK(curandGenerateNormal(pseudo, out, 3, 0, 1) == NOT_MULTIPLE);
    CHECK(curandGenerateNormal(pseudo, out, 4, 0, -1) == OUT_OF_RANGE);
    CHECK(curandGeneratePoisson(pseudo, (unsigned *)out, 4, 0) == OUT_OF_RANGE);
    CHECK(curandGeneratePoisson(pseudo, (unsigned *)out, 4, 400001) == OUT_OF_RANGE);
    CHECK(curandGenerateLongLong(pseudo, (unsigned long long *)out, 4) == TYPE_ERROR);
    CHECK(curandGenerate(quasi64, (unsigned *)out, 4) == TYPE_ERROR);
    CHECK(count_of(US_API_LIBRARY) == 0);
}

static void test_generation(generator_t pseudo, generator_t quasi, generator_t quasi64,
                            float *out) {
    float values[4] = {1, 2, 3, 4}, back[4];
    CHECK(cudaMemcpy(out, values, sizeof values, 1) == 0);
    CHECK(curandSetPseudoRandomGeneratorSeed(pseudo, 7) == OK);
    CHECK(curandGenerateUniform(pseudo, out, 3) == OK);
    CHECK(library_call_is("curandGenerateUniform", CUDA_R_32F) && library_value("n") == 3);
    CHECK(library_value("rng_type") == PHILOX && library_value("num_dimensions") == 1);
    CHECK(cudaMemcpy(back, out, sizeof back, 2) == 0 && back[2] == 0 && back[3] == 4);
    /* Three dimensions: an odd count of normal numbers that fills them. */
    CHECK(curandSetQuasiRandomGeneratorDimensions(quasi, 3) == OK);
    CHECK(curandGenerateNormal(quasi, out, 3, 0, 1) == OK);
    CHECK(library_value("num_dimensions") == 3);
    CHECK(curandGenerateNormal(quasi, out, 4, 0, 1) == NOT_MULTIPLE);
    CHECK(curandGenerateLongLong(quasi64, (unsigned long long *)out, 2) == OK);
    CHECK(library_call_is("curandGenerateLongLong", CUDA_R_64U));
    size_t before = count_of(US_API_LIBRARY);
    CHECK(curandGenerateUniform(pseudo, NULL, 0) == OK);
    generator_t host;
    CHECK(curandCreateGeneratorHost(&host, PHILOX) == OK);
    CHECK(curandGenerateUniform(host, values, 4) == OK && values[3] == 0);
    CHECK(count_of(US_API_LIBRARY) == before); /* no work of the device */
    CHECK(curandDestroyGenerator(host) == OK);
}

int main(void) {
    open_trace();
    generator_t pseudo, quasi, quasi64;
    float *out;
    CHECK(cudaMalloc((void **)&out, 256) == 0);
    CHECK(curandCreateGenerator(&pseudo, PHILOX) == OK);
    CHECK(curandCreateGenerator(&quasi, SOBOL32) == OK);
    CHECK(curandCreateGenerator(&quasi64, SOBOL64) == OK);
    test_refusals(pseudo, quasi, quasi64, out);
    test_generation(pseudo, quasi, quasi64, out);
    CHECK(curandDestroyGenerator(pseudo) == OK && curandDestroyGenerator(quasi) == OK);
    CHECK(curandDestroyGenerator(quasi64) == OK && cudaFree(out) == 0);
    close_trace();
    puts("curand ok");
    return 0;
}
