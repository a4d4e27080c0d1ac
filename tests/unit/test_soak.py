"""The tests that `make test` leaves out exist, and `make soak` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import SOAK, is_soak

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", SOAK)
def test_every_entry_names_a_test(file: str) -> None:
    content = (ROOT / file).read_text()
    assert [entry for entry in SOAK[file] if f"def {entry.partition('[')[0]}" not in content] == []


def test_an_entry_is_a_test_one_variant_or_the_beginning_of_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOAK, "tests/test_a.py", {"test_b", "test_c[d]", "[e on s3"})
    left = ("test_b", "test_b[x]", "test_c[d]", "test_f[e on s3-1]")
    assert all(is_soak(f"tests/test_a.py::{name}") for name in left)
    run = ("test_bb", "test_c", "test_c[d2]", "test_f[x-e on s3]", "test_f")
    assert not any(is_soak(f"tests/test_a.py::{name}") for name in run)
    assert not is_soak("tests/test_other.py::test_b")


def test_make_soak_runs_what_make_test_leaves_out() -> None:
    assert "pytest -m soak" in (ROOT / "Makefile").read_text()
