"""What happens inside a traced rank; the sitecustomize beside it loads it. Standard library."""

# No pathlib: it would be imported into a process that may not want it.
# ruff: noqa: PTH100, PTH105, PTH118, PTH120, PTH123, PTH208

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
import types
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

#: A script with an optimizer that never stepped may be about to use it: steps of the others, or
#: module calls before any step, after which it is not waited for any longer.
_UNSEEN_STEPS = 100
_UNSEEN_CALLS = 2000
#: A marker that did not occur in so many times the wanted iterations never will.
_MARKER_PATIENCE = 10

# enum us_mark of trace_format.h
_STEP, _MARKER, _CALL = 0, 1, 2

_REMAPPED = "cpu:gloo,cuda:nccl"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _load(name, path):
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = types.ModuleType(loader.name)
    loader.exec_module(module)
    return module


# The package uses steps.py as well.
_steps = _load("_understudy_steps", os.path.join(os.path.dirname(_FOLDER), "steps.py"))
_memory = _load("_understudy_memory", os.path.join(_FOLDER, "_understudy_memory.py"))


class _Numbers:
    """Numbers objects in the order of their first use; a new one takes over the number of one that
    is gone, as of an optimizer that a script makes anew for each epoch."""

    def __init__(self):
        self.owners = []
        self.known = {}

    def of(self, thing):
        number = self.known.get(id(thing))
        if number is None or self.owners[number]() is not thing:
            free = [n for n, owner in enumerate(self.owners) if owner() is None]
            number = free[0] if free else len(self.owners)
            self.owners[number : number + 1] = [weakref.ref(thing)]
            self.known[id(thing)] = number
        return number


class _Captured:
    """Numbers of the modules and optimizers whose calls and steps a CUDA graph holds."""

    def __init__(self):
        self.calls, self.steps = [], []


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
        self.marker = environment.get("UNDERSTUDY_MARKER")
        self.marks = 0
        self.markers = 0
        self.optimizers, self.modules = _Numbers(), _Numbers()
        self.steps, self.calls = _steps.StepCounter(), _steps.StepCounter()
        self.unused_optimizers = weakref.WeakSet()
        self.capture = None  # the open one's _Captured
        self.graphs = weakref.WeakKeyDictionary()  # graph -> _Captured
        self.distributed = False
        self.settled = self.asked_for_slot = False
        self.library = ctypes.CDLL(environment["UNDERSTUDY_LIBRARY"])
        self.mark = self.library.understudy_mark
        self.memory = _memory.Memory(self.library)
        self.progress = os.open(self.path(f"progress-{self.rank}"), os.O_CREAT | os.O_RDWR, 0o644)
        # Locked until this process ends, however it does; its children do not inherit the lock.
        self.alive = os.open(self.path(f"alive-{self.rank}"), os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.lockf(self.alive, fcntl.LOCK_EX)
        self.slot = None
        self.module_hook = None
        self.compiles = False
        self.callback = ctypes.CFUNCTYPE(None)(self.marker_ended)
        if self.marker is not None:
            self.library.understudy_on_marker(self.marker.encode(), self.callback)

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
        """After every optimizer step of the process."""
        if os.getpid() != self.pid:
            return
        self.unused_optimizers.discard(optimizer)
        self.memory.step_done(optimizer)
        number = self.optimizers.of(optimizer)
        if self.capture is not None:
            self.capture.steps.append(number)
        else:
            self.stepped(number)

    def stepped(self, number):
        """After a step of that optimizer."""
        self.ended(_STEP, number, self.steps.add(number))

    def call_begins(self, module):
        """Before a call of a module that no other module calls, until an optimizer steps: a loop
        of them has its iterations end here."""
        number = self.modules.of(module)
        if number not in self.calls.steps:
            self.memory.module_called(module)
        if self.capture is not None:
            self.capture.calls.append(number)
        else:
            self.called(number)

    def called(self, number):
        """Before a call of that module."""
        self.ended(_CALL, number, self.calls.iterations)
        self.calls.add(number)

    def marker_ended(self):
        """After each range or mark of the name that the user gave as marker."""
        if os.getpid() == self.pid:
            self.markers += 1
            self.ended(_MARKER, 0, self.markers)

    def ended(self, source, number, iterations):
        """`iterations` have ended, as far as is known now."""
        if self.marker is None or source == _MARKER:
            self.marks = iterations
            os.pwrite(self.progress, struct.pack("<q", iterations), 0)
            if iterations and self.distributed and not self.settled:
                # Whether the watchdog looks before or after DDP lays out its buckets anew would
                # decide when the old ones are freed.
                self.settled = True
                time.sleep(_SETTLE_S)
            if iterations and iterations >= self.warmup and not self.asked_for_slot:
                # Ranks record one after the other where cores are few: host time is measured.
                self.asked_for_slot = True
                self.take_slot()
        self.mark(source, number)
        if self.enough():
            self.end()

    def enough(self):
        wanted = self.warmup + self.iterations
        steps, calls = len(self.steps.steps), len(self.calls.steps)
        if self.marker is not None and not self.markers:
            return max(steps, calls) >= _MARKER_PATIENCE * wanted
        if self.marks < wanted:
            return False
        if self.marker is not None or not self.unused_optimizers:
            return True
        return steps >= _UNSEEN_STEPS or (not steps and calls >= _UNSEEN_CALLS)

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
            f"done-{rank}" in names or f"oom-{rank}.json" in names or self.is_gone(rank)
            for rank in range(self.world_size)
        )

    def is_gone(self, rank):
        """Whether another rank's process has ended without a word, as by os._exit."""
        try:
            alive = os.open(self.path(f"alive-{rank}"), os.O_RDONLY)
        except FileNotFoundError:
            return False  # not started yet
        try:
            fcntl.lockf(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        finally:
            os.close(alive)
        return True

    def end(self, stall_s=None):
        """Ends the rank as if its script had returned, once all ranks have come so far."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        self.library.fflush(None)
        self.memory.peaks()
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
        self.memory.peaks()
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
    initialize = module.Optimizer.__init__

    def initialize_and_note(self, *args, **kwargs):
        initialize(self, *args, **kwargs)
        rank.unused_optimizers.add(self)

    module.Optimizer.__init__ = _like(initialize_and_note, initialize)


def _patch_modules(module, rank):
    """Tells the rank of calls of modules that no other module calls.

    The global hook is there only between such calls, since it would make every call inside slower;
    the end of the outer call puts it back. Once an optimizer has stepped none is needed, and
    torch.compile must not find it in what it compiles.
    """

    def arm():
        if not rank.steps.steps and not rank.compiles:
            rank.module_hook = module.register_module_forward_pre_hook(begins)

    def begins(called, _args):
        rank.module_hook.remove()
        if os.getpid() != rank.pid or rank.steps.steps:
            return
        rank.call_begins(called)
        if not type(called).__module__.startswith("torch.jit"):
            handle = called.register_forward_hook(lambda *_: ended(handle), always_call=True)

    def ended(handle):
        handle.remove()
        arm()

    arm()


def _patch_dynamo(module, rank):
    """A script that compiles something; importing Dynamo, as the profiler does, is not enough."""
    initialize = module.OptimizeContext.__init__

    def initialize_without_hook(self, *args, **kwargs):
        rank.compiles = True
        if rank.module_hook is not None:
            rank.module_hook.remove()
        initialize(self, *args, **kwargs)

    module.OptimizeContext.__init__ = _like(initialize_without_hook, initialize)


def _marker_pattern(marker):
    """The rule of nvtx.c: a number at the end does not count, but "layer12" is not "layer1"."""
    whole = r"(?!\d)" if marker[-1:].isdigit() else ""
    return re.escape(marker) + whole + r"[ #_:.-]*\d*"


def _patch_profiler(module, rank):
    """Ranges of torch.profiler, its steps (ProfilerStep#12) among them, are annotations."""
    name = None if rank.marker is None else _marker_pattern(rank.marker)
    enter, leave = module.record_function.__enter__, module.record_function.__exit__
    annotate = rank.library.understudy_annotate_range

    def enter_and_note(self):
        annotate(str(self.name).encode(), 1)
        return enter(self)

    def leave_and_note(self, *exception):
        result = leave(self, *exception)
        annotate(str(self.name).encode(), 0)
        if name is not None and re.fullmatch(name, str(self.name)):
            rank.marker_ended()
        return result

    module.record_function.__enter__ = _like(enter_and_note, enter)
    module.record_function.__exit__ = _like(leave_and_note, leave)


def _patch_autograd(module, _rank):
    """torch.autograd.grad runs on the calling thread.

    A device thread of autograd may hold the gradients that it hands over a little longer than their
    receiver: which of the two frees them, and when, would differ from run to run, and with it what
    the allocator makes of the next request. Zero-bubble pipeline schedules are built on such calls.
    """
    run = getattr(module, "_engine_run_backward", None)
    if run is None:  # before PyTorch 2.3
        return

    def run_here(outputs, *args, **kwargs):
        if kwargs.get("accumulate_grad", True):  # Tensor.backward: nothing is handed over
            return run(outputs, *args, **kwargs)
        with module.torch.autograd.set_multithreading_enabled(False):
            return run(outputs, *args, **kwargs)

    module._engine_run_backward = _like(run_here, run)


def _patch_graphs(module, rank):
    """Calls of modules and steps of optimizers that a CUDA graph captures happen at its replays."""
    graph = module.CUDAGraph
    capture_begin, capture_end, replay = graph.capture_begin, graph.capture_end, graph.replay

    def begin_and_note(self, *args, **kwargs):
        capture_begin(self, *args, **kwargs)
        rank.capture = rank.graphs.setdefault(self, _Captured())

    def end_and_note(self, *args, **kwargs):
        rank.capture = None
        return capture_end(self, *args, **kwargs)

    def replay_and_note(self, *args, **kwargs):
        captured = rank.graphs.get(self, _Captured())
        if not rank.steps.steps:
            for number in captured.calls:
                rank.called(number)
        replay(self, *args, **kwargs)
        for number in captured.steps:
            rank.stepped(number)

    graph.capture_begin = _like(begin_and_note, capture_begin)
    graph.capture_end = _like(end_and_note, capture_end)
    graph.replay = _like(replay_and_note, replay)


def _asked_by_script(kind, name, rank):
    """Marks the queries that the script makes itself by this method; PyTorch's allocator and NCCL's
    watchdog make others (see stream.c)."""
    query = getattr(kind, name)

    def wrapper(self):
        rank.library.understudy_polling(1)
        try:
            return query(self)
        finally:
            rank.library.understudy_polling(0)

    setattr(kind, name, _like(wrapper, query))


def _patch_streams(module, rank):
    for kind in (module.Stream, module.Event):
        _asked_by_script(kind, "query", rank)


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

    _asked_by_script(module.Work, "is_completed", rank)
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


def _of_memory(patch):
    return lambda module, rank: patch(module, rank.memory)


_PATCHES = {
    "torch.optim.optimizer": _patch_optimizer,
    "torch.cuda.memory": _of_memory(_memory.patch_statistics),
    "torch.accelerator.memory": _of_memory(_memory.patch_statistics),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": _of_memory(_memory.patch_fully_shard),
    "torch.distributed.fsdp._flat_param": _of_memory(_memory.patch_flat_parameters),
    "torch.distributed.fsdp._runtime_utils": _of_memory(_memory.patch_sharded_backward),
    "torch.nn.modules.module": _patch_modules,
    "torch.autograd.graph": _patch_autograd,
    "torch.autograd.profiler": _patch_profiler,
    "torch.cuda.graphs": _patch_graphs,
    "torch.cuda.streams": _patch_streams,
    "torch._dynamo.eval_frame": _patch_dynamo,
    "torch.distributed.distributed_c10d": _patch_distributed,
}


def _patch_exec(rank):
    """A rank that replaces its program, as scripts do to set variables that Python reads at its
    start, stays the rank: the new program finds what this one found."""
    execute, execute_in = os.execv, os.execve

    def execve(path, argv, env):
        if os.getpid() == rank.pid and "UNDERSTUDY_CONTROL" in env:
            env = dict(env)
            env.pop("UNDERSTUDY_RANK_PID", None)
            paths = [_FOLDER, env["PYTHONPATH"]] if env.get("PYTHONPATH") else [_FOLDER]
            env["PYTHONPATH"] = os.pathsep.join(paths)
        execute_in(path, argv, env)

    def execv(path, argv):
        os.execve(path, argv, os.environ)

    os.execv, os.execve = _like(execv, execute), _like(execve, execute_in)


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
    _patch_exec(rank)
    sys.meta_path.insert(0, _Finder(rank))
