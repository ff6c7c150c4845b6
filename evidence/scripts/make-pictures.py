#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the pictures of README.md and docs/: pages of emulated runs, as headless Chromium shows them.

    evidence/scripts/make-pictures.py                         # writes docs/images/*.png
    evidence/scripts/make-pictures.py --out build/pictures    # as CI does: does every picture come out whole?

Needs no GPU, but a Chromium and the native programs (POWERCCL_NATIVE or a build). It refuses a picture that has a
scroll bar or a cut edge, or that names a folder of this machine.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 1100  # CSS pixels: what README's column shows at nearly full size
DRAWING_MS = 10_000  # of the page's own time: more than any chart takes to draw
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# As docs/guides/read-a-report.md has it: rank 3 computes 1.3 times as long as the others.
SCENARIO = "rank 3 x1.3\ncompute 56\nall_reduce 48M\ncompute 2\n"

# Sent along with the page: how high it is, and what would be cut.
MEASURE = """
<script>
addEventListener("load", function () {
  setTimeout(function () {
    var root = document.documentElement;
    var cut = Array.from(document.querySelectorAll(".card")).filter(function (card) {
      return card.offsetParent && card.scrollWidth > card.clientWidth + 1;
    });
    root.dataset.picture = JSON.stringify({
      height: Math.ceil(document.querySelector("main").getBoundingClientRect().bottom) + 24,
      wider: root.scrollWidth > innerWidth,
      cut: cut.map(function (card) { return card.textContent.trim().slice(0, 60); }),
      text: document.querySelector("main").innerText
    });
  }, 4000);
});
</script>
"""


@dataclass
class Picture:
    """A page, what of it the picture leaves out (CSS selectors), and its name."""

    name: str
    page: Path
    without: str


def main() -> int:
    """Take every picture; the exit code."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=ROOT / "docs/images", help="folder of the pictures")
    out: Path = options.parse_args().out
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return _fail("no Chromium on this machine", "install it: apt-get install chromium")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="powerccl-pictures-") as temporary:
        folder = Path(temporary)
        for picture in _pages(folder):
            wrong = _take(browser, picture, folder, out / f"{picture.name}.png")
            if wrong:
                return _fail(
                    f"{picture.name}.png: {wrong}", f"look at the page: powerccl wrote it as {picture.page.name}"
                )
            print(out / f"{picture.name}.png")
    return 0


def _fail(what: str, hint: str) -> int:
    print(f"error: {what}\nhint: {hint}", file=sys.stderr)
    return 1


def _pages(folder: Path) -> list[Picture]:
    """Record the emulated runs and write their pages. The figures of a run differ from run to run: none is shown."""
    _powerccl(folder, "demo", "--no-mpi", "--html", "demo.html", "--runs-dir", "runs")
    (folder / "straggler.scn").write_text(SCENARIO)
    scenario = ("powerccl", "bench", "scenario", "straggler.scn", "--iterations", "30")
    platform = ("--emulate", "t4x8", "--platform", "t4x8", "--policy", "observe")
    _powerccl(folder, "run", "-q", *platform, "--name", "straggler", "--", *scenario)
    _powerccl(folder, "report", "-q", str(_run(folder, "straggler")), "--html", "report.html")
    return [
        Picture("demo", folder / "demo.html", "section:not(:has(h1, .chart)), footer"),
        # Two of eight GPUs are enough to see that seven wait for one.
        Picture(
            "report",
            folder / "report.html",
            '.card:has([id^="gpu-"]):not(:has(#gpu-0)):not(:has(#gpu-3)), .card:has(#stragglers) ~ *, footer',
        ),
    ]


def _run(folder: Path, name: str) -> Path:
    """The run folder of that name, relative to `folder`: reports show it."""
    return next((folder / "runs").glob(f"*-{name}")).relative_to(folder)


def _powerccl(folder: Path, *arguments: str) -> None:
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), PATH=f"{ROOT / '.venv/bin'}:{os.environ['PATH']}")
    subprocess.run([sys.executable, "-m", "powerccl", *arguments], cwd=folder, env=environment, check=True, stdout=2)


def _take(browser: str, picture: Picture, folder: Path, target: Path) -> str:
    """Take the picture; returns what is wrong with it, empty where nothing is."""
    style = f"<style>{picture.without} {{ display: none !important }} body {{ padding-bottom: 0 }}</style>"
    page = picture.page.with_name(f"shown-{picture.page.name}")
    page.write_text(
        picture.page.read_text().replace("</head>", f"{style}</head>").replace("</body>", f"{MEASURE}</body>")
    )
    shown = _chromium(browser, folder, page, 2000, "--dump-dom")
    found = re.search(r'data-picture="([^"]*)"', shown)
    if not found:
        return "the page did not draw"
    measured = json.loads(html.unescape(found[1]))
    if measured["wider"] or measured["cut"]:
        return f"cut: {measured['cut'] or 'the page'}"
    for private in (str(folder), str(ROOT), str(Path.home()), tempfile.gettempdir()):
        if len(private) > 1 and private in measured["text"]:
            return f"it names {private}"
    _chromium(browser, folder, page, measured["height"], f"--screenshot={target.resolve()}")
    return "" if target.exists() else "Chromium took no picture"


def _chromium(browser: str, folder: Path, page: Path, height: int, what: str) -> str:
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
    sizes = (f"--window-size={WIDTH},{height}", f"--virtual-time-budget={DRAWING_MS}")
    command = [browser, *options, *sizes, f"--user-data-dir={folder / 'browser'}", what, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


if __name__ == "__main__":
    sys.exit(main())
