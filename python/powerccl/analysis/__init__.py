# SPDX-License-Identifier: Apache-2.0
"""Tables into findings: where communication time and energy went, what clock switching did, how two runs differ."""

from powerccl.analysis.compare import Comparison, compare
from powerccl.analysis.findings import RunSummary
from powerccl.analysis.summary import summarise

__all__ = ["Comparison", "RunSummary", "compare", "summarise"]
