"""The check of the repository's language finds what it should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "check_language.py"))
SAMPLES = ["mean" + "while", "who" + "ever", "no" + "body", "under" + " way", "on" + " wish", "final" + "ise"]


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("form", ["It is {}.", "def test_{}_fails():", "{}", "Both words\n    # {}"])
def test_replaced_words_are_found(sample: str, form: str) -> None:
    text = form.format(sample.replace(" ", "_" if "def" in form else " "))
    assert [finding.path for finding in CHECK["findings"]("a.md", text)] == ["a.md"]


def test_phrases_are_found_across_lines() -> None:
    assert len(CHECK["findings"]("a.py", "# it is under\n    # " + "way now\n")) == 1


@pytest.mark.parametrize("phrase", ["those" + " of", "that" + " of", "another" + " one", "of" + " ours"])
def test_pronouns_are_found_in_texts_that_users_read(phrase: str) -> None:
    paths = ["src/a.py", "docs/a.md", "README.md", "tests/unit/a.py", "docs/adr/0001-a.md"]
    found = [path for path in paths if CHECK["findings"](path, f"# Keep {phrase} the table.\n")]
    assert found == ["src/a.py", "docs/a.md", "README.md"]


def test_unresolved_conflicts_are_found() -> None:
    text = "\n".join(["a", "<" * 7 + " HEAD", "b", "=" * 7, "c", ">" * 7 + " other"])
    assert [finding.line for finding in CHECK["findings"]("a.md", text)] == [2, 6]


@pytest.mark.parametrize("text", ["finalize", "for good reason", "amended", "read it as it is written"])
def test_similar_words_are_accepted(text: str) -> None:
    assert CHECK["findings"]("a.md", text) == []


@pytest.mark.parametrize(
    ("summary", "count"), [("x" * 79, 0), ("x" * 80, 1), ("First\nsecond", 1), ("First.\n\n    Second", 0)]
)
def test_public_summaries_are_one_short_line(summary: str, count: int) -> None:
    text = f'def public():\n    """{summary}"""\n\n\nclass Public:\n    def _private(self):\n        """{"x" * 90}"""\n'
    assert len(CHECK["findings"]("src/a.py", text)) == count
