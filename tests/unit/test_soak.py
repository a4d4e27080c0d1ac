"""The tests that `make test` leaves out exist, and `make soak` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import KEPT, SOAK, is_soak

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", SOAK)
def test_every_entry_names_a_test(file: str) -> None:
    assert [entry for entry in SOAK[file] if not _is_defined(file, entry)] == []


def test_every_kept_test_exists_and_would_be_left_out() -> None:
    for file, name in (test.split("::", 1) for test in KEPT):
        assert _is_defined(file, name)
        assert SOAK[file]


def _is_defined(file: str, entry: str) -> bool:
    """Return whether a test or a class is in a file, or a test of a class in the contract that it inherits."""
    name, _, inherited = entry.partition("[")[0].partition("::")
    if inherited:
        contracts = (ROOT / "src" / "testing").glob("*.py")
        return f"class {name}(" in (ROOT / file).read_text() and any(
            f"def {inherited}(" in contract.read_text() for contract in contracts
        )
    return any(f"{kind} {name}" in (ROOT / file).read_text() for kind in ("def", "class"))


def test_an_entry_is_a_test_one_variant_the_beginning_of_variants_or_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOAK, "tests/test_a.py", {"test_b", "test_c[d]", "[e on s3", "TestG", "TestH::test_i"})
    left = ("test_b", "test_b[x]", "test_c[d]", "test_f[e on s3-1]", "TestG::test_b[x]", "TestH::test_i[x]")
    assert all(is_soak(f"tests/test_a.py::{name}") for name in left)
    run = ("test_bb", "test_c", "test_c[d2]", "test_f[x-e on s3]", "test_f", "TestH::test_j", "TestGG::test_k")
    assert not any(is_soak(f"tests/test_a.py::{name}") for name in run)
    assert not is_soak("tests/test_other.py::test_b")


def test_make_soak_runs_what_make_test_leaves_out() -> None:
    assert "pytest -m soak" in (ROOT / "Makefile").read_text()
