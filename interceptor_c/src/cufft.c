/*
 * cuFFT: plans and their execution. A plan keeps its geometry, an execution records it.
 *
 * The work area. cuFFT's documentation (section "cufftEstimate") promises no formula. A guess from
 * what its Stockham kernels need: one copy of the complex data where all prime factors of the
 * sizes are at most 127, which is where the documentation says that kernels of its own exist; for
 * other sizes Bluestein's algorithm, which convolves over the next power of two from 2 n - 1, on
 * two such arrays.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "library_call.h"
#include "versions.h"

typedef int cufftResult;
typedef int cufftHandle;
typedef int cufftType;
enum {
    CUFFT_SUCCESS = 0,
    CUFFT_INVALID_PLAN = 1,
    CUFFT_ALLOC_FAILED = 2,
    CUFFT_INVALID_TYPE = 3,
    CUFFT_INVALID_VALUE = 4,
    CUFFT_INVALID_SIZE = 8,
    CUFFT_NO_WORKSPACE = 13,
    CUFFT_NOT_SUPPORTED = 16,
};
enum { CUFFT_R2C = 0x2a, CUFFT_C2R = 0x2c, CUFFT_C2C = 0x29 };
enum { CUFFT_D2Z = 0x6a, CUFFT_Z2D = 0x6c, CUFFT_Z2Z = 0x69 };
enum { CUFFT_FORWARD = -1, CUFFT_INVERSE = 1 };
enum { MAX_RANK = 3, LARGEST_PRIME = 127 };

struct layout {
    cudaDataType_t type;
    long long embed[MAX_RANK]; /* of each dimension in memory, as the plan uses it */
    long long stride, distance;
};

struct plan {
    bool is_made, allocates;
    int rank;
    long long n[MAX_RANK], batch;
    struct layout in, out;
    cudaDataType_t execution_type;
    size_t work_bytes;
    int device;
    bool charged; /* the work area is the plan's own */
    void *work_area;
    cudaStream_t stream;
};

/* Handles are indices into a table. Entries are freed only by the program, which must not use a
   handle after that. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan **plans;
static size_t plan_count;

static struct plan *find(cufftHandle handle) {
    pthread_mutex_lock(&lock);
    struct plan *found = handle > 0 && (size_t)handle <= plan_count ? plans[handle - 1] : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static cufftResult create(cufftHandle *handle) {
    if (handle == NULL) return CUFFT_INVALID_VALUE;
    struct plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return CUFFT_ALLOC_FAILED;
    plan->allocates = true;
    plan->device = us_current_device();
    pthread_mutex_lock(&lock);
    size_t slot = 0;
    while (slot < plan_count && plans[slot] != NULL) slot++;
    if (slot == plan_count) {
        struct plan **grown = realloc(plans, (plan_count + 64) * sizeof *plans);
        if (grown == NULL) {
            pthread_mutex_unlock(&lock);
            free(plan);
            return CUFFT_ALLOC_FAILED;
        }
        memset(grown + plan_count, 0, 64 * sizeof *plans);
        plans = grown;
        plan_count += 64;
    }
    plans[slot] = plan;
    pthread_mutex_unlock(&lock);
    *handle = (cufftHandle)slot + 1;
    return CUFFT_SUCCESS;
}

static void give_back(struct plan *plan) {
    if (plan->charged) us_device_charge(plan->device, -(int64_t)plan->work_bytes);
    plan->charged = false;
}

static cufftResult destroy(cufftHandle handle) {
    struct plan *plan = find(handle);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    pthread_mutex_lock(&lock);
    plans[handle - 1] = NULL;
    pthread_mutex_unlock(&lock);
    give_back(plan);
    free(plan);
    return CUFFT_SUCCESS;
}

/* Geometry ----------------------------------------------------------------------------------- */

static bool is_real(cudaDataType_t type) {
    return type == CUDA_R_32F || type == CUDA_R_64F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

static cudaDataType_t complex_of(cudaDataType_t type) {
    switch (type) {
    case CUDA_R_16F: return CUDA_C_16F;
    case CUDA_R_16BF: return CUDA_C_16BF;
    case CUDA_R_32F: return CUDA_C_32F;
    case CUDA_R_64F: return CUDA_C_64F;
    default: return type;
    }
}

static bool types_agree(cudaDataType_t in, cudaDataType_t out, cudaDataType_t execution) {
    if (execution != CUDA_C_16F && execution != CUDA_C_16BF && execution != CUDA_C_32F &&
        execution != CUDA_C_64F) {
        return false;
    }
    return complex_of(in) == execution && complex_of(out) == execution &&
           !(is_real(in) && is_real(out));
}

static bool has_own_kernels(long long n) {
    for (long long prime = 2; prime <= LARGEST_PRIME; prime++) {
        while (n % prime == 0) n /= prime;
    }
    return n == 1;
}

/* False when the size overflows. */
static bool multiply(size_t *product, long long factor) {
    return factor >= 0 && !__builtin_mul_overflow(*product, (size_t)factor, product);
}

static bool work_bytes(const struct plan *plan, size_t *bytes) {
    size_t element = (size_t)us_cuda_type_bits(plan->execution_type) / 8, largest = 1;
    *bytes = element;
    if (!multiply(bytes, plan->batch)) return false;
    for (int i = 0; i < plan->rank; i++) {
        long long n = plan->n[i], points = n;
        if (!has_own_kernels(n)) {
            for (points = 1; points < 2 * n - 1;) points *= 2;
            if (largest < 2) largest = 2;
        }
        if (!multiply(bytes, points)) return false;
    }
    return multiply(bytes, (long long)largest);
}

/* The number of elements of a dimension in memory: a half-complex one holds n / 2 + 1. */
static void dense_layout(struct layout *layout, const struct plan *plan, bool half) {
    layout->stride = layout->distance = 1;
    for (int i = 0; i < plan->rank; i++) {
        layout->embed[i] = half && i == plan->rank - 1 ? plan->n[i] / 2 + 1 : plan->n[i];
        layout->distance *= layout->embed[i];
    }
}

static void set_layout(struct layout *layout, const struct plan *plan, cudaDataType_t type,
                       bool half, const long long *embed, long long stride, long long distance) {
    layout->type = type;
    dense_layout(layout, plan, half);
    if (embed == NULL) return; /* the documentation: stride and distance are ignored then */
    memcpy(layout->embed, embed, (size_t)plan->rank * sizeof *embed);
    layout->stride = stride;
    layout->distance = distance;
}

/* Geometry and work size of a plan; the plan is not changed when it returns an error. */
static cufftResult describe(struct plan *plan, int rank, const long long *n,
                            const long long *inembed, long long istride, long long idist,
                            cudaDataType_t in, const long long *onembed, long long ostride,
                            long long odist, cudaDataType_t out, long long batch,
                            cudaDataType_t execution) {
    if (rank < 1 || rank > MAX_RANK || n == NULL || batch < 1) return CUFFT_INVALID_VALUE;
    if (!types_agree(in, out, execution)) return CUFFT_INVALID_TYPE;
    struct plan made = *plan;
    made.rank = rank;
    made.batch = batch;
    made.execution_type = execution;
    for (int i = 0; i < rank; i++) {
        bool power_of_two = n[i] > 0 && (n[i] & (n[i] - 1)) == 0;
        /* Half precision has kernels for powers of two only ("Half-precision cuFFT Transforms"). */
        bool half = execution == CUDA_C_16F || execution == CUDA_C_16BF;
        if (n[i] < 1 || n[i] > 1ll << 40 || (half && !power_of_two)) return CUFFT_INVALID_SIZE;
        made.n[i] = n[i];
    }
    set_layout(&made.in, &made, in, is_real(out), inembed, istride, idist);
    set_layout(&made.out, &made, out, is_real(in), onembed, ostride, odist);
    if (!work_bytes(&made, &made.work_bytes)) return CUFFT_INVALID_SIZE;
    made.is_made = true;
    *plan = made;
    return CUFFT_SUCCESS;
}

static cufftResult make(cufftHandle handle, const struct plan *described, size_t *work_size) {
    struct plan *plan = find(handle);
    if (plan == NULL || plan->is_made) return CUFFT_INVALID_PLAN;
    struct plan made = *described;
    made.allocates = plan->allocates;
    made.stream = plan->stream;
    made.work_area = plan->work_area;
    made.device = us_current_device();
    if (made.allocates) {
        if (!us_device_charge(made.device, (int64_t)made.work_bytes)) return CUFFT_ALLOC_FAILED;
        made.charged = true;
    }
    *plan = made;
    if (work_size != NULL) *work_size = made.work_bytes;
    return CUFFT_SUCCESS;
}

static bool types_of(cufftType type, cudaDataType_t *in, cudaDataType_t *out,
                     cudaDataType_t *execution) {
    static const struct {
        cufftType type;
        cudaDataType_t in, out, execution;
    } known[] = {
        {CUFFT_R2C, CUDA_R_32F, CUDA_C_32F, CUDA_C_32F},
        {CUFFT_C2R, CUDA_C_32F, CUDA_R_32F, CUDA_C_32F},
        {CUFFT_C2C, CUDA_C_32F, CUDA_C_32F, CUDA_C_32F},
        {CUFFT_D2Z, CUDA_R_64F, CUDA_C_64F, CUDA_C_64F},
        {CUFFT_Z2D, CUDA_C_64F, CUDA_R_64F, CUDA_C_64F},
        {CUFFT_Z2Z, CUDA_C_64F, CUDA_C_64F, CUDA_C_64F},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].type != type) continue;
        *in = known[i].in;
        *out = known[i].out;
        *execution = known[i].execution;
        return true;
    }
    return false;
}

/* The older functions: int sizes and a cufftType. */
static cufftResult describe_typed(struct plan *plan, int rank, const int *n, const int *inembed,
                                  int istride, int idist, const int *onembed, int ostride,
                                  int odist, cufftType type, int batch) {
    cudaDataType_t in, out, execution;
    long long wide_n[MAX_RANK], wide_in[MAX_RANK], wide_out[MAX_RANK];
    if (rank < 1 || rank > MAX_RANK || n == NULL) return CUFFT_INVALID_VALUE;
    if (!types_of(type, &in, &out, &execution)) return CUFFT_INVALID_TYPE;
    for (int i = 0; i < rank; i++) {
        wide_n[i] = n[i];
        wide_in[i] = inembed != NULL ? inembed[i] : 0;
        wide_out[i] = onembed != NULL ? onembed[i] : 0;
    }
    return describe(plan, rank, wide_n, inembed != NULL ? wide_in : NULL, istride, idist, in,
                    onembed != NULL ? wide_out : NULL, ostride, odist, out, batch, execution);
}

/* Handles ------------------------------------------------------------------------------------ */

US_EXPORT cufftResult cufftCreate(cufftHandle *handle) { return create(handle); }
US_EXPORT cufftResult cufftDestroy(cufftHandle handle) { return destroy(handle); }

US_EXPORT cufftResult cufftSetAutoAllocation(cufftHandle handle, int allocate) {
    struct plan *plan = find(handle);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    plan->allocates = allocate != 0;
    return CUFFT_SUCCESS;
}

US_EXPORT cufftResult cufftSetWorkArea(cufftHandle handle, void *area) {
    struct plan *plan = find(handle);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    give_back(plan); /* the documentation: the plan's own area is freed */
    plan->work_area = area;
    plan->allocates = false;
    return CUFFT_SUCCESS;
}

US_EXPORT cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
    struct plan *plan = find(handle);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    plan->stream = stream;
    return CUFFT_SUCCESS;
}

US_EXPORT cufftResult cufftGetVersion(int *version) {
    if (version == NULL) return CUFFT_INVALID_VALUE;
    *version = us_library_versions()->cufft;
    return CUFFT_SUCCESS;
}

US_EXPORT cufftResult cufftGetSize(cufftHandle handle, size_t *work_size) {
    struct plan *plan = find(handle);
    if (plan == NULL || !plan->is_made) return CUFFT_INVALID_PLAN;
    if (work_size == NULL) return CUFFT_INVALID_VALUE;
    *work_size = plan->work_bytes;
    return CUFFT_SUCCESS;
}

/* Making plans ------------------------------------------------------------------------------- */

US_EXPORT cufftResult cufftXtMakePlanMany(cufftHandle handle, int rank, long long *n,
                                          long long *inembed, long long istride, long long idist,
                                          cudaDataType_t in, long long *onembed,
                                          long long ostride, long long odist, cudaDataType_t out,
                                          long long batch, size_t *work_size,
                                          cudaDataType_t execution) {
    struct plan plan = {0};
    cufftResult status = describe(&plan, rank, n, inembed, istride, idist, in, onembed, ostride,
                                  odist, out, batch, execution);
    return status != CUFFT_SUCCESS ? status : make(handle, &plan, work_size);
}

US_EXPORT cufftResult cufftMakePlanMany(cufftHandle handle, int rank, int *n, int *inembed,
                                        int istride, int idist, int *onembed, int ostride,
                                        int odist, cufftType type, int batch, size_t *work_size) {
    struct plan plan = {0};
    cufftResult status = describe_typed(&plan, rank, n, inembed, istride, idist, onembed, ostride,
                                        odist, type, batch);
    return status != CUFFT_SUCCESS ? status : make(handle, &plan, work_size);
}

US_EXPORT cufftResult cufftPlanMany(cufftHandle *handle, int rank, int *n, int *inembed,
                                    int istride, int idist, int *onembed, int ostride, int odist,
                                    cufftType type, int batch) {
    struct plan plan = {0};
    cufftResult status = describe_typed(&plan, rank, n, inembed, istride, idist, onembed, ostride,
                                        odist, type, batch);
    if (status == CUFFT_SUCCESS) status = create(handle);
    if (status != CUFFT_SUCCESS) return status;
    status = make(*handle, &plan, NULL);
    if (status != CUFFT_SUCCESS) destroy(*handle);
    return status;
}

static cufftResult plan_dense(cufftHandle *handle, int rank, const int *n, cufftType type,
                              int batch) {
    struct plan plan = {0};
    cufftResult status = describe_typed(&plan, rank, n, NULL, 0, 0, NULL, 0, 0, type, batch);
    if (status == CUFFT_SUCCESS) status = create(handle);
    if (status != CUFFT_SUCCESS) return status;
    status = make(*handle, &plan, NULL);
    if (status != CUFFT_SUCCESS) destroy(*handle);
    return status;
}

US_EXPORT cufftResult cufftPlan1d(cufftHandle *handle, int nx, cufftType type, int batch) {
    return plan_dense(handle, 1, (const int[]){nx}, type, batch);
}

US_EXPORT cufftResult cufftPlan2d(cufftHandle *handle, int nx, int ny, cufftType type) {
    return plan_dense(handle, 2, (const int[]){nx, ny}, type, 1);
}

US_EXPORT cufftResult cufftPlan3d(cufftHandle *handle, int nx, int ny, int nz, cufftType type) {
    return plan_dense(handle, 3, (const int[]){nx, ny, nz}, type, 1);
}

/* Work size without a plan. */
static cufftResult estimate(int rank, const int *n, const int *inembed, int istride, int idist,
                            const int *onembed, int ostride, int odist, cufftType type, int batch,
                            size_t *work_size) {
    struct plan plan = {0};
    if (work_size == NULL) return CUFFT_INVALID_VALUE;
    cufftResult status = describe_typed(&plan, rank, n, inembed, istride, idist, onembed, ostride,
                                        odist, type, batch);
    if (status == CUFFT_SUCCESS) *work_size = plan.work_bytes;
    return status;
}

US_EXPORT cufftResult cufftEstimateMany(int rank, int *n, int *inembed, int istride, int idist,
                                        int *onembed, int ostride, int odist, cufftType type,
                                        int batch, size_t *work_size) {
    return estimate(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch,
                    work_size);
}

US_EXPORT cufftResult cufftEstimate1d(int nx, cufftType type, int batch, size_t *work_size) {
    return estimate(1, (const int[]){nx}, NULL, 0, 0, NULL, 0, 0, type, batch, work_size);
}

US_EXPORT cufftResult cufftEstimate2d(int nx, int ny, cufftType type, size_t *work_size) {
    return estimate(2, (const int[]){nx, ny}, NULL, 0, 0, NULL, 0, 0, type, 1, work_size);
}

US_EXPORT cufftResult cufftEstimate3d(int nx, int ny, int nz, cufftType type, size_t *work_size) {
    return estimate(3, (const int[]){nx, ny, nz}, NULL, 0, 0, NULL, 0, 0, type, 1, work_size);
}

/* Execution ---------------------------------------------------------------------------------- */

/* Bytes from the first to behind the last element; 0 when it overflows. */
static size_t extent_bytes(const struct plan *plan, const struct layout *layout) {
    size_t elements = 1;
    for (int i = 0; i < plan->rank; i++) {
        if (!multiply(&elements, layout->embed[i])) return 0;
    }
    if (!multiply(&elements, layout->stride)) return 0;
    size_t others = (size_t)(plan->batch - 1);
    if (!multiply(&others, layout->distance)) return 0;
    elements += others;
    return elements * (size_t)us_cuda_type_bits(layout->type) / 8;
}

/* `expects` is the type of transform that a typed function runs; 0 for any. */
static cufftResult execute(struct us_record *record, const char *api, cufftHandle handle,
                           void *input, void *output, int direction, cufftType expects) {
    struct plan *plan = find(handle);
    if (plan == NULL || !plan->is_made) return CUFFT_INVALID_PLAN;
    if (input == NULL || output == NULL) return CUFFT_INVALID_VALUE;
    cudaDataType_t in = 0, out = 0, execution = 0;
    if (expects != 0 && (!types_of(expects, &in, &out, &execution) || in != plan->in.type ||
                         out != plan->out.type)) {
        return CUFFT_INVALID_TYPE;
    }
    if (is_real(plan->in.type)) direction = CUFFT_FORWARD; /* they say so themselves */
    if (is_real(plan->out.type)) direction = CUFFT_INVERSE;
    if (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE) return CUFFT_INVALID_VALUE;
    if (!plan->allocates && plan->work_area == NULL && plan->work_bytes > 0) {
        return CUFFT_NO_WORKSPACE;
    }
    us_values_forget(output, extent_bytes(plan, &plan->out));
    record->a = us_address(input);
    record->d = us_address(output);
    us_library_emit(record, api, plan->execution_type, plan->stream,
                    US_LIBRARY_VALUES({"rank", plan->rank}, {"n0", plan->n[0]},
                                      {"n1", plan->n[1]}, {"n2", plan->n[2]},
                                      {"inembed0", plan->in.embed[0]},
                                      {"inembed1", plan->in.embed[1]},
                                      {"inembed2", plan->in.embed[2]},
                                      {"istride", plan->in.stride}, {"idist", plan->in.distance},
                                      {"inputtype", plan->in.type},
                                      {"onembed0", plan->out.embed[0]},
                                      {"onembed1", plan->out.embed[1]},
                                      {"onembed2", plan->out.embed[2]},
                                      {"ostride", plan->out.stride},
                                      {"odist", plan->out.distance},
                                      {"outputtype", plan->out.type}, {"batch", plan->batch},
                                      {"direction", direction}));
    return CUFFT_SUCCESS;
}

US_EXPORT cufftResult cufftXtExec(cufftHandle handle, void *input, void *output, int direction) {
    struct us_record record = us_record_begin(US_API_LIBRARY);
    return execute(&record, "cufftXtExec", handle, input, output, direction, 0);
}

#define US_EXECUTE_COMPLEX(name, type)                                                             \
    US_EXPORT cufftResult name(cufftHandle handle, void *input, void *output, int direction) {     \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        return execute(&record, #name, handle, input, output, direction, type);                    \
    }
#define US_EXECUTE_REAL(name, type)                                                                \
    US_EXPORT cufftResult name(cufftHandle handle, void *input, void *output) {                    \
        struct us_record record = us_record_begin(US_API_LIBRARY);                                 \
        return execute(&record, #name, handle, input, output, 0, type);                            \
    }

US_EXECUTE_COMPLEX(cufftExecC2C, CUFFT_C2C)
US_EXECUTE_COMPLEX(cufftExecZ2Z, CUFFT_Z2Z)
US_EXECUTE_REAL(cufftExecR2C, CUFFT_R2C)
US_EXECUTE_REAL(cufftExecC2R, CUFFT_C2R)
US_EXECUTE_REAL(cufftExecD2Z, CUFFT_D2Z)
US_EXECUTE_REAL(cufftExecZ2D, CUFFT_Z2D)
