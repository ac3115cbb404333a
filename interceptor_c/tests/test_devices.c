/* Devices: bad arguments of NVML, UUIDs of visible devices, hosts of a cluster. */
#include <netdb.h>
#include <netinet/in.h>
#include <sys/utsname.h>

#include "cuda_types.h"
#include "library_test.h"

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetHandleByPciBusId_v2(const char *, void **);
int nvmlDeviceGetUUID(const void *, char *, unsigned);
int nvmlDeviceGetName(const void *, char *, unsigned);
int nvmlDeviceGetMemoryInfo_v2(const void *, void *);
int nvmlDeviceGetPciInfo_v3(const void *, void *);
int nvmlDeviceGetNvLinkState(const void *, unsigned, int *);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(const void *, unsigned, void *);
int nvmlDeviceGetP2PStatus(const void *, const void *, int, int *);
int nvmlDeviceGetTopologyNearestGpus(const void *, int, unsigned *, void **);
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaDeviceGetPCIBusId(char *, int, int);
cudaError_t cudaDeviceGetByPCIBusId(int *, const char *);
cudaError_t cudaDeviceGetP2PAttribute(int *, int, int, int);
cudaError_t cudaDeviceGetAttribute(int *, int, int);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *,
                            void *, int *);
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t cudaGetLastError(void);

enum { INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

static void *handle(unsigned index) {
    void *found = NULL;
    CHECK(nvmlDeviceGetHandleByIndex_v2(index, &found) == 0);
    return found;
}

static void test_nvml(void) {
    unsigned count;
    char text[96];
    unsigned char pci[96];
    int value;
    void *list[8], *found;
    struct {
        unsigned version;
        unsigned long long values[4];
    } memory = {.version = 1};
    CHECK(nvmlDeviceGetCount_v2(&count) == 0 && count == 8);
    CHECK(nvmlDeviceGetHandleByIndex_v2(8, &found) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetHandleByUUID("GPU-0", &found) == NOT_FOUND);
    CHECK(nvmlDeviceGetHandleByUUID(NULL, &found) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("here", &found) == NOT_FOUND);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:01:00.0", &found) == NOT_FOUND); /* node 0's */
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("00000002:08:00.0", &found) == 0 && found == handle(7));
    CHECK(nvmlDeviceGetName(&count, text, sizeof text) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetName(handle(0), text, 4) == INSUFFICIENT_SIZE);
    CHECK(nvmlDeviceGetName(handle(0), NULL, 96) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetMemoryInfo_v2(handle(0), &memory) == VERSION_MISMATCH);
    CHECK(nvmlDeviceGetPciInfo_v3(handle(0), pci) == 0);
    CHECK(nvmlDeviceGetPciInfo_v3(NULL, pci) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetNvLinkState(handle(0), 17, &value) == 0 && value == 1);
    CHECK(nvmlDeviceGetNvLinkState(handle(0), 18, &value) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetNvLinkRemotePciInfo_v2(handle(7), 17, pci) == 0);
    CHECK(nvmlDeviceGetP2PStatus(handle(0), handle(1), 5, &value) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetTopologyNearestGpus(handle(0), 50, &count, NULL) == 0 && count == 4);
    count = 3;
    CHECK(nvmlDeviceGetTopologyNearestGpus(handle(0), 50, &count, list) == INSUFFICIENT_SIZE);
    count = 8;
    CHECK(nvmlDeviceGetTopologyNearestGpus(handle(0), 50, &count, list) == 0 && count == 4);
    CHECK(list[0] == handle(4) && list[3] == handle(7));
}

/* CUDA_VISIBLE_DEVICES is read at the first CUDA call: it names devices 6 and 2 by then. */
static void test_visible_by_uuid(void) {
    char first[96], second[96], visible[200], id[32];
    CHECK(nvmlDeviceGetUUID(handle(6), first, sizeof first) == 0);
    CHECK(nvmlDeviceGetUUID(handle(2), second, sizeof second) == 0);
    snprintf(visible, sizeof visible, "%s,%.20s,GPU-,1", first, second);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    int count, device, value;
    CHECK(cudaGetDeviceCount(&count) == 0 && count == 2); /* "GPU-" means several: none */
    CHECK(cudaDeviceGetPCIBusId(id, sizeof id, 0) == 0 && !strcmp(id, "0002:07:00.0"));
    CHECK(cudaDeviceGetPCIBusId(id, sizeof id, 1) == 0 && !strcmp(id, "0002:03:00.0"));
    CHECK(cudaDeviceGetPCIBusId(id, 12, 1) == cudaErrorInvalidValue);
    CHECK(cudaDeviceGetByPCIBusId(&device, id) == 0 && device == 1);
    CHECK(cudaDeviceGetByPCIBusId(&device, "0002:01:00.0") == cudaErrorInvalidValue); /* hidden */
    CHECK(cudaDeviceGetByPCIBusId(&device, "x") == cudaErrorInvalidValue);
    CHECK(cudaDeviceGetP2PAttribute(&value, 2, 0, 1) == 0 && value == 1);
    CHECK(cudaDeviceGetP2PAttribute(&value, 9, 0, 1) == cudaErrorInvalidValue);
    CHECK(cudaDeviceGetP2PAttribute(&value, 2, 0, 2) == cudaErrorInvalidDevice);
    CHECK(cudaDeviceGetAttribute(&value, 33, 1) == 0 && value == 3);
    CHECK(cudaDeviceGetAttribute(&value, 148, 1) == cudaErrorInvalidValue);
    CHECK(cudaDeviceGetAttribute(&value, 0, 1) == cudaErrorInvalidValue);
}

static void test_host(void) {
    char name[64];
    struct utsname system;
    struct addrinfo *found;
    CHECK(gethostname(name, sizeof name) == 0 && !strcmp(name, "node2"));
    CHECK(gethostname(name, 3) == -1);
    CHECK(uname(&system) == 0 && !strcmp(system.nodename, "node2"));
    CHECK(getaddrinfo("node3", "80", NULL, &found) == 0);
    struct sockaddr_in *address = (struct sockaddr_in *)found->ai_addr;
    CHECK(ntohl(address->sin_addr.s_addr) == INADDR_LOOPBACK && ntohs(address->sin_port) == 80);
    freeaddrinfo(found);
    CHECK(getaddrinfo("127.0.0.1", NULL, NULL, &found) == 0);
    freeaddrinfo(found);
}

/* What a launch answers when the kernel's fat binary holds this one entry; the device is 9.0. */
static cudaError_t launch_of(uint16_t kind, uint32_t architecture, uint64_t flags) {
    static char hosts[16];
    static int used;
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t payload_bytes;
        uint16_t kind, entry_version;
        uint32_t entry_header_bytes;
        uint64_t entry_payload_bytes;
        uint32_t unused[3], architecture;
        uint64_t name, flags, more[2];
        char payload[64];
    } *fatbin = calloc(1, sizeof *fatbin);
    struct {
        uint32_t magic, version;
        void *data, *file_name;
    } wrapper = {0x466243b1, 1, fatbin, NULL};
    CHECK(fatbin != NULL && sizeof *fatbin == 16 + 64 + 64);
    fatbin->magic = 0xba55ed50;
    fatbin->header_bytes = 16;
    fatbin->payload_bytes = 128;
    fatbin->kind = kind;
    fatbin->entry_header_bytes = fatbin->entry_payload_bytes = 64;
    fatbin->architecture = architecture;
    fatbin->flags = flags;
    void **handle = __cudaRegisterFatBinary(&wrapper);
    char *host = &hosts[used++];
    __cudaRegisterFunction(handle, host, NULL, "_Z1kv", -1, NULL, NULL, NULL, NULL, NULL);
    dim3 one = {1, 1, 1};
    cudaError_t error = cudaLaunchKernel(host, one, one, NULL, 0, NULL);
    CHECK(cudaGetLastError() == error && cudaGetLastError() == 0);
    free(fatbin);
    return error;
}

static void test_code_for_the_device(void) {
    enum { PTX = 1, CUBIN = 2, ARCH_SPECIFIC = 0x100000 };
    cudaGetLastError(); /* of the tests before */
    CHECK(launch_of(CUBIN, 90, 0) == 0);
    CHECK(launch_of(CUBIN, 90, ARCH_SPECIFIC) == 0);
    CHECK(launch_of(CUBIN, 80, 0) == cudaErrorNoKernelImageForDevice);
    CHECK(launch_of(CUBIN, 100, 0) == cudaErrorNoKernelImageForDevice);
    CHECK(launch_of(PTX, 80, 0) == 0);
    CHECK(launch_of(PTX, 100, 0) == cudaErrorNoKernelImageForDevice);
    CHECK(launch_of(64, 90, 0) == cudaErrorNoKernelImageForDevice);
}

int main(void) {
    setenv("UNDERSTUDY_DEVICE_COUNT", "8", 1);
    setenv("UNDERSTUDY_NODE", "2", 1);
    setenv("UNDERSTUDY_NODES", "4", 1);
    unsetenv("UNDERSTUDY_DEVICE_FILE");
    unsetenv("CUDA_VISIBLE_DEVICES");
    CHECK(nvmlInit_v2() == 0);
    test_nvml();
    test_visible_by_uuid();
    test_host();
    test_code_for_the_device();
    printf("devices: ok\n");
    return 0;
}
