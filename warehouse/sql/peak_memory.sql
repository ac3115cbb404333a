-- Where each rank's memory is highest: step and iteration of the peak, and what is in use there.
select
    device,
    job,
    rank,
    arg_max(step, reserved_bytes) as step,
    arg_max(iteration, reserved_bytes) as iteration,
    arg_max(allocated_bytes, reserved_bytes) as allocated_bytes,
    max(reserved_bytes) as reserved_bytes
from memory_timeline
group by device, job, rank
order by device, job, rank;
