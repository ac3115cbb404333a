/*
 * cuRAND's host API. PyTorch does not call it (its kernels hold their own generators); other
 * programs may. A generator keeps its type, seed, offset and stream; every generation is one record
 * and its output reads as unknown.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "library_call.h"

typedef int curandStatus_t;
enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 101,
    ALLOCATION_FAILED = 102,
    TYPE_ERROR = 103,
    OUT_OF_RANGE = 104,
    LENGTH_NOT_MULTIPLE = 105,
};
enum { PSEUDO_DEFAULT = 100, PSEUDO_LAST = 161, QUASI_DEFAULT = 200, QUASI_LAST = 204 };
enum { SOBOL64 = 203, SCRAMBLED_SOBOL64 = 204 }; /* the quasirandom ones of 64 bits */

/* Limits of the guide's reference ("Modules: Host API"). */
enum { MAX_DIMENSIONS = 20000, MAX_POISSON_LAMBDA = 400000 };

typedef struct us_generator {
    int type, ordering;
    unsigned dimensions;
    unsigned long long seed, offset;
    cudaStream_t stream;
    bool host; /* results go to host memory: zeros, as nothing is computed */
} *curandGenerator_t;

static bool is_quasi(curandGenerator_t generator) { return generator->type >= QUASI_DEFAULT; }

static curandStatus_t create(curandGenerator_t *generator, int type, bool host) {
    if (generator == NULL) return NOT_INITIALIZED;
    if ((type < PSEUDO_DEFAULT || type > PSEUDO_LAST) &&
        (type < QUASI_DEFAULT || type > QUASI_LAST)) {
        return TYPE_ERROR;
    }
    struct us_generator *made = calloc(1, sizeof *made);
    if (made == NULL) return ALLOCATION_FAILED;
    *made = (struct us_generator){.type = type, .dimensions = 1, .host = host};
    *generator = made;
    return SUCCESS;
}

US_EXPORT curandStatus_t curandCreateGenerator(curandGenerator_t *generator, int type) {
    return create(generator, type, false);
}

US_EXPORT curandStatus_t curandCreateGeneratorHost(curandGenerator_t *generator, int type) {
    return create(generator, type, true);
}

US_EXPORT curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
    if (generator == NULL) return NOT_INITIALIZED;
    free(generator);
    return SUCCESS;
}

#define US_SET(name, field, value_type)                                                            \
    US_EXPORT curandStatus_t name(curandGenerator_t generator, value_type value) {                 \
        if (generator == NULL) return NOT_INITIALIZED;                                             \
        generator->field = value;                                                                  \
        return SUCCESS;                                                                            \
    }

US_SET(curandSetStream, stream, cudaStream_t)
US_SET(curandSetGeneratorOffset, offset, unsigned long long)
US_SET(curandSetGeneratorOrdering, ordering, int)

US_EXPORT curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator,
                                                            unsigned long long seed) {
    if (generator == NULL) return NOT_INITIALIZED;
    if (is_quasi(generator)) return TYPE_ERROR;
    generator->seed = seed;
    return SUCCESS;
}

US_EXPORT curandStatus_t curandSetQuasiRandomGeneratorDimensions(curandGenerator_t generator,
                                                                 unsigned dimensions) {
    if (generator == NULL) return NOT_INITIALIZED;
    if (dimensions < 1 || dimensions > MAX_DIMENSIONS) return OUT_OF_RANGE;
    if (!is_quasi(generator)) return TYPE_ERROR;
    generator->dimensions = dimensions;
    return SUCCESS;
}

US_EXPORT curandStatus_t curandGenerateSeeds(curandGenerator_t generator) {
    return generator == NULL ? NOT_INITIALIZED : SUCCESS;
}

/* `multiple`: normal numbers of a pseudorandom generator come in pairs; quasirandom numbers of any
   kind fill all dimensions. A NULL output with numbers to write has no documented status; it is
   refused as out of range. */
static curandStatus_t generate(struct us_record *record, const char *api, cudaDataType_t type,
                               curandGenerator_t generator, void *output, size_t n,
                               size_t multiple) {
    if (generator == NULL) return NOT_INITIALIZED;
    if (n % (is_quasi(generator) ? generator->dimensions : multiple) != 0)
        return LENGTH_NOT_MULTIPLE;
    if (n == 0) return SUCCESS;
    if (output == NULL) return OUT_OF_RANGE;
    size_t bytes = n * (size_t)us_cuda_type_bits(type) / 8;
    if (generator->host) {
        memset(output, 0, bytes);
        return SUCCESS; /* no device work */
    }
    us_values_forget(output, bytes);
    record->d = us_address(output);
    us_library_emit(record, api, type, generator->stream,
                    US_LIBRARY_VALUES({"rng_type", generator->type}, {"n", (int64_t)n},
                                      {"num_dimensions", generator->dimensions}));
    return SUCCESS;
}

#define US_GENERATE(name, type, element)                                                           \
    US_EXPORT curandStatus_t name(curandGenerator_t generator, element *output, size_t n) {        \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        return generate(&record, #name, type, generator, output, n, 1);                            \
    }

/* Integers of 64 bits come from the generators of 64 bits only, and those give no others. */
static bool has_long_integers(curandGenerator_t generator) {
    return generator->type == SOBOL64 || generator->type == SCRAMBLED_SOBOL64;
}

US_EXPORT curandStatus_t curandGenerate(curandGenerator_t generator, unsigned *output, size_t n) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    if (generator != NULL && has_long_integers(generator)) return TYPE_ERROR;
    return generate(&record, "curandGenerate", CUDA_R_32U, generator, output, n, 1);
}

US_EXPORT curandStatus_t curandGenerateLongLong(curandGenerator_t generator,
                                                unsigned long long *output, size_t n) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    if (generator != NULL && !has_long_integers(generator)) return TYPE_ERROR;
    return generate(&record, "curandGenerateLongLong", CUDA_R_64U, generator, output, n, 1);
}

US_GENERATE(curandGenerateUniform, CUDA_R_32F, float)
US_GENERATE(curandGenerateUniformDouble, CUDA_R_64F, double)

#define US_GENERATE_TWO(name, type, element, multiple)                                             \
    US_EXPORT curandStatus_t name(curandGenerator_t generator, element *output, size_t n,          \
                                  element mean, element deviation) {                               \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        if (!(deviation >= 0) || mean != mean) return OUT_OF_RANGE;                                \
        return generate(&record, #name, type, generator, output, n, multiple);                     \
    }

US_GENERATE_TWO(curandGenerateNormal, CUDA_R_32F, float, 2)
US_GENERATE_TWO(curandGenerateNormalDouble, CUDA_R_64F, double, 2)
US_GENERATE_TWO(curandGenerateLogNormal, CUDA_R_32F, float, 2)
US_GENERATE_TWO(curandGenerateLogNormalDouble, CUDA_R_64F, double, 2)

US_EXPORT curandStatus_t curandGeneratePoisson(curandGenerator_t generator, unsigned *output,
                                               size_t n, double lambda) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    if (!(lambda > 0 && lambda <= MAX_POISSON_LAMBDA)) return OUT_OF_RANGE;
    return generate(&record, "curandGeneratePoisson", CUDA_R_32U, generator, output, n, 1);
}
