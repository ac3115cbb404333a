-- Device time of each kernel family, per iteration span and over all ranks.
select
    device,
    job,
    family,
    sum(launch_count) as launches,
    sum(duration_ns * launch_count) as device_time_ns,
    round(100 * sum(duration_ns * launch_count)
          / sum(sum(duration_ns * launch_count)) over (partition by device, job), 1) as percent
from predicted_kernels
group by device, job, family
order by device, job, device_time_ns desc;
