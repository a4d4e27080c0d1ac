"""A group whose version follows a drop or rename of its table is refused, and leaves no version.

A V1 directory with a version is a table, and a new table there would continue after the version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows import direct_upserts
from lancekeep.ports.rows import MergeRule

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
NEW = pa.table({"a": pa.array([4, 5], pa.int64())})
UPSERT = MergeRule(["a"], update=True, insert=True)


@pytest.mark.parametrize(
    ("mode", "change", "left"),
    [
        ("v1", "drop", {}),
        ("compatible", "drop", {}),
        ("v1", "new", {"t": 3}),
        ("compatible", "new", {"t": 3}),
        ("compatible", "rename", {"moved": 9}),
    ],
)
@pytest.mark.parametrize("upserts", [False, True], ids=["appends", "upserts"])
@pytest.mark.parametrize("store", [None, "conditional-put://"])
def test_version_after_a_drop_or_rename_is_refused_and_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    change: str,
    left: dict[str, int],
    upserts: bool,
    store: str | None,
) -> None:
    monkeypatch.setattr(direct_upserts, "_OFTEN", 0)
    catalog, other, fresh = (lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=store) for _ in range(3))
    for how in ("create", "append", "append"):
        catalog.write("t", TABLE, how)
    objects = directory_of(catalog).commits.objects
    create, versions = objects.put_if_absent, count()

    def late(key: str, content: bytes) -> bool:
        if "/_versions/" in key and next(versions) == 0:
            if change == "rename":
                other.rename_table("t", "moved")
            else:
                other.drop_table("t")
            if change == "new":
                other.write("t", TABLE)
        return create(key, content)

    monkeypatch.setattr(objects, "put_if_absent", late)
    write: Callable[[], object] = partial(catalog.write, "t", NEW, "append")
    if upserts:
        write = partial(catalog.data.merge, "t", NEW.to_reader(), UPSERT)
    with pytest.raises(lancekeep.CommitRefused, match="renamed or dropped while version 4 was committed"):
        write()
    assert {name: fresh.open(name).to_table().num_rows for name in fresh.list_tables()} == left
    assert not fresh.upkeep.fsck().findings
    catalog.write("t", NEW, "append" if change == "new" else "create")
    assert fresh.open("t").to_table().num_rows == left.get("t", 0) + 2


@pytest.mark.parametrize("store", [None, "conditional-put://"])
def test_version_that_a_move_has_copied_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake"), commit_store=store) for _ in range(2))
    for how in ("create", "append"):
        catalog.write("t", TABLE, how)
    objects = directory_of(catalog).commits.objects
    create = objects.put_if_absent

    def early(key: str, content: bytes) -> bool:
        created = create(key, content)
        if key.endswith(f"/t.lance/_versions/{2**64 - 1 - 3:020}.manifest"):
            other.upkeep.relocate("t", "place")
        return created

    monkeypatch.setattr(objects, "put_if_absent", early)
    assert catalog.write("t", NEW, "append").version == 3
    assert other.open("t").to_table().num_rows == 8
