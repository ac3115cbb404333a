"""Resources of the assets."""

from __future__ import annotations

import dagster as dg

#: Seconds in which an interrupted emulation ends its ranks.
_END_RANKS_SECONDS = 20

RESOURCES: dict[str, object] = {
    "pipes": dg.PipesSubprocessClient(termination_timeout_seconds=_END_RANKS_SECONDS),
}
