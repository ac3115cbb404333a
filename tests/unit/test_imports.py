"""The floors of the house: who may import whom, and what is never imported at module level."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import assets
import pipelines

REPOSITORY = Path(__file__).resolve().parents[2]

#: From the ground up; a module imports its own room and the floors below.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "warehouse",
            "understudy",
            "understudy.errors",
            "understudy.home",
            "understudy.jobs",
            "understudy.catalog",
            "understudy.kernels",
            "understudy.traces",
        }
    ),
    frozenset({"understudy.profiling"}),
    frozenset({"understudy.forests"}),
    frozenset({"understudy.emulation"}),
    frozenset({"understudy.merging"}),
    frozenset({"understudy.simulation"}),
    frozenset({"understudy.comparison", "understudy.reporting"}),
    frozenset({"assets"}),
    frozenset({"pipelines"}),
)
FLOOR_OF = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}

#: What emulation must not know although it lies below: traces do not depend on predictions.
NOT_FOR_EMULATION = {"understudy.profiling", "understudy.forests"}

#: A Dagster process would pay hundreds of megabytes for each.
HEAVY = {"torch", "sklearn"}

SOURCES = sorted(
    path
    for folder in ("understudy", "warehouse", "assets", "pipelines")
    for path in (REPOSITORY / folder).rglob("*.py")
    # What is put into the ranks' interpreter is not ours to import: it runs beside torch.
    if "site" not in path.relative_to(REPOSITORY).parts
)


def room_of(module: str) -> str:
    """'understudy.simulation' of 'understudy.simulation.engine'."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "understudy" else parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, module_level: bool = False) -> Iterator[str]:
    """Dotted names that a file imports, anywhere or where they run at import."""
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from understudy import jobs` imports a room, `from torch import nn` torch.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not (module_level and (deferred or for_types)):
            nodes.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_only_from_below(path: Path) -> None:
    importer = room_of(module_of(path))
    for name in imports(path):
        imported = room_of(name)
        if imported not in FLOOR_OF:
            continue
        allowed = imported == importer or FLOOR_OF[imported] < FLOOR_OF[importer]
        same_ground = FLOOR_OF[imported] == FLOOR_OF[importer] == 0
        assert allowed or same_ground, f"{importer} must not import {imported}"
        if importer == "understudy.emulation":
            assert imported not in NOT_FOR_EMULATION, f"emulation must not import {imported}"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_the_domain_knows_no_dagster_and_nothing_heavy_loads_at_import(path: Path) -> None:
    packages = {name.split(".")[0] for name in imports(path)}
    if module_of(path).split(".")[0] in ("understudy", "warehouse"):
        assert not packages & {"dagster", "dagster_pipes", "assets", "pipelines"}
    at_import = {name.split(".")[0] for name in imports(path, module_level=True)}
    assert not at_import & HEAVY


def test_every_room_has_its_floor() -> None:
    rooms = {room_of(module_of(path)) for path in SOURCES}
    assert rooms == set(FLOOR_OF)


def test_what_is_loaded() -> None:
    """The same, seen from a running interpreter: also through other packages."""
    script = (
        "import sys\n"
        "import understudy.profiling, understudy.forests, understudy.emulation\n"
        "import understudy.merging, understudy.simulation, understudy.comparison\n"
        "import understudy.reporting, warehouse.catalog\n"
        "assert 'dagster' not in sys.modules\n"
        "import assets.emulation_process, pipelines.cli\n"
        "assert 'dagster' not in sys.modules\n"
        "import pipelines.definitions\n"
        "heavy = {'torch', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_assets_and_pipelines_are_this_repositorys() -> None:
    for package in (assets, pipelines):
        assert package.__file__ is not None
        assert Path(package.__file__).is_relative_to(REPOSITORY)
