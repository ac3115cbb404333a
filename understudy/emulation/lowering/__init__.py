"""Lowers the API calls of one rank to ops that a simulator replays.

The rules are those of CUDA and NCCL, as far as they order work:

* Events become dependencies: a wait or synchronization refers to the op that was last on the
  event's stream when it was last recorded (cudaEventRecord captures at call time; a later record
  does not move an earlier wait; an event never recorded is a no-op).
* The legacy default stream and blocking streams wait for each other (CUDA, "Stream synchronization
  behavior"); that becomes `stream_wait` ops, only where something new was issued. Each thread has
  a per-thread default stream, which is a blocking one. Priorities order nothing: which of two
  streams' blocks the hardware prefers is not modelled.
* Blocking copies: host to device from pageable memory waits for the stream before the copy is
  queued; the other host copies wait until the copy has ended; device to device does not wait. Of
  asynchronous copies only those from the device to pageable memory wait (CUDA, "API synchronization
  behavior"). Copies within the host are host time. Host functions of a stream take no time there.
* Queries are host time; a loop of them becomes one host wait.
* Graphs: captures.py. NCCL: nccl.py.

Host time is the time between the calls of the kept threads, in capture order. Threads that only
poll (NCCL's watchdog and heartbeat) or only allocate host memory run beside the program: they are
dropped. Calls that become no op give their host time to the next op.
"""

from understudy.emulation.lowering.lower import lower
from understudy.emulation.lowering.nccl import Place
from understudy.emulation.lowering.ops import (
    FIRST_PRIVATE_STREAM,
    HOST_JOINS,
    NO_DEPENDENCY,
    NO_GRAPH,
    NO_SIGNATURE,
    LoweredRank,
    Part,
)
from understudy.emulation.lowering.threads import count_events, host_gaps, kept_threads

__all__ = [
    "FIRST_PRIVATE_STREAM",
    "HOST_JOINS",
    "NO_DEPENDENCY",
    "NO_GRAPH",
    "NO_SIGNATURE",
    "LoweredRank",
    "Part",
    "Place",
    "count_events",
    "host_gaps",
    "kept_threads",
    "lower",
]
