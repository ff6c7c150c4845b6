# SPDX-License-Identifier: Apache-2.0
"""`powerccl doctor`."""

from __future__ import annotations

import click

from powerccl import clean
from powerccl.commandline.options import json_option
from powerccl.commandline.output import write_out


@click.command("doctor")
@json_option("the checks")
def command(json_file: str) -> int:
    """Check what works on this machine, and what is missing.

    Doctor says how to install what is missing. It changes nothing and needs no GPU. The exit code is 0 if PowerCCL
    can record jobs here or on an emulated server, else 1.

    \b
    powerccl doctor
    powerccl doctor --json | jq .usable
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.doctor.machine import check_machine

    checks = check_machine()
    usable = all(check.state != "broken" for check in checks)
    if json_file:
        document = {"schema": 1, "usable": usable, "checks": [check.as_dict() for check in checks]}
        write_out(json_file, clean.to_json(document, indent=2))
    if json_file != "-":
        from powerccl.console import Console
        from powerccl.doctor.report import print_checks

        print_checks(Console(), checks)
    return 0 if usable else 1
