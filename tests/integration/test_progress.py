"""Progress bars: on stderr of a terminal, and not with ``--quiet``."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lancekeep


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("progress") / "lake")
    with lancekeep.connect(root) as catalog:
        catalog.write("t", pa.table({"id": range(300_000), "text": ["a text of some length"] * 300_000}))
    return root


def at_terminal(*arguments: str) -> tuple[str, str]:
    """Run a command whose stderr is a terminal; return its stdout and what the terminal shows."""
    terminal, stderr = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "lancekeep", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        text=True,
    ) as process:
        os.close(stderr)
        assert process.stdout is not None
        told, shown = process.stdout.read(), b""
        while True:
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:  # the last writer has closed it
                break
            if not part:
                break
            shown += part
    os.close(terminal)
    assert process.returncode == 0, shown
    return told, shown.decode()


@pytest.mark.parametrize("quiet", [False, True])
def test_export_shows_a_bar_unless_it_is_quiet(lake: str, tmp_path: Path, quiet: bool) -> None:
    told, shown = at_terminal("export", lake, "t", str(tmp_path / "rows.csv"), *(["--quiet"] if quiet else []))
    assert told == ""
    assert ("export: rows" in shown) != quiet
    assert ("Wrote 300,000 rows" in shown) != quiet
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 300_001


def test_data_on_stdout_has_no_bar_in_it(lake: str) -> None:
    told, shown = at_terminal("count", lake, "t")
    assert (told, "count" in shown) == ("300000\n", True)
