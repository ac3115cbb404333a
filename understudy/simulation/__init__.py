"""Simulation: when does everything happen?

`simulate` replays the programs of a job with predicted durations; `engine` has the rules.
"""

from understudy.simulation.simulate import CODE_VERSION, simulate
from understudy.simulation.timeline import RankTimeline, last_repetition

__all__ = ["CODE_VERSION", "RankTimeline", "last_repetition", "simulate"]
