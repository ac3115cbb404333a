-- The longest pauses of each stream between two ops of the simulated iteration.
with paused as (
    select
        device,
        job,
        rank,
        stream,
        op,
        start_ns - lag(end_ns) over (
            partition by device, job, rank, stream order by start_ns, op
        ) as idle_ns
    from simulated_events
)
select device, job, rank, stream, op as next_op, idle_ns
from paused
where idle_ns > 0
order by idle_ns desc, device, job, rank, stream, op
limit 20;
