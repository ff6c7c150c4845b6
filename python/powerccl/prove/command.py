# SPDX-License-Identifier: Apache-2.0
"""`powerccl prove`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.output import say, write_out
from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.prove.loads import Pace


@click.command("prove")
@click.option("--emulate", default="", metavar="NAME", help="Prove an emulated GPU server such as h100x8.")
@click.option("--set-clocks", is_flag=True, help="Set the clocks of real GPUs (as root or through powerccld).")
@click.option("--dry", is_flag=True, help="Set no clock: measure at the present clock. Needs no right.")
@click.option("--plan", "only_plan", is_flag=True, help="Print what would be measured and how long it takes.")
@click.option("--quick", is_flag=True, help="Measure for a minute or so: enough to try the command.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write, in JSON (-: stdout).  [default: proof-GPUxCOUNT.json]",
)
def command(emulate: str, set_clocks: bool, dry: bool, only_plan: bool, quick: bool, out: Path | None) -> int:
    """Prove in ten minutes what clock control is worth here.

    Prove measures what a clock call costs and stalls, and how soon a clock changes. It measures power and time of four
    loads by clock, and what the policy auto saves of a training step. It writes one file without names of hosts or
    users, and prints what it means. The file is a platform for --emulate and --platform of other commands.

    Clocks are set through leases: powerccld restores them when prove ends, however it ends. The GPUs should be idle.

    \b
    powerccl prove --plan
    sudo powerccl prove --set-clocks
    powerccl prove --dry
    powerccl prove --emulate h100x8 --quick
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.bench.process import environment_of, with_libraries
    from powerccl.launch.gpus import query_gpus, query_gpus_in, visible_gpus_in
    from powerccl.launch.native import find_native
    from powerccl.launch.plan import NO_RIGHT, decide_clocks
    from powerccl.prove.loads import FULL, QUICK

    pace = QUICK if quick else FULL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    native = find_native()
    with contextlib.ExitStack() as stack:
        environment = environment_of(native, emulate, stack)
        gpus = query_gpus_in(environment) if emulate else query_gpus()
        if not gpus.emulated:
            environment = with_libraries(environment)
        dry = dry or environment.get("POWERCCL_CLOCKS") in ("dry", "none")
        if only_plan or (dry and not gpus.names):
            write_out("-", _plan_text(len(gpus.names), dry, pace, gpus.describe()))
            return 0
        if not gpus.names:
            raise PowercclError(f"no GPU to prove: {gpus.describe()}", "try an emulated one: --emulate h100x8 --quick")
        if not dry and not gpus.emulated and not set_clocks:
            raise PowercclError(
                "prove sets the clocks of these GPUs", "add --set-clocks, or --dry to measure at the present clock"
            )
        if not dry and decide_clocks("per-call", gpus.emulated, True, environment)[0] != "lease":
            raise PowercclError(NO_RIGHT, "add --dry, which measures at the present clock and needs no right")
        from powerccl.launch.emulation import platform_name
        from powerccl.platforms.conf import model_of
        from powerccl.platforms.schema import encode
        from powerccl.prove.fit import emulated
        from powerccl.prove.measure import measure
        from powerccl.prove.page import page_of
        from powerccl.prove.reading import Reader
        from powerccl.prove.rig import Rig

        uuids = visible_gpus_in(environment)
        if not uuids:
            raise PowercclError("CUDA finds no GPU to measure", "check CUDA_VISIBLE_DEVICES")
        reader = stack.enter_context(contextlib.closing(Reader(environment, uuids)))
        folder = Path(tempfile.mkdtemp(prefix="powerccl-prove-"))  # it stays where an error names a log in it
        try:
            proof = measure(Rig(native, dict(environment), gpus, len(uuids), pace, dry, folder, say, reader))
        except (KeyboardInterrupt, SystemExit):
            shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)
    like = model_of(proof.gpu)
    proof.emulator = emulated(proof, like, native.emulated_platforms()[like].read_text("utf-8"))
    if emulate:
        proof.name = f"proved-{platform_name(emulate).partition(':')[0]}"
    written = out or Path(f"proof-{proof.name}.json")
    write_out(written, encode(proof))
    if str(written) != "-":
        write_out("-", page_of(proof, str(written)))
    return 0 if dry or (proof.restored and proof.restored.all_back) else 1


def _plan_text(gpus: int, dry: bool, pace: Pace, about: str) -> str:
    from powerccl.prove.loads import parts

    plan = parts(pace, max(gpus, 1), dry)
    lines = [f"{about}: " + ("no clock is set" if dry else "clocks are set through leases, and restored")]
    lines += [f"  {seconds:4.0f} s  {what}" for what, seconds in plan]
    lines.append(f"  {sum(seconds for _, seconds in plan):4.0f} s  in all, at most")
    return "\n".join(lines) + "\n"
