"""Measured traces, replayed: what the simulation makes of durations that are known to be true."""

from understudy.comparison.replay.executed import add_execution_traces
from understudy.comparison.replay.fidelity import CollectiveScore, Fidelity, StepScore, replay
from understudy.comparison.replay.from_kineto import measured_run, read_traces
from understudy.comparison.replay.records import MeasuredRank, MeasuredRun

__all__ = [
    "CollectiveScore",
    "Fidelity",
    "MeasuredRank",
    "MeasuredRun",
    "StepScore",
    "add_execution_traces",
    "measured_run",
    "read_traces",
    "replay",
]
