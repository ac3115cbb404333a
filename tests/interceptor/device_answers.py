"""Prints, as JSON, all that CUDA and NVML say of the emulated devices. No torch: ctypes alone.

python device_answers.py LIBRARY
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import POINTER, byref, c_char, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p

#: Fields of cudaDeviceProp (CUDA 13) with the number of the attribute that says the same; 0: none.
PROPERTIES = (
    ("name", c_char * 256, 0),
    ("uuid", c_ubyte * 16, 0),
    ("luid", c_char * 8, 0),
    ("luidDeviceNodeMask", c_uint, 0),
    ("totalGlobalMem", c_size_t, 0),
    ("sharedMemPerBlock", c_size_t, 8),
    ("regsPerBlock", c_int, 12),
    ("warpSize", c_int, 10),
    ("memPitch", c_size_t, 11),
    ("maxThreadsPerBlock", c_int, 1),
    ("maxThreadsDimX", c_int, 2),
    ("maxThreadsDimY", c_int, 3),
    ("maxThreadsDimZ", c_int, 4),
    ("maxGridSizeX", c_int, 5),
    ("maxGridSizeY", c_int, 6),
    ("maxGridSizeZ", c_int, 7),
    ("totalConstMem", c_size_t, 9),
    ("major", c_int, 75),
    ("minor", c_int, 76),
    ("textureAlignment", c_size_t, 14),
    ("texturePitchAlignment", c_size_t, 51),
    ("multiProcessorCount", c_int, 16),
    ("integrated", c_int, 18),
    ("canMapHostMemory", c_int, 19),
    ("maxTexture1D", c_int, 21),
    ("maxTexture1DMipmap", c_int, 77),
    ("maxTexture2DWidth", c_int, 22),
    ("maxTexture2DHeight", c_int, 23),
    ("otherTextures", c_int * 35, 0),
    ("surfaceAlignment", c_size_t, 30),
    ("concurrentKernels", c_int, 31),
    ("ECCEnabled", c_int, 32),
    ("pciBusID", c_int, 33),
    ("pciDeviceID", c_int, 34),
    ("pciDomainID", c_int, 50),
    ("tccDriver", c_int, 35),
    ("asyncEngineCount", c_int, 40),
    ("unifiedAddressing", c_int, 41),
    ("memoryBusWidth", c_int, 37),
    ("l2CacheSize", c_int, 38),
    ("persistingL2CacheMaxSize", c_int, 108),
    ("maxThreadsPerMultiProcessor", c_int, 39),
    ("streamPrioritiesSupported", c_int, 78),
    ("globalL1CacheSupported", c_int, 79),
    ("localL1CacheSupported", c_int, 80),
    ("sharedMemPerMultiprocessor", c_size_t, 81),
    ("regsPerMultiprocessor", c_int, 82),
    ("managedMemory", c_int, 83),
    ("isMultiGpuBoard", c_int, 84),
    ("multiGpuBoardGroupID", c_int, 85),
    ("hostNativeAtomicSupported", c_int, 86),
    ("pageableMemoryAccess", c_int, 88),
    ("concurrentManagedAccess", c_int, 89),
    ("computePreemptionSupported", c_int, 90),
    ("canUseHostPointerForRegisteredMem", c_int, 91),
    ("cooperativeLaunch", c_int, 95),
    ("sharedMemPerBlockOptin", c_size_t, 97),
    ("pageableMemoryAccessUsesHostPageTables", c_int, 100),
    ("directManagedMemAccessFromHost", c_int, 101),
    ("maxBlocksPerMultiProcessor", c_int, 106),
    ("accessPolicyMaxWindowSize", c_int, 109),
    ("reservedSharedMemPerBlock", c_size_t, 111),
    ("hostRegisterSupported", c_int, 99),
    ("sparseCudaArraySupported", c_int, 112),
    ("hostRegisterReadOnlySupported", c_int, 113),
    ("timelineSemaphoreInteropSupported", c_int, 114),
    ("memoryPoolsSupported", c_int, 115),
    ("gpuDirectRDMASupported", c_int, 116),
    ("gpuDirectRDMAFlushWritesOptions", c_uint, 117),
    ("gpuDirectRDMAWritesOrdering", c_int, 118),
    ("memoryPoolSupportedHandleTypes", c_uint, 119),
    ("deferredMappingCudaArraySupported", c_int, 121),
    ("ipcEventSupported", c_int, 125),
    ("clusterLaunch", c_int, 120),
    ("unifiedFunctionPointers", c_int, 129),
    ("deviceNumaConfig", c_int, 130),
    ("deviceNumaId", c_int, 131),
    ("mpsEnabled", c_int, 133),
    ("hostNumaId", c_int, 134),
    ("gpuPciDeviceID", c_uint, 139),
    ("gpuPciSubsystemID", c_uint, 140),
    ("hostNumaMultinodeIpcSupported", c_int, 143),
    ("reserved", c_int * 56, 0),
)


class Properties(ctypes.Structure):
    """cudaDeviceProp."""

    _fields_ = [(name, kind) for name, kind, _ in PROPERTIES]


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [
        ("legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    ]


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [
        ("version", c_uint),
        *((n, c_ulonglong) for n in ("total", "reserved", "free", "used")),
    ]


def ask(library: ctypes.CDLL, function: str, *arguments: object, out: type = c_int) -> object:
    """The last parameter of a successful call, or the error code as {"error": code}."""
    value = out()
    code = getattr(library, function)(*arguments, byref(value))
    if code:
        return {"error": code}
    return value.value if hasattr(value, "value") else value


def text(library: ctypes.CDLL, function: str, *before: object, after: tuple = ()) -> str:
    """A string that a call writes into a buffer of 96 bytes."""
    buffer = ctypes.create_string_buffer(96)
    code = getattr(library, function)(*before, buffer, *after)
    return f"error {code}" if code else buffer.value.decode()


def of_cuda(library: ctypes.CDLL, device: int) -> dict:
    """What runtime and driver say of a CUDA device."""
    properties = Properties()
    assert library.cudaGetDeviceProperties(byref(properties), device) == 0
    plain = {name: getattr(properties, name) for name, _, _ in PROPERTIES}
    runtime, driver = c_int(), c_int()
    attributes = []
    for number in range(1, 148):
        assert library.cudaDeviceGetAttribute(byref(runtime), number, device) == 0, number
        assert library.cuDeviceGetAttribute(byref(driver), number, device) == 0, number
        assert runtime.value == driver.value, number
        attributes.append(runtime.value)
    buffer, uuid, total = ctypes.create_string_buffer(96), (c_ubyte * 16)(), c_size_t()
    assert library.cuDeviceGetName(buffer, 96, device) == 0
    name = buffer.value.decode()
    assert library.cuDeviceGetUuid_v2(uuid, device) == 0
    assert library.cuDeviceTotalMem_v2(byref(total), device) == 0
    assert library.cudaSetDevice(device) == 0
    free = (c_size_t * 2)()
    assert library.cudaMemGetInfo(byref(free, 0), byref(free, ctypes.sizeof(c_size_t))) == 0
    count = c_int()
    assert library.cudaGetDeviceCount(byref(count)) == 0
    bus_id = ctypes.create_string_buffer(96)
    assert library.cudaDeviceGetPCIBusId(bus_id, 96, device) == 0
    runtime_bus = bus_id.value.decode()
    assert library.cuDeviceGetPCIBusId(bus_id, 96, device) == 0
    assert bus_id.value.decode() == runtime_bus
    found = c_int()
    assert library.cudaDeviceGetByPCIBusId(byref(found), bus_id) == 0 and found.value == device
    assert library.cuDeviceGetByPCIBusId(byref(found), bus_id) == 0 and found.value == device
    peers = range(count.value)
    return {
        "properties": {k: v for k, v in plain.items() if isinstance(v, int)},
        "name": plain["name"].decode(),
        "driver_name": name,
        "uuid": bytes(plain["uuid"]).hex(),
        "driver_uuid": bytes(uuid).hex(),
        "driver_total": total.value,
        "memory_info": list(free),
        "attributes": attributes,
        "bus_id": runtime_bus,
        "peers": [ask_peer(library, "cudaDeviceCanAccessPeer", device, p) for p in peers],
        "driver_peers": [ask_peer(library, "cuDeviceCanAccessPeer", device, p) for p in peers],
    }


def ask_peer(library: ctypes.CDLL, function: str, device: int, peer: int) -> int:
    """Whether `device` reads the memory of `peer`."""
    can = c_int()
    assert getattr(library, function)(byref(can), device, peer) == 0
    return can.value


def of_nvml(library: ctypes.CDLL, index: int) -> dict:
    """What NVML says of a physical device."""
    handle = c_void_p()
    assert library.nvmlDeviceGetHandleByIndex_v2(index, byref(handle)) == 0
    memory, memory_v2 = (c_ulonglong * 3)(), MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
    assert library.nvmlDeviceGetMemoryInfo(handle, memory) == 0
    assert library.nvmlDeviceGetMemoryInfo_v2(handle, byref(memory_v2)) == 0
    major, minor, pci = c_int(), c_int(), PciInfo()
    assert library.nvmlDeviceGetCudaComputeCapability(handle, byref(major), byref(minor)) == 0
    assert library.nvmlDeviceGetPciInfo_v3(handle, byref(pci)) == 0
    uuid = text(library, "nvmlDeviceGetUUID", handle, after=(96,))
    again = c_void_p()
    assert library.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(again)) == 0
    assert again.value == handle.value
    assert library.nvmlDeviceGetHandleByPciBusId_v2(pci.busId, byref(again)) == 0
    assert again.value == handle.value
    links = []
    for link in range(20):
        remote = ask(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, out=PciInfo)
        links.append(
            {
                "state": ask(library, "nvmlDeviceGetNvLinkState", handle, link),
                "version": ask(library, "nvmlDeviceGetNvLinkVersion", handle, link),
                "type": ask(library, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
                "remote": remote.busId.decode() if isinstance(remote, PciInfo) else remote,
            }
        )
    count = ask(library, "nvmlDeviceGetCount_v2", out=c_uint)
    assert isinstance(count, int)
    others = []
    for other in range(count):
        assert library.nvmlDeviceGetHandleByIndex_v2(other, byref(again)) == 0
        p2p = [ask(library, "nvmlDeviceGetP2PStatus", handle, again, i) for i in range(5)]
        level = ask(library, "nvmlDeviceGetTopologyCommonAncestor", handle, again)
        others.append({"p2p": p2p, "level": level})
    near = c_uint()
    assert library.nvmlDeviceGetTopologyNearestGpus(handle, 40, byref(near), None) == 0
    return {
        "name": text(library, "nvmlDeviceGetName", handle, after=(96,)),
        "uuid": uuid,
        "memory": list(memory),
        "memory_v2": [memory_v2.total, memory_v2.reserved, memory_v2.free, memory_v2.used],
        "capability": [major.value, minor.value],
        "pci": [pci.domain, pci.bus, pci.pciDeviceId, pci.pciSubSystemId, pci.busId.decode()],
        "clocks": [
            ask(library, "nvmlDeviceGetMaxClockInfo", handle, t, out=c_uint) for t in (1, 2)
        ],
        "power": ask(library, "nvmlDeviceGetPowerUsage", handle, out=c_uint),
        "temperature": ask(library, "nvmlDeviceGetTemperature", handle, 0, out=c_uint),
        "links": links,
        "others": others,
        "near": near.value,
    }


def main() -> None:
    """Everything, as one line of JSON."""
    library = ctypes.CDLL(sys.argv[1])
    library.nvmlDeviceGetHandleByUUID.argtypes = [ctypes.c_char_p, POINTER(c_void_p)]
    assert library.nvmlInit_v2() == 0
    count = c_int()
    library.cudaGetDeviceCount(byref(count))
    physical = ask(library, "nvmlDeviceGetCount_v2", out=c_uint)
    assert isinstance(physical, int)
    host = ctypes.create_string_buffer(96)
    assert library.gethostname(host, 96) == 0
    answers = {
        "cuda": [of_cuda(library, i) for i in range(count.value)],
        "nvml": [of_nvml(library, i) for i in range(physical)],
        "host": host.value.decode(),
    }
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
