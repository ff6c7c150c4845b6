-- Runs, hours and energy of each node's GPUs.
SELECT
    g.node AS node,
    count(*) AS runs,
    sum(g.gpus * r.wall_s) / 3600 AS gpu_hours,
    sum(g.joules_known) / 3600000 AS kwh,
    sum(CASE WHEN g.gpus_not_whole > 0 THEN 1 ELSE 0 END) AS runs_not_whole,
    sum(g.gpus * r.working_s * r.exposed_pct) / nullif(sum(CASE WHEN r.exposed_pct IS NULL THEN 0 ELSE g.gpus * r.working_s END), 0) AS exposed_share_pct
FROM (
    SELECT
        host AS node,
        run,
        count(*) AS gpus,
        sum(coalesce(joules, joules_at_least)) AS joules_known,
        sum(CASE WHEN joules IS NULL THEN 1 ELSE 0 END) AS gpus_not_whole
    FROM chosen_gpus
    GROUP BY host, run
) AS g
INNER JOIN chosen AS r ON g.run = r.run
GROUP BY g.node
ORDER BY kwh DESC, gpu_hours DESC, node
