"""Tells the trace what PyTorch's memory is for, and PyTorch's own peaks of it. Standard library.

Only the starts of storages are written: whoever reads the trace knows the blocks. What the script's
own objects say is exact: the parameters, gradients and state of every optimizer at the end of its
steps, and what FSDP gathers and reduces.
"""

import ctypes
import functools
import os
import sys
import time
import weakref

# enum us_memory_role of trace_format.h
_PARAMETER, _GRADIENT, _OPTIMIZER_STATE, _GATHERED_PARAMETER = 1, 2, 3, 4

#: Steps after which an optimizer's state is written; some of it may be made in the second one.
_STATE_STEPS = 2


class Memory:
    def __init__(self, library):
        self.pid = os.getpid()
        self.write_roles = library.understudy_memory_roles
        self.write_roles.argtypes = (
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_uint64,
        )
        self.write_peaks = library.understudy_memory_peaks
        self.write_peaks.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
        self.modules_have_parameters = False
        self.written = weakref.WeakKeyDictionary()  # optimizer -> (times, parameters, states)

    def write(self, role, tensors, began_ns):
        """`tensors` may hold None, and tensors that are not on a GPU."""
        starts = {}
        for tensor in tensors:
            if tensor is not None:
                _add_starts(tensor, starts)
        if starts:
            array = (ctypes.c_uint64 * len(starts))(*starts)
            self.write_roles(array, len(starts), role, began_ns)
        return bool(starts)

    def module_called(self, module):
        """Before the first call of a module that no other module calls."""
        began_ns = time.monotonic_ns()
        if self.write(_PARAMETER, module.parameters(), began_ns):
            self.modules_have_parameters = True

    def step_done(self, optimizer):
        """At the end of every step of an optimizer; gradients may be new ones in each."""
        began_ns = time.monotonic_ns()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.write(_GRADIENT, [p.grad for p in parameters], began_ns)
        times, *sizes = self.written.get(optimizer, (0, 0, 0))
        now = [len(parameters), len(optimizer.state)]
        if times >= _STATE_STEPS and sizes == now:
            return
        self.written[optimizer] = (times + 1, *now)
        # Master weights are copies of a model's parameters that only the optimizer knows.
        own, state = [], []
        kind = sys.modules["torch"].nn.Parameter
        for parameter in parameters:
            is_own = isinstance(parameter, kind) or not self.modules_have_parameters
            (own if is_own else state).append(parameter)
        self.write(_PARAMETER, own, time.monotonic_ns())
        began_ns = time.monotonic_ns()
        _add_tensors(optimizer.state.values(), state)
        self.write(_OPTIMIZER_STATE, state, began_ns)

    def peaks_of(self, device):
        """What PyTorch says of a device since the last time."""
        if os.getpid() != self.pid:
            return
        try:
            stats = sys.modules["torch"].cuda.memory_stats(device)
        except RuntimeError:  # an allocator of the script's own may keep no statistics
            return
        allocated = stats.get("allocated_bytes.all.peak", 0)
        if allocated:
            self.write_peaks(device, allocated, stats["reserved_bytes.all.peak"])

    def peaks(self):
        """What PyTorch says of every device, at the end of the trace."""
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            for device in range(cuda.device_count()):
                self.peaks_of(device)


def _add_starts(tensor, starts):
    """Adds the starts of what a tensor, or the tensors that it wraps (DTensor), lie in."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for inner in (getattr(tensor, name) for name in flatten()[0]):
            if hasattr(inner, "untyped_storage"):  # a DTensor names its mesh as well
                _add_starts(inner, starts)
    elif tensor.is_sparse:
        _add_starts(tensor._indices(), starts)
        _add_starts(tensor._values(), starts)
    elif tensor.is_cuda and str(tensor.layout) == "torch.strided":
        storage = tensor.untyped_storage()
        # The storage of a fake tensor lies nowhere.
        if storage.device.type == "cuda" and storage.data_ptr():
            starts[storage.data_ptr()] = None


def _add_tensors(values, tensors):
    """Adds the tensors in nested lists, tuples and dicts."""
    for value in values:
        if isinstance(value, dict):
            _add_tensors(value.values(), tensors)
        elif isinstance(value, (list, tuple)):
            _add_tensors(value, tensors)
        elif hasattr(value, "untyped_storage"):
            tensors.append(value)


# --- hooks, installed when the script imports the module ---


def patch_statistics(module, memory):
    """Peaks begin anew where the script resets PyTorch's."""
    reset = getattr(module, "reset_peak_memory_stats", None)
    if reset is None:  # torch.accelerator before PyTorch 2.9
        return

    @functools.wraps(reset)
    def write_and_reset(*args, **kwargs):
        if sys.modules["torch.cuda"].is_initialized():
            device = args[0] if args else kwargs.get("device")
            memory.peaks_of(module._get_device_index(device, optional=True))
        return reset(*args, **kwargs)

    module.reset_peak_memory_stats = write_and_reset


def patch_fully_shard(module, memory):
    """FSDP2: parameters that it gathers, gradients before it reduces them."""
    group = getattr(module, "FSDPParamGroup", None)
    if group is None:
        return
    gather, reduce = group._to_unsharded, group.post_backward

    @functools.wraps(gather)
    def gather_and_note(self):
        gather(self)
        if not module.torch.compiler.is_compiling():
            began_ns = time.monotonic_ns()
            memory.write(_GATHERED_PARAMETER, _unsharded(self), began_ns)

    @functools.wraps(reduce)
    def note_and_reduce(self, *unused):
        if not module.torch.compiler.is_compiling():
            began_ns = time.monotonic_ns()
            gradients = [p.grad for p in _unsharded(self)]
            gradients += [getattr(p, "unsharded_accumulated_grad", None) for p in self.fsdp_params]
            memory.write(_GRADIENT, gradients, began_ns)
        reduce(self, *unused)

    group._to_unsharded, group.post_backward = gather_and_note, note_and_reduce


def _unsharded(group):
    whole = (getattr(p, "_unsharded_param", None) for p in group.fsdp_params)
    return [p for p in whole if p is not None]


def patch_flat_parameters(module, memory):
    """FSDP1: parameters that it gathers."""
    handle = getattr(module, "FlatParamHandle", None)
    if handle is None:
        return
    use = handle._use_unsharded_flat_param

    @functools.wraps(use)
    def note_and_use(self, padded_unsharded_flat_param):
        began_ns = time.monotonic_ns()
        memory.write(_GATHERED_PARAMETER, [padded_unsharded_flat_param], began_ns)
        return use(self, padded_unsharded_flat_param)

    handle._use_unsharded_flat_param = note_and_use


def patch_sharded_backward(module, memory):
    """FSDP1: gradients before it reduces them."""
    hook = getattr(module, "_post_backward_hook", None)
    if hook is None:
        return

    @functools.wraps(hook)
    def note_and_reduce(state, handle, *unused):
        began_ns = time.monotonic_ns()
        memory.write(_GRADIENT, [handle.flat_param.grad], began_ns)
        return hook(state, handle, *unused)

    module._post_backward_hook = note_and_reduce
