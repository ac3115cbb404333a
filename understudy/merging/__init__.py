"""Merging: the traces of all ranks become one job.

Collectives are compared across ranks before anything is simulated, signatures are numbered for
the whole job, and ranks that do the same share one program.
"""

from understudy.merging.collectives import check_collectives
from understudy.merging.merge import CODE_VERSION, merge

__all__ = ["CODE_VERSION", "check_collectives", "merge"]
