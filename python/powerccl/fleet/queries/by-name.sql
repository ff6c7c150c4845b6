-- Runs, hours and energy of each name that `powerccl run --name` gave, else of the script.
SELECT
    name,
    count(*) AS runs,
    count(DISTINCT user_name) AS users,
    sum(gpus * wall_s) / 3600 AS gpu_hours,
    sum(coalesce(joules, joules_at_least)) / 3600000 AS kwh,
    sum(CASE WHEN joules IS NULL THEN 1 ELSE 0 END) AS runs_not_whole,
    sum(gpus * working_s * exposed_pct) / nullif(sum(CASE WHEN exposed_pct IS NULL THEN 0 ELSE gpus * working_s END), 0) AS exposed_share_pct,
    sum(processor_joules) / 3600000 AS processor_kwh
FROM chosen
GROUP BY name
ORDER BY kwh DESC, gpu_hours DESC, name
