"""Each deliberate fault in a single module is found by the test that is named beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from planted.faults import FAULTS

ROOT = Path(__file__).parents[2]


def test_deliberate_faults_are_found(tmp_path: Path) -> None:
    """One process runs the tests, each with its fault."""
    tests = [fault.found_by for fault in FAULTS.values()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-n",
        "0",
        "-p",
        "planted.planting",
        "-p",
        "no:cacheprovider",
    ]
    ran = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'base'}", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(tests)} passed" in ran.stdout
