"""Simulation: when does everything happen?

`simulate` replays the programs of a job with predicted durations; `engine` has the rules.
"""

from understudy.simulation.simulate import CODE_VERSION, simulate

__all__ = ["CODE_VERSION", "simulate"]
