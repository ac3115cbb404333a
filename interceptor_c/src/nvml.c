/* NVML: identity, memory, clocks, links and topology. What would have to be measured (power,
   temperature, counters) is not supported. */
#include <stdio.h>
#include <string.h>

#include "core.h"

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

/* nvmlPciInfo_t; the legacy id has room for a domain of four digits only. */
struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

/* nvmlMemory_v2_t */
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
#define MEMORY_V2_VERSION ((unsigned)sizeof(struct memory_v2) | 2u << 24)

/* A device handle is the address of its element. */
static char handles[US_MAX_DEVICES];

static int device_of(const void *handle) {
    ptrdiff_t device = (const char *)handle - handles;
    return device >= 0 && device < us_physical_device_count() ? (int)device : -1;
}

US_EXPORT int nvmlInit_v2(void) {
    return NVML_SUCCESS;
}

US_EXPORT int nvmlInit(void) {
    return NVML_SUCCESS;
}

US_EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlShutdown(void) {
    return NVML_SUCCESS;
}

US_EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

static int copy_text(char *out, unsigned bytes, const char *text) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= bytes)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned bytes) {
    return copy_text(version, bytes, "580.65.06");
}

US_EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned bytes) {
    return copy_text(version, bytes, "13.580.65.06");
}

US_EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = US_CUDA_VERSION;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = US_CUDA_VERSION;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)us_physical_device_count();
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetCount(unsigned *count) {
    *count = (unsigned)us_physical_device_count();
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= (unsigned)us_physical_device_count() || !handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    *handle = &handles[index];
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

US_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    unsigned domain, bus;
    if (!id || !handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2)
        return NVML_ERROR_NOT_FOUND;
    struct us_pci_location location = {.domain = (int)domain, .bus = (int)bus};
    int device = us_device_at(location);
    if (device < 0)
        return NVML_ERROR_NOT_FOUND;
    *handle = &handles[device];
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char text[US_UUID_TEXT_BYTES];
    if (!uuid || !handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < us_physical_device_count(); i++) {
        us_device_uuid_text(i, text);
        if (!strcmp(text, uuid)) {
            *handle = &handles[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

US_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = (unsigned)device_of(handle);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetMinorNumber(const void *handle, unsigned *number) {
    if (device_of(handle) < 0 || !number)
        return NVML_ERROR_INVALID_ARGUMENT;
    *number = (unsigned)device_of(handle);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetName(const void *handle, char *name, unsigned bytes) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return copy_text(name, bytes, us_device()->name);
}

US_EXPORT int nvmlDeviceGetUUID(const void *handle, char *text, unsigned bytes) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    char uuid[US_UUID_TEXT_BYTES];
    us_device_uuid_text(device_of(handle), uuid);
    return copy_text(text, bytes, uuid);
}

/* Bytes that the process has in use on a physical device. Those that CUDA_VISIBLE_DEVICES hides are
   idle. */
static uint64_t used_bytes(int physical) {
    for (int i = 0; i < us_device_count(); i++)
        if (us_physical_device(i) == physical) {
            size_t free_bytes, total_bytes;
            us_memory_info(i, &free_bytes, &total_bytes);
            return total_bytes - free_bytes;
        }
    return 0;
}

/* The total is the board's; the first version counts what the driver keeps of it as used. */
US_EXPORT int nvmlDeviceGetMemoryInfo(const void *handle, unsigned long long memory[3]) {
    int device = device_of(handle);
    if (device < 0 || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t used = us_device()->driver_memory_bytes + used_bytes(device);
    memory[0] = us_device()->memory_bytes + us_device()->driver_memory_bytes;
    memory[1] = memory[0] - used;
    memory[2] = used;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetMemoryInfo_v2(const void *handle, struct memory_v2 *memory) {
    int device = device_of(handle);
    if (device < 0 || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != MEMORY_V2_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->reserved = us_device()->driver_memory_bytes;
    memory->total = us_device()->memory_bytes + memory->reserved;
    memory->used = used_bytes(device);
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetUtilizationRates(const void *handle, unsigned rates[2]) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    rates[0] = rates[1] = 0;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = us_device()->compute_capability_major;
    *minor = us_device()->compute_capability_minor;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetArchitecture(const void *handle, unsigned *architecture) {
    if (device_of(handle) < 0 || !architecture)
        return NVML_ERROR_INVALID_ARGUMENT;
    switch (us_device()->compute_capability_major) { /* nvmlDeviceArchitecture_t */
    case 7:
        *architecture = us_device()->compute_capability_minor < 5 ? 5 : 6; /* Volta, Turing */
        break;
    case 8:
        *architecture = us_device()->compute_capability_minor < 9 ? 7 : 8; /* Ampere, Ada */
        break;
    case 9:
        *architecture = 9; /* Hopper */
        break;
    default:
        *architecture = 10; /* Blackwell */
    }
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetEccMode(const void *handle, int *current, int *pending) {
    if (device_of(handle) < 0 || !current || !pending)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = us_device()->ecc;
    return NVML_SUCCESS;
}

/* Clocks do not vary here: graphics (0), SM (1) and video (3) run at the device's clock. */
static int clock_mhz(const void *handle, int type, unsigned *mhz) {
    if (device_of(handle) < 0 || !mhz || type < 0 || type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = (unsigned)((type == 2 ? us_device()->memory_clock_hz : us_device()->clock_hz) / 1000000);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetClockInfo(const void *handle, int type, unsigned *mhz) {
    return clock_mhz(handle, type, mhz);
}

US_EXPORT int nvmlDeviceGetMaxClockInfo(const void *handle, int type, unsigned *mhz) {
    return clock_mhz(handle, type, mhz);
}

static int pci_info(int device, struct pci_info *info) {
    struct us_pci_location pci = us_pci_location(device);
    memset(info, 0, sizeof *info);
    us_pci_bus_id(device, info->legacy_bus_id, sizeof info->legacy_bus_id);
    info->domain = (unsigned)pci.domain;
    info->bus = (unsigned)pci.bus;
    info->pci_device_id = us_device()->pci_device_id;
    info->pci_subsystem_id = us_device()->pci_subsystem_id;
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:00.0", info->domain, info->bus);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *info) {
    if (device_of(handle) < 0 || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    return pci_info(device_of(handle), info);
}

/* No other process uses an emulated device. */
US_EXPORT int nvmlDeviceGetComputeRunningProcesses(const void *handle, unsigned *count,
                                                   void *list) {
    (void)list;
    if (device_of(handle) < 0 || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count,
                                                      void *list) {
    return nvmlDeviceGetComputeRunningProcesses(handle, count, list);
}

/* Links and topology --------------------------------------------------------------------------- */

/* Without switches, link i of a device ends at the device whose number differs in the bits of i+1.
   Which neighbours are wired differs between machines; this way every link has two ends. */
static int direct_peer(int device, int link) {
    int count = us_physical_device_count(), reach = 1;
    while (reach < count)
        reach *= 2;
    int peer = reach > 1 ? device ^ (1 + link % (reach - 1)) : -1;
    return peer < count ? peer : -1;
}

static bool link_is_up(int device, int link) {
    return us_device()->nvlink_switched || direct_peer(device, link) >= 0;
}

static bool are_linked(int first, int second) {
    for (int link = 0; first != second && link < us_device()->nvlink_links; link++)
        if (us_device()->nvlink_switched || direct_peer(first, link) == second)
            return true;
    return false;
}

/* SUCCESS for a link that the device has. */
static int check_link(const void *handle, unsigned link) {
    if (device_of(handle) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    int links = us_device()->nvlink_links;
    if (!links)
        return NVML_ERROR_NOT_SUPPORTED;
    return link < (unsigned)links ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

US_EXPORT int nvmlDeviceGetNvLinkState(const void *handle, unsigned link, int *active) {
    int code = check_link(handle, link);
    if (code || !active)
        return code ? code : NVML_ERROR_INVALID_ARGUMENT;
    *active = link_is_up(device_of(handle), (int)link);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetNvLinkVersion(const void *handle, unsigned link, unsigned *version) {
    static const unsigned versions[] = {0, 1, 2, 4, 6, 7}; /* nvmlNvlinkVersion_t, 1.0 to 5.0 */
    int code = check_link(handle, link);
    if (code || !version)
        return code ? code : NVML_ERROR_INVALID_ARGUMENT;
    int generation = us_device()->nvlink_generation;
    *version = generation >= 0 && generation <= 5 ? versions[generation] : 0;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetNvLinkCapability(const void *handle, unsigned link, int capability,
                                            unsigned *result) {
    int code = check_link(handle, link);
    if (code || !result || capability < 0 || capability > 5)
        return code ? code : NVML_ERROR_INVALID_ARGUMENT;
    /* P2P, access to system memory, their atomics, SLI, and validity: the first and the last. */
    *result = capability == 0 || capability == 2 || capability == 5;
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(const void *handle, unsigned link, int *type) {
    int code = check_link(handle, link);
    if (code || !type)
        return code ? code : NVML_ERROR_INVALID_ARGUMENT;
    if (!link_is_up(device_of(handle), (int)link))
        return NVML_ERROR_NOT_SUPPORTED;
    *type = us_device()->nvlink_switched ? 2 : 0; /* switch, GPU */
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(const void *handle, unsigned link,
                                                  struct pci_info *info) {
    int code = check_link(handle, link);
    if (code || !info)
        return code ? code : NVML_ERROR_INVALID_ARGUMENT;
    int device = device_of(handle);
    if (!link_is_up(device, (int)link))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!us_device()->nvlink_switched)
        return pci_info(direct_peer(device, (int)link), info);
    /* Links are spread over the node's switches, which stand behind the devices on the bus. */
    enum { SWITCHES = 4 };
    memset(info, 0, sizeof *info);
    info->domain = (unsigned)us_pci_location(device).domain;
    info->bus = US_MAX_DEVICES + 1 + link % SWITCHES;
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%04X:%02X:00.0",
             info->domain & 0xffff, info->bus & 0xff);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:00.0", info->domain, info->bus);
    return NVML_SUCCESS;
}

US_EXPORT int nvmlDeviceGetP2PStatus(const void *first, const void *second, int index,
                                     int *status) {
    enum { READ, WRITE, NVLINK, ATOMICS, PCI }; /* nvmlGpuP2PCapsIndex_t */
    enum { OK, GPU_NOT_SUPPORTED = 2, NOT_SUPPORTED = 5 };
    int a = device_of(first), b = device_of(second);
    if (a < 0 || b < 0 || !status || index < READ || index > PCI)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (index == NVLINK || index == ATOMICS)
        *status = are_linked(a, b) ? OK : NOT_SUPPORTED;
    else
        *status = us_device()->gpu_direct ? OK : GPU_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* Four devices to a socket, each under a root complex of its own, as in the common servers. */
static int common_ancestor(int first, int second) {
    enum { INTERNAL = 0, NODE = 40, SYSTEM = 50, PER_SOCKET = 4 }; /* nvmlGpuTopologyLevel_t */
    if (first == second)
        return INTERNAL;
    return first / PER_SOCKET == second / PER_SOCKET ? NODE : SYSTEM;
}

US_EXPORT int nvmlDeviceGetTopologyCommonAncestor(const void *first, const void *second,
                                                  int *level) {
    if (device_of(first) < 0 || device_of(second) < 0 || !level)
        return NVML_ERROR_INVALID_ARGUMENT;
    *level = common_ancestor(device_of(first), device_of(second));
    return NVML_SUCCESS;
}

/* Without room for them, the number of devices only. */
US_EXPORT int nvmlDeviceGetTopologyNearestGpus(const void *handle, int level, unsigned *count,
                                               void **list) {
    int device = device_of(handle);
    if (device < 0 || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = list ? *count : 0, found = 0;
    for (int i = 0; i < us_physical_device_count(); i++)
        if (i != device && common_ancestor(device, i) == level) {
            if (found < room)
                list[found] = &handles[i];
            found++;
        }
    if (list && found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = found;
    return NVML_SUCCESS;
}

/* nvmlGpuFabricInfoV_t (version 2). */
struct fabric_info {
    unsigned version;
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
};

/* A fabric manager that joins nodes into one NVLink domain is not emulated: from Hopper on the
   state is NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, as on a machine without one; before, NVML has no
   answer. */
US_EXPORT int nvmlDeviceGetGpuFabricInfoV(void *handle, struct fabric_info *info) {
    if (!handle || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (us_device()->compute_capability_major < 9)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (struct fabric_info){.version = info->version};
    return NVML_SUCCESS;
}
