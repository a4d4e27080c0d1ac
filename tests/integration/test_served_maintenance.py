"""Automatic maintenance of ``lancekeep serve``, which is its default."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import lance
import pyarrow as pa
import pytest

import lancekeep

MOST_APPENDS = 2000


@pytest.mark.parametrize("given", [(), ("--maintenance", "off")], ids=["default", "off"])
def test_a_server_maintains_the_tables_of_its_callers(tmp_path: Path, given: tuple[str, ...]) -> None:
    store = f"sqlite://{tmp_path}/commits.db"
    called = [sys.executable, "-u", "-m", "lancekeep", "serve", str(tmp_path / "lake"), "--commit-store", store]
    called += ["--port", "0", "--log-level", "error", *given]
    with subprocess.Popen(called, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            appended = 0
            with lancekeep.connect(found[0]) as catalog:
                catalog.write("t", pa.table({"id": [-1]}))
                while appended < 20 or not (given or _has_compacted(found[0])):
                    catalog.write("t", pa.table({"id": [appended]}), "append")
                    appended += 1
                    assert appended < MOST_APPENDS
            metrics = _metrics(found[0])
            for name in ("actions_total{", 'last_done_timestamp_seconds{action="compact"}'):
                assert (f"lancekeep_maintenance_{name}" in metrics) is not bool(given)
            assert "lancekeep_maintenance_expired_versions 0.0" in metrics
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait() in (0, -signal.SIGTERM)
    dataset = lance.dataset(str(tmp_path / "lake" / "t.lance"))
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(-1, appended))
    assert (len(dataset.get_fragments()) < appended) is not bool(given)


def _has_compacted(uri: str) -> bool:
    return 'action="compact",outcome="done"' in _metrics(uri)


def _metrics(uri: str) -> str:
    with urlopen(f"{uri}/metrics") as answer:
        return str(answer.read().decode())
