"""Emulation: what a job would ask of its GPUs, found by running its script on emulated ones."""

from understudy.emulation.launcher import Emulation, Progress, emulate
from understudy.emulation.results import load_emulation, save_emulation

__all__ = ["Emulation", "Progress", "emulate", "load_emulation", "save_emulation"]
