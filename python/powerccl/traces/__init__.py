# SPDX-License-Identifier: Apache-2.0
"""Run folders into tables: what ranks, samplers and journals wrote, read without ever failing on a damaged file.

`read_run(folder)` is the way in. What could not be read is in `RunData.problems`, in words.
"""

from powerccl.traces.folder import RunData, RunInfo, read_run, write_run_info
from powerccl.traces.power import PowerLog
from powerccl.traces.rank import RankTrace, TraceError

__all__ = ["PowerLog", "RankTrace", "RunData", "RunInfo", "TraceError", "read_run", "write_run_info"]
