"""What is generated is current."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_protocol_page_is_the_table_that_runs() -> None:
    generator = runpy.run_path(str(DOCS / "commit_protocol.py"))
    assert (DOCS / "commit-protocol.md").read_text() == generator["page"](), "run: python docs/commit_protocol.py"


def test_every_failure_is_mapped_to_tests_that_exist() -> None:
    generator = runpy.run_path(str(DOCS / "failure_modes.py"))
    assert (DOCS / "failure-modes.md").read_text() == generator["page"](), "run: python docs/failure_modes.py"
    assert generator["missing"]() == []
