"""Outcomes of commits: a definite conflict is a conflict, and an unknown outcome has its token."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from faults import Faulty

import lancekeep
from lancekeep.application.catalog import directory_of

ROWS = pa.table({"a": pa.array([1, 2], pa.int64())})


def appended(catalog: lancekeep.Catalog) -> object:
    return catalog.write("t", ROWS.to_reader(), "append")


def overwritten(catalog: lancekeep.Catalog) -> object:
    return catalog.write("t", ROWS, "overwrite")


def updated(catalog: lancekeep.Catalog) -> object:
    return catalog.data.update(lancekeep.ObjectId.of("t"), {"a": "a + 10"}, None)


def deleted(catalog: lancekeep.Catalog) -> object:
    return catalog.data.delete(lancekeep.ObjectId.of("t"), "a = 1")


def indexed(catalog: lancekeep.Catalog) -> object:
    return catalog.commit_change("t", lambda dataset: dataset.create_scalar_index("a", "BTREE"))


def restored(catalog: lancekeep.Catalog) -> object:
    return catalog.versions.restore(lancekeep.ObjectId.of("t"), 2)


@pytest.mark.parametrize("change", [appended, overwritten, updated, deleted, indexed, restored])
def test_conflict_whose_winner_was_cleaned_up_is_a_conflict(
    tmp_path: Path, change: Callable[[lancekeep.Catalog], object]
) -> None:
    place, store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"
    catalog, other = (lancekeep.connect(place, commit_store=store) for _ in range(2))
    other.write("t", ROWS)
    other.write("t", ROWS, "append")
    uri = other.describe_table("t").uri

    def overtaken(method: str, _: int) -> None:
        if method == "reserve":
            other.write("t", ROWS, "append")
            other.write("t", ROWS, "append")
            lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)

    commits = directory_of(catalog).commits
    commits.rows = rows = Faulty(commits.rows, overtaken)  # type: ignore[assignment] # a double
    before = lance.dataset(uri).count_rows()
    with pytest.raises(lancekeep.ConcurrentModification, match=r"t: .*nothing (of this call )?was committed"):
        change(catalog)
    assert lance.dataset(uri).count_rows() == before + 4 * rows.counts["reserve"]


def test_append_whose_winner_was_cleaned_up_follows_the_latest_version(tmp_path: Path) -> None:
    place = str(tmp_path / "lake")
    catalog, other = (lancekeep.connect(place, commit_store="conditional-put://") for _ in range(2))
    other.write("t", ROWS)
    catalog.write("t", ROWS, "append")
    uri = other.describe_table("t").uri

    def overtaken(method: str, _: int) -> None:
        if method == "put_if_absent" and not objects.counts[method]:
            for _ in range(2):
                lance.write_dataset(ROWS, uri, mode="append")
        elif method == "get" and objects.counts["put_if_absent"] == 1:
            lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)

    directory_of(catalog).commits.objects = objects = Faulty(directory_of(catalog).commits.objects, overtaken)
    catalog.write("t", ROWS, "append")
    assert objects.counts["put_if_absent"] == 2
    assert lance.dataset(uri).count_rows() == 5 * ROWS.num_rows
