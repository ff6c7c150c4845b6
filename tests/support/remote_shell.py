#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A remote shell between hosts of hosts.py, for launchers that start their processes by ssh.

    remote_shell.py serve FOLDER          on each host
    remote_shell.py FOLDER [-x] HOST COMMAND...     as ssh: runs the command there, with this process's input and output

Sockets have paths in FOLDER, which all hosts see. Descriptors are passed along, so that no data goes through here.
"""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SELF = Path(__file__)


def serve(folder: Path) -> None:
    """Run what others ask for, until this host ends."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(folder / f"{os.uname().nodename}.new"))
    listening.listen(64)
    (folder / f"{os.uname().nodename}.new").rename(folder / f"{os.uname().nodename}.sh")
    while True:
        peer, _ = listening.accept()
        if os.fork():
            peer.close()
            continue
        words, descriptors, _, _ = socket.recv_fds(peer, 1 << 16, 3)
        stdin, stdout, stderr = descriptors
        done = subprocess.Popen(["sh", "-c", words.decode()], stdin=stdin, stdout=stdout, stderr=stderr)
        for each in descriptors:
            os.close(each)
        peer.send(array.array("i", [done.wait() & 0xFF]).tobytes())
        os._exit(0)


def call(folder: Path, words: Sequence[str]) -> int:
    """As ssh: options first, then the host and the command; its exit code."""
    while words[0].startswith("-"):
        words = words[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(str(folder / f"{words[0]}.sh"))
        socket.send_fds(peer, [" ".join(words[1:]).encode()], [0, 1, 2])
        code = array.array("i", peer.recv(16) or array.array("i", [255]).tobytes())
    return code[0]


@contextmanager
def remote_shell(folder: Path, enter: Sequence[Sequence[str]], names: Sequence[str]) -> Iterator[Path]:
    """A program that is called as ssh, while servers run on hosts with these prefixes to enter them."""
    program = folder / "remote-shell"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {SELF} {folder} "$@"\n')
    program.chmod(0o755)
    servers = [subprocess.Popen([*words, sys.executable, str(SELF), "serve", str(folder)]) for words in enter]
    try:
        import time

        while not all((folder / f"{name}.sh").exists() for name in names):
            time.sleep(0.02)
        yield program
    finally:
        for server in servers:
            server.kill()
            server.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
    sys.exit(call(Path(sys.argv[1]), sys.argv[2:]))
