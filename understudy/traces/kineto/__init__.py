"""Reads measured traces of the PyTorch profiler (Kineto), of NVIDIA and AMD GPUs, clean or not."""

from understudy.traces.kineto.parquet import load_trace, write_trace
from understudy.traces.kineto.reader import read_kineto, read_kineto_folder
from understudy.traces.kineto.records import (
    Device,
    Dropped,
    KinetoTrace,
    KinetoTraces,
    Note,
    Problem,
    TraceHeader,
)

__all__ = [
    "Device",
    "Dropped",
    "KinetoTrace",
    "KinetoTraces",
    "Note",
    "Problem",
    "TraceHeader",
    "load_trace",
    "read_kineto",
    "read_kineto_folder",
    "write_trace",
]
