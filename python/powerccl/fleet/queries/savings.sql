-- What next steps would have saved of the runs that they were found in. Their gains are not added up across rules.
SELECT
    s.rule AS rule,
    s.of_what AS saves,
    count(*) AS runs,
    sum(CASE WHEN s.of_what = 'energy' THEN r.joules * s.low_pct END) / 100 / 3600000 AS least_kwh,
    sum(CASE WHEN s.of_what = 'energy' THEN r.joules * s.high_pct END) / 100 / 3600000 AS most_kwh,
    sum(CASE WHEN s.of_what = 'time' THEN r.gpus * r.working_s * s.low_pct END) / 100 / 3600 AS least_gpu_hours,
    sum(CASE WHEN s.of_what = 'time' THEN r.gpus * r.working_s * s.high_pct END) / 100 / 3600 AS most_gpu_hours
FROM chosen_steps AS s
INNER JOIN chosen AS r ON s.run = r.run
WHERE s.own
GROUP BY s.rule, s.of_what
ORDER BY runs DESC, rule, saves
