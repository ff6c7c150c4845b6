-- Runs of a name that ended well, in the last 30 days of the data against the 30 days before: means of logarithms and
-- their variances, from which `powerccl fleet` computes the change and its 95 % interval (Welch).
SELECT
    name,
    gpus AS gpu_count,
    gpu_name AS gpu_model,
    CASE WHEN day > (SELECT max(day) FROM chosen) - INTERVAL '30' DAY THEN 'new' ELSE 'old' END AS period,
    count(*) AS runs,
    count(CASE WHEN wall_s > 0 THEN 1 END) AS wall_n,
    avg(CASE WHEN wall_s > 0 THEN ln(wall_s) END) AS wall_mean,
    var_samp(CASE WHEN wall_s > 0 THEN ln(wall_s) END) AS wall_variance,
    count(CASE WHEN joules > 0 THEN 1 END) AS energy_n,
    avg(CASE WHEN joules > 0 THEN ln(joules) END) AS energy_mean,
    var_samp(CASE WHEN joules > 0 THEN ln(joules) END) AS energy_variance,
    count(CASE WHEN iteration_s > 0 THEN 1 END) AS iteration_n,
    avg(CASE WHEN iteration_s > 0 THEN ln(iteration_s) END) AS iteration_mean,
    var_samp(CASE WHEN iteration_s > 0 THEN ln(iteration_s) END) AS iteration_variance,
    count(CASE WHEN iteration_joules > 0 THEN 1 END) AS iteration_energy_n,
    avg(CASE WHEN iteration_joules > 0 THEN ln(iteration_joules) END) AS iteration_energy_mean,
    var_samp(CASE WHEN iteration_joules > 0 THEN ln(iteration_joules) END) AS iteration_energy_variance
FROM chosen
WHERE
    exit_code = 0
    AND day > (SELECT max(day) FROM chosen) - INTERVAL '60' DAY
GROUP BY name, gpus, gpu_name, CASE WHEN day > (SELECT max(day) FROM chosen) - INTERVAL '30' DAY THEN 'new' ELSE 'old' END
ORDER BY name, gpu_count, gpu_model, period
