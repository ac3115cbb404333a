"""One rank that uses CUDA, cuBLAS and NCCL without PyTorch, which takes seconds to start.

    light_rank.py FOLDER

writes rank-<RANK>.json into the folder: where the rank is and what its device says.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import sys
import time
from pathlib import Path

_LAUNCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
_CALLS = 6

library = ctypes.CDLL("libcudart.so.13")


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


def call(function: str, *arguments: object) -> None:
    """Calls and expects success."""
    code = getattr(library, function)(*arguments)
    if code:
        raise RuntimeError(f"{function} answered {code}")


def identity(local: int, nodes: int) -> dict:
    """Where this process is and which device it has."""
    count, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    bus_id = ctypes.create_string_buffer(32)
    call("cudaGetDeviceCount", ctypes.byref(count))
    call("cudaSetDevice", local)
    call("cuDeviceGetUuid_v2", uuid, local)
    call("cudaDeviceGetPCIBusId", bus_id, 32, local)
    peers = []
    for other in range(count.value):
        can = ctypes.c_int()
        call("cudaDeviceCanAccessPeer", ctypes.byref(can), local, other)
        peers.append(can.value)
    return {
        **{name.lower(): int(os.environ[name]) for name in _LAUNCH},
        "host": socket.gethostname(),
        "node": platform.node(),
        "addresses": [socket.gethostbyname(f"node{n}") for n in range(nodes)],
        "master": socket.gethostbyname(os.environ["MASTER_ADDR"]),
        "devices": count.value,
        "peers": peers,
        "uuid": bytes(uuid).hex(),
        "bus_id": bus_id.value.decode(),
    }


def unique_id(folder: Path, rank: int) -> UniqueId:
    """Rank 0's id, through a file."""
    shared = folder / "unique_id"
    if rank == 0:
        unique = UniqueId()
        call("ncclGetUniqueId", ctypes.byref(unique))
        (folder / ".unique_id").write_bytes(bytes(unique))
        (folder / ".unique_id").rename(shared)
    while not shared.exists():
        time.sleep(0.02)
    return UniqueId.from_buffer_copy(shared.read_bytes())


def main() -> None:
    """A matrix product and an all-reduce, some times."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    here = identity(int(os.environ["LOCAL_RANK"]), int(os.environ["GROUP_WORLD_SIZE"]))
    (folder / f"rank-{rank}.json").write_text(json.dumps(here))
    communicator, blas, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    library.ncclCommInitRank.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        UniqueId,
        ctypes.c_int,
    ]
    size = int(os.environ["WORLD_SIZE"])
    unique = unique_id(folder, rank)
    call("ncclCommInitRank", ctypes.byref(communicator), size, unique, rank)
    call("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    call("cublasCreate_v2", ctypes.byref(blas))
    one = ctypes.byref(ctypes.c_float(1.0))
    count = ctypes.c_size_t(4096)
    for _ in range(_CALLS):
        call("cublasSgemm_v2", blas, 0, 0, 64, 64, 64, one, memory, 64, memory, 64, one, memory, 64)
        call("ncclAllReduce", memory, memory, count, 7, 0, communicator, None)  # float, sum


if __name__ == "__main__":
    main()
