"""The catalog: every entry loads, is complete, and is found by the names people use."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.catalog import device, devices, host, hosts, interconnect, interconnects, loader
from understudy.errors import UnderstudyError, UsageError
from understudy.profiling import SYSTEMS


def test_every_device_is_plausible_and_names_its_sources() -> None:
    assert {d.id for d in devices()} >= set(SYSTEMS)
    for d in devices():
        assert d.id.count("-") == 2 and d.id.endswith("gb")
        assert 8 * 2**30 < d.memory_bytes < 512 * 2**30
        assert d.context_bytes < d.memory_bytes / 20
        # HBM and GDDR transfer twice per clock: within 8 % of the data sheet.
        from_clocks = 2 * d.memory_clock_hz * d.memory_bus_bits / 8
        assert from_clocks == pytest.approx(d.memory_bandwidth_bytes_per_s, rel=0.08)
        assert d.peak_flops["bfloat16"] > d.peak_flops["tensorfloat32"] > d.peak_flops["float64"]
        assert interconnect(d.interconnect).name == d.interconnect
        assert {"memory_bytes", "memory_bandwidth_bytes_per_s", "peak_flops"} <= set(d.sources)
        assert d.price_usd_per_hour is None or "example" in d.sources["price_usd_per_hour"]


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
