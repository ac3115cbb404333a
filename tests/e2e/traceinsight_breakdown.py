"""Prints as JSON what Holistic Trace Analysis says of a folder of traces, rank by rank.

Run by test_export.py in a process of its own, with the packages of traceinsight.txt on its path.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from itertools import pairwise
from typing import Any


def main(folder: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    from hta.trace_analysis import TraceAnalysis  # pyright: ignore[reportMissingImports]

    analysis = TraceAnalysis(trace_dir=folder)
    breakdown = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    found: dict[int, dict[str, Any]] = {}
    for rank in sorted(analysis.t.traces):
        row = breakdown.loc[rank]
        graph, _ = analysis.critical_path_analysis(rank, annotation="ProfilerStep", instance_id=0)
        edges = [graph.edges[edge]["object"] for edge in pairwise(graph.critical_path_nodes)]
        found[rank] = {
            "span_us": float(row["kernel_time(us)"]),
            "compute_us": float(row["compute_time(us)"]),
            "idle_us": float(row["idle_time(us)"]),
            "overlap_percent": float(overlap.loc[rank, "comp_comm_overlap_pctg"]),
            "critical_path_us": float(sum(edge.weight for edge in edges)),
        }
    sys.stdout.write("\n" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
