"""The demo proves by itself that its pipeline, killed half-way and run again, lost and doubled nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
def test_demo_kills_its_pipeline_and_counts_every_flight(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--months", "2", "--lake", str(tmp_path / "lake")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    log = tmp_path / "lake" / "spark.log"
    assert run.returncode == 0, run.stdout + run.stderr + (log.read_text()[-4000:] if log.exists() else "")
    assert "kill -9" in run.stdout
    assert "All checks passed" in run.stdout
