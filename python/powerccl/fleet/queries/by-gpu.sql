-- Runs, hours and energy of each GPU. Its number is the driver's.
SELECT
    g.host AS node,
    max(g.gpu_index) AS gpu_number,
    g.gpu AS gpu_uuid,
    count(*) AS runs,
    sum(r.wall_s) / 3600 AS gpu_hours,
    sum(coalesce(g.joules, g.joules_at_least)) / 3600000 AS kwh,
    sum(CASE WHEN g.joules IS NULL THEN 1 ELSE 0 END) AS runs_not_whole,
    sum(r.working_s * r.exposed_pct) / nullif(sum(CASE WHEN r.exposed_pct IS NULL THEN 0 ELSE r.working_s END), 0) AS exposed_share_pct
FROM chosen_gpus AS g
INNER JOIN chosen AS r ON g.run = r.run
GROUP BY g.host, g.gpu
ORDER BY kwh DESC, gpu_hours DESC, node, gpu_uuid
