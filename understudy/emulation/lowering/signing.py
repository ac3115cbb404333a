"""Numbers the distinct operations of one rank: what a record does, and how much it touches."""

from __future__ import annotations

from collections.abc import Callable

from understudy import kernels
from understudy.emulation.memory import LiveBlocks
from understudy.kernels import Signature
from understudy.traces.interceptor import Api, CopyKind, RankTrace


class Signatures:
    """The signatures of a rank in the order of their first use. `blocks` is the memory at the
    moment of the call that is asked for; the caller keeps it up to date."""

    def __init__(self, trace: RankTrace) -> None:
        self.found: list[Signature] = []
        self.blocks = LiveBlocks()
        self._trace = trace
        self._numbers: dict[Signature, int] = {}
        self._launches: dict[int, list[tuple[tuple[tuple[int, int | None], ...], int]]] = {}
        self._memo: dict[tuple, int] = {}

    def _number(self, signature: Signature) -> int:
        number = self._numbers.get(signature)
        if number is None:
            number = self._numbers[signature] = len(self.found)
            self.found.append(signature)
        return number

    def memoized(self, key: tuple, make: Callable[[], Signature]) -> int:
        """The number of `make()`, which equal keys have in common."""
        number = self._memo.get(key)
        if number is None:
            number = self._memo[key] = self._number(make())
        return number

    def launch(self, definition: int) -> int:
        """A launch's signature depends on its definition and on the blocks its pointers meet."""
        find = self.blocks.find
        for known, number in self._launches.get(definition, ()):
            if all(find(pointer) == size for pointer, size in known):
                return number
        launch = self._trace.launches[definition]
        kernel = self._trace.kernels[launch.kernel]
        looked_up: dict[int, int | None] = {}

        def find_block(pointer: int) -> int | None:
            looked_up[pointer] = size = find(pointer)
            return size

        number = self._number(
            kernels.signature_of_launch(
                "cudaLaunchKernel",
                kernel.name,
                launch.grid,
                launch.block,
                kernel.static_shared_bytes + launch.dynamic_shared_bytes,
                kernel.registers,
                launch.arguments,
                kernel.parameters,
                find_block,
            )
        )
        self._launches.setdefault(definition, []).append((tuple(looked_up.items()), number))
        return number

    def library_call(self, api: int, definition: int) -> int:
        """A call of cuBLAS, cuDNN or another library that has one signature by its definition."""

        def make() -> Signature:
            if api == Api.GEMM:
                return kernels.signature_of_gemm(self._trace.gemms[definition])
            if api == Api.DNN:
                return kernels.signature_of_dnn(self._trace.dnns[definition])
            return kernels.signature_of_library(self._trace.libraries[definition])

        return self.memoized((api, definition), make)

    def copy(self, kind: CopyKind, size_bytes: int, pinned: bool) -> int:
        """A copy; `pinned`: its host side is page-locked."""
        key = ("copy", kind, size_bytes, pinned)
        return self.memoized(
            key, lambda: kernels.signature_of_copy(kind.name.lower(), size_bytes, pinned)
        )

    def memset(self, size_bytes: int) -> int:
        """A memset."""
        key = ("memset", size_bytes)
        return self.memoized(key, lambda: kernels.signature_of_memset(size_bytes))
