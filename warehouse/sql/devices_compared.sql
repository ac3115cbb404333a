-- Each job on every device it was predicted for, the fastest first.
select
    job,
    device,
    fits,
    iteration_time_ns,
    low_ns,
    high_ns,
    min(iteration_time_ns) over (partition by job) / iteration_time_ns as speed_of_fastest,
    round(100 * (coverage_measured + coverage_transferred)) as percent_from_data
from simulated_runtimes
order by job, iteration_time_ns nulls last, device;
