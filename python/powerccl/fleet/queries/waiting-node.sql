-- What each node's late GPUs cost: energy of the other GPUs while they waited for these. Analysed runs only.
-- `ranks` counts a row a rank and run. A day is one on which any analysed run began.
SELECT
    host AS node,
    count(*) AS ranks,
    sum(CASE WHEN steady THEN 1 ELSE 0 END) AS late_ranks,
    1e2 * sum(last) / nullif(sum(collectives), 0) AS last_share_pct,
    sum(CASE WHEN waited_at_most THEN NULL ELSE waited_s END) / 3600 AS waited_gpu_hours,
    sum(CASE WHEN waited_at_most THEN NULL ELSE waited_joules END) / 3600000 AS waiting_kwh,
    sum(CASE WHEN waited_at_most THEN NULL ELSE waited_joules END) / 3600000
        / (SELECT count(DISTINCT day) FROM chosen_ranks) AS waiting_kwh_a_day,
    sum(waited_joules) / 3600000 AS at_most_kwh,
    sum(CASE WHEN waited_joules IS NULL THEN 1 ELSE 0 END) AS runs_not_whole,
    sum(CASE WHEN watts_from = 'run' AND waited_s > 0 THEN 1 ELSE 0 END) AS ranks_by_mean_power
FROM chosen_ranks
GROUP BY host
HAVING sum(waited_s) > 0
ORDER BY waiting_kwh DESC, waited_gpu_hours DESC, node
