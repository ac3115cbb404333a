"""Every device of the catalog: runtime, driver and NVML agree with each other and with its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interceptor.device_answers import PROPERTIES
from understudy.catalog import Device, device, devices

SCRIPT = Path(__file__).with_name("device_answers.py")
_NOT_SUPPORTED = {"error": 3}


def answers(library: Path, file: Path, entry: Device, **environment: str) -> dict:
    file.write_text(entry.attributes_file())
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UNDERSTUDY_", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(library)],
        env={**kept, "UNDERSTUDY_DEVICE_FILE": str(file), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _dashed(uuid: str) -> str:
    return "GPU-" + "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


@pytest.mark.parametrize("entry", devices(), ids=lambda d: d.id)
def test_all_that_is_said_of_a_device_is_its_file(
    entry: Device, interceptor: Path, tmp_path: Path
) -> None:
    said = answers(interceptor, tmp_path / "device", entry, UNDERSTUDY_DEVICE_COUNT="2")
    core = entry.architecture
    wanted = {
        "totalGlobalMem": entry.memory_bytes,
        "major": entry.compute_capability_major,
        "minor": entry.compute_capability_minor,
        "multiProcessorCount": entry.multiprocessors,
        "l2CacheSize": entry.l2_bytes,
        "persistingL2CacheMaxSize": entry.persisting_l2_bytes,
        "memoryBusWidth": entry.memory_bus_bits,
        "asyncEngineCount": entry.copy_engines,
        "ECCEnabled": entry.ecc,
        "maxThreadsPerMultiProcessor": core.max_threads_per_multiprocessor,
        "maxBlocksPerMultiProcessor": core.max_blocks_per_multiprocessor,
        "regsPerMultiprocessor": core.registers_per_multiprocessor,
        "sharedMemPerMultiprocessor": core.shared_memory_per_multiprocessor_bytes,
        "sharedMemPerBlockOptin": core.shared_memory_per_block_optin_bytes,
        "reservedSharedMemPerBlock": core.reserved_shared_memory_per_block_bytes,
        "accessPolicyMaxWindowSize": core.access_policy_window_bytes,
        "clusterLaunch": core.cluster_launch,
        "gpuDirectRDMASupported": entry.gpu_direct,
        "pageableMemoryAccess": entry.host_coherent,
        "gpuPciDeviceID": entry.pci_device_id,
        "gpuPciSubsystemID": entry.pci_subsystem_id,
    }
    board_bytes = entry.memory_bytes + entry.driver_memory_bytes
    for index, (cuda, nvml) in enumerate(zip(said["cuda"], said["nvml"], strict=True)):
        properties, attributes = cuda["properties"], cuda["attributes"]
        assert {name: properties[name] for name in wanted} == wanted
        for name, _, number in PROPERTIES:
            if number:
                assert properties[name] == attributes[number - 1] & 0xFFFFFFFF, name
        assert attributes[13 - 1] == entry.clock_hz // 1000
        assert attributes[36 - 1] == entry.memory_clock_hz // 1000
        assert attributes[127 - 1] == core.tensor_maps
        assert attributes[87 - 1] == core.float32_per_clock // core.float64_per_clock
        assert cuda["name"] == cuda["driver_name"] == nvml["name"] == entry.name
        assert cuda["uuid"] == cuda["driver_uuid"] and _dashed(cuda["uuid"]) == nvml["uuid"]
        assert cuda["driver_total"] == cuda["memory_info"][1] == entry.memory_bytes
        used = cuda["memory_info"][1] - cuda["memory_info"][0]
        assert nvml["memory"][0] == nvml["memory_v2"][0] == board_bytes
        assert nvml["memory"][2] == used + entry.driver_memory_bytes
        assert nvml["memory"][1] == cuda["memory_info"][0] == nvml["memory_v2"][2]
        assert nvml["memory_v2"][1:4:2] == [entry.driver_memory_bytes, used]
        assert nvml["capability"] == [properties["major"], properties["minor"]]
        assert nvml["pci"][:2] == [properties["pciDomainID"], properties["pciBusID"]]
        assert nvml["pci"][2:4] == [entry.pci_device_id, entry.pci_subsystem_id]
        assert nvml["pci"][4] == "0000" + cuda["bus_id"]
        assert nvml["clocks"] == [entry.clock_hz // 10**6, entry.memory_clock_hz // 10**6]
        assert nvml["power"] == nvml["temperature"] == _NOT_SUPPORTED
        peers = [int(entry.gpu_direct and other != index) for other in range(2)]
        assert cuda["peers"] == cuda["driver_peers"] == peers
    _check_links(entry, said["nvml"])


def _check_links(entry: Device, said: list[dict]) -> None:
    """Of two devices in one node."""
    for index, nvml in enumerate(said):
        other = said[1 - index]
        up = [link for link in nvml["links"] if link["state"] == 1]
        assert len(up) == entry.nvlink_links
        absent = _NOT_SUPPORTED if not entry.nvlink_links else {"error": 2}
        assert all(link["state"] == absent for link in nvml["links"][entry.nvlink_links :])
        versions = {0: 0, 2: 2, 3: 4, 4: 6, 5: 7}  # nvmlNvlinkVersion_t
        assert {link["version"] for link in up} <= {versions[entry.nvlink_generation]}
        assert {link["type"] for link in up} <= {2 if entry.nvlink_switched else 0}
        if up and not entry.nvlink_switched:
            assert {link["remote"] for link in up} == {other["pci"][4]}
        read, write, nvlink, atomics, pci = nvml["others"][1 - index]["p2p"]
        assert read == write == pci == (0 if entry.gpu_direct else 2)
        assert nvlink == atomics == (0 if entry.nvlink_links else 5)
        assert nvml["others"][1 - index]["level"] == 40 and nvml["near"] == 1


def test_links_without_switches_have_two_ends(interceptor: Path, tmp_path: Path) -> None:
    v100 = device("v100-sxm-16gb")
    said = answers(interceptor, tmp_path / "device", v100, UNDERSTUDY_DEVICE_COUNT="8")["nvml"]
    place = {nvml["pci"][4]: index for index, nvml in enumerate(said)}
    ends = sorted(
        (index, place[link["remote"]])
        for index, nvml in enumerate(said)
        for link in nvml["links"]
        if link["state"] == 1
    )
    assert len(ends) == 8 * 6 and ends == sorted((b, a) for a, b in ends)
    for index, nvml in enumerate(said):
        linked = {other for one, other in ends if one == index}
        assert {i for i, o in enumerate(nvml["others"]) if o["p2p"][2] == 0} == linked
    assert said[0]["near"] == 3  # of its socket; the other four are across


def test_devices_of_a_cluster_differ_and_its_hosts_have_names(
    interceptor: Path, tmp_path: Path
) -> None:
    nodes = [
        answers(
            interceptor,
            tmp_path / "device",
            device("h100"),
            UNDERSTUDY_DEVICE_COUNT="8",
            UNDERSTUDY_NODE=str(node),
            UNDERSTUDY_NODES="4",
        )
        for node in range(4)
    ]
    assert [node["host"] for node in nodes] == ["node0", "node1", "node2", "node3"]
    for what in ("uuid", "bus_id"):
        assert len({cuda[what] for node in nodes for cuda in node["cuda"]}) == 32
    again = answers(
        interceptor,
        tmp_path / "device",
        device("h100"),
        UNDERSTUDY_DEVICE_COUNT="8",
        UNDERSTUDY_NODE="2",
        UNDERSTUDY_NODES="4",
    )
    assert again == nodes[2]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", [2, 0]),
        ("1,x,0", [1]),
        ("1,9,0", [1]),
        ("-1,0", []),
        ("1,1", []),
        ("", []),
    ],
)
def test_visible_devices_keep_their_identity(
    visible: str, expected: list[int], interceptor: Path, tmp_path: Path
) -> None:
    environment = {"UNDERSTUDY_DEVICE_COUNT": "4", "CUDA_VISIBLE_DEVICES": visible}
    said = answers(interceptor, tmp_path / "device", device("a100"), **environment)
    assert len(said["nvml"]) == 4
    physical = [nvml["uuid"] for nvml in said["nvml"]]
    seen = [physical.index(_dashed(cuda["uuid"])) for cuda in said["cuda"]]
    assert seen == expected
    assert [cuda["properties"]["pciBusID"] for cuda in said["cuda"]] == [i + 1 for i in expected]


def test_visible_devices_by_uuid(interceptor: Path, tmp_path: Path) -> None:
    file, a100 = tmp_path / "device", device("a100")
    all_of_them = answers(interceptor, file, a100, UNDERSTUDY_DEVICE_COUNT="4")
    uuids = [nvml["uuid"] for nvml in all_of_them["nvml"]]
    environment = {
        "UNDERSTUDY_DEVICE_COUNT": "4",
        "CUDA_VISIBLE_DEVICES": f"{uuids[3]},{uuids[1][:16]}",
    }
    said = answers(interceptor, file, a100, **environment)
    assert [_dashed(cuda["uuid"]) for cuda in said["cuda"]] == [uuids[3], uuids[1]]


TORCH = Path(__file__).with_name("torch_device.py")


@pytest.mark.parametrize("name", ["t4", "a100-sxm-40gb", "rtx4090", "gb300"])
def test_torch_says_the_same(name: str, interceptor: Path, tmp_path: Path) -> None:
    entry, file = device(name), tmp_path / "device"
    environment = {
        "UNDERSTUDY_DEVICE_FILE": str(file),
        "UNDERSTUDY_DEVICE_COUNT": "3",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }
    raw = answers(interceptor, file, entry, **environment)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("UNDERSTUDY_")}
    done = subprocess.run(
        [sys.executable, str(TORCH)],
        env={
            **kept,
            "LD_PRELOAD": str(interceptor),
            "LD_LIBRARY_PATH": str(interceptor.parent / "shadow"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "UserWarning" not in done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == 2
    core = entry.architecture
    wanted = {
        "name": entry.name,
        "get_name": entry.name,
        "major": entry.compute_capability_major,
        "minor": entry.compute_capability_minor,
        "capability": [entry.compute_capability_major, entry.compute_capability_minor],
        "total_memory": entry.memory_bytes,
        "multi_processor_count": entry.multiprocessors,
        "L2_cache_size": entry.l2_bytes,
        "max_threads_per_multi_processor": core.max_threads_per_multiprocessor,
        "regs_per_multiprocessor": core.registers_per_multiprocessor,
        "shared_memory_per_block_optin": core.shared_memory_per_block_optin_bytes,
        "shared_memory_per_multiprocessor": core.shared_memory_per_multiprocessor_bytes,
        "clock_rate": entry.clock_hz // 1000,
        "memory_clock_rate": entry.memory_clock_hz // 1000,
        "memory_bus_width": entry.memory_bus_bits,
        "bfloat16": entry.compute_capability_major >= 8,
        "peers": [entry.gpu_direct],
    }
    for index, seen in enumerate(said):
        assert {key: seen[key] for key in wanted if key in seen} == {
            key: value for key, value in wanted.items() if key in seen
        }
        assert seen["uuid"].replace("-", "") == raw["cuda"][index]["uuid"]
        assert seen["pci_bus_id"] == (3, 1)[index]
        free, total = seen["mem_get_info"]
        assert total == entry.memory_bytes and entry.context_bytes <= total - free < 1.5 * 2**30
        if seen["nvml"] is not None:
            used = entry.driver_memory_bytes + total - free
            clock = entry.clock_hz // 10**6
            expected = {"used": used, "clock": clock, "utilization": 0, "power": "not supported"}
            assert seen["nvml"] == expected


def test_bad_arguments_and_hosts(programs: Path) -> None:
    """In C; once under ASan and UBSan."""
    done = subprocess.run(
        [str(programs / "test_devices")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
