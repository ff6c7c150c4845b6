-- What the answers are of: runs, days, hours and energy, and how many runs have no figures.
SELECT
    count(*) AS runs,
    min(day) AS first_day,
    max(day) AS last_day,
    sum(gpus * wall_s) / 3600 AS gpu_hours,
    sum(coalesce(joules, joules_at_least)) / 3600000 AS kwh,
    sum(CASE WHEN joules IS NULL THEN 1 ELSE 0 END) AS runs_not_whole,
    sum(CASE WHEN summarised THEN 0 ELSE 1 END) AS runs_without_summary,
    sum(CASE WHEN analysed THEN 1 ELSE 0 END) AS runs_analysed,
    sum(gpus * working_s * exposed_pct) / nullif(sum(CASE WHEN exposed_pct IS NULL THEN 0 ELSE gpus * working_s END), 0) AS exposed_share_pct,
    sum(processor_joules) / 3600000 AS processor_kwh
FROM chosen
