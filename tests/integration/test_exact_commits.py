"""Exact commits under every commit store, and the properties of their transactions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import lance.fragment
import pyarrow as pa
import pytest
from faults import Faulty

import lancekeep
from lancekeep.adapters.lance.channels import Channel
from lancekeep.application.catalog import directory_of

SCHEMA = pa.schema([("a", pa.int64())])


@pytest.fixture(params=["", "sqlite://{}/commits.db"], ids=["storage-managed", "managed"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.Catalog:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=request.param.format(tmp_path) or None)
    catalog.write("t", pa.table({"a": [1]}, SCHEMA))
    return catalog


def written(catalog: lancekeep.Catalog, plan: lancekeep.WritePlan) -> list[lance.FragmentMetadata]:
    fragments: list[lance.FragmentMetadata] = lance.fragment.write_fragments(pa.table({"a": [2]}, SCHEMA), plan.uri)
    return fragments


def test_exact_commit_of_taken_version_is_refused(catalog: lancekeep.Catalog) -> None:
    plan = catalog.begin_write("t", SCHEMA, "append")
    fragments = written(catalog, plan)
    assert catalog.commit_fragments(plan, fragments, properties={"run": "7"}, exactly=True).version == 2
    with pytest.raises(lancekeep.ConcurrentModification, match="t: another writer has committed version 2"):
        catalog.commit_fragments(plan, fragments, exactly=True)
    assert catalog.open("t").count_rows() == 2
    assert catalog.open("t").read_transaction(2).transaction_properties == {"run": "7"}
    assert catalog.commit_fragments(plan, fragments).version == 3  # where any version will do


def test_native_change_commits_after_the_given_version_or_is_refused(
    catalog: lancekeep.Catalog,
) -> None:
    def delete(dataset: lance.LanceDataset) -> lance.LanceDataset:
        dataset.delete("a = 1")
        return dataset

    catalog.write("t", pa.table({"a": [1, 3]}, SCHEMA), "append")
    with pytest.raises(lancekeep.ConcurrentModification, match="version 2"):
        catalog.commit_change("t", delete, after=1)
    assert catalog.commit_change("t", delete, after=2).version == 3
    assert catalog.describe_table("t").version == 3
    assert catalog.open("t").to_table() == pa.table({"a": [3]}, SCHEMA)
    assert [entry.version for entry in catalog.versions.history("t")] == [3, 2, 1]


def test_exact_commit_is_not_repeated_after_lost_race(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        catalog.write("t", pa.table({"a": [1]}, SCHEMA))

    def overtaken(method: str, _: int) -> None:
        if method == "reserve" and rows.counts["reserve"] == 0:
            with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as other:
                other.write("t", pa.table({"a": [3]}, SCHEMA), "append")

    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        commits = directory_of(catalog).ledger.commits
        commits.rows = rows = Faulty(commits.rows, overtaken)  # type: ignore[assignment] # a double
        plan = catalog.begin_write("t", SCHEMA, "append")
        with pytest.raises(lancekeep.ConcurrentModification, match="t: another writer has committed version 2"):
            catalog.commit_fragments(plan, written(catalog, plan), exactly=True)
    staged = list((tmp_path / "lake").glob("*/_versions/*.manifest-*"))
    assert staged == [], "the engine has waited, and staged another manifest"


def test_change_that_has_lost_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine tries again as long as other writers commit, for up to half a minute."""
    store = f"sqlite://{tmp_path}/commits.db"
    catalog, other = (lancekeep.connect(str(tmp_path / "lake"), commit_store=store) for _ in range(2))
    catalog.write("t", pa.table({"a": [1]}, SCHEMA))
    create, tries = Channel.create_table_version, list[int]()

    def overtaken(channel: Channel, request: Any) -> Any:
        tries.append(request["version"])
        with ThreadPoolExecutor(1) as pool:  # the engine cannot be called by a thread of its own
            pool.submit(other.write, "t", pa.table({"a": [3]}, SCHEMA), "append").result()
        return create(channel, request)

    monkeypatch.setattr(Channel, "create_table_version", overtaken)
    with pytest.raises(lancekeep.ConcurrentModification, match="another writer has committed version 2"):
        catalog.commit_change("t", lambda dataset: (dataset.delete("a = 1"), dataset)[1], after=1)
    assert tries == [2]
