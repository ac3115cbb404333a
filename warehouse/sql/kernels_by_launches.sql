-- Launches of each kernel per rank, from the merged programs.
select
    r.device,
    r.job,
    r.rank,
    s.family,
    s.name,
    count(*) as launches
from ranks r
join events e using (device, job, program)
join signatures s using (device, job, signature)
group by all
order by r.device, r.job, r.rank, launches desc, s.family, s.name;
