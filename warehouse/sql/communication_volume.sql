-- Calls and bytes of each collective on each communicator of the job.
select
    r.device,
    r.job,
    c.communicator,
    c.description,
    len(c.members) as members,
    p.kind,
    p.dtype,
    count(*) as calls,
    sum(p.size_bytes) as size_bytes
from ranks r
join collective_parts p using (device, job, program)
join communicators c
    on c.device = r.device and c.job = r.job
    and c.communicator = r.communicator_map[p.communicator_local]
group by all
order by size_bytes desc, r.device, r.job, c.communicator, p.kind, p.dtype;
