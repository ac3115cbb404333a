"""comparison: how far from reality? So far one scope: the measured time of one iteration.

What the user measured is kept as `jobs/<job>/<device>/measured.json`, so that every later
simulation of the job on that device can be compared with it again.
"""

from understudy.comparison.step import CODE_VERSION, compare, load_measured, save_measured

__all__ = ["CODE_VERSION", "compare", "load_measured", "save_measured"]
