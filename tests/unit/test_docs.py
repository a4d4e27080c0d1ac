"""Generated pages are current."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_protocol_page_matches_the_transition_table() -> None:
    generator = runpy.run_path(str(DOCS / "commit_protocol.py"))
    assert (DOCS / "commit-protocol.md").read_text() == generator["page"](), "run: python docs/commit_protocol.py"


def test_page_about_conflicts_matches_the_rules() -> None:
    generator = runpy.run_path(str(DOCS / "conflict_rules.py"))
    assert (DOCS / "conflicts.md").read_text() == generator["page"](), "run: python docs/conflict_rules.py"


def test_every_failure_mode_names_existing_tests() -> None:
    generator = runpy.run_path(str(DOCS / "failure_modes.py"))
    assert (DOCS / "failure-modes.md").read_text() == generator["page"](), "run: python docs/failure_modes.py"
    assert generator["missing"]() == []


def test_every_page_names_existing_tests() -> None:
    tests = DOCS.parent / "tests"
    files = list(tests.rglob("test_*.py"))
    known = {path.stem for path in files}
    known |= {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = {name: path.name for path in DOCS.rglob("*.md") for name in re.findall(r"`(test_\w+)`", path.read_text())}
    assert len(named) > 40
    assert {name: page for name, page in named.items() if name not in known} == {}


def test_commit_diagram_shows_the_transition_table() -> None:
    drawn = runpy.run_path(str(DOCS / "commit_diagram.py"))["picture"]()
    assert (DOCS / "images" / "commit.svg").read_text() == drawn, "run: python docs/commit_diagram.py"


def test_figures_of_the_page_about_performance_are_those_of_the_results() -> None:
    generator = runpy.run_path(str(DOCS / "performance_table.py"))
    assert (DOCS / "performance.md").read_text() == generator["page"](), "run: python docs/performance_table.py"


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [path.name.partition("-")[0] for path in sorted((DOCS / "adr").glob("[0-9]*.md"))]
    assert len(numbers) > 100
    assert numbers == sorted(set(numbers))
