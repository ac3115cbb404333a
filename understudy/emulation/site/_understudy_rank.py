"""What happens inside a traced rank; the sitecustomize beside it loads it. Standard library."""

# No pathlib: it would be imported into a process that may not want it.
# ruff: noqa: PTH105, PTH118, PTH123, PTH208

import atexit
import ctypes
import fcntl
import importlib.abc
import importlib.machinery
import json
import os
import re
import struct
import sys
import time
import traceback
import weakref

_POLL_S = 0.02
#: A waiting rank goes on when no rank has recorded an iteration for so long: the others may be
#: blocked on this one.
_STALL_S = 5.0
#: Ranks that ran out of memory wait at most so long without any progress for the others.
_END_STALL_S = 30.0

#: NCCL's watchdog looks every 100 ms for collectives that ended; what they held is freed at the
#: next collective after that.
_SETTLE_S = 0.3

_REMAPPED = "cpu:gloo,cuda:nccl"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class _Rank:
    def __init__(self):
        environment = os.environ
        self.rank = int(environment["RANK"])
        self.world_size = int(environment.get("WORLD_SIZE", "1"))
        self.control = environment["UNDERSTUDY_CONTROL"]
        self.warmup = int(environment["UNDERSTUDY_WARMUP"])
        self.iterations = int(environment["UNDERSTUDY_ITERATIONS"])
        self.slots = int(environment["UNDERSTUDY_SLOTS"])
        self.pid = os.getpid()
        self.marks = 0
        self.optimizer = None
        self.distributed = False
        self.library = ctypes.CDLL(environment["UNDERSTUDY_LIBRARY"])
        self.mark_iteration = self.library.understudy_mark_iteration
        self.progress = os.open(self.path(f"progress-{self.rank}"), os.O_CREAT | os.O_RDWR, 0o644)
        self.slot = None

    def path(self, name):
        return os.path.join(self.control, name)

    def write(self, name, content):
        """Atomically; a full disk must not hide the script's own error."""
        temporary = self.path(f".{name}.tmp")
        try:
            with open(temporary, "w") as file:
                json.dump(content, file)
            os.replace(temporary, self.path(name))
        except OSError as error:
            sys.stderr.write(f"understudy: rank {self.rank} cannot write {name}: {error}\n")

    # --- iterations ---

    def step_done(self, optimizer, *_):
        """After every optimizer step of the process; the first optimizer counts iterations."""
        if os.getpid() != self.pid:
            return
        known = self.optimizer() if self.optimizer else None
        if known is None:
            self.optimizer = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        self.marks += 1
        os.pwrite(self.progress, struct.pack("<q", self.marks), 0)
        if self.marks == 1 and self.distributed:
            # Whether the watchdog looks before or after DDP lays out its buckets anew would decide
            # when the old ones are freed.
            time.sleep(_SETTLE_S)
        if self.marks == self.warmup:
            # Ranks record one after the other where cores are few: host time is measured.
            self.take_slot()
        self.mark_iteration()
        if self.marks >= self.warmup + self.iterations:
            self.end()

    def states(self):
        """How far all ranks are: changes whenever any of them gets on."""
        counts = []
        for rank in range(self.world_size):
            try:
                with open(self.path(f"progress-{rank}"), "rb") as file:
                    counts.append(file.read(8))
            except FileNotFoundError:
                counts.append(b"")
        return counts

    def take_slot(self):
        slots = [os.open(self.path(f"slot-{i}"), os.O_CREAT | os.O_RDWR) for i in range(self.slots)]
        seen, since = None, time.monotonic()
        while self.slot is None:
            for slot in slots:
                try:
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                self.slot = slot
                break
            else:
                states = self.states()
                if states != seen:
                    seen, since = states, time.monotonic()
                elif time.monotonic() - since > _STALL_S:
                    break
                time.sleep(_POLL_S)
        for slot in slots:
            if slot != self.slot:
                os.close(slot)

    # --- the end ---

    def others_ended(self):
        names = set(os.listdir(self.control))
        if any(name.startswith("error-") for name in names):
            return True
        return all(
            f"done-{rank}" in names or f"oom-{rank}.json" in names
            for rank in range(self.world_size)
        )

    def end(self, stall_s=None):
        """Ends the rank as if its script had returned, once all ranks have come so far."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        self.library.fflush(None)
        self.library.understudy_trace_close()
        if self.slot is not None:
            os.close(self.slot)
        self.write(f"done-{self.rank}", {"marks": self.marks})
        seen, since = None, time.monotonic()
        while not self.others_ended():
            if stall_s is not None:
                states = self.states()
                if states != seen:
                    seen, since = states, time.monotonic()
                elif time.monotonic() - since > stall_s:
                    break
            time.sleep(_POLL_S)
        os._exit(0)

    def at_exit(self):
        """The script ended by itself. Registered first, so it runs last."""
        if os.getpid() != self.pid:
            return
        self.library.understudy_trace_close()
        if self.slot is not None:
            os.close(self.slot)
        self.write(f"done-{self.rank}", {"marks": self.marks})

    def uncaught(self, kind, value, trace):
        """sys.excepthook until the script sets its own."""
        sys.__excepthook__(kind, value, trace)
        if os.getpid() != self.pid or issubclass(kind, KeyboardInterrupt):
            return
        names = [f"{c.__module__}.{c.__qualname__}" for c in kind.__mro__]
        text = "".join(traceback.format_exception(kind, value, trace))
        if any(re.fullmatch(r"torch\..*OutOfMemoryError", name) for name in names):
            content = {
                "rank": self.rank,
                "time_ns": time.time_ns(),
                "iteration": self.marks,
                "requested_bytes": _requested_bytes(str(value)),
                "message": str(value),
            }
            self.write(f"oom-{self.rank}.json", content)
            self.end(_END_STALL_S)
        content = {
            "rank": self.rank,
            "time_ns": time.time_ns(),
            "type": kind.__name__,
            "message": str(value),
            "traceback": text,
        }
        self.write(f"error-{self.rank}.json", content)


def _requested_bytes(message):
    """The request in PyTorch's message, to its printed precision; None when it says none."""
    match = re.search(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", message)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


# --- hooks into PyTorch, installed when the script imports it ---


def _patch_optimizer(module, rank):
    module.register_optimizer_step_post_hook(rank.step_done)


def _patch_distributed(module, rank):
    """Object collectives, barriers and broadcasts of Python objects carry values that the script
    needs; on an emulated device values do not exist, so they go over gloo."""
    remapped = weakref.WeakSet()
    get_backend = module.get_backend
    barrier = module.barrier

    def with_gloo(create, position):
        """`create` with backend argument number `position`: where it is nccl, gloo beside it."""

        def wrapper(*args, **kwargs):
            arguments = list(args)
            positional = len(arguments) > position
            backend = arguments[position] if positional else kwargs.get("backend")
            asked = backend is not None and str(backend).lower() == "nccl"
            inherited = backend is None and create is new_group
            if asked and positional:
                arguments[position] = _REMAPPED
            elif asked:
                kwargs["backend"] = _REMAPPED
            created = create(*arguments, **kwargs)
            rank.distributed = True
            # init_process_group returns None: its group is the default one.
            group = created if create is new_group else module._get_default_group()
            over_gloo = asked or (inherited and module._get_default_group() in remapped)
            if over_gloo and isinstance(group, module.ProcessGroup):
                remapped.add(group)
            return created

        return _like(wrapper, create)

    init_process_group = module.init_process_group
    new_group = module.new_group

    def get_backend_as_asked(group=None):
        if (group or module._get_default_group()) in remapped:
            return module.Backend("nccl")
        return get_backend(group)

    def barrier_of_both(group=None, async_op=False, device_ids=None, timeout=None):
        actual = group or module._get_default_group()
        if actual not in remapped or module._rank_not_in_group(actual):
            return barrier(group, async_op, device_ids, timeout)
        options = module.BarrierOptions()
        options.device = module.torch.device("cpu")
        actual.barrier(options).wait()
        devices = device_ids or [module.torch.cuda.current_device()]
        return barrier(group, async_op, devices, timeout)

    def on_host(exchange):
        """`exchange` of objects with arguments (objects, rank, group, device): a caller that names
        a GPU, as pipeline stages do for their shapes, would receive no values there."""

        def wrapper(*args, **kwargs):
            group = args[2] if len(args) > 2 else kwargs.get("group")
            if (group or module._get_default_group()) in remapped:
                host = module.torch.device("cpu")
                if len(args) > 3:
                    args = (*args[:3], host, *args[4:])
                else:
                    kwargs["device"] = host
            return exchange(*args, **kwargs)

        return _like(wrapper, exchange)

    module.init_process_group = with_gloo(init_process_group, 0)
    module.new_group = with_gloo(new_group, 2)
    module.get_backend = _like(get_backend_as_asked, get_backend)
    module.barrier = _like(barrier_of_both, barrier)
    for name in ("send_object_list", "recv_object_list", "broadcast_object_list"):
        setattr(module, name, on_host(getattr(module, name)))

    def destroy():
        # gloo's threads abort a process that ends with them running.
        if module.is_initialized():
            module.destroy_process_group()

    atexit.register(destroy)


def _like(wrapper, function):
    wrapper.__name__ = function.__name__
    wrapper.__qualname__ = function.__qualname__
    wrapper.__doc__ = function.__doc__
    wrapper.__module__ = function.__module__
    wrapper.__wrapped__ = function
    return wrapper


_PATCHES = {
    "torch.optim.optimizer": _patch_optimizer,
    "torch.distributed.distributed_c10d": _patch_distributed,
}


class _Loader(importlib.abc.Loader):
    """Runs a patch once its module has been executed."""

    def __init__(self, loader, patch, rank):
        self.loader, self.patch, self.rank = loader, patch, rank

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.patch(module, self.rank)


class _Finder(importlib.abc.MetaPathFinder):
    """Leaves sys.meta_path once every patch is installed."""

    def __init__(self, rank):
        self.rank = rank
        self.missing = dict(_PATCHES)

    def find_spec(self, fullname, path=None, target=None):
        patch = self.missing.pop(fullname, None)
        if patch is None:
            return None
        if not self.missing:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, patch, self.rank)
        return spec


def start():
    rank = _Rank()
    stem = os.path.join(os.environ["UNDERSTUDY_TRACES"], f"rank-{rank.rank}")
    error = rank.library.understudy_trace_open(stem.encode())
    if error:
        reason = f"cannot write the trace {stem}.records: {os.strerror(error)}"
        rank.write(f"error-{rank.rank}.json", {"rank": rank.rank, "time_ns": 0, "reason": reason})
        sys.stderr.write(f"understudy: {reason}\n")
        os._exit(1)
    atexit.register(rank.at_exit)
    sys.excepthook = rank.uncaught
    sys.meta_path.insert(0, _Finder(rank))
