"""A committer of appends follows the version of a writer that had its turn only if that version follows its own."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from lancekeep.application.rows.append_lines import Predecessor
from lancekeep.application.rows.handover import Handover
from lancekeep.application.rows.predecessors import Predecessors
from lancekeep.domain.layout import DatasetRoot
from lancekeep.format.judge import Approved

ROOT, OTHER = (DatasetRoot(f"lake/{name}.lance", f"memory:///lake/{name}.lance") for name in ("t", "u"))


@pytest.mark.parametrize(
    ("root", "follows"),
    [(ROOT, "of another table"), (OTHER, "known")],
    ids=["a recreated table", "another directory"],
)
def test_version_of_another_table_is_not_followed(root: DatasetRoot, follows: str) -> None:
    handover = Handover(lambda: False)
    handover.follow(root, Approved(8, "its own", b"no manifest: it must not be read", follows))
    handover.end()
    version: Any = Mock(transaction="known")
    base = Predecessor(table=Mock(), root=ROOT, version=version)
    assert Predecessors(Mock()).committed_by(handover, base) is None
