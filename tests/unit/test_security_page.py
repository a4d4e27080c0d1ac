"""The page on security names one attack test for each rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_attack_that_the_page_names_is_a_test() -> None:
    section = (ROOT / "docs/security.md").read_text("utf-8").partition("## Attack tests")[2]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| rule")]
    named = re.findall(r"\| `([\w/]+\.py)::(\w+)` \|", section)
    assert len(named) == len(rows) >= 29
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name
