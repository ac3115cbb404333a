"""The signature of a kernel launch."""

from __future__ import annotations

from collections.abc import Sequence

from understudy.kernels.arguments import FindBlock, Launch, decode, parameters_tuple
from understudy.kernels.names import display_name, dtype_of, family_of, kernel_version_of
from understudy.kernels.signature import Signature, sorted_features


def signature_of_launch(
    api: str,
    mangled: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_memory_bytes: int,
    registers: int,
    arguments: bytes,
    parameters: Sequence[tuple[int, int]],
    find_block: FindBlock,
) -> Signature:
    """Signature of one launch.

    `arguments` are the argument bytes, `parameters` the (offset, size) of each parameter in them;
    `find_block` maps an address to the bytes of the live tensor block that holds it, None when
    there is none. Equal launches on equal tensor sizes give equal signatures; addresses do not
    enter. Unknown kernels and layouts are decoded generically; nothing is raised.
    """
    name = display_name(mangled)
    launch = Launch(
        name,
        (int(grid[0]), int(grid[1]), int(grid[2])),
        (int(block[0]), int(block[1]), int(block[2])),
        bytes(arguments),
        parameters_tuple(parameters),
        find_block,
    )
    decoded = decode(launch)
    return Signature(
        api,
        name,
        decoded.family or family_of(name),
        launch.grid,
        launch.block,
        int(shared_memory_bytes),
        int(registers),
        dtype_of(name),
        kernel_version_of(name),
        sorted_features(decoded.features),
        int(decoded.tensor_bytes),
    )
