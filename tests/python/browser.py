# SPDX-License-Identifier: Apache-2.0
"""A page in headless Chromium: what it drew, and what its console said."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Whatever asks a network for anything violates this, and says so in the console.
_NO_NETWORK = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; img-src data: blob:\">"
)
_CHECK = """
<script>
(function () {
  var tries = 0, timer = setInterval(function () {
    if (document.documentElement.dataset.drawn !== "all" && ++tries < 200) return;
    clearInterval(timer);
    var charts = Array.from(document.querySelectorAll(".chart")).map(function (chart) {
      var marks = chart.querySelectorAll(".main-svg path, .main-svg .point, .main-svg .bars path").length;
      return { id: chart.id, marks: marks, wide: chart.scrollWidth > chart.clientWidth + 1 };
    });
    var found = { drawn: document.documentElement.dataset.drawn || "", charts: charts,
                  wider: document.documentElement.scrollWidth > window.innerWidth };
    var cut = Array.from(document.querySelectorAll(".card")).filter(function (card) {
      return card.getBoundingClientRect().right > window.innerWidth || card.scrollWidth > card.clientWidth + 1;
    });
    found.cut = cut.map(function (card) { return card.textContent.trim().slice(0, 60); });
    found.width = window.innerWidth;
    found.details = document.querySelectorAll("details").length;
    function done() { window.top.document.documentElement.dataset.check = JSON.stringify(found); }
    var lane = document.getElementById("gpu-0"), other = document.getElementById("gpu-1");
    if (!lane || !other) return done();
    found.opened = lane.layout.xaxis.range.slice();
    var button = document.getElementById("whole");
    if (button) {
      button.click();
      found.whole = lane.layout.xaxis.range.slice();
    }
    Plotly.relayout(lane, { "xaxis.range[0]": 0.2, "xaxis.range[1]": 0.4 }).then(function () {
      setTimeout(function () { found.zoomed = other.layout.xaxis.range; found.points = other.data[2].x; done(); }, 300);
    });
  }, 50);
})();
</script>
"""

LEAST_WIDTH = 500  # of Chromium's own window; a narrower page is shown in a frame


@dataclass
class Shown:
    """`found`: what _CHECK saw. `console`: errors and refusals."""

    found: dict[str, Any]
    console: list[str]


def show(page: str, folder: Path, width: int = 1200) -> Shown:
    """Open a page without any network; skips the test where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    path = folder / "shown.html"
    head, _, body = page.partition("<head>")
    text = f"{head}<head>{_NO_NETWORK}{body}".replace("</body>", f"{_CHECK}</body>")
    if width < LEAST_WIDTH:
        frame = f'<iframe srcdoc="{html.escape(text)}" style="width: {width}px; height: 9000px; border: 0"></iframe>'
        text = f'<!doctype html><html><meta charset="utf-8"><body style="margin: 0">{frame}</body></html>'
    path.write_text(text)
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'browser'}",
            f"--window-size={width},2000",
            "--virtual-time-budget=30000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    match = re.search(r'<html[^>]*data-check="([^"]*)"', done.stdout)
    assert match, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Shown(json.loads(html.unescape(match[1])), console)
