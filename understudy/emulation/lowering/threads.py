"""Which threads belong to the program, and the host time between its calls."""

from __future__ import annotations

import numpy as np

from understudy.traces.interceptor import Api, RankTrace

_POLLING_THREADS = ("pt_nccl_",)
#: Device work of one process.
DEVICE_WORK = (
    Api.LAUNCH_KERNEL,
    Api.GEMM,
    Api.DNN,
    Api.LIBRARY,
    Api.MEMCPY,
    Api.MEMSET,
    Api.GRAPH_LAUNCH,
)
#: Calls that make a thread part of the program.
_WORK = (
    *DEVICE_WORK,
    Api.COLLECTIVE,
    Api.SEND,
    Api.RECV,
    Api.STREAM_WAIT_EVENT,
    Api.EVENT_RECORD,
    Api.EVENT_SYNCHRONIZE,
    Api.STREAM_SYNCHRONIZE,
    Api.DEVICE_SYNCHRONIZE,
    Api.ITERATION,
)


def kept_threads(trace: RankTrace) -> set[int]:
    """Ids of the threads that belong to the program."""
    records = trace.records
    working = set(np.unique(records["thread"][np.isin(records["api"], _WORK)]).tolist())
    return {
        thread.id
        for thread in trace.threads.values()
        if thread.is_main or (thread.id in working and not thread.name.startswith(_POLLING_THREADS))
    }


def count_events(trace: RankTrace) -> int:
    """CUDA and NCCL calls of the program, as far as they are its own decision: NCCL creates an
    event when its cache of them is empty, and which thread frees a tensor last depends on the
    watchdog, so creation of events and tensors is not counted; nor is what only traces say."""
    uncounted = [
        Api.EVENT_CREATE,
        Api.EVENT_DESTROY,
        Api.TENSOR_ALLOC,
        Api.TENSOR_FREE,
        Api.MEMORY_ROLE,
        Api.MEMORY_PEAKS,
    ]
    counted = ~np.isin(trace.records["api"], uncounted)
    return int((counted & np.isin(trace.records["thread"], sorted(kept_threads(trace)))).sum())


def host_gaps(records: np.ndarray, overhead_ns: int) -> np.ndarray:
    """Host time (ns) before each record: since the previous call returned, less the recording."""
    begin = records["begin_ns"].astype(np.int64)
    end = np.maximum.accumulate(begin + records["inside_ns"].astype(np.int64))
    gaps = np.zeros(len(records), np.int64)
    gaps[1:] = np.maximum(begin[1:] - end[:-1] - overhead_ns, 0)
    return gaps
