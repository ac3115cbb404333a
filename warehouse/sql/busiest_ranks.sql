-- Iteration time of each rank, the slowest first, with what its device does meanwhile.
select
    device,
    job,
    r.rank,
    r.iteration_time_ns,
    r.breakdown_ns.compute as compute_ns,
    r.breakdown_ns.exposed_communication as exposed_communication_ns,
    r.breakdown_ns.host_idle as host_idle_ns,
    r.peak_memory_bytes
from (select device, job, unnest(ranks) as r from simulated_runtimes)
order by device, job, r.iteration_time_ns desc, r.rank;
