"""`lancekeep bench` measures a deployment and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import lancekeep
from lancekeep.entrypoints.cli import bench
from lancekeep.entrypoints.cli import lancekeep as command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["bench", *arguments], obj=lancekeep)


def is_empty(root: Path, mode: str = "compatible") -> bool:
    """Whether the catalog lists nothing, and no table's directory remains."""
    with lancekeep.connect(str(root), commit_store="remembered", mode=mode) as catalog:
        assert catalog.list_dropped() == [] if mode != "v1" else True
        names = [*catalog.list_tables(), *([] if mode == "v1" else catalog.list_namespaces())]
    left = [each for each in root.rglob("*") if each.is_file() and "__manifest" not in each.parts]
    return not names and not [each for each in left if not each.name.startswith(".lancekeep")]


@pytest.mark.parametrize("mode", ["compatible", "v2", "v1"])
def test_deployment_is_measured_and_nothing_is_left(tmp_path: Path, mode: str) -> None:
    root = str(tmp_path / "lake")
    store = () if mode == "v1" else ("--commit-store", f"sqlite://{tmp_path}/c.db")
    done = run(root, *store, "--mode", mode, "--seconds", "0.3", "--yes", "-o", "json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [each["operation"] for each in found] == ["commit", "open", "list"]
    for each in found:
        assert each["measured"] >= 1
        assert 0 < each["p50 ms"] <= each["p99 ms"]
        assert each["per second"] > 0
    assert is_empty(tmp_path / "lake", mode)


def test_nothing_is_written_without_a_confirmation(tmp_path: Path) -> None:
    refused = run(str(tmp_path / "lake"))
    assert (refused.exit_code, "Nothing was changed" in refused.stderr) == (1, True)
    assert f"Create a catalog, which stays, and measure file://{tmp_path}/lake" in " ".join(refused.stderr.split())
    assert not list(tmp_path.rglob("*bench*"))


def test_protected_catalog_is_not_measured(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    with lancekeep.connect(str(root)) as catalog:
        catalog.protect("")
    refused = run(str(root), "--yes")
    assert (refused.exit_code, "is protected" in refused.stderr) == (1, True), refused.output
    assert is_empty(root)


def test_failure_removes_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise lancekeep.StoreUnavailable("the store does not answer")

    monkeypatch.setattr(bench, "_durations", fail)
    assert run(str(tmp_path / "lake"), "--yes").exit_code == 3
    assert is_empty(tmp_path / "lake")


@pytest.mark.parametrize("moment", ["_created", "_remove"])
def test_ctrl_c_at_the_ends_of_the_measurement_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    act = getattr(bench, moment)

    def interrupted(*arguments: Any) -> Any:
        if moment == "_created":
            found = act(*arguments)
            os.kill(os.getpid(), signal.SIGINT)
            return found
        os.kill(os.getpid(), signal.SIGINT)
        return act(*arguments)

    monkeypatch.setattr(bench, moment, interrupted)
    stopped = run(str(tmp_path / "lake"), "--seconds", "0.1", "--yes")
    assert (stopped.exit_code, stopped.stderr) == (130, "Stopped. What the measurement wrote was removed.\n")
    assert is_empty(tmp_path / "lake")


def test_percentiles_are_those_of_the_durations() -> None:
    found = bench._row("x", [each / 1000 for each in range(100, 0, -1)])
    assert (found["p50 ms"], found["p99 ms"], found["measured"]) == (51.0, 100.0, 100)
    assert found["per second"] == round(100 / (101 * 50 / 1000), 1)


def test_ctrl_c_removes_what_was_written(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    with lancekeep.connect(str(root)) as catalog:
        catalog.write("other", pa.table({"id": [1]}))
        arguments = [sys.executable, "-m", "lancekeep", "bench", str(root), "--seconds", "60", "--yes"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while not any(root.glob("*bench*/_versions/*")):
                assert process.poll() is None
                time.sleep(0.02)  # leave the processor to the command
            os.kill(process.pid, signal.SIGINT)
            told, said = process.communicate(timeout=60)
        assert (process.returncode, told) == (130, "")
        assert said == "Stopped. What the measurement wrote was removed.\n"
        assert (catalog.list_tables(), catalog.list_namespaces()) == (["other"], [])
    assert not list(root.glob("*bench*/_versions/*"))
