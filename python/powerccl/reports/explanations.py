# SPDX-License-Identifier: Apache-2.0
"""What the sections of a report's page mean, in the words of docs/guides/read-a-report.md."""

from __future__ import annotations

# By section: sentences that the page shows where a reader opens "What is this?".
EXPLANATIONS: dict[str, tuple[str, ...]] = {
    "totals": (
        "Working time: from the first communication of a rank to its last.",
        "A first iteration that takes over three times the median is not part of it.",
        "Start-up: from the start of the run to the working time. It is in no share.",
        "Communicating: a communication kernel runs on the GPU.",
        "Exposed: communicating, while the GPU computes nothing.",
        "A share of the job is the sum over its ranks, divided by the sum of their working times.",
        "“At least” means that a part was not measured. The page names that part.",
    ),
    "timeline": (
        "The clock and the power of each GPU, as sampled. A shaded stretch is communication.",
        "Of a long stretch, the shade shows the share of the time in which the GPU communicates.",
        "The timeline opens on the working time. Start-up comes before it: imports, data, compilation.",
    ),
    "time": (
        "One bar per rank, over its working time.",
        "Waiting: communicating, while a peer has not arrived. Transfer: communicating, after all peers have arrived.",
        "Exposed: the GPU computes nothing meanwhile.",
        "Stalled: computation waits for communication whose kernel was not timed.",
        "Computing or idle: the rest. Only a trace of torch.profiler tells the two apart (--kineto).",
        "Waiting is compared among ranks of hosts whose clocks are aligned by collectives, else of one host.",
    ),
    "iterations": (
        "An iteration is found where the sequence of communication repeats. It is cut at the widest gap.",
        "The time is the mean over the ranks. The energy is the sum of all GPUs of the host.",
    ),
    "last": (
        "A straggler is a rank that arrives last far more often than by chance.",
        "Of eight ranks that is 65 % of the collectives or more, of two it is 80 %.",
        "Behind the next: how much earlier this rank alone could arrive to help the others. Cost: the sum of that.",
        "If the clocks of two GPUs cannot tell two starts apart, no rank counts as the last.",
    ),
    "collectives": (
        "How many calls of each kind and size the ranks made, and how long their kernels ran, summed over the ranks.",
        "Sizes are grouped by powers of two. The vertical axis is logarithmic.",
    ),
    "bandwidth": (
        "The median bus bandwidth, defined as in NCCL tests.",
        "Without waiting: leaves out the time until the last peer starts, so it shows the link.",
        "The profile is what powerccl profile reached at that size on the same number of GPUs.",
    ),
    "energy": (
        "Energy counters change every 20 to 100 ms, and collectives take microseconds.",
        "The energy of each kind therefore comes from a regression, with a 95 % interval.",
        "Not known: the data cannot separate this kind from others. The reason is beside it.",
        "The energy includes everything that the GPU did meanwhile.",
    ),
    "phases": (
        "Calls by the tag that the job has given them (userProfilerTag of NCCL 2.31 and later).",
        "Time is that of their kernels, mean per GPU; a mark ~ says that part of it is estimated.",
    ),
    "clocks": (
        "How often a clock policy asked for a clock, and how long a switch took.",
        "A dry run decides and records, and sets no clock.",
    ),
    "mpi": (
        "Waiting: in an MPI call while nothing moves. Asleep: the part of the waiting in which the rank left its core.",
        "Transferring: the rest of the call. Times are means over the ranks.",
        "Those of a rank are sums over its threads that call MPI.",
    ),
}
