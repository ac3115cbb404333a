/* The emulated device: its description file and everything that is answered from it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interceptor.h"

/* Without a file: H100 SXM 80 GB. Numbers as in the catalog. */
static struct us_device device = {
    .id = "h100-sxm-80gb",
    .name = "NVIDIA H100 80GB HBM3",
    .compute_capability_major = 9,
    .compute_capability_minor = 0,
    .multiprocessors = 132,
    .memory_bytes = 85029158912ull,
    .context_bytes = 550ull << 20,
    .memory_bandwidth_bytes_per_s = 3350000000000ull,
    .memory_clock_hz = 2619000000ull,
    .clock_hz = 1980000000ull,
    .l2_bytes = 50ull << 20,
    .memory_bus_bits = 5120,
    .max_threads_per_multiprocessor = 2048,
    .registers_per_multiprocessor = 65536,
    .shared_memory_per_multiprocessor_bytes = 233472,
    .shared_memory_per_block_optin_bytes = 232448,
};
static int physical_count = 1, visible_count;
static pthread_once_t once = PTHREAD_ONCE_INIT, visible_once = PTHREAD_ONCE_INIT;
static bool is_read, is_counted; /* spare the call of pthread_once */
static __thread int current_device;

static void set_key(const char *key, const char *value) {
    uint64_t number = strtoull(value, NULL, 10);
    if (!strcmp(key, "id"))
        snprintf(device.id, sizeof device.id, "%s", value);
    else if (!strcmp(key, "name"))
        snprintf(device.name, sizeof device.name, "%s", value);
    else if (!strcmp(key, "compute_capability_major"))
        device.compute_capability_major = (int)number;
    else if (!strcmp(key, "compute_capability_minor"))
        device.compute_capability_minor = (int)number;
    else if (!strcmp(key, "multiprocessors"))
        device.multiprocessors = (int)number;
    else if (!strcmp(key, "memory_bytes"))
        device.memory_bytes = number;
    else if (!strcmp(key, "context_bytes"))
        device.context_bytes = number;
    else if (!strcmp(key, "memory_bandwidth_bytes_per_s"))
        device.memory_bandwidth_bytes_per_s = number;
    else if (!strcmp(key, "memory_clock_hz"))
        device.memory_clock_hz = number;
    else if (!strcmp(key, "clock_hz"))
        device.clock_hz = number;
    else if (!strcmp(key, "l2_bytes"))
        device.l2_bytes = number;
    else if (!strcmp(key, "memory_bus_bits"))
        device.memory_bus_bits = (int)number;
    else if (!strcmp(key, "max_threads_per_multiprocessor"))
        device.max_threads_per_multiprocessor = (int)number;
    else if (!strcmp(key, "registers_per_multiprocessor"))
        device.registers_per_multiprocessor = (int)number;
    else if (!strcmp(key, "shared_memory_per_multiprocessor_bytes"))
        device.shared_memory_per_multiprocessor_bytes = (int)number;
    else if (!strcmp(key, "shared_memory_per_block_optin_bytes"))
        device.shared_memory_per_block_optin_bytes = (int)number;
    /* Other keys are for other readers of the file. */
}

static void read_environment(void) {
    const char *count = getenv("UNDERSTUDY_DEVICE_COUNT");
    if (count) {
        long number = strtol(count, NULL, 10);
        physical_count = number < 0 ? 0 : number > US_MAX_DEVICES ? US_MAX_DEVICES : (int)number;
    }
    const char *path = getenv("UNDERSTUDY_DEVICE_FILE");
    if (!path || !*path)
        return;
    FILE *file = fopen(path, "re");
    if (!file) {
        /* A wrong device would give a wrong prediction without a word: show no device at all. */
        fprintf(stderr, "understudy: cannot read UNDERSTUDY_DEVICE_FILE %s: %m\n", path);
        physical_count = 0;
        return;
    }
    char line[512];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *equals = strchr(line, '=');
        if (!equals || line[0] == '#')
            continue;
        *equals = 0;
        set_key(line, equals + 1);
    }
    fclose(file);
}

static void read_device(void) {
    read_environment();
    __atomic_store_n(&is_read, true, __ATOMIC_RELEASE);
}

static inline void ensure_read(void) {
    if (__builtin_expect(!__atomic_load_n(&is_read, __ATOMIC_ACQUIRE), 0))
        pthread_once(&once, read_device);
}

const struct us_device *us_device(void) {
    ensure_read();
    return &device;
}

int us_physical_device_count(void) {
    ensure_read();
    return physical_count;
}

/* The list ends at its first entry that is no device (CUDA C++ Programming Guide). Devices are all
   alike, so only their number matters; an entry that is not a number is a UUID. */
static void count_visible(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = us_physical_device_count();
    if (list) {
        int count = 0;
        for (const char *at = list; *at && count < visible_count; count++) {
            char *end;
            long index = strtol(at, &end, 10);
            if (end != at && (index < 0 || index >= visible_count))
                break;
            at = strchr(at, ',') ? strchr(at, ',') + 1 : "";
        }
        visible_count = count;
    }
    __atomic_store_n(&is_counted, true, __ATOMIC_RELEASE);
}

/* Read at the first use, not with the device: a script may set CUDA_VISIBLE_DEVICES until then. */
int us_device_count(void) {
    if (__builtin_expect(!__atomic_load_n(&is_counted, __ATOMIC_ACQUIRE), 0))
        pthread_once(&visible_once, count_visible);
    return visible_count;
}

int us_current_device(void) {
    return current_device;
}

void us_set_current_device(int ordinal) {
    current_device = ordinal;
}

int us_max_blocks_per_multiprocessor(void) {
    int capability = device.compute_capability_major * 10 + device.compute_capability_minor;
    switch (capability) { /* CUDA C++ Programming Guide, table of technical specifications */
    case 75:
    case 86:
    case 87:
        return 16;
    case 89:
    case 120:
    case 121:
        return 24;
    default:
        return 32;
    }
}

int us_reserved_shared_memory_per_block(void) {
    return us_device()->compute_capability_major >= 8 ? 1024 : 0;
}

bool us_device_attribute(int attribute, int ordinal, int *value) {
    const struct us_device *d = us_device();
    int major = d->compute_capability_major;
    switch (attribute) {
    case 1: *value = 1024; return true; /* max threads per block */
    case 2: *value = 1024; return true;
    case 3: *value = 1024; return true;
    case 4: *value = 64; return true;
    case 5: *value = 2147483647; return true; /* max grid */
    case 6: *value = 65535; return true;
    case 7: *value = 65535; return true;
    case 8: *value = 49152; return true; /* shared memory per block without opting in */
    case 9: *value = 65536; return true; /* constant memory */
    case 10: *value = 32; return true;   /* warp */
    case 11: *value = 2147483647; return true;
    case 12: *value = 65536; return true; /* registers per block */
    case 13: *value = (int)(d->clock_hz / 1000); return true;
    case 14: *value = 512; return true;
    case 15: *value = 1; return true;
    case 16: *value = d->multiprocessors; return true;
    case 17: *value = 0; return true;
    case 18: *value = 0; return true; /* integrated */
    case 19: *value = 1; return true; /* can map host memory */
    case 20: *value = 0; return true; /* compute mode default */
    case 30: *value = 512; return true;
    case 31: *value = 1; return true; /* concurrent kernels */
    case 32: *value = 1; return true; /* ECC */
    case 33: *value = ordinal + 1; return true; /* PCI bus */
    case 34: *value = 0; return true;
    case 35: *value = 0; return true;
    case 36: *value = (int)(d->memory_clock_hz / 1000); return true;
    case 37: *value = d->memory_bus_bits; return true;
    case 38: *value = (int)d->l2_bytes; return true;
    case 39: *value = d->max_threads_per_multiprocessor; return true;
    case 40: *value = 3; return true; /* copy engines */
    case 41: *value = 1; return true; /* unified addressing */
    case 50: *value = 0; return true;
    case 51: *value = 32; return true;
    case 75: *value = major; return true;
    case 76: *value = d->compute_capability_minor; return true;
    case 78: *value = 1; return true; /* stream priorities */
    case 79: *value = 1; return true;
    case 80: *value = 1; return true;
    case 81: *value = d->shared_memory_per_multiprocessor_bytes; return true;
    case 82: *value = d->registers_per_multiprocessor; return true;
    case 83: *value = 1; return true; /* managed memory */
    case 84: *value = 0; return true;
    case 85: *value = 0; return true;
    case 86: *value = 0; return true;
    case 87: *value = 2; return true;
    case 88: *value = 0; return true; /* pageable memory access */
    case 89: *value = 1; return true;
    case 90: *value = 1; return true;
    case 91: *value = 1; return true;
    case 95: *value = 1; return true; /* cooperative launch */
    case 97: *value = d->shared_memory_per_block_optin_bytes; return true;
    case 98: *value = 0; return true;
    case 99: *value = 1; return true; /* cudaHostRegister */
    case 100: *value = 0; return true;
    case 101: *value = 0; return true;
    case 102: *value = 1; return true; /* virtual memory management */
    case 103: *value = 0; return true; /* shareable handles: memory is not shared */
    case 106: *value = us_max_blocks_per_multiprocessor(); return true;
    case 107: *value = 0; return true;
    case 108: *value = 0; return true;
    case 109: *value = 0; return true;
    case 111: *value = us_reserved_shared_memory_per_block(); return true;
    case 115: *value = 1; return true; /* memory pools */
    case 120: *value = major >= 9; return true; /* cluster launch */
    case 127: *value = major >= 9; return true; /* tensor maps */
    case 134: *value = 0; return true;
    default:
        if (attribute < 1 || attribute > 147)
            return false;
        *value = 0; /* textures, surfaces, interop: absent */
        return true;
    }
}

int us_cuda_type_bits(cudaDataType_t type) {
    switch (type) {
    case CUDA_R_4I:
    case CUDA_R_4U:
    case CUDA_R_4F_E2M1:
        return 4;
    case CUDA_R_6F_E2M3:
    case CUDA_R_6F_E3M2:
        return 6;
    case CUDA_R_8I:
    case CUDA_R_8U:
    case CUDA_C_4I:
    case CUDA_C_4U:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
    case CUDA_R_8F_UE8M0:
        return 8;
    case CUDA_R_16F:
    case CUDA_R_16BF:
    case CUDA_R_16I:
    case CUDA_R_16U:
    case CUDA_C_8I:
    case CUDA_C_8U:
        return 16;
    case CUDA_R_32F:
    case CUDA_R_32I:
    case CUDA_R_32U:
    case CUDA_C_16F:
    case CUDA_C_16BF:
    case CUDA_C_16I:
    case CUDA_C_16U:
        return 32;
    case CUDA_R_64F:
    case CUDA_R_64I:
    case CUDA_R_64U:
    case CUDA_C_32F:
    case CUDA_C_32I:
    case CUDA_C_32U:
        return 64;
    case CUDA_C_64F:
    case CUDA_C_64I:
    case CUDA_C_64U:
        return 128;
    default:
        return 0;
    }
}
