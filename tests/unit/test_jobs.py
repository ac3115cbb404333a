"""Job files and ad hoc jobs: what is accepted, what is refused and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy import jobs
from understudy.errors import UsageError
from understudy.jobs import Cluster, JobSpec, Launch

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes `train.yaml` beside a script `train.py`."""
    (tmp_path / "train.py").write_text("")

    def write(text: str) -> Path:
        path = tmp_path / "train.yaml"
        path.write_text(text)
        return path

    return write


def test_every_key(job_file: Callable[[str], Path], tmp_path: Path) -> None:
    spec = jobs.load_job(
        job_file(
            "job: train\n"
            "script: train.py\n"
            "args: [--lr, 3.0e-4, --steps, 10]\n"
            "env: {OMP_NUM_THREADS: 1, MODE: fast}\n"
            "launch: {nnodes: 2, nproc_per_node: 4}\n"
            "cluster: {interconnect: nvlink, nic_gbps: 200, nics_per_node: 4, host: default}\n"
            "devices: [h100-sxm-80gb, h200]\n"
            "tokens_per_iteration: 65536\n"
            "samples_per_iteration: 64\n"
            "model_flops_per_iteration: 5e15\n"
        )
    )
    assert spec == JobSpec(
        job="train",
        script=tmp_path / "train.py",
        module=None,
        args=("--lr", "0.0003", "--steps", "10"),
        env={"OMP_NUM_THREADS": "1", "MODE": "fast"},
        launch=Launch(2, 4),
        cluster=Cluster("nvlink", 200.0, 4, "default"),
        devices=("h100-sxm-80gb", "h200"),
        tokens_per_iteration=65536,
        samples_per_iteration=64,
        model_flops_per_iteration=5e15,
        working_dir=tmp_path,
    )
    assert spec.world_size == 8


def test_the_least(job_file: Callable[[str], Path], tmp_path: Path) -> None:
    spec = jobs.load_job(job_file("module: pkg.train\n"))
    assert (spec.job, spec.script, spec.module) == ("train", None, "pkg.train")
    assert spec.world_size == 1
    assert spec.program_name == "pkg.train"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("script: train.py\nscrpt: x\n", ["unknown key scrpt", "script"]),
        ("script: train.py\nlaunch: {nproc_per_nod: 2}\n", ["launch.nproc_per_nod;", "per_node"]),
        ("script: train.py\ncluster: {nic: 2}\n", ["cluster.nic;", "nic_gbps"]),
        ("script: train.py\npython: /bin/python\n", ["unknown key python"]),
        ("script: absent.py\n", ["script", "absent.py"]),
        ("script: train.py\nmodule: m\n", ["exactly one"]),
        ("args: []\n", ["exactly one"]),
        ("job: other\nscript: train.py\n", ["job", "other", "train"]),
        ("script: train.py\nargs: --lr 3\n", ["args", "list"]),
        ("script: train.py\nargs: [yes]\n", ["args", "quotes"]),
        ("script: train.py\nargs: [{a: 1}]\n", ["args", "text or a number"]),
        ("script: train.py\nenv: {A: true}\n", ["env.A", "quotes"]),
        ("script: train.py\nlaunch: {nnodes: 0}\n", ["launch.nnodes", "from 1"]),
        ("script: train.py\nlaunch: {nnodes: true}\n", ["launch.nnodes"]),
        ("script: train.py\nlaunch: 8\n", ["launch", "mapping"]),
        ("script: train.py\ncluster: {nic_gbps: fast}\n", ["cluster.nic_gbps", "number"]),
        ("script: train.py\ntokens_per_iteration: 1.5\n", ["tokens_per_iteration"]),
        ("script: train.py\nmodel_flops_per_iteration: -1\n", ["model_flops_per_iteration"]),
        ("script: train.py\nscript: train.py\n", ["given twice"]),
        ("script: [\n", ["not valid YAML"]),
        ("- a\n", ["mapping"]),
        ("", ["mapping"]),
    ],
)  # fmt: skip
def test_refused(job_file: Callable[[str], Path], text: str, parts: list[str]) -> None:
    path = job_file(text)
    with pytest.raises(UsageError) as caught:
        jobs.load_job(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_missing_file_and_bad_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such job file"):
        jobs.load_job(tmp_path / "absent.yaml")
    (tmp_path / "My Job.yaml").write_text("module: m\n")
    with pytest.raises(UsageError, match="lower-case"):
        jobs.load_job(tmp_path / "My Job.yaml")


def test_shipped_scenarios_load() -> None:
    scenarios = sorted((REPOSITORY / "scenarios").glob("*.yaml"))
    assert scenarios
    for path in scenarios:
        spec = jobs.load_job(path)
        assert spec.script is not None and spec.script.is_file()
        assert spec.devices


def test_ad_hoc_ids_follow_path_arguments_and_launch(tmp_path: Path) -> None:
    (tmp_path / "My Train.py").write_text("")
    (tmp_path / "sub").mkdir()
    first = jobs.ad_hoc_job("My Train.py", ["--a"], working_dir=tmp_path)
    assert jobs.check_job_id(first.job).startswith("my-train-")
    assert first.script == tmp_path / "My Train.py"
    # However the path is written, it is the same job.
    assert jobs.ad_hoc_job("../My Train.py", ["--a"], working_dir=tmp_path / "sub").job == first.job
    others = [
        jobs.ad_hoc_job("My Train.py", ["--b"], working_dir=tmp_path).job,
        jobs.ad_hoc_job("My Train.py", ["--a"], launch=Launch(1, 2), working_dir=tmp_path).job,
    ]
    assert len({first.job, *others}) == 3
    with pytest.raises(UsageError, match=r"absent\.py"):
        jobs.ad_hoc_job("absent.py", working_dir=tmp_path)


def test_derived_jobs_have_ids_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    plain = jobs.ad_hoc_job("t.py", working_dir=tmp_path)
    small = jobs.with_memory(plain, "40GiB")
    assert (small.job, small.memory_bytes) == (f"{plain.job}-memory-40gib", 40 * 2**30)
    assert jobs.device_of(small, "h100-sxm-80gb").memory_bytes == 40 * 2**30
    assert jobs.device_of(plain, "h100-sxm-80gb").memory_bytes > 40 * 2**30
    assert jobs.with_host(plain, plain.cluster.host) == plain
    assert jobs.with_host(plain, "fast").job == f"{plain.job}-host-fast"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("40GiB", 40 * 2**30), ("80 gb", 80 * 10**9), ("1.5TiB", 3 * 2**39), ("123", 123)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert jobs.parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "40 apples", "1e3"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        jobs.parse_size(text)


@pytest.mark.usefixtures("understudy_home")
def test_saved_jobs_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    spec = jobs.ad_hoc_job("t.py", ["x"], working_dir=tmp_path)
    assert jobs.known_jobs() == []
    jobs.save(spec)
    assert jobs.load(spec.job) == spec
    assert jobs.known_jobs() == [spec.job]
    with pytest.raises(UsageError, match=f"did you mean {spec.job}"):
        jobs.load(spec.job[:-1])
    with pytest.raises(UsageError, match="not a resolved job"):
        jobs.from_json("{}")


_texts = st.text(max_size=20)


@given(
    args=st.lists(_texts).map(tuple),
    env=st.dictionaries(_texts, _texts),
    nodes=st.integers(1, 1000),
    memory=st.none() | st.integers(1),
    flops=st.none() | st.floats(1, 1e20),
    python=st.none() | st.just(Path("/usr/bin/python3")),
)
def test_json_round_trip(
    args: tuple[str, ...],
    env: dict[str, str],
    nodes: int,
    memory: int | None,
    flops: float | None,
    python: Path | None,
) -> None:
    spec = dataclasses.replace(
        JobSpec("j", Path("/x/t.py"), None, args, env, Launch(nodes, 8)),
        memory_bytes=memory,
        model_flops_per_iteration=flops,
        python=python,
    )
    assert jobs.from_json(jobs.to_json(spec)) == spec
