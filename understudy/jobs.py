"""Jobs: a script with its arguments and its launch on a cluster, read from YAML or a command line.

A job file has the keys of `JobSpec` that a user decides (see `load_job`); its name without suffix
is the job's id. The resolved specification is kept as `$UNDERSTUDY_HOME/jobs/<job>/job.json`, so
that a run started from the web page knows the same job as the command line.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from understudy import catalog
from understudy.catalog import Device
from understudy.errors import UsageError
from understudy.home import home, job_dir, write_whole

#: Iterations that run before recording starts: the first allocates optimizer states, DDP lays out
#: its buckets anew in the second and waits for timing events of its own up to the eleventh.
DEFAULT_WARMUP = 12
#: Iterations recorded; host gaps are medians over them.
DEFAULT_ITERATIONS = 8

_ID = re.compile(r"[a-z0-9._-]+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b|b)?", re.IGNORECASE)
_UNITS = {
    "b": 1,
    **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)},
}


@dataclass(frozen=True)
class Launch:
    """torchrun's view of the job: nodes and processes on each."""

    nnodes: int = 1
    nproc_per_node: int = 1


@dataclass(frozen=True)
class Cluster:
    """What surrounds the GPUs. `interconnect` None: the device's default in-node fabric."""

    interconnect: str | None = None
    nic_gbps: float = 400.0
    nics_per_node: int = 8
    host: str = "default"


@dataclass(frozen=True)
class JobSpec:
    """One job, resolved: paths are absolute, every choice is made. Exactly one of `script` and
    `module` is set. `memory_bytes` replaces the device's memory (`--set memory=`). `marker` is the
    NVTX or profiler range (or mark) whose end ends an iteration; None: optimizer steps do."""

    job: str
    script: Path | None
    module: str | None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    launch: Launch = Launch()
    cluster: Cluster = Cluster()
    devices: tuple[str, ...] = ()
    tokens_per_iteration: int | None = None
    samples_per_iteration: int | None = None
    model_flops_per_iteration: float | None = None
    python: Path | None = None
    memory_bytes: int | None = None
    marker: str | None = None
    warmup: int = DEFAULT_WARMUP
    iterations: int = DEFAULT_ITERATIONS
    working_dir: Path = field(default_factory=Path.cwd)

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.launch.nnodes * self.launch.nproc_per_node

    @property
    def program_name(self) -> str:
        """What the user calls the program: the script's path or the module's name."""
        return str(self.script or self.module)


def device_of(spec: JobSpec, device: str) -> Device:
    """The catalog's device (id or alias), with the memory that the job sets, if it sets any.

    Raises UsageError when there is no such device.
    """
    entry = catalog.device(device)
    if spec.memory_bytes is None:
        return entry
    return dataclasses.replace(entry, memory_bytes=spec.memory_bytes)


def check_job_id(job: str) -> str:
    """Returns `job`; raises UsageError unless it is made of `[a-z0-9._-]`."""
    if not _ID.fullmatch(job) or set(job) == {"."}:
        raise UsageError(
            f"job id {job!r}: only lower-case letters, digits and . _ - are allowed; rename the "
            "file or the job"
        )
    return job


def suggestion(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the nearest known word, else '; known: ...'."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names) or 'none'}"


def parse_size(text: str) -> int:
    """Bytes of '40GiB', '80 GB' or a plain number of bytes; raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    size_bytes = (
        round(float(match[1]) * _UNITS[(match[2] or "b").lower()]) if match is not None else 0
    )
    if size_bytes <= 0:
        raise UsageError(f"{text!r} is not a size: write for example 40GiB, 80GB or bytes")
    return size_bytes


# --- job files -------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # pyright: ignore[reportUnknownMemberType]
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_job(path: Path) -> JobSpec:
    """Reads a job file. Paths in it are relative to the file, whose folder is the working folder.

    Keys: job (= file stem), script or module, args, env, launch {nnodes, nproc_per_node},
    cluster {interconnect, nic_gbps, nics_per_node, host}, devices, tokens_per_iteration,
    samples_per_iteration, model_flops_per_iteration, marker.

    Raises UsageError naming the file and the key.
    """
    path = Path(path)
    try:
        content = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such job file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {_one_line(error)}") from None
    return _Reader(path).job(content)


@dataclass(frozen=True)
class _Reader:
    """Checks a job file's values one by one; every message starts with the file and the key."""

    path: Path

    def job(self, content: Any) -> JobSpec:
        values = self.section(content, "", _JOB_KEYS)
        job = self.text(values.get("job", self.path.stem), "job")
        if job != self.path.stem:
            raise self.error(
                "job", f"{job!r} is not the file's name {self.path.stem!r}; make them equal"
            )
        folder = self.path.resolve().parent
        script, module = values.get("script"), values.get("module")
        if (script is None) == (module is None):
            raise self.error("script", "give exactly one of `script` and `module`")
        return JobSpec(
            job=check_job_id(job),
            script=None if script is None else self.script(self.text(script, "script"), folder),
            module=None if module is None else self.text(module, "module"),
            args=tuple(self.scalar(a, "args") for a in self.items(values.get("args"), "args")),
            env=self.env(values.get("env")),
            launch=self.launch(values.get("launch")),
            cluster=self.cluster(values.get("cluster")),
            devices=tuple(
                self.text(d, "devices") for d in self.items(values.get("devices"), "devices")
            ),
            tokens_per_iteration=self.optional_count(values, "tokens_per_iteration"),
            samples_per_iteration=self.optional_count(values, "samples_per_iteration"),
            model_flops_per_iteration=self.optional_number(values, "model_flops_per_iteration"),
            marker=self.text(values["marker"], "marker") if "marker" in values else None,
            working_dir=folder,
        )

    def launch(self, content: Any) -> Launch:
        values = self.section(content, "launch", _field_names(Launch))
        return Launch(**{key: self.count(v, f"launch.{key}") for key, v in values.items()})

    def cluster(self, content: Any) -> Cluster:
        values = self.section(content, "cluster", _field_names(Cluster))
        check = {
            "interconnect": self.text,
            "nic_gbps": self.number,
            "nics_per_node": self.count,
            "host": self.text,
        }
        return Cluster(**{key: check[key](v, f"cluster.{key}") for key, v in values.items()})

    def env(self, content: Any) -> dict[str, str]:
        values = self.section(content, "env", None)
        return {key: self.scalar(value, f"env.{key}") for key, value in values.items()}

    def section(self, content: Any, name: str, known: Iterable[str] | None) -> dict[str, Any]:
        if content is None and name:
            return {}
        if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
            raise self.error(name or "the file", "must be a mapping of keys to values")
        for key in content if known is not None else ():
            if key not in set(known or ()):
                where = f"{name}." if name else ""
                raise UsageError(
                    f"{self.path}: unknown key {where}{key}{suggestion(key, known or ())}"
                )
        return {key: value for key, value in content.items() if value is not None}

    def script(self, text: str, folder: Path) -> Path:
        script = (folder / text).resolve()
        if not script.is_file():
            raise self.error("script", f"there is no file {script}")
        return script

    def items(self, value: Any, key: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(key, "must be a list, for example [a, b]")
        return value

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be text, not {value!r}; put it in quotes")
        return value

    def scalar(self, value: Any, key: str) -> str:
        # YAML reads an unquoted `yes` or `on` as a truth value: its spelling would be lost.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(key, f"must be text or a number, not {value!r}; put it in quotes")
        return str(value)

    def count(self, value: Any, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, f"must be a whole number from 1, not {value!r}")
        return value

    def number(self, value: Any, key: str) -> float:
        # YAML 1.1 reads 6e15 as text.
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (number > 0 and math.isfinite(number)):
            raise self.error(key, f"must be a number above 0, not {value!r}")
        return number

    def optional_count(self, values: dict[str, Any], key: str) -> int | None:
        return self.count(values[key], key) if key in values else None

    def optional_number(self, values: dict[str, Any], key: str) -> float | None:
        return self.number(values[key], key) if key in values else None

    def error(self, key: str, problem: str) -> UsageError:
        return UsageError(f"{self.path}: {key}: {problem}")


def _field_names(record: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(record))


#: Keys of a job file; the other fields of JobSpec come from the command line.
_JOB_KEYS = (
    "job",
    "script",
    "module",
    "args",
    "env",
    "launch",
    "cluster",
    "devices",
    "tokens_per_iteration",
    "samples_per_iteration",
    "model_flops_per_iteration",
    "marker",
)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# --- jobs from a command line ------------------------------------------------------------------


def ad_hoc_job(
    script: str,
    args: Iterable[str] = (),
    *,
    launch: Launch = Launch(),
    devices: Iterable[str] = (),
    working_dir: Path | None = None,
) -> JobSpec:
    """The job of a script given on the command line; relative to `working_dir` (default: cwd).

    Its id is the script's stem and 8 hex digits of path, arguments, environment and launch.
    Raises UsageError when the script is missing.
    """
    folder = (working_dir or Path.cwd()).resolve()
    path = (folder / script).resolve()
    if not path.is_file():
        raise UsageError(f"{path}: there is no such script")
    arguments = tuple(args)
    identity = [str(path), arguments, {}, dataclasses.astuple(launch)]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    stem = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower())
    return JobSpec(
        job=check_job_id(f"{stem}-{digest}"),
        script=path,
        module=None,
        args=arguments,
        launch=launch,
        devices=tuple(devices),
        working_dir=folder,
    )


def with_memory(spec: JobSpec, size: str) -> JobSpec:
    """The same job on devices with `size` ('40GiB') of memory, under an id of its own."""
    size_bytes = parse_size(size)
    label = re.sub(r"[^a-z0-9.]", "", size.lower())
    return dataclasses.replace(
        spec, job=check_job_id(f"{spec.job}-memory-{label}"), memory_bytes=size_bytes
    )


def with_host(spec: JobSpec, host: str) -> JobSpec:
    """The same job on another host; under an id of its own unless the job names that host."""
    if host == spec.cluster.host:
        return spec
    return dataclasses.replace(
        spec,
        job=check_job_id(f"{spec.job}-host-{host}"),
        cluster=dataclasses.replace(spec.cluster, host=host),
    )


# --- resolved jobs ---------------------------------------------------------------------------


def to_json(spec: JobSpec) -> str:
    """The specification as JSON text, keys sorted."""
    record = dataclasses.asdict(spec)
    return json.dumps(record, default=str, indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> JobSpec:
    """Inverse of `to_json`; raises UsageError for text that is not a specification."""
    try:
        record = json.loads(text)
        for key in ("script", "python", "working_dir"):
            record[key] = None if record[key] is None else Path(record[key])
        for key in ("args", "devices"):
            record[key] = tuple(record[key])
        record["launch"] = Launch(**record["launch"])
        record["cluster"] = Cluster(**record["cluster"])
        return JobSpec(**record)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"not a resolved job ({error!r}); predict the job again") from None


def save(spec: JobSpec) -> Path:
    """Writes `jobs/<job>/job.json` at once and returns its path."""
    path = job_dir(spec.job) / "job.json"
    write_whole(path, to_json(spec))
    return path


def load(job: str) -> JobSpec:
    """The resolved job `job`; raises UsageError with the nearest known id when there is none."""
    path = job_dir(job) / "job.json"
    if not path.is_file():
        raise UsageError(f"unknown job {job}{suggestion(job, known_jobs())}")
    return from_json(path.read_text())


def known_jobs() -> list[str]:
    """Ids of all resolved jobs, sorted."""
    return sorted(path.parent.name for path in (home() / "jobs").glob("*/job.json"))
