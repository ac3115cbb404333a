"""Runs inside the user's Python when a job is emulated: standard library only, no understudy.

Python imports it at start because its folder leads PYTHONPATH. In a rank's main process it starts
the interceptor's trace, marks iterations by a global optimizer hook and ends the rank once enough
are recorded. In every other process it does nothing. In both cases the user's own `sitecustomize`
runs as if this one were not there.

The environment, set by understudy/emulation/launcher.py:
    UNDERSTUDY_LIBRARY     path of libunderstudy.so
    UNDERSTUDY_TRACES      folder of the traces
    UNDERSTUDY_CONTROL     folder through which ranks and launcher tell each other how far they are:
                           progress-<rank> (8 bytes: marks), done-<rank>, oom-<rank>.json,
                           error-<rank>.json, slot-<i> and alive-<rank> (locks)
    UNDERSTUDY_WARMUP, UNDERSTUDY_ITERATIONS, UNDERSTUDY_SLOTS
    UNDERSTUDY_RANK_PID    set here: the process that is traced; its children are not
"""

# No pathlib: it would be imported into a process that may not want it.
# ruff: noqa: PTH100, PTH118, PTH120

import importlib.machinery
import importlib.util
import os
import sys
import types

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _hide():
    """Removes this folder from the search paths of this process and of its children."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _FOLDER]


def _chain():
    """Runs the user's own sitecustomize under its own name."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _start_rank():
    """Begins the trace of this rank."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [p for p in paths if os.path.abspath(p or ".") != _FOLDER]
    if kept and kept != [""]:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
    os.environ["UNDERSTUDY_RANK_PID"] = str(os.getpid())
    path = os.path.join(_FOLDER, "_understudy_rank.py")
    loader = importlib.machinery.SourceFileLoader("_understudy_rank", path)
    module = types.ModuleType(loader.name)
    module.__file__ = path
    loader.exec_module(module)
    module.start()


_hide()
_is_rank = "RANK" in os.environ and "UNDERSTUDY_CONTROL" in os.environ
if _is_rank and "UNDERSTUDY_RANK_PID" not in os.environ:
    _start_rank()
_chain()
