/*
 * The on-disk format of one rank's trace. This header owns it; understudy/traces/interceptor.py
 * mirrors it with numpy dtypes and a test compares the two.
 *
 * A trace is two files that share a stem:
 *   <stem>.records      us_file_header, then fixed-size us_record entries in the global order of
 *                       the calls of the process (all threads interleaved);
 *   <stem>.definitions  us_file_header, then variable-size us_definition entries: everything that
 *                       repeats (threads, streams, kernels, launch arguments, GEMM shapes, ...) is
 *                       written once and referred to by id.
 *
 * Both files are memory-mapped and extended before use, so what was written before a crash is on
 * disk, and a full disk is an error code, not a SIGBUS. A reader stops at the header's
 * `used_bytes`; the rest of the file is preallocated zeros. `used_bytes` is advanced only after the
 * entry it covers is complete.
 *
 * All integers are little endian; all times are nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef UNDERSTUDY_TRACE_FORMAT_H
#define UNDERSTUDY_TRACE_FORMAT_H

#include <stdint.h>

#define US_RECORDS_MAGIC 0x3143455254535255ull     /* "URSTREC1" */
#define US_DEFINITIONS_MAGIC 0x3146454454535255ull /* "URSTDEF1" */
#define US_FORMAT_VERSION 1u
#define US_HEADER_BYTES 4096u

struct us_file_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes; /* US_HEADER_BYTES: where the first entry starts */
    uint64_t used_bytes;   /* end of the last complete entry, counted from the start of the file */
    uint64_t entries;      /* complete entries */
    uint32_t entry_bytes;  /* sizeof(struct us_record); 0 in a definitions file */
    uint32_t pid;
    uint64_t lost_entries; /* entries that could not be written (disk full); 0 in a good trace */
    int32_t rank;          /* torchrun's RANK, -1 when unset */
    int32_t world_size;    /* torchrun's WORLD_SIZE, -1 when unset */
    uint32_t compute_capability; /* 90 for 9.0 */
    uint32_t closed;       /* 1 once the process ended the trace itself */
    uint64_t memory_bytes; /* capacity of the emulated device */
    char build_id[64];     /* hex ELF build id of libunderstudy.so, NUL terminated */
    char device[64];       /* device id of the catalog, NUL terminated */
    uint64_t overhead_ns;  /* calibrated time that one record adds outside [begin, begin+inside] */
};

/* What a record is. The meaning of a, b, c, d, `definition` and `flags` is given for each. */
enum us_api {
    US_API_NONE = 0,
    /* Device work, on `stream`. */
    US_API_LAUNCH_KERNEL = 1, /* definition: US_DEFINITION_LAUNCH */
    US_API_GEMM = 2,          /* definition: US_DEFINITION_GEMM; a, b, c, d = A, B, C, D pointers */
    US_API_DNN = 3,           /* definition: US_DEFINITION_DNN (an executed cuDNN operation graph);
                                 a = its workspace, 0 without one */
    US_API_MEMCPY = 4,        /* a = destination, b = source, c = bytes, d = us_copy_kind;
                                 flags: US_FLAG_BLOCKING (host waits as the CUDA documentation says),
                                 US_FLAG_PINNED (the host side is page-locked) */
    US_API_MEMSET = 5,        /* a = destination, b = value, c = bytes; flags: US_FLAG_BLOCKING */
    US_API_GRAPH_LAUNCH = 6,  /* a = capture sequence number, 0 for a graph that was built node by
                                 node; b = graph exec */
    US_API_LIBRARY = 7,       /* definition: US_DEFINITION_LIBRARY; a, b, c = inputs, d = output */
    /* NCCL, on `stream`. definition: US_DEFINITION_COMMUNICATOR. */
    US_API_COLLECTIVE = 10,  /* a = us_collective_kind | root << 8 | reduce op << 40, b = bytes of the
                                count argument (count * element size), c = send, d = recv pointer;
                                flags = ncclDataType_t; op 5 is any made by ncclRedOpCreatePreMulSum;
                                empty collectives are not recorded, as NCCL drops them */
    US_API_SEND = 11,        /* a = peer (rank in the communicator), b = bytes, c = pointer; flags = type */
    US_API_RECV = 12,        /* a = peer, b = bytes, d = pointer; flags = type */
    US_API_GROUP_START = 13, /* only the outermost group is recorded */
    US_API_GROUP_END = 14,
    /* Made and ended by all members together, but for an abort. definition: the communicator. */
    US_API_COMMUNICATOR_INIT = 15,
    US_API_COMMUNICATOR_SPLIT = 16,   /* definition: the child's, 0 for a member of the parent that
                                         is in none; a = parent's definition id, b = color, c = key;
                                         ncclCommShrink too, whose child has a size */
    US_API_COMMUNICATOR_DESTROY = 17,
    US_API_COMMUNICATOR_FINALIZE = 18,
    US_API_COMMUNICATOR_ABORT = 19,
    /* Ordering. Events and streams are numbered by creation, handles are never written. */
    US_API_EVENT_RECORD = 20,       /* a = event number; flags: US_FLAG_EXTERNAL */
    US_API_STREAM_WAIT_EVENT = 21,  /* a = event number; `stream` waits; flags: US_FLAG_EXTERNAL */
    US_API_EVENT_SYNCHRONIZE = 22,  /* a = event number */
    US_API_STREAM_SYNCHRONIZE = 23,
    US_API_DEVICE_SYNCHRONIZE = 24,
    US_API_EVENT_QUERY = 25,        /* a = event number; flags: US_FLAG_NOT_READY */
    US_API_STREAM_QUERY = 26,       /* flags: US_FLAG_NOT_READY */
    US_API_EVENT_CREATE = 27,       /* a = event number, b = flags */
    US_API_EVENT_DESTROY = 28,      /* a = event number */
    US_API_STREAM_CREATE = 29,      /* definition: US_DEFINITION_STREAM */
    US_API_STREAM_DESTROY = 30,
    US_API_EVENT_ELAPSED_TIME = 31, /* a = start event, b = end event */
    US_API_HOST_FUNCTION = 32,      /* cudaLaunchHostFunc on `stream` */
    US_API_CAPTURE_BEGIN = 33,      /* a = capture sequence number; again for a graph in parts */
    US_API_CAPTURE_END = 34,        /* a = capture sequence number */
    /* Memory. */
    US_API_MALLOC = 40,        /* a = device pointer, b = bytes, c = bytes in use after the call */
    US_API_FREE = 41,          /* a = device pointer, b = bytes, c = bytes in use after the call;
                                  both have US_FLAG_POOL where it applies */
    US_API_HOST_ALLOC = 42,    /* a = pointer, b = bytes */
    US_API_HOST_FREE = 43,     /* a = pointer, b = bytes */
    US_API_TENSOR_ALLOC = 44,  /* PyTorch's caching allocator: a = pointer, b = block bytes,
                                  c = allocated bytes, d = reserved bytes after it */
    US_API_TENSOR_FREE = 45,   /* same */
    US_API_OUT_OF_MEMORY = 46, /* a device allocation failed: b = bytes asked for, c = bytes in use */
    US_API_LIBRARY_MEMORY = 47, /* device memory that a library took for itself: b = bytes (int64,
                                   negative: given back), c = bytes in use after it */
    US_API_MEMORY_ROLE = 48,  /* what an allocated block is for: a = its start, b = us_memory_role */
    US_API_MEMORY_PEAKS = 49, /* PyTorch's own peaks on `device` since the record before (at first:
                                 the start): a = allocated bytes, b = reserved bytes */
    /* Marks. */
    US_API_ITERATION = 50,   /* an iteration may end here: a = how many of these came before,
                                b = number of the optimizer or module, flags = us_mark */
    US_API_UNSUPPORTED = 51, /* definition: US_DEFINITION_TEXT with the function's name */
    US_API_ANNOTATION = 52,  /* definition: US_DEFINITION_TEXT; a = us_annotation */
};

/* What made a US_API_ITERATION. */
enum us_mark {
    US_MARK_STEP = 0,   /* an optimizer step has ended */
    US_MARK_MARKER = 1, /* the range or mark that the user named has ended */
    US_MARK_CALL = 2,   /* a module that no other module calls is about to run */
};

enum us_memory_role {
    US_MEMORY_PARAMETER = 1,
    US_MEMORY_GRADIENT = 2,
    US_MEMORY_OPTIMIZER_STATE = 3,
    US_MEMORY_GATHERED_PARAMETER = 4, /* whole again, of shards */
    US_MEMORY_CUBLAS_WORKSPACE = 5,   /* the program's own, that it gave to cuBLAS */
};

enum us_annotation { US_ANNOTATION_TEXT = 0, US_ANNOTATION_BEGIN = 1, US_ANNOTATION_END = 2 };

enum us_copy_kind { US_COPY_H2H = 0, US_COPY_H2D = 1, US_COPY_D2H = 2, US_COPY_D2D = 3 };

enum us_collective_kind {
    US_ALL_REDUCE = 0,
    US_BROADCAST = 1,
    US_REDUCE = 2,
    US_ALL_GATHER = 3,
    US_REDUCE_SCATTER = 4,
    US_ALL_TO_ALL = 5,
    US_GATHER = 6,
    US_SCATTER = 7,
};

enum us_flag {
    US_FLAG_BLOCKING = 1u << 0,
    US_FLAG_PINNED = 1u << 1,
    US_FLAG_POOL = 1u << 2, /* of a stream-ordered pool (cudaMallocAsync) */
    US_FLAG_NOT_READY = 1u << 3, /* the query's answer: who asks again at once is polling */
    US_FLAG_EXTERNAL = 1u << 4,  /* in a capture: a node that meets streams outside of the graph */
};

/* Stream numbers. Streams that the program creates are numbered from 2 per process. */
#define US_STREAM_LEGACY 0u
#define US_STREAM_PER_THREAD 1u

struct us_record {
    uint64_t begin_ns;   /* when the call entered the interceptor */
    uint32_t inside_ns;  /* how long it stayed inside (saturates): the caller resumed at the sum */
    uint16_t api;        /* enum us_api */
    uint16_t thread;     /* id of a US_DEFINITION_THREAD */
    uint32_t stream;     /* stream number */
    uint32_t definition; /* id within the definition kind that the api names; 0 = none */
    uint64_t a, b, c, d;
    uint32_t device; /* ordinal of the current device */
    uint32_t flags;
};

/* Ids count from 1 within each kind. */
enum us_definition_kind {
    US_DEFINITION_THREAD = 1,       /* payload: us_thread */
    US_DEFINITION_STREAM = 2,       /* payload: us_stream; its id is the stream number */
    US_DEFINITION_KERNEL = 3,       /* payload: us_kernel, us_parameter[], mangled name */
    US_DEFINITION_LAUNCH = 4,       /* payload: us_launch, argument bytes */
    US_DEFINITION_GEMM = 5,         /* payload: us_gemm */
    US_DEFINITION_DNN = 6,          /* payload: us_dnn, then us_dnn_operation[], us_dnn_tensor[] */
    US_DEFINITION_COMMUNICATOR = 7, /* payload: us_communicator, description bytes */
    US_DEFINITION_TEXT = 8,         /* payload: UTF-8 bytes */
    US_DEFINITION_LIBRARY = 9,      /* payload: us_library, then us_library_value[] */
};

struct us_definition {
    uint32_t size_bytes; /* of the whole entry, this header included; a multiple of 8 */
    uint32_t kind;
    uint32_t id;
    uint32_t payload_bytes;
};

struct us_thread {
    uint32_t os_thread; /* gettid() */
    uint32_t is_main;   /* 1 for the thread that started the process */
    char name[16];      /* pthread_getname_np at its first record, NUL terminated */
};

struct us_stream {
    uint32_t device;
    uint32_t flags; /* cudaStreamNonBlocking = 1 */
    int32_t priority;
    uint32_t reserved;
};

struct us_kernel {
    uint32_t registers;           /* per thread; 0 = not known */
    uint32_t static_shared_bytes;
    uint32_t parameter_count;     /* us_parameter entries that follow */
    uint32_t name_bytes;          /* mangled name after the parameters, no NUL */
};

struct us_parameter {
    uint32_t offset_bytes; /* in the launch's argument bytes */
    uint32_t size_bytes;
};

struct us_launch {
    uint32_t kernel; /* id of a US_DEFINITION_KERNEL */
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t dynamic_shared_bytes;
    uint32_t argument_bytes; /* that follow; the layout is the kernel's us_parameter list */
    uint32_t cluster[3];     /* 1, 1, 1 without clusters */
};

/* Column-major as cuBLAS has it: C[m,n] = op(A)[m,k] op(B)[k,n]. Types are cudaDataType_t. */
struct us_gemm {
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldc, ldd;
    int64_t stride_a, stride_b, stride_c, stride_d; /* elements; 0 when not strided-batched */
    int32_t transpose_a, transpose_b;               /* cublasOperation_t: 0 N, 1 T, 2 C */
    int32_t type_a, type_b, type_c, type_d;
    int32_t compute_type; /* cublasComputeType_t, -1 for the legacy typed calls; TF32 through the
                             handle's math mode shows as CUBLAS_COMPUTE_32F_FAST_TF32 (77) in both */
    int32_t epilogue;     /* cublasLtEpilogue_t, 1 = default */
    char api[32];         /* "cublasGemmEx", "cublasLtMatmul", ... */
};

struct us_dnn {
    uint32_t operation_count; /* us_dnn_operation entries */
    uint32_t tensor_count;    /* us_dnn_tensor entries */
};

/* Operations that the graph API does not have. The mode of recurrent networks is the
   cudnnRNNMode_t; their tensors have the attributes 1 (x: steps, batch, features), 2 (y, same), 3
   (all weights, one dimension) and, where sequences differ in length, 4 (one dimension: the sum of
   all lengths). The others' attributes are 1, 2, ... in the order that is given. */
enum us_dnn_operation_type {
    US_DNN_RNN_FORWARD = 1001,
    US_DNN_RNN_BACKWARD_DATA = 1002,
    US_DNN_RNN_BACKWARD_WEIGHTS = 1003,
    US_DNN_CTC_LOSS = 1004, /* probabilities and, unless only the costs are wanted, gradients:
                               steps, batch, labels of the alphabet; mode = longest label */
    US_DNN_GRID_GENERATOR_FORWARD = 1005,  /* grid: batch, height, width, 2 */
    US_DNN_GRID_GENERATOR_BACKWARD = 1006, /* same */
    US_DNN_SAMPLER_FORWARD = 1007,         /* x, y */
    US_DNN_SAMPLER_BACKWARD = 1008,        /* x, dx, dy */
    US_DNN_POOLING_FORWARD = 1009,         /* x, y; mode = cudnnPoolingMode_t */
};

struct us_dnn_operation {
    uint32_t type;         /* cudnnBackendDescriptorType_t of the operation descriptor, or above */
    uint32_t mode;         /* pointwise, reduction, norm mode; 0 when it has none */
    uint32_t first_tensor; /* index into the us_dnn_tensor entries */
    uint32_t tensor_count;
    int32_t spatial_dims;  /* convolutions: the number of spatial dimensions, else 0 */
    int32_t stride[3], dilation[3], padding[3];
};

struct us_dnn_tensor {
    uint32_t attribute; /* cudnnBackendAttributeName_t under which the operation holds it */
    uint32_t type;      /* cudnnDataType_t */
    uint32_t is_virtual;
    uint32_t dim_count;
    int64_t unique_id;
    int64_t dims[8];
    int64_t strides[8];
};

/* A call of a library whose work has no definition kind of its own: cuSOLVER, cuFFT, cuSPARSE, the
   factorizations and solvers of cuBLAS, cuRAND. */
struct us_library {
    char api[48];         /* the function's name, NUL terminated: "cusolverDnXsyevd" */
    int32_t type;         /* cudaDataType_t of the elements, -1 without one */
    uint32_t value_count; /* us_library_value entries that follow, in the order of the signature */
};

struct us_library_value {
    char name[16]; /* as in the library's documentation, NUL terminated: "m", "batch", "uplo" */
    int64_t value;
};

struct us_communicator {
    uint64_t unique_id[2]; /* hash of the ncclUniqueId (root communicators) or of parent, color and
                              split sequence (children): equal on every member */
    int32_t rank;          /* of this process in the communicator */
    int32_t size;          /* members; -1 for a split child, resolved when ranks are joined */
    uint32_t parent;       /* definition id of the parent communicator, 0 for none */
    int32_t color, key;    /* of a split */
    uint32_t device;
};

#endif
