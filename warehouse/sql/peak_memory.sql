-- Where each rank's memory is highest: step and iteration of the peak, and what is in use there.
select
    device,
    job,
    rank,
    arg_max(step, device_bytes) as step,
    arg_max(iteration, device_bytes) as iteration,
    arg_max(allocated_bytes, device_bytes) as allocated_bytes,
    arg_max(reserved_bytes, device_bytes) as reserved_bytes,
    max(device_bytes) as device_bytes
from memory_timeline
group by device, job, rank
order by device, job, rank;
