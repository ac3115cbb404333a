-- The ten kernels of each job that take most of its device time, and where the estimate is from.
select
    device,
    job,
    name,
    dtype,
    launch_count,
    duration_ns,
    duration_ns * launch_count as device_time_ns,
    duration_ns / nullif(roofline_ns, 0) as times_roofline,
    estimate_source,
    extrapolated
from predicted_kernels
qualify row_number() over (
    partition by device, job order by duration_ns * launch_count desc, signature
) <= 10
order by device, job, device_time_ns desc;
