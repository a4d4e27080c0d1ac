"""A version hint that is older than a gap between the versions hides no version over ``conditional-put://``.

Commits without the engine write no hint, or one for every few versions. pylance's clean-up keeps tagged versions, and
removes later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.application.upkeep.fsck import Kind

Act = Callable[[lancekeep.Catalog], object]


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def values(dataset: Any) -> list[int]:
    return sorted(dataset.to_table()["a"].to_pylist())


def with_gap(directory: Path, keep: Act) -> lancekeep.Catalog:
    """Return a catalog whose table is at version 6, after a native clean-up that has kept version 2, with its hint."""
    catalog = lancekeep.connect(str(directory / "lake"), mode="v2", commit_store="conditional-put://")
    catalog.write("t", rows(1))
    native = lance.dataset(services_of(catalog).uri(catalog.find_table("t")))
    native.insert(rows(2))
    keep(catalog)
    for value in range(3, 7):
        catalog.write("t", rows(value), "append")
    found = lance.dataset(native.uri)
    found.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    assert [version["version"] for version in found.versions()] == [2, 6]
    return catalog


def tag(catalog: lancekeep.Catalog) -> None:
    catalog.tags.create(lancekeep.ObjectId.of("t"), "kept", 2, None)


def branch(catalog: lancekeep.Catalog) -> None:
    catalog.branches.create(lancekeep.ObjectId.of("t"), "kept", None, None)


def untag(catalog: lancekeep.Catalog) -> None:
    catalog.tags.delete(lancekeep.ObjectId.of("t"), "kept")


@pytest.mark.parametrize("keep", [tag, branch])
def test_latest_version_after_a_gap_is_read_and_followed(tmp_path: Path, keep: Act) -> None:
    catalog = with_gap(tmp_path, keep)
    assert values(catalog.open("t")) == [1, 2, 3, 4, 5, 6]
    with lancekeep.connect(catalog.root_uri, mode="v2", commit_store="conditional-put://") as other:
        other.write("t", rows(7), "append")
    assert values(lance.dataset(services_of(catalog).uri(catalog.find_table("t")))) == [1, 2, 3, 4, 5, 6, 7]


def test_latest_version_is_found_after_the_tag_was_deleted(tmp_path: Path) -> None:
    catalog = with_gap(tmp_path, tag)
    untag(catalog)
    assert values(catalog.open("t")) == [1, 2, 3, 4, 5, 6]
    assert Kind.STALE_HINT not in {finding.kind for finding in catalog.upkeep.fsck(deep=True).findings}
