# SPDX-License-Identifier: Apache-2.0
"""`powerccl run --clock`: one clock for the GPUs of one job, under leases that this launcher holds until the job ends.

The end of the launcher's connection ends the leases, so powerccld restores the clocks of a launcher that is killed.
"""

from __future__ import annotations

import contextlib
import os
import platform as machine
import re
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from powerccl.errors import PowercclError, one_line
from powerccl.launch.child import start_thread
from powerccl.launch.daemon import PrivateDaemon, find_daemon, system_daemon
from powerccl.launch.gpus import may_set_clocks, query_gpus_in, visible_gpus_in
from powerccl.launch.launchers import JobLauncher
from powerccl.launch.native import NativeFiles
from powerccl.launch.plan import NO_RIGHT
from powerccl.leases.client import SILENCE_S, connect, open_session
from powerccl.leases.held import HeldLeases, LeaseLostError
from powerccl.leases.protocol import Status, run_bytes, text_of
from powerccl.traces.helpers import FIXED_CLOCK, SET_AGAIN, HelperLog
from powerccl.traces.visible import CUDA, ORDER, SLURM, Sampled, noted, numbers, visible

OTHERS_WAIT_S = 20.0  # for this node's first launcher, which may start powerccld: as long as for an emulated server
# Pauses between requests for leases that were lost. The runtime asks for its own as often (lease-protocol.md).
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
_WITHOUT = "leave --clock out to run at the default clock"


def parse_clock(text: str) -> tuple[float, bool]:
    """The number of `--clock`, and whether it is a percentage instead of MHz.

    Raises:
        PowercclError: it is neither.
    """
    words = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?(%|MHz)?", text.strip(), re.IGNORECASE)
    if not words:
        raise PowercclError(f"--clock takes MHz or a percentage, not '{text}'", "such as --clock 1200 or --clock 70%")
    return float(words[1]), words[2] == "%"


def nearest_clock(text: str, clocks_mhz: Sequence[int]) -> int:
    """The nearest of a GPU's clocks at or below what `--clock` names.

    Raises:
        PowercclError: the GPU has no such clock.
    """
    number, percent = parse_clock(text)
    low_mhz, high_mhz = min(clocks_mhz), max(clocks_mhz)
    wanted_mhz = high_mhz * number / 100 if percent else number
    if not low_mhz <= wanted_mhz <= high_mhz:
        least = f"{100 * low_mhz / high_mhz:.1f} to 100 %, " if percent else ""
        raise PowercclError(
            f"--clock {text} is outside the clocks of these GPUs: {least}{low_mhz} to {high_mhz} MHz",
            f"choose one within, such as --clock {high_mhz}",
        )
    return max(clock for clock in clocks_mhz if clock <= wanted_mhz)


class FixedClock:
    """The clock of `--clock`, from `set` to `let_go`. `mhz`: it; 0: no clock is set."""

    def __init__(self, text: str, stack: contextlib.ExitStack, say: Callable[[str], None]) -> None:
        """`stack`: lets go of the clock when it is closed."""
        self.mhz = 0
        self._text = text
        self._stack = stack
        self._say = say
        self._daemon: PrivateDaemon | None = None
        self._held: HeldLeases | None = None
        self._gpus: list[str] = []
        self._open: Callable[[], HeldLeases] | None = None
        self._events = HelperLog(None, "")
        self._stop = -1  # a pipe's write end: closing it ends the thread
        self._keeper: threading.Thread | None = None

    def check(self, environment: Mapping[str, str], emulated: bool, say: Callable[[str], None]) -> None:
        """Refuse what can be refused before anything is started; say if the environment forbids clocks.

        Raises:
            PowercclError: `--clock` names no clock, or this user may not set clocks.
        """
        if not self._text:
            return
        parse_clock(self._text)
        if (wish := environment.get("POWERCCL_CLOCKS", "")) in ("dry", "none"):
            say(f"POWERCCL_CLOCKS={wish}: no clock is set, so --clock {self._text} has no effect")
            self._text = ""
        elif not (emulated or may_set_clocks() or system_daemon(environment)):
            raise PowercclError(NO_RIGHT, f"an administrator installs it: sudo powerccl admin install; or {_WITHOUT}")

    def set(
        self,
        native: NativeFiles,
        folder: Path,
        environment: Mapping[str, str],
        launcher: JobLauncher | None,
        emulated: bool,
    ) -> None:
        """Hold the GPUs that the job may use on this host, and set their clock.

        Of several launchers on a node the first does this, and the others wait for it.

        Raises:
            PowercclError: the clock cannot be had; none is set.
        """
        if not self._text:
            return
        if launcher is not None and launcher.local_rank > 0:
            self._await_first(native, folder, environment, emulated)
            return
        self._stack.callback(self.let_go)
        gpus = query_gpus_in(environment)
        if len(set(gpus.names)) > 1:
            raise PowercclError(f"--clock needs a host with one model of GPU; this one has {gpus.describe()}", _WITHOUT)
        if not gpus.clocks_mhz:
            raise PowercclError(f"--clock: NVML lists no clocks here ({gpus.describe()})", _WITHOUT)
        self._gpus = _gpus_of_job(environment, launcher)
        mhz = nearest_clock(self._text, gpus.clocks_mhz)
        self._events = HelperLog(folder, machine.node())
        try:
            listening, self._daemon = find_daemon(native, folder, environment, emulated)
        except OSError as error:
            raise PowercclError(f"cannot start powerccld: {one_line(error)}", _WITHOUT) from error
        self._open = partial(open_session, HeldLeases, listening, folder.name)
        self._held = self._hold(mhz)
        self.mhz = mhz
        reading, self._stop = os.pipe()
        self._keeper = start_thread(partial(self._keep, reading), "fixed clock")

    def let_go(self) -> None:
        """End the leases, so that powerccld restores the clocks; does nothing the second time."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1
        if self._keeper:
            self._keeper.join(SILENCE_S + 1.0)
            self._keeper = None
        if self._held:
            self._held.close()
            self._held = None
        daemon, self._daemon = self._daemon, None
        try:
            if daemon:
                daemon.end(self._say)
        except Exception as error:
            self._say(f"cannot end powerccld: {one_line(error)}")

    def _hold(self, mhz: int) -> HeldLeases:
        """A session with a lease on each GPU, whose clocks are set.

        Raises:
            PowercclError: it cannot be had.
        """
        assert self._open
        held = self._open()
        try:
            if held.dry:
                raise PowercclError("powerccld on this host runs dry: it sets no clock", _WITHOUT)
            held.hold(self._gpus)
            low_mhz, high_mhz = held.range_mhz
            if not low_mhz <= mhz <= high_mhz:
                raise PowercclError(
                    f"--clock {self._text}: powerccld on this host allows {low_mhz} to {high_mhz} MHz",
                    f"choose one within, such as --clock {high_mhz}",
                )
            if problem := held.set_all(mhz):
                raise PowercclError(f"cannot set the clock: {problem}", _WITHOUT)
        except BaseException:
            held.close()
            raise
        return held

    def _keep(self, stopped: int) -> None:
        """Keep the leases alive until `let_go`; ask again for those that are lost and were not revoked."""
        said = False
        try:
            while True:
                try:
                    assert self._held
                    _attend(self._held, stopped)
                    return
                except PowercclError as error:  # noqa: PERF203 - a lease is lost a few times at most
                    revoked = isinstance(error, LeaseLostError) and error.status == Status.REVOKED
                    self._let_all_go(error)
                    if not said:
                        next_step = "the job continues without it" if revoked else "it is requested again"
                        self._say(f"the clock of {self.mhz} MHz is not set any more: {error.message}; {next_step}")
                    said = True
                    if revoked or not self._again(stopped):
                        return
        finally:
            os.close(stopped)

    def _let_all_go(self, error: PowercclError) -> None:
        """Let the other GPUs go as well, and note why: one clock is for all GPUs of the job."""
        if self._held:
            self._held.close()
        why = error.why if isinstance(error, LeaseLostError) else error.message.partition(":")[0]
        self._events.note(FIXED_CLOCK, f"was lost ({why})")

    def _again(self, stopped: int) -> bool:
        """Ask until the clock is set again; False: the job has ended."""
        pause_s = FIRST_PAUSE_S
        while not select.select([stopped], [], [], pause_s)[0]:
            try:
                self._held = self._hold(self.mhz)
            except PowercclError:  # noqa: PERF203 - asked every few seconds
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self._events.note(FIXED_CLOCK, SET_AGAIN)
                return True
        return False

    def _await_first(self, native: NativeFiles, folder: Path, environment: Mapping[str, str], emulated: bool) -> None:
        """Wait until this node's first launcher holds leases for this run.

        Raises:
            PowercclError: it does not.
        """
        listening, _ = find_daemon(native, folder, environment, emulated, start=False)
        run, deadline = text_of(run_bytes(folder.name)), time.monotonic() + OTHERS_WAIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(PowercclError), connect(listening, folder.name) as session:
                if any(device.held and device.run == run and device.max_mhz for device in session.status()):
                    return
            time.sleep(0.1)
        raise PowercclError(
            f"--clock {self._text}: this node's first launcher has set no clock",
            "read the messages of this node's local rank 0",
        )


def _attend(held: HeldLeases, stopped: int) -> None:
    """Send heartbeats until the other end of `stopped` is closed. Raises as HeldLeases.check does."""
    while True:
        ready = select.select([held.fileno(), stopped], [], [], held.check_within_s)[0]
        if stopped in ready:
            return
        if ready:
            held.hear()
        held.check_when_due()


def _gpus_of_job(environment: Mapping[str, str], launcher: JobLauncher | None) -> list[str]:
    """UUIDs of the GPUs that the job may use on this host; never one that may be another job's.

    Raises:
        PowercclError: there is none, or it is not known which they are.
    """
    if launcher is None or launcher.alone_on_node(environment):
        gpus = visible_gpus_in(environment)
        if not gpus:
            raise PowercclError("--clock: CUDA finds no GPU for this job", f"check {CUDA}")
        return gpus
    # CUDA answers for this launcher alone. What the job's other launchers see, the batch system says.
    everywhere = {name: text for name, text in environment.items() if name != CUDA}
    uuids = visible_gpus_in({**everywhere, ORDER: "PCI_BUS_ID"})
    of_job = visible(noted(environment, True), [Sampled(index, uuid, "") for index, uuid in enumerate(uuids)])
    # Slurm may show each launcher its own GPUs alone, by a control group: then it lists more than CUDA finds.
    listed = [numbers(environment[name]) or () for name in SLURM if environment.get(name)]
    if of_job.note or not of_job.indices or any(len(each) > len(uuids) for each in listed):
        raise PowercclError(
            "--clock: which GPUs the launchers of this host may use together is not known",
            "start one launcher on each node: srun --ntasks-per-node=1 powerccl run --clock ... -- torchrun ...",
        )
    return [uuids[index] for index in sorted(of_job.indices)]
