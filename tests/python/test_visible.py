# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a job could see. tests/accounts/visible.py has all ways, with runs on the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from accounts.visible import FILES, Way, is_wrong, of_file
from synthetic import uuid

UUIDS = [uuid(gpu) for gpu in range(8)]


@pytest.mark.parametrize("way", FILES, ids=lambda way: way.name)
def test_a_job_has_the_energy_of_the_gpus_that_it_could_see(tmp_path: Path, way: Way) -> None:
    filled = {name: value.format(*UUIDS) for name, value in way.environment.items()}
    assert not is_wrong(way, of_file(tmp_path / "run", way, filled, UUIDS), UUIDS)
