"""Runs as the user's own sitecustomize in the ranks of a script case: PyTorch's own memory figures
at the end of a rank, however it ends, go to a file. Standard library only."""

import atexit
import gc
import json
import os
import sys
from pathlib import Path


def _storages(thing):
    """Starts of the storages of a tensor (of the local one of a DTensor), or of nested ones."""
    torch = sys.modules["torch"]
    if isinstance(thing, dict):
        return set().union(*map(_storages, thing.values()))
    thing = getattr(thing, "_local_tensor", thing)
    if isinstance(thing, torch.Tensor) and thing.is_cuda:
        return {thing.untyped_storage().data_ptr()} - {0}  # a shard may be empty
    return set()


def _parameters_of_modules():
    kind = sys.modules["torch"].nn.Module
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    return set().union(*(_storages(p) for module in modules for p in module.parameters()))


def _held():
    """Bytes of the allocator's blocks that hold what the script's optimizers know."""
    torch = sys.modules["torch"]
    blocks = {
        block["address"]: block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    known = {"parameters": set(), "gradients": set(), "optimizer_state": set()}
    for optimizer in gc.get_objects():
        # Its class and not isinstance, which would wake lazy objects of other libraries.
        if not issubclass(type(optimizer), torch.optim.Optimizer):
            continue
        known["optimizer_state"] |= _storages(dict(optimizer.state))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known["gradients"] |= _storages(parameter.grad)
                if isinstance(parameter, torch.nn.Parameter):
                    known["parameters"] |= _storages(parameter)
                else:
                    # Master weights: the optimizer's own copies of what modules hold.
                    known["optimizer_state"] |= _storages(parameter)
                    known["parameters"] |= _parameters_of_modules()
    return {name: sum(blocks[start] for start in starts) for name, starts in known.items()}


def _write() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    figures = {
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "held": _held(),
    }
    folder = Path(os.environ["SCRIPT_CASE_PEAKS"])
    (folder / f"peaks-{os.environ['RANK']}.json").write_text(json.dumps(figures))


def _exit(code: int) -> None:
    _write()
    _real_exit(code)


# The emulation ends a rank by os._exit once enough iterations are recorded.
_real_exit = os._exit
if "RANK" in os.environ and "SCRIPT_CASE_PEAKS" in os.environ:
    os._exit = _exit
    atexit.register(_write)
