"""The page that compares catalogs names a test for each cell of ours, and a source for each other cell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "comparison.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][2:]
SOURCES = re.findall(r"^(\d+)\. \S", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_cell_has_a_test_or_a_source(row: list[str]) -> None:
    *others, ours = row[1:]
    assert len(others) == 4
    test = re.fullmatch(r"\[[^\]]+\]\(([\w-]+\.md)(#[\w-]+)?\)[^`]*: `([\w/]+\.py)`", ours)
    assert test, ours
    assert (REPOSITORY / "docs" / test[1]).is_file()
    assert (REPOSITORY / "tests" / test[3]).is_file()
    for cell in others:
        cited = re.findall(r"\[(\d+)\]", cell)
        assert set(cited) <= set(SOURCES)
        assert cited or cell.startswith("*unknown*"), cell
