# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.oracle`: what the best clock schedule would save, from one that was found to a proven bound."""

import argparse
import json
import sys
import time
from pathlib import Path

from .platform import PlatformError, read_platform
from .report import HEAD, oracle
from .scenario import ScenarioError, read_scenario

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"


def main() -> int:
    """Exit code 0, or 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="python -m bench.oracle", description=__doc__)
    parser.add_argument("scenarios", nargs="*", type=Path, help="scenario files; all of bench/scenarios by default")
    parser.add_argument(
        "--platform", action="append", metavar="NAME[:KEY=VALUE,...]", help="as of `--emulate`; may be repeated (t4x8)"
    )
    parser.add_argument("--max-slowdown", type=float, default=1.0, metavar="PCT", help="of time (1)")
    parser.add_argument(
        "--in-each-section",
        action="store_true",
        help="of a scenario that changes the budget holds in each, not in all of it",
    )
    parser.add_argument("--no-schedules", action="store_true", help="bounds alone")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a JSON map; kept up to date while it runs")
    options = parser.parse_args()
    try:
        scenarios = [read_scenario(path) for path in options.scenarios or sorted(SCENARIOS.glob("*.scn"))]
        platforms = [(spec, read_platform(spec)) for spec in options.platform or ["t4x8"]]
    except (PlatformError, ScenarioError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    every: dict = {"budget_pct": options.max_slowdown, "in_each_section": options.in_each_section, "platforms": {}}
    for spec, platform in platforms:
        print(f"# {spec}, budget {options.max_slowdown} %: saving by a schedule to proven bound\n{HEAD}", flush=True)
        mine = every["platforms"].setdefault(spec, {})
        for scenario in scenarios:
            began = time.monotonic()
            found = oracle(
                platform, scenario, options.max_slowdown / 100, not options.no_schedules, options.in_each_section
            )
            print(found.pop("text"), flush=True)
            mine[scenario.name] = found | {"seconds": round(time.monotonic() - began, 1)}
            if options.out:
                options.out.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
