"""An append that a signal interrupts leaves later appends of the process working."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import lance
import pyarrow as pa
import pytest

import lancekeep

ROWS = pa.table({"a": [1, 2]})


def test_interrupt_while_a_committer_starts_blocks_no_later_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("t", ROWS)

    def interrupted(act: Callable[[], object]) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("lancekeep.application.rows.committer.in_background", interrupted)
    with pytest.raises(KeyboardInterrupt):
        catalog.write("t", ROWS, "append")
    later = Thread(target=catalog.write, args=("t", ROWS, "append"), daemon=True)
    later.start()
    later.join(60)
    assert not later.is_alive()
    assert lance.dataset(str(tmp_path / "t.lance")).count_rows() == 4
