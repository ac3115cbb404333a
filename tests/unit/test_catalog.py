"""The catalog: every entry loads, is complete, and is found by the names people use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from understudy.catalog import (
    Device,
    device,
    devices,
    host,
    hosts,
    interconnect,
    interconnects,
    loader,
)
from understudy.errors import UnderstudyError, UsageError
from understudy.profiling import SYSTEMS


@pytest.mark.parametrize("d", devices(), ids=lambda d: d.id)
def test_every_device_is_plausible_and_names_its_sources(d: Device) -> None:
    assert d.id.count("-") == 2 and d.id.endswith("gb")
    assert d.context_bytes < d.memory_bytes / 20
    # What is sold as 80 GB has between 80e9 bytes and 80 GiB, and the driver keeps less than 1.1.
    nominal = int(d.id.rpartition("-")[2].removesuffix("gb"))
    total_bytes = d.memory_bytes + d.driver_memory_bytes
    assert 0.95 * nominal * 1e9 < total_bytes < 1.02 * nominal * 2**30
    assert 128 * 2**20 < d.driver_memory_bytes < 1.1 * 2**30
    assert interconnect(d.interconnect).name == d.interconnect
    assert {"memory_bytes", "memory_bandwidth_bytes_per_s", "peak_flops"} <= set(d.sources)
    context = d.sources["context_bytes"]
    assert context.startswith("guess") or "out-of-memory message" in context
    assert d.price_usd_per_hour is None or "example" in d.sources["price_usd_per_hour"]


@pytest.mark.parametrize("d", devices(), ids=lambda d: d.id)
def test_figures_of_a_device_agree_with_its_clocks(d: Device) -> None:
    # HBM and GDDR transfer twice per clock: within 8 % of the data sheet.
    from_clocks = 2 * d.memory_clock_hz * d.memory_bus_bits / 8
    assert from_clocks == pytest.approx(d.memory_bandwidth_bytes_per_s, rel=0.08)
    per_clock = d.multiprocessors * d.clock_hz
    core, peak = d.architecture, d.peak_flops
    assert peak["float32"] == pytest.approx(2 * core.float32_per_clock * per_clock, rel=0.04)
    assert peak["float64"] == pytest.approx(2 * core.float64_per_clock * per_clock, rel=0.06)
    # Tensor cores run at up to 15 % lower clocks where the power does not suffice.
    share = peak["float16"] / (core.half_tensor_flops_per_clock * per_clock)
    halved = "half the rate" in d.sources["peak_flops"]
    assert 0.85 < (2 * share if halved else share) < 1.01
    if d.compute_capability_major >= 8:
        assert peak["bfloat16"] == peak["float16"]
        assert peak["bfloat16"] == pytest.approx(2 * peak["tensorfloat32"], rel=0.02)
    else:
        assert not {"bfloat16", "tensorfloat32"} & set(peak)
    capability = (d.compute_capability_major, d.compute_capability_minor)
    assert ("float8" in peak) == (capability >= (8, 9))


@pytest.mark.parametrize("d", devices(), ids=lambda d: d.id)
def test_links_of_a_device_agree_with_its_interconnect(d: Device) -> None:
    fabric = interconnect(d.interconnect)
    if d.nvlink_links:
        assert d.interconnect == f"nvlink{d.nvlink_generation}"
        per_link = {2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}[d.nvlink_generation]
        assert fabric.bandwidth_bytes_per_s == d.nvlink_links * per_link
        assert d.gpu_direct
    else:
        assert d.interconnect.startswith("pcie") and not d.nvlink_generation
        assert fabric.bandwidth_bytes_per_s == d.host_bandwidth_bytes_per_s
    assert d.pci_device_id & 0xFFFF == 0x10DE
    assert d.host_coherent == d.id.startswith("gb")


def test_the_catalog_has_measured_devices_and_the_usual_others() -> None:
    ids = {d.id for d in devices()}
    assert ids >= set(SYSTEMS)
    wanted = "a100-sxm-40gb a100-pcie-40gb a100-pcie-80gb h100-pcie-80gb h100-nvl-94gb l4-pcie-24gb"
    wanted += " a10-pcie-24gb a40-pcie-48gb t4-pcie-16gb v100-sxm-16gb v100-sxm-32gb v100-pcie-16gb"
    assert ids >= {*wanted.split(), "v100-pcie-32gb", "rtx4090-pcie-24gb"}


def test_the_h100_is_what_pytorch_reports() -> None:
    h100 = device("h100-sxm-80gb")
    assert h100.name == "NVIDIA H100 80GB HBM3"
    assert h100.memory_bytes / 2**30 == pytest.approx(79.19, abs=0.005)
    assert (h100.compute_capability_major, h100.compute_capability_minor) == (9, 0)
    assert h100.multiprocessors == 132


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100", "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("h200_sxm", "h200-sxm-141gb"),
        ("l40s", "l40s-pcie-48gb"),
        # As Vidur, NeuSight, Sailor, Aceso, aiconfigurator, Megatron-LM and MLPerf call them.
        ("a100_dgx", "a100-sxm-80gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("Tesla_T4", "t4-pcie-16gb"),
        ("V100-16", "v100-sxm-16gb"),
        ("A100-40", "a100-sxm-40gb"),
        ("RTX-3090", "rtx3090-pcie-24gb"),
        ("V100", "v100-sxm-32gb"),
        ("h100_pcie", "h100-pcie-80gb"),
        ("rtx_pro_6000_server", "rtxpro6000-pcie-96gb"),
        ("dgx_h100", "h100-sxm-80gb"),
        ("NVIDIA H100-SXM5-80GB", "h100-sxm-80gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("GeForce RTX 4090", "rtx4090-pcie-24gb"),
    ],
)
def test_aliases(name: str, found: str) -> None:
    assert device(name).id == found


def test_unknown_names_are_refused_with_the_closest() -> None:
    with pytest.raises(UsageError, match=r"'h100-sxm-8'.*h100-sxm-80gb.*understudy devices"):
        device("h100-sxm-8")
    with pytest.raises(UsageError, match=r"nvlnk4.*nvlink4"):
        interconnect("nvlnk4")
    with pytest.raises(UsageError, match="Unknown host"):
        host("nowhere")


def test_names_are_unique() -> None:
    names = [n.lower() for d in devices() for n in (d.id, d.name, *d.aliases)]
    assert len(names) == len(set(names))


def test_attributes_file_has_one_number_or_name_per_line() -> None:
    lines = device("h100").attributes_file().splitlines()
    values = dict(line.split("=") for line in lines)
    assert values["id"] == "h100-sxm-80gb" and values["multiprocessors"] == "132"
    assert all(v.isdigit() for k, v in values.items() if k not in ("id", "name"))


def test_the_default_host_states_every_cost_and_its_source() -> None:
    default = host("default")
    assert {"launch", "memcpy", "event", "sync", "collective"} <= set(default.api_cost_ns)
    for kind in default.api_cost_ns:
        assert any(w in default.sources[f"api_cost_ns.{kind}"] for w in ("constant", "guess"))
    assert hosts() and interconnects()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  pci:", "  # pci:"), "names no source of pci_device_id, pci_subsystem_id"),
        (('"9.0"', '"9.9"'), "'9.9' has no row in compute_capabilities.yaml"),
        (("copy_engines: 3\n", ""), "missing fields.*copy_engines"),
        (("9.894e+14", "9.894e14"), "peak_flops.bfloat16 is '9.894e14', not a number"),
    ],
)
def test_bad_device_files_are_refused(
    change: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(loader.__file__).parent
    (tmp_path / "devices").mkdir()
    text = (root / "devices" / "h100-sxm-80gb.yaml").read_text()
    (tmp_path / "devices" / "h100-sxm-80gb.yaml").write_text(text.replace(*change))
    shutil.copy(root / "compute_capabilities.yaml", tmp_path)
    monkeypatch.setattr(loader, "_ROOT", tmp_path)
    devices.cache_clear()
    try:
        with pytest.raises(UnderstudyError, match=message):
            devices()
    finally:
        devices.cache_clear()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nlatency_ns: 1\n", "missing fields.*bandwidth"),
        ("name: x\nlatency_ns: 1\nbandwidth_bytes_per_s: 1\nsources: {}\n", "every figure"),
        (
            "name: x\nlatency_ns: 1\nbandwidth_bytes_per_s: 1\nsources: {a: b}\nhops: 2\n",
            "unknown fields.*hops",
        ),
        ("- a\n", "not a mapping"),
    ],
)
def test_bad_files_are_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "interconnects"
    folder.mkdir()
    (folder / "x.yaml").write_text(text)
    monkeypatch.setattr(loader, "_ROOT", tmp_path)
    interconnects.cache_clear()
    try:
        with pytest.raises(UnderstudyError, match=message):
            interconnect("x")
    finally:
        interconnects.cache_clear()
