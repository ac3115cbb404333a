/* The emulated device: its description file and everything that is answered from it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* Without a file: H100 SXM 80 GB. Numbers as in the catalog. */
static struct us_device device = {
    .id = "h100-sxm-80gb",
    .name = "NVIDIA H100 80GB HBM3",
    .compute_capability_major = 9,
    .compute_capability_minor = 0,
    .multiprocessors = 132,
    .memory_bytes = 85028896768ull,
    .driver_memory_bytes = 491913216,
    .context_bytes = 550ull << 20,
    .memory_bandwidth_bytes_per_s = 3350000000000ull,
    .memory_clock_hz = 2619000000ull,
    .clock_hz = 1980000000ull,
    .l2_bytes = 50ull << 20,
    .memory_bus_bits = 5120,
    .max_threads_per_multiprocessor = 2048,
    .max_blocks_per_multiprocessor = 32,
    .registers_per_multiprocessor = 65536,
    .shared_memory_per_multiprocessor_bytes = 233472,
    .shared_memory_per_block_optin_bytes = 232448,
    .reserved_shared_memory_per_block_bytes = 1024,
    .float32_to_float64_ratio = 2,
    .persisting_l2_bytes = 32768000,
    .access_policy_window_bytes = 134217728,
    .memory_sync_domains = 4,
    .cluster_launch = 1,
    .tensor_maps = 1,
    .copy_engines = 3,
    .ecc = 1,
    .gpu_direct = 1,
    .pci_device_id = 0x233010de,
    .pci_subsystem_id = 0x16c110de,
    .nccl_channels = 24,
    .nvlink_links = 18,
    .nvlink_generation = 4,
    .nvlink_switched = 1,
};
static int physical_count = 1, node;
static int visible_count, visible[US_MAX_DEVICES]; /* physical index of each CUDA device */
static pthread_once_t once = PTHREAD_ONCE_INIT, visible_once = PTHREAD_ONCE_INIT;
static bool is_read, is_counted; /* spare the call of pthread_once */
static __thread int current_device;

/* Keys of the file with a number as their value: the members of struct us_device. */
#define KEY(member) {#member, offsetof(struct us_device, member), sizeof device.member}
static const struct {
    const char *key;
    size_t offset, bytes;
} keys[] = {
    KEY(compute_capability_major),
    KEY(compute_capability_minor),
    KEY(multiprocessors),
    KEY(memory_bytes),
    KEY(driver_memory_bytes),
    KEY(context_bytes),
    KEY(memory_bandwidth_bytes_per_s),
    KEY(memory_clock_hz),
    KEY(clock_hz),
    KEY(l2_bytes),
    KEY(memory_bus_bits),
    KEY(max_threads_per_multiprocessor),
    KEY(max_blocks_per_multiprocessor),
    KEY(registers_per_multiprocessor),
    KEY(shared_memory_per_multiprocessor_bytes),
    KEY(shared_memory_per_block_optin_bytes),
    KEY(reserved_shared_memory_per_block_bytes),
    KEY(float32_to_float64_ratio),
    KEY(persisting_l2_bytes),
    KEY(access_policy_window_bytes),
    KEY(memory_sync_domains),
    KEY(cluster_launch),
    KEY(tensor_maps),
    KEY(copy_engines),
    KEY(ecc),
    KEY(gpu_direct),
    KEY(host_coherent),
    KEY(pci_device_id),
    KEY(pci_subsystem_id),
    KEY(nccl_channels),
    KEY(nvlink_links),
    KEY(nvlink_generation),
    KEY(nvlink_switched),
};

static void set_key(const char *key, const char *value) {
    if (!strcmp(key, "id"))
        snprintf(device.id, sizeof device.id, "%s", value);
    if (!strcmp(key, "name"))
        snprintf(device.name, sizeof device.name, "%s", value);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i].key)) {
            /* Members are little-endian integers of 4 or 8 bytes. */
            uint64_t number = strtoull(value, NULL, 10);
            memcpy((char *)&device + keys[i].offset, &number, keys[i].bytes);
        }
    /* Other keys are for other readers of the file. */
}

static void read_environment(void) {
    const char *count = getenv("UNDERSTUDY_DEVICE_COUNT");
    if (count) {
        long number = strtol(count, NULL, 10);
        physical_count = number < 0 ? 0 : number > US_MAX_DEVICES ? US_MAX_DEVICES : (int)number;
    }
    const char *node_number = getenv("UNDERSTUDY_NODE");
    if (node_number)
        node = (int)strtol(node_number, NULL, 10);
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

/* Random-looking, and the same in every run: devices of all nodes differ. */
void us_device_uuid(int physical, unsigned char uuid[16]) {
    char text[128];
    for (int half = 0; half < 2; half++) {
        int length =
            snprintf(text, sizeof text, "%d %s %d %d", half, us_device()->id, node, physical);
        uint64_t hash = us_hash(text, (size_t)length);
        memcpy(uuid + 8 * half, &hash, 8);
    }
}

void us_device_uuid_text(int physical, char text[US_UUID_TEXT_BYTES]) {
    unsigned char uuid[16];
    us_device_uuid(physical, uuid);
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += sprintf(at, "%s%02x", dash, uuid[i]);
    }
}

/* The device with this UUID, which may be shortened to what tells it from others; else -1. */
static int device_of_uuid(const char *uuid, size_t length) {
    int found = -1;
    char text[US_UUID_TEXT_BYTES];
    for (int i = 0; i < us_physical_device_count(); i++) {
        us_device_uuid_text(i, text);
        if (length < sizeof text && !strncmp(text, uuid, length)) {
            if (found >= 0)
                return -1;
            found = i;
        }
    }
    return found;
}

/* CUDA_VISIBLE_DEVICES ends at its first entry that is no device, and an entry given twice leaves
   none (CUDA C++ Programming Guide, environment variables). */
static int read_visible(const char *list) {
    int count = 0;
    while (*list) {
        size_t length = strcspn(list, ",");
        char *end;
        long index = strtol(list, &end, 10);
        if (end == list)
            index = strncmp(list, "GPU-", 4) ? -1 : device_of_uuid(list, length);
        if (index < 0 || index >= us_physical_device_count())
            return count;
        for (int i = 0; i < count; i++)
            if (visible[i] == index)
                return 0;
        visible[count++] = (int)index;
        list += length;
        list += *list == ',';
    }
    return count;
}

static void count_visible(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = us_physical_device_count();
    for (int i = 0; i < visible_count; i++)
        visible[i] = i;
    if (list)
        visible_count = read_visible(list);
    __atomic_store_n(&is_counted, true, __ATOMIC_RELEASE);
}

/* Read at the first use, not with the device: a script may set CUDA_VISIBLE_DEVICES until then. */
int us_device_count(void) {
    if (__builtin_expect(!__atomic_load_n(&is_counted, __ATOMIC_ACQUIRE), 0))
        pthread_once(&visible_once, count_visible);
    return visible_count;
}

int us_physical_device(int ordinal) {
    return ordinal >= 0 && ordinal < us_device_count() ? visible[ordinal] : 0;
}

/* The machines of a cluster are told apart by the domain; below it they are built alike. */
struct us_pci_location us_pci_location(int physical) {
    ensure_read();
    return (struct us_pci_location){.domain = node, .bus = physical + 1};
}

int us_device_at(struct us_pci_location location) {
    bool here = location.domain == us_pci_location(0).domain && location.bus >= 1;
    return here && location.bus <= us_physical_device_count() ? location.bus - 1 : -1;
}

bool us_peer_access(int first, int second) {
    return first != second && us_device()->gpu_direct;
}

int us_current_device(void) {
    return current_device;
}

void us_set_current_device(int ordinal) {
    current_device = ordinal;
}

/* Limits of textures and surfaces, the same for every compute capability since 7.0 (CUDA C++
   Programming Guide, technical specifications), as the attributes order them. */
static int texture_limit(int attribute) {
    switch (attribute) {
    case 22: case 21: case 56: case 70: return 131072;
    case 23: case 57: return 65536;
    case 24: case 25: case 26: case 58: case 59: case 60: return 16384;
    case 47: case 48: return 8192;
    case 29: case 43: case 62: case 65: return 2048;
    case 54: case 68: return 2046;
    case 69: return 1 << 28;
    case 71: return 65000;
    case 72: return 2097120;
    case 27: case 28: case 42: case 45: case 46: case 49: case 52: case 53: case 55: case 61:
    case 63: case 64: case 66: case 67: case 73: case 74: case 77: return 32768;
    default: return 0;
    }
}

bool us_device_attribute(int attribute, int ordinal, int *value) {
    const struct us_device *d = us_device();
    struct us_pci_location pci = us_pci_location(us_physical_device(ordinal));
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
    case 15: *value = d->copy_engines > 0; return true;
    case 16: *value = d->multiprocessors; return true;
    case 19: *value = 1; return true; /* can map host memory */
    case 30: *value = 512; return true;
    case 31: *value = 1; return true; /* concurrent kernels */
    case 32: *value = d->ecc; return true;
    case 33: *value = pci.bus; return true;
    case 36: *value = (int)(d->memory_clock_hz / 1000); return true;
    case 37: *value = d->memory_bus_bits; return true;
    case 38: *value = (int)d->l2_bytes; return true;
    case 39: *value = d->max_threads_per_multiprocessor; return true;
    case 40: *value = d->copy_engines; return true;
    case 41: *value = 1; return true; /* unified addressing */
    case 44: *value = 1; return true; /* texture gather */
    case 50: *value = pci.domain; return true;
    case 51: *value = 32; return true;
    case 75: *value = d->compute_capability_major; return true;
    case 76: *value = d->compute_capability_minor; return true;
    case 78: *value = 1; return true; /* stream priorities */
    case 79: *value = 1; return true;
    case 80: *value = 1; return true;
    case 81: *value = d->shared_memory_per_multiprocessor_bytes; return true;
    case 82: *value = d->registers_per_multiprocessor; return true;
    case 83: *value = 1; return true; /* managed memory */
    case 85: *value = ordinal; return true; /* group of boards */
    case 86: *value = d->host_coherent; return true; /* native atomics on host memory */
    case 87: *value = d->float32_to_float64_ratio; return true;
    case 88: *value = d->host_coherent; return true; /* pageable memory access */
    case 89: *value = 1; return true;                /* concurrent managed access */
    case 90: *value = 1; return true;                /* preemption */
    case 91: *value = 1; return true;
    case 95: *value = 1; return true; /* cooperative launch */
    case 97: *value = d->shared_memory_per_block_optin_bytes; return true;
    case 99: *value = 1; return true; /* cudaHostRegister */
    case 100: *value = d->host_coherent; return true; /* through the host's page tables */
    case 101: *value = d->host_coherent; return true;
    case 102: *value = 1; return true; /* virtual memory management */
    case 103: *value = 0; return true; /* shareable handles: memory is not shared */
    case 106: *value = d->max_blocks_per_multiprocessor; return true;
    case 108: *value = (int)d->persisting_l2_bytes; return true;
    case 109: *value = (int)d->access_policy_window_bytes; return true;
    case 110: *value = d->gpu_direct; return true;
    case 111: *value = d->reserved_shared_memory_per_block_bytes; return true;
    case 115: *value = 1; return true; /* memory pools */
    case 116: *value = d->gpu_direct; return true;
    case 120: *value = d->cluster_launch; return true;
    case 126: *value = d->memory_sync_domains; return true;
    case 127: *value = d->tensor_maps; return true;
    /* Multicast (132): not supported here, and a program that was told so would fail. */
    case 139: *value = (int)d->pci_device_id; return true;
    case 140: *value = (int)d->pci_subsystem_id; return true;
    default:
        if (attribute < 1 || attribute > 147)
            return false;
        *value = texture_limit(attribute); /* 0 for what is absent: interop, TCC, MPS, ... */
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
