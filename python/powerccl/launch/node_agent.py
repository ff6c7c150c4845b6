# SPDX-License-Identifier: Apache-2.0
"""powerccl-agent beside a job: the node's sampler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch import native
from powerccl.launch.kept import Kept
from powerccl.launch.native import NativeFiles
from powerccl.launch.services import Service
from powerccl.traces import helpers
from powerccl.traces.helpers import HelperLog
from powerccl.traces.visible import noted

READY_S = 3.0
END_S = 8.0


class NodeAgent(Kept):
    """A node's agent. One that is started again goes on in the files of the one before."""

    name = helpers.AGENT

    def __init__(
        self,
        files: NativeFiles,
        folder: Path,
        interval_ms: int,
        environment: Mapping[str, str],
        events: HelperLog,
        several: bool = False,
    ) -> None:
        """`interval_ms`: between samples; 0 takes none. `several`: this host has other ranks with other launchers.

        Raises:
            PowercclError: it is not installed.
        """
        super().__init__(events)
        self._command = [str(files.path(native.AGENT)), "--run-folder", str(folder)]
        self._command += ["--interval-ms", str(interval_ms)] if interval_ms > 0 else ["--no-sample"]
        self._command += ["--job-environment", json.dumps(noted(environment, several))]
        self._environment = environment
        self._log = folder / f"agent-{events.host}.log"
        self._service: Service | None = None

    def start(self, say: Callable[[str], None]) -> list[str]:
        """Start it and wait until it samples; what it says of GPUs that it cannot sample.

        Raises:
            BlockingIOError: a limit on processes leaves no place for it, and perhaps none for the job.
        """
        try:
            service = self._begin()
        except BlockingIOError:
            raise
        except OSError as error:
            self._not_started(f"{self.name}: {error.strerror}", say)
            return []
        if service.has_ended(0):
            if service.process.returncode != 0:  # 0: another launcher's agent has this node
                self._not_started(service.last_words() or f"{self.name} ended immediately", say)
            service.close()
            return []
        self._service = service
        self.keep()
        return [line.removeprefix(f"{self.name}: ") for line in service.words()]

    def _not_started(self, why: str, say: Callable[[str], None]) -> None:
        self.events.note(self.name, f"was not started: {why.removeprefix(f'{self.name}: ')}")
        say(f"cannot sample power and clocks: {why}")

    def ask_to_end(self, say: Callable[[str], None]) -> None:
        """Have it take its last samples and end; waits for nothing."""
        self.let_go(READY_S + 1.0)
        if self._service is None:
            return
        if self._service.has_ended(0):  # in the last moment: another one takes the last samples
            try:
                self._service = self._begin()
            except (PowercclError, OSError) as error:
                say(f"{self.name} ended too soon and cannot be restarted ({error}): the last samples are missing")
                self._service = None
                return
        self._service.release(0)

    def end(self, say: Callable[[str], None]) -> list[str] | None:
        """Wait for its end; `ask_to_end` where that was not done.

        Gives its lines about the job's processes (cause.read_seen); None: it does not tell.
        """
        if self._service is None or not self._service.released:
            self.ask_to_end(say)
        if self._service is None:
            return None
        if self._service.release(END_S):
            return self._service.printed()
        # A call to the driver that the kernel holds cannot be killed either.
        say(f"{self.name} (pid {self._service.process.pid}) has not ended after {END_S:g} s: samples may be missing")
        self._service.close()
        return None

    def _begin(self) -> Service:
        service = Service(self._command, self._environment, self._log)
        if not service.wait_ready(READY_S):
            service.has_ended(0.5)
        return service

    # ---- As Kept has it

    def descriptor(self) -> int:
        """Its standard output."""
        assert self._service
        return self._service.output

    def how_it_ended(self) -> str:
        """See Kept."""
        assert self._service
        return self._service.how_it_ended()

    def start_again(self) -> bool:
        """See Kept; where another launcher's agent has the node by now, nothing is to keep."""
        if self._service:
            self._service.close()
        self._service = self._begin()
        return not (self._service.has_ended(0) and self._service.process.returncode == 0)
