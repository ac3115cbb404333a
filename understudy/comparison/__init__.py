"""comparison: how far from reality?

What the user measured, the time of an iteration or a trace of it, is kept as
`jobs/<job>/<device>/measured.json`, so that every later simulation of the job on that device can be
compared with it again. `replay` puts the simulation itself to the test.
"""

from understudy.comparison.errors import CODE_VERSION, compare
from understudy.comparison.measurement import (
    Measurement,
    load_measured,
    of_run,
    save_measured,
)
from understudy.comparison.summary import summary

__all__ = [
    "CODE_VERSION",
    "Measurement",
    "compare",
    "load_measured",
    "of_run",
    "save_measured",
    "summary",
]
