"""Make a table of ways from what powerccl-bench wrote on a lent machine: ways-table.py NAME MADE OUT ROUND.json...

The files are those of `--json`; `powerccl profile --ways` makes the same table where it can run itself.
"""

import json
import sys
import tempfile
from pathlib import Path

from powerccl.launch.ways_profile import table_of
from powerccl.platforms.ways import encode


def main() -> None:
    """Convert."""
    name, made, out, *rounds = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for index, path in enumerate(rounds):
            whole = json.loads(Path(path).read_text())
            points = [{"type": "point", **point} for point in whole.pop("results")]
            lines = [json.dumps(each) for each in ({"type": "header", **whole}, *points)]
            files.append(Path(folder) / f"round-{index}.jsonl")
            files[-1].write_text("\n".join(lines) + "\n")
        Path(out).write_bytes(encode(table_of(files, name, made)))


if __name__ == "__main__":
    main()
