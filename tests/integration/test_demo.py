"""The demo proves by itself that its pipeline, killed half-way and run again, lost and doubled nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_spark_starts_from_a_checkout_whose_path_has_spaces(tmp_path: Path) -> None:
    checkout = tmp_path / "a check out"
    checkout.mkdir()
    shown = ["make", "-C", str(checkout), "-f", str(DEMO.parents[1] / "Makefile"), "--eval", "shown: ; @printenv"]
    printed = subprocess.run([*shown, "shown"], capture_output=True, text=True, check=True).stdout
    variables = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": variables["SPARK_SUBMIT_OPTS"]}
    submit = ["bash", str(home / "bin" / "spark-submit"), "--version"]
    started = subprocess.run(submit, env=environment, capture_output=True, text=True, check=False)
    assert (started.returncode, "Welcome to" in started.stderr) == (0, True), started.stderr


@pytest.mark.slow
def test_demo_kills_its_pipeline_and_counts_every_flight(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--months", "2", "--lake", str(tmp_path / "lake")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    log = tmp_path / "lake" / "spark.log"
    assert run.returncode == 0, run.stdout + run.stderr + (log.read_text()[-4000:] if log.exists() else "")
    assert "kill -9" in run.stdout
    assert "All checks passed" in run.stdout
