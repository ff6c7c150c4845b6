# SPDX-License-Identifier: Apache-2.0
"""`powerccl admin`: what it writes below a root, what it leaves, and what it removes."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import fakes
import pytest
from click.testing import CliRunner, Result

from powerccl.admin import files
from powerccl.commands import cli

UNIT = "etc/systemd/system/powerccld.service"
CONFIG = "etc/powerccl/powerccld.toml"
PROLOG = "etc/slurm/prolog.d/50-powerccl"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POWERCCL_NATIVE", str(fakes.native_folder(tmp_path / "native")))
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


def admin(verb: str, root: Path, *options: str) -> Result:
    done = CliRunner().invoke(cli, ["admin", verb, "--root", str(root), *options])
    assert done.exit_code == 0, done.output
    return done


def tree(root: Path) -> dict[str, str | bytes]:
    """Every file with its content, and every folder."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else "" for path in root.rglob("*")}


def test_install_writes_and_remove_removes_all_of_it(root: Path) -> None:
    (root / "etc").mkdir()
    (root / "etc/hostname").write_text("node1\n")
    before = tree(root)
    done = admin("install", root, "--slurm")
    assert f"write     /{UNIT}\n" in done.stdout and "systemctl daemon-reload" in done.stderr
    assert '\ngroup = "powerccl"\n' in (root / CONFIG).read_text()
    for program in ("usr/local/sbin/powerccld", PROLOG, "etc/slurm/epilog.d/50-powerccl"):
        assert stat.S_IMODE((root / program).stat().st_mode) == 0o755
    assert stat.S_IMODE((root / UNIT).stat().st_mode) == 0o644
    again = admin("install", root, "--slurm")
    assert {line.split()[0] for line in again.stdout.splitlines()} == {"unchanged"} and not again.stderr
    assert f"remove    /{PROLOG}\n" in admin("remove", root).stdout
    assert tree(root) == before
    assert "nothing to remove" in admin("remove", root).stderr


def test_without_slurm_nothing_of_it_is_written(root: Path) -> None:
    admin("install", root)
    assert not (root / "etc/slurm").exists()


def test_a_dry_run_changes_nothing(root: Path) -> None:
    assert f"write     /{UNIT}\n" in admin("install", root, "--dry-run").stdout
    assert not tree(root)
    admin("install", root)
    before = tree(root)
    assert f"remove    /{UNIT}\n" in admin("remove", root, "--dry-run").stdout
    assert tree(root) == before


def test_a_file_that_was_changed_by_hand_stays(root: Path) -> None:
    admin("install", root, "--slurm")
    for path in (CONFIG, PROLOG):
        (root / path).write_text("# mine\n")
    # The version that was installed is still the newest: there is nothing to offer.
    assert f"kept      /{CONFIG}, which was changed by hand\n" in admin("install", root, "--slurm").stdout
    assert not (root / f"{CONFIG}.new").exists()
    assert f"kept      /{CONFIG}, which was changed by hand\n" in admin("remove", root).stdout
    assert sorted(name for name, content in tree(root).items() if content) == [CONFIG, PROLOG]


def test_a_new_version_updates_what_was_not_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admin("install", root, "--slurm")
    (root / PROLOG).write_text("# mine\n")
    newer = [replace(item, content=item.content + b"\n# newer\n") for item in files.items(True, root)]
    monkeypatch.setattr(files, "items", lambda *_: newer)
    said = admin("install", root, "--slurm").stdout
    assert f"update    /{UNIT}\n" in said and (root / UNIT).read_bytes().endswith(b"# newer\n")
    # Slurm runs every file in the folder of the prolog.
    assert f"kept      /{PROLOG}, which was changed by hand; the new version is /usr/local/share/" in said
    assert [path.name for path in (root / PROLOG).parent.iterdir()] == ["50-powerccl"]
    assert (root / PROLOG).read_text() == "# mine\n"
    admin("remove", root)
    assert [name for name, content in tree(root).items() if content] == [PROLOG]


def test_a_file_of_another_origin_is_neither_replaced_nor_removed(root: Path) -> None:
    (root / UNIT).parent.mkdir(parents=True)
    (root / UNIT).write_text("[Unit]\n")
    assert f"the new version is /{UNIT}.new\n" in admin("install", root).stdout
    admin("remove", root)
    assert (root / UNIT).read_text() == "[Unit]\n" and not (root / f"{UNIT}.new").exists()


def test_a_link_that_leads_out_of_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (root / "etc").symlink_to(tmp_path / "etc")
    done = CliRunner().invoke(cli, ["admin", "install", "--root", str(root)])
    assert done.exit_code == 1 and "leads out of" in done.stderr
    assert not list((tmp_path / "etc").iterdir())


def test_the_node_itself_needs_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in ("install", "remove"):
        done = CliRunner().invoke(cli, ["admin", verb])
        assert done.exit_code == 1 and "--root DIR" in done.stderr


def test_scripts_name_the_command_of_this_installation(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = root / "opt/venv/bin/powerccl"
    command.parent.mkdir(parents=True)
    command.touch()
    monkeypatch.setattr("sys.executable", str(command.parent / "python3"))
    admin("install", root, "--slurm")
    assert "POWERCCL=${POWERCCL:-/opt/venv/bin/powerccl}" in (root / PROLOG).read_text()
