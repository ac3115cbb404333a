"""C++ names as people read them."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    runtime = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    runtime.__cxa_demangle.restype = ctypes.c_void_p
    runtime.__cxa_demangle.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_int),
    ]
    c = ctypes.CDLL(None)
    c.free.argtypes = [ctypes.c_void_p]
    return runtime, c


@cache
def demangle(mangled: str) -> str:
    """The demangled form of `mangled`; names that are not mangled come back as they are."""
    if not mangled.startswith("_Z"):
        return mangled
    runtime, c = _libraries()
    status = ctypes.c_int(0)
    pointer = runtime.__cxa_demangle(mangled.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return mangled
    try:
        text = ctypes.string_at(pointer).decode(errors="replace")
    finally:
        c.free(pointer)
    return text if status.value == 0 else mangled
