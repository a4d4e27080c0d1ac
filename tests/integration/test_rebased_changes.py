"""Changes of rows beside appends that never pause are rebased without the engine, and keep every other row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
import lance
import pyarrow as pa
import pytest
from faults import Faulty, killed_at_each_state, lost_replies
from rest_server import serving

import lancekeep
from lancekeep.adapters.lance.engine import LanceEngine
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows.appends import Appends
from lancekeep.application.rows.table_transactions import TableTransactions
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.appends import REBASED
from lancekeep.domain.commit import Changed
from lancekeep.domain.identifiers import ObjectId

TABLE = ObjectId(("t",))
STORES = {"storage-managed": "", "sqlite": "sqlite://{}/commits.db", "files": "file://{}/commits?fsync=false"}


def rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def ids(uri: str) -> list[int]:
    """Return the ids that plain pylance reads, in order."""
    table = lance.dataset(uri)
    table.validate()
    return sorted(table.to_table()["id"].to_pylist())


def connect(tmp_path: Path, store: str) -> lancekeep.Catalog:
    return lancekeep.connect(str(tmp_path / "lake"), commit_store=STORES[store].format(tmp_path) or None)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Appends, "are_recent", lambda *_: True)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def of_two_fragments(catalog: lancekeep.Catalog) -> str:
    """Write a table of the ids 0 to 19, and return its URI."""
    catalog.write("t", rows(*range(10)), "create")
    catalog.write("t", rows(*range(10, 20)), "append")
    return str(catalog.open("t").uri)


def delete(catalog: lancekeep.Catalog, *gone: int) -> Changed:
    return catalog.data.delete(TABLE, f"id in {(*gone, -1)}")


def update(catalog: lancekeep.Catalog, *changed: int) -> Changed:
    """Add 200 to some ids."""
    return catalog.data.update(TABLE, {"id": "id + 200"}, f"id in {(*changed, -1)}")[0]


MINE: dict[str, tuple[Callable[..., Changed], Callable[[Sequence[int], Sequence[int]], list[int]]]] = {
    "delete": (delete, lambda ids, some: sorted(set(ids) - set(some))),
    "update": (update, lambda ids, some: sorted(each + 200 if each in some else each for each in ids)),
}


@pytest.fixture(params=MINE)
def mine(request: pytest.FixtureRequest) -> Any:
    """Return a change of some ids, and what it makes of a list of ids."""
    return MINE[request.param]


@pytest.mark.parametrize(
    ("store", "mine"), [("storage-managed", "delete"), ("sqlite", "update"), ("files", "delete")], indirect=True
)
def test_changes_beside_appends_without_a_pause(tmp_path: Path, store: str, mine: Any) -> None:
    catalog, (change, applied) = connect(tmp_path, store), mine
    uri = of_two_fragments(catalog)
    appended, stop, numbers = [], threading.Event(), count(1000)

    def append() -> None:
        while not stop.is_set():
            number = next(numbers)
            catalog.write("t", rows(number), "append")
            appended.append(number)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        while not directory_of(catalog).versions.lines._lines[TABLE].pace.is_busy(monotonic()):
            stop.wait(0.05)
        changes = [change(catalog, number, 10 + number) for number in range(5)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert ids(uri) == sorted([*applied(range(20), [*range(5), *range(10, 15)]), *appended])
    table = lance.dataset(uri)
    for each in changes:
        transaction = table.read_transaction(each.version)
        assert transaction is not None
        assert transaction.uuid == each.transaction
        assert transaction.transaction_properties == dict([REBASED])
    line = directory_of(catalog).versions.lines._lines[TABLE]
    assert (line.is_owed, line.pace.met) == (False, float("-inf")), "no append waited for the changes"
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def append_one(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(40), "append")


def recreate(catalog: lancekeep.Catalog) -> None:
    catalog.drop_table("t")
    of_two_fragments(catalog)


def rename_and_create(catalog: lancekeep.Catalog) -> None:
    catalog.rename_table("t", "u")
    of_two_fragments(catalog)


OTHERS: dict[str, tuple[Callable[[lancekeep.Catalog], object], list[int]]] = {
    "append": (append_one, [*range(20), 40]),
    "delete of other rows": (lambda catalog: catalog.open("t").delete("id in (0, 19)"), [*range(1, 19)]),
    "delete of the same rows": (
        lambda catalog: catalog.open("t").delete("id in (3, 5)"),
        [*range(3), 4, *range(6, 20)],
    ),
    "delete of whole fragments": (lambda catalog: catalog.open("t").delete("id < 10"), [*range(10, 20)]),
    "update": (
        lambda catalog: catalog.open("t").update({"id": "id + 100"}, "id in (3, 7)"),
        [*range(3), 4, 5, 6, *range(8, 20), 103, 107],
    ),
    "compaction": (lambda catalog: catalog.upkeep.compact("t"), [*range(20)]),
    "index": (lambda catalog: catalog.open("t").create_scalar_index("id", "BTREE"), [*range(20)]),
}
"""What another writer does, and which ids it leaves of 0 to 19."""


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("other", OTHERS)
def test_another_change_in_between_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, store: str, mine: Any
) -> None:
    catalog, elsewhere = connect(tmp_path, store), connect(tmp_path, store)
    uri = of_two_fragments(catalog)
    (change, applied), (act, left) = mine, OTHERS[other]
    monkeypatch.setattr("lancekeep.application.rows.table_transactions.in_background", lambda act: act())
    overtake(monkeypatch, lambda: act(elsewhere))
    change(catalog, 3, 4, 13, 14)
    assert ids(uri) == applied(left, [3, 4, 13, 14])
    assert lance.dataset(uri).to_table(filter="id = 13 or id = 15")["id"].to_pylist() == [15]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        (
            lambda catalog: catalog.write("t", rows(1, 2, 3), "overwrite"),
            lancekeep.CommitRefused,
            "version 3, overwrite, was",
        ),
        (
            lambda catalog: catalog.open("t", 1).restore(),
            lancekeep.CommitRefused,
            "since the transaction read the table. The",
        ),
        (recreate, lancekeep.CommitRefused, "dropped or renamed|dropped and created"),
        (rename_and_create, lancekeep.CommitRefused, "dropped or renamed|dropped and created"),
        (lambda catalog: catalog.drop_table("t"), lancekeep.TableNotFound, "t"),
    ],
    ids=["overwrite", "restore", "recreation", "renamed and created", "drop"],
)
def test_a_delete_of_a_table_that_was_replaced_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Any], object],
    error: type[Exception],
    said: str,
    store: str,
) -> None:
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    of_two_fragments(catalog)
    overtake(monkeypatch, lambda: act(other))
    with pytest.raises(error, match=said):
        catalog.data.delete(TABLE, "id < 5")
    for name in other.list_tables():
        found = other.open(name)
        assert found.count_rows() == len(ids(found.uri))
        assert "delete" not in {entry.operation.lower() for entry in other.versions.history(name)}


def overtake(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another writer act between the staging of a delete and its commit, once."""
    commit, pending = TableTransactions.commit_staged, [act]

    def overtaken(self: TableTransactions, *arguments: Any) -> Any:
        if pending:
            pending.pop()()
        return commit(self, *arguments)

    monkeypatch.setattr(TableTransactions, "commit_staged", overtaken)


@pytest.mark.usefixtures("busy")
def test_changes_that_empty_a_fragment_together_remove_it(
    tmp_path: Path, store: str, mine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine meets the other delete before it stages the change, and then records the fragment as updated, too."""
    change, expected = mine
    stage, pending = LanceEngine.stage_change, [range(10, 15)]

    def staged(self: LanceEngine, table: ObjectId, act: Callable[[Any], Any]) -> Any:
        def late(dataset: Any) -> Any:
            if pending:
                delete(other, *pending.pop())
            return act(dataset)

        return stage(self, table, late)

    with connect(tmp_path, store) as catalog, connect(tmp_path, store) as other:
        uri = of_two_fragments(catalog)
        monkeypatch.setattr(LanceEngine, "stage_change", staged)
        change(catalog, *range(15, 20))
        assert ids(uri) == expected([*range(10), *range(15, 20)], range(15, 20))
        assert 1 not in {fragment.fragment_id for fragment in lance.dataset(uri).get_fragments()}
        assert catalog.upkeep.fsck(deep=True).findings == ()


@pytest.mark.usefixtures("busy")
def test_a_lost_reply_is_one_delete(tmp_path: Path, store: str) -> None:
    catalog = connect(tmp_path, store)
    uri = of_two_fragments(catalog)
    commits = directory_of(catalog).commits
    lost = lost_replies("put_if_absent" if store == "storage-managed" else "copy_if_absent", 1)
    commits.objects = commits.lineage._objects = Faulty(commits.objects, lost)
    change = catalog.data.delete(TABLE, "id < 5")
    assert (change.version, lance.dataset(uri).version) == (3, 3)
    assert ids(uri) == list(range(5, 20))


@pytest.mark.usefixtures("busy")
def test_a_killed_change_is_whole_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, mine: Any
) -> None:
    change, applied = mine
    with connect(tmp_path, store) as catalog:
        uri = of_two_fragments(catalog)
    whole = applied(range(20), [3, 13])
    for _ in killed_at_each_state(
        monkeypatch, tmp_path, lambda: connect(tmp_path, store), lambda each: change(each, 3, 13)
    ):
        assert ids(uri) in (list(range(20)), whole)
        with connect(tmp_path, store) as catalog:
            change(catalog, 3, 13)
            assert ids(uri) == whole
            kinds = {each.kind for each in catalog.upkeep.fsck(deep=True).findings}
            assert kinds <= {Kind.STAGED}, "the killed process could not remove it"


@pytest.mark.usefixtures("busy")
def test_the_engine_commits_on_branches_and_what_only_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path, "files")
    uri = of_two_fragments(catalog)
    catalog.branches.create(TABLE, "b", None, None)
    monkeypatch.setattr(LanceEngine, "stage_change", None)
    catalog.data.delete(TABLE, "id < 5", branch="b")
    assert catalog.data.count(TABLE, branch="b") == 15
    monkeypatch.undo()
    monkeypatch.setattr(Appends, "are_recent", lambda *_: True)
    catalog.open("t").update_config({"lance.auto_cleanup.interval": "100", "lance.auto_cleanup.older_than": "7d"})
    catalog.data.delete(TABLE, "id < 6")
    assert ids(uri) == list(range(6, 20))
    transaction = lance.dataset(uri).read_transaction(4)
    assert transaction is not None
    assert not transaction.transaction_properties


@pytest.mark.usefixtures("busy")
def test_the_engine_commits_requests_with_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of such a request claims the commit of the engine."""
    monkeypatch.setattr(LanceEngine, "stage_change", None)
    catalog = connect(tmp_path, "files")
    uri = of_two_fragments(catalog)
    headers = {"Idempotency-Key": str(uuid4())}
    with serving(
        lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=STORES["files"].format(tmp_path))
    ) as running:
        answers = [
            httpx.post(f"{running.uri}/v1/table/t/delete", json={"predicate": "id < 5"}, headers=headers)
            for _ in range(2)
        ]
    assert [(each.status_code, each.text) for each in answers] == [(200, answers[0].text)] * 2
    assert lance.dataset(uri).version == 3
    assert ids(uri) == list(range(5, 20))
