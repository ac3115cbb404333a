"""Simulation: when does everything happen?

`simulate` replays the programs of a job with predicted durations; `engine` has the rules.
"""

from understudy.simulation.simulate import CODE_VERSION, simulate
from understudy.simulation.timeline import RankTimeline, last_repetition
from understudy.simulation.what_if import Stragglers, WhatIf, what_if

__all__ = [
    "CODE_VERSION",
    "RankTimeline",
    "Stragglers",
    "WhatIf",
    "last_repetition",
    "simulate",
    "what_if",
]
