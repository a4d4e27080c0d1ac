"""Upserts of many callers that share versions, as plain pylance sees the table."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from engines import PYLANCE_4, Engine
from faults import Faulty
from lance_namespace import errors as api_errors
from writers import kill_two_at_work, stream

import lancekeep
from lancekeep.adapters.lance.rows import LanceRows
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.rows import waiting_upserts
from lancekeep.application.rows.table_data import TableData
from lancekeep.application.rows.table_transactions import TableTransactions
from lancekeep.application.rows.waiting_upserts import Upsert, UpsertLine
from lancekeep.composition import Sharing, open_catalog
from lancekeep.config import ConnectionConfig, given
from lancekeep.domain.commit import Changed
from lancekeep.domain.errors import EngineFailed, InvalidInput, StoreUnavailable
from lancekeep.ports.rows import MergeCounts, MergeRule
from lancekeep.testing.concurrency import race

STORES = ("sqlite", "conditional-put", "none")
UPSERT = MergeRule(["id"], update=True, insert=True)
Answer = tuple[Changed, MergeCounts]


def connect(directory: Path, store: str = "sqlite") -> lancekeep.Catalog:
    """Open the catalog; with ``workers``, as a worker of a server does."""
    url = {"sqlite": f"sqlite://{directory}/commits.db", "conditional-put": "conditional-put://"}.get(store.split()[0])
    root, options = str(directory / "lake"), {"fsync": "false"}
    if not store.endswith("workers"):
        return lancekeep.connect(root, commit_store=url, storage_options=options)
    (directory / "committers").mkdir(mode=0o700, exist_ok=True)
    config = ConnectionConfig.resolve(given(root=root, commit_store=url, storage_options=options))
    return open_catalog(config, Sharing(directory / "committers"))


def people(*ids: int, by: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "by": pa.array([by] * len(ids), pa.int64())})


def upsert(catalog: lancekeep.Catalog, rows: pa.Table, rule: MergeRule = UPSERT, patience: float = 30.0) -> Answer:
    return catalog.data.merge("t", rows.to_reader(), rule, patience=patience)


def plain(catalog: lancekeep.Catalog, version: int | None = None) -> lance.LanceDataset:
    """The table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table("t").uri, version=version)


def rows_of(catalog: lancekeep.Catalog, version: int | None = None) -> dict[int, int]:
    """Return who has written each key last. Requires each key once."""
    rows = plain(catalog, version).to_table().to_pydict()
    assert len(rows["id"]) == len(set(rows["id"])), "a key is there twice"
    return dict(zip(rows["id"], rows["by"], strict=True))


class Together:
    """Let upserts wait until a number of them can form a group.

    The first merge of the engine waits for the others.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(self, first: Callable[[], Any], others: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
        """Run ``first`` alone, then ``others`` together; return the outcomes."""
        merge, wait = LanceRows.merge, Upsert.wait
        waiting, begun, once = Semaphore(0), Event(), [True]
        counted_once: set[Upsert] = set()

        def counted(upsert: Upsert, seconds: float) -> bool:
            if upsert not in counted_once:
                counted_once.add(upsert)
                waiting.release()
            return wait(upsert, seconds)

        def late(rows: LanceRows, *given: Any) -> Any:
            if once:
                once.clear()
                begun.set()
                for _ in range(len(others) + 1):
                    assert waiting.acquire(timeout=60)
            return merge(rows, *given)

        with self._monkeypatch.context() as patched, ThreadPoolExecutor(len(others) + 1) as pool:
            patched.setattr(Upsert, "wait", counted)
            patched.setattr(LanceRows, "merge", late)
            running = [pool.submit(first)]
            assert begun.wait(60)
            running += [pool.submit(other) for other in others]
            for each in running:
                each.exception()
        running[0].result()
        return running


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Together:
    return Together(monkeypatch)


@pytest.mark.parametrize("store", STORES)
def test_waiting_upserts_share_a_version_and_have_their_own_counts(
    tmp_path: Path, together: Together, store: str
) -> None:
    catalog = connect(tmp_path, store)
    catalog.write("t", people(*range(8)))
    plain_index(catalog, "id", "BTREE")
    catalog.write("t", people(8, 9), "append")  # which the index does not cover
    version = plain(catalog).version
    given = [people(0, 8, 100, by=1), people(1, 2, by=2), people(101, 102, by=3), people(9, by=4)]
    _, *answers = together.run(
        lambda: upsert(catalog, people(7, by=9)), [partial(upsert, catalog, rows) for rows in given]
    )
    changes, counts = zip(*(answer.result() for answer in answers), strict=True)
    assert {change.version for change in changes} == {version + 2}
    assert counts == (MergeCounts(1, 2, 0), MergeCounts(0, 2, 0), MergeCounts(2, 0, 0), MergeCounts(0, 1, 0))
    expected = dict.fromkeys(range(10), 0) | {7: 9, 0: 1, 8: 1, 100: 1, 1: 2, 2: 2, 101: 3, 102: 3, 9: 4}
    assert rows_of(catalog) == expected
    for key, by in expected.items():
        assert plain(catalog).to_table(filter=f"id = {key}")["by"].to_pylist() == [by]


@pytest.mark.parametrize("are_new", [False, True])
def test_keys_that_are_all_new_or_all_known_need_no_lookup(
    tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch, are_new: bool
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1, 2, 3))

    def not_needed(*given: Any) -> None:
        raise AssertionError("the keys were looked up")

    monkeypatch.setattr(LanceRows, "found", not_needed)
    shift, each = (10, MergeCounts(1, 0, 0)) if are_new else (0, MergeCounts(0, 1, 0))
    _, *answers = together.run(
        lambda: upsert(catalog, people(0)),
        [partial(upsert, catalog, people(key + shift, by=1)) for key in (1, 2, 3)],
    )
    assert [answer.result()[1] for answer in answers] == [each] * 3
    assert len({answer.result()[0].version for answer in answers}) == 1
    assert rows_of(catalog) == dict.fromkeys(range(4), 0) | {key + shift: 1 for key in (1, 2, 3)}


def test_upserts_of_one_key_take_effect_in_the_order_of_their_arrival(tmp_path: Path, together: Together) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1))
    entered, enter = Semaphore(1), Upsert.wait

    def one_by_one(number: int) -> Answer:
        assert entered.acquire(timeout=60)
        return upsert(catalog, people(1, number, by=number))

    def let_next(self: Upsert, seconds: float) -> bool:
        entered.release()
        return enter(self, seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Upsert, "wait", let_next)
        first, *answers = together.run(
            lambda: upsert(catalog, people(0)), [partial(one_by_one, number) for number in (2, 3, 4)]
        )
    versions = [answer.result()[0].version for answer in (first, *answers)]
    assert len(set(versions)) == 4
    last = max(range(3), key=lambda at: versions[at + 1]) + 2
    assert rows_of(catalog) == {0: 0, 1: last, 2: 2, 3: 3, 4: 4}
    assert [answer.result()[1].inserted for answer in answers] == [1, 1, 1]


def test_upsert_that_fails_or_has_to_commit_alone_leaves_the_others_of_its_group(
    tmp_path: Path, together: Together
) -> None:
    catalog = connect(tmp_path)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("by", pa.int64())])
    catalog.write("t", pa.table({"id": [1, 2, 2], "by": [0, 0, 0]}, schema))
    catalog.alter_table("t", {"constraint.small": "by < 100"})
    version = plain(catalog).version

    given = {
        "good": people(1, 10, by=1),
        "violates": people(11, by=100),
        "twice": people(2, 12, by=1),
        "good, too": people(13),
        "wide": people(14).append_column("more", pa.array([1])),
    }
    _, *running = together.run(
        lambda: upsert(catalog, people(0)), [partial(upsert, catalog, each) for each in given.values()]
    )
    found = dict(zip(given, running, strict=True))
    good, too = found["good"].result(), found["good, too"].result()
    assert good[0].version == too[0].version == version + 2
    assert (good[1], too[1]) == (MergeCounts(1, 1, 0), MergeCounts(1, 0, 0))
    assert found["twice"].result()[1] == MergeCounts(1, 2, 0)
    with pytest.raises(InvalidInput, match="small"):
        found["violates"].result()
    assert isinstance(found["wide"].exception(), lancekeep.LancekeepError)
    assert Counter(plain(catalog).to_table()["id"].to_pylist()) == Counter((0, 1, 2, 2, 10, 12, 13))


def test_rows_that_the_engine_refuses_leave_the_other_upserts_together(
    tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(*range(10)))
    merge = LanceRows.merge

    def refused(self: LanceRows, dataset: Any, source: Any, rule: MergeRule) -> Any:
        rows = source.read_all()
        if 666 in rows["id"].to_pylist():
            raise EngineFailed("the engine failed on these rows")
        commit, counts = merge(self, dataset, rows.to_reader(), rule)
        if 13 in rows["id"].to_pylist():
            counts = MergeCounts(counts.inserted + 5, counts.updated, 0)
        return commit, counts

    monkeypatch.setattr(LanceRows, "merge", refused)
    keys = [1, 2, 13, 3, 666, 4, 5, 6]
    _, *running = together.run(
        lambda: upsert(catalog, people(0)), [partial(upsert, catalog, people(key, by=key)) for key in keys]
    )
    found = dict(zip(keys, running, strict=True))
    assert isinstance(found[666].exception(), EngineFailed)
    assert found[13].result()[1] == MergeCounts(6, 0, 0), "the counts of the engine, which are all its own"
    others = [found[key].result() for key in (1, 2, 3, 4, 5, 6)]
    assert [counts for _, counts in others] == [MergeCounts(0, 1, 0)] * 6
    assert len({change.version for change, _ in others}) < 6
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 0, 8: 0, 9: 0, 13: 13}


def test_least_number_is_a_key_that_disturbs_no_group(tmp_path: Path, together: Together) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1, -(2**63)))
    assert upsert(catalog, people(-(2**63), by=5))[1] == MergeCounts(0, 1, 0)
    _, *answers = together.run(
        lambda: upsert(catalog, people(0)), [partial(upsert, catalog, people(key, by=1)) for key in (1, 2**63 - 1)]
    )
    assert len({answer.result()[0].version for answer in answers}) == 1
    assert rows_of(catalog) == {0: 0, 1: 1, -(2**63): 5, 2**63 - 1: 1}


OTHERS: dict[str, Callable[[lance.LanceDataset], object]] = {
    "upserts": lambda dataset: (
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(people(5, by=9))
    ),
    "deletes": lambda dataset: dataset.delete("id = 1"),
    "updates": lambda dataset: dataset.update({"id": "5"}, where="id = 1"),
    "appends": lambda dataset: dataset.insert(people(5, by=9)),
}


@pytest.mark.parametrize("store", ["sqlite", "none"])
@pytest.mark.parametrize("other", OTHERS)
def test_group_that_loses_looks_its_keys_up_again(
    tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch, store: str, other: str
) -> None:
    catalog = connect(tmp_path, store)
    catalog.write("t", people(1, 2, 3))
    plain_index(catalog, "id", "BTREE")
    merge, merges = LanceRows.merge, count()

    def interrupted(self: LanceRows, *given: Any) -> Any:
        made = merge(self, *given)
        if next(merges) == 1:  # of the group
            OTHERS[other](catalog.open("t"))
        return made

    monkeypatch.setattr(LanceRows, "merge", interrupted)
    _, *answers = together.run(
        lambda: upsert(catalog, people(0)),
        [partial(upsert, catalog, people(1, 5, by=1)), partial(upsert, catalog, people(2, 6, by=2))],
    )
    [first, second] = [answer.result() for answer in answers]
    assert first[0].version == second[0].version
    met = {
        "upserts": MergeCounts(0, 2, 0),
        "deletes": MergeCounts(2, 0, 0),
        "updates": MergeCounts(1, 1, 0),
        "appends": MergeCounts(0, 2, 0),
    }[other]
    assert (first[1], second[1]) == (met, MergeCounts(1, 1, 0))
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 2, 3: 0, 5: 1, 6: 2}


def test_group_that_always_loses_ends_for_the_callers_whose_time_is_over(
    tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1, 2))
    merge, merges = LanceRows.merge, count()

    def interrupted(self: LanceRows, *given: Any) -> Any:
        made = merge(self, *given)
        if next(merges) in (1, 2):  # the group, and the group of those that have time
            catalog.open("t").update({"by": "9"})
        return made

    monkeypatch.setattr(LanceRows, "merge", interrupted)
    _, patient, impatient = together.run(
        lambda: upsert(catalog, people(0)),
        [partial(upsert, catalog, people(1, by=1)), partial(upsert, catalog, people(3, by=3), patience=0.001)],
    )
    assert isinstance(impatient.exception(), lancekeep.ConcurrentModification)
    assert patient.result()[1] == MergeCounts(0, 1, 0)
    assert rows_of(catalog) == {0: 9, 1: 1, 2: 9}


def test_unknown_outcome_of_a_group_carries_its_token_to_each_caller(tmp_path: Path, together: Together) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1, 2))
    healthy, reserved = directory_of(catalog).commits, count()
    broken: list[bool] = []

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "reserve" and next(reserved) == 1:  # of the group
            broken.append(True)
            return "after", StoreUnavailable("the reply was lost")
        return ("before", StoreUnavailable("down")) if broken else None

    directory_of(catalog).ledger.commits = TableCommits(
        Faulty(healthy.objects, down), Faulty(healthy.rows, down), "tester", Retry(0.05, sleep=lambda _: None)
    )
    _, *answers = together.run(
        lambda: upsert(catalog, people(0)), [partial(upsert, catalog, people(each, by=each)) for each in (1, 3)]
    )
    directory_of(catalog).ledger.commits = healthy
    errors = [answer.exception() for answer in answers]
    assert all(isinstance(error, lancekeep.CommitUnknown) for error in errors), errors
    assert errors[0] is not errors[1]
    [token] = {error.token for error in errors if isinstance(error, lancekeep.CommitUnknown)}
    assert isinstance(catalog.resolve(token), lancekeep.Committed)
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 0, 3: 3}
    assert plain(catalog).version == 3


class Hang:
    """An act that hangs until it is let go; callers of upserts then find that its merge takes too long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._wait = Upsert.wait
        self._go_on, self._begun = Event(), Event()
        monkeypatch.setattr(Upsert, "wait", lambda upsert, seconds: self._wait(upsert, min(seconds, 0.05)))

    def __call__(self) -> None:
        self._monkeypatch.setattr(waiting_upserts, "LONGEST_MERGE", 0.1)
        self._begun.set()
        assert self._go_on.wait(60)

    def upsert_elsewhere(self, catalog: lancekeep.Catalog, rows: pa.Table) -> Answer:
        """Upsert through a committer that does not hang."""
        with self._monkeypatch.context() as patched:
            patched.setattr(Upsert, "wait", lambda upsert, _: self._wait(upsert, 60))
            patched.setattr(waiting_upserts, "LONGEST_MERGE", 0.0)
            assert self._begun.is_set()
            return upsert(catalog, rows)

    def end(self, catalog: lancekeep.Catalog, line: UpsertLine) -> None:
        """Let the act go on, and wait for the end of its committer."""
        self._go_on.set()
        while line.is_served:
            Event().wait(0.001)


def line_of(catalog: lancekeep.Catalog) -> UpsertLine:
    lines = catalog.data._upserts._waiting_lines
    return lines.of(lancekeep.ObjectId(("t",)))


def test_callers_do_not_wait_for_a_merge_that_hangs(
    tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1, 2, 3))
    merge, merges, hang, lines = LanceRows.merge, count(), Hang(monkeypatch), list[UpsertLine]()

    def hanging(self: LanceRows, *given: Any) -> Any:
        if next(merges) == 1:  # of the group
            lines.append(line_of(catalog))
            hang()
        return merge(self, *given)

    monkeypatch.setattr(LanceRows, "merge", hanging)
    _, *answers = together.run(
        lambda: upsert(catalog, people(0)),
        [
            partial(upsert, catalog, people(1, 5, by=1), patience=0.01),
            partial(upsert, catalog, people(2, by=2), patience=0.01),
        ],
    )
    assert [answer.result()[1] for answer in answers] == [MergeCounts(1, 1, 0), MergeCounts(0, 1, 0)]
    assert len({answer.result()[0].version for answer in answers}) == 2
    later, counts = hang.upsert_elsewhere(catalog, people(1, 6, by=7))
    assert counts == MergeCounts(1, 1, 0)
    hang.end(catalog, *lines)
    assert plain(catalog).version == later.version
    assert rows_of(catalog) == {0: 0, 1: 7, 2: 2, 3: 0, 5: 1, 6: 7}


@pytest.mark.parametrize("is_overtaken", [False, True])
@pytest.mark.parametrize("by_engine", [False, True])
def test_callers_of_a_commit_that_hangs_do_not_know_its_outcome(
    tmp_path: Path, together: Together, monkeypatch: pytest.MonkeyPatch, is_overtaken: bool, by_engine: bool
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1, 2))
    if by_engine:
        catalog.open("t").update_config({"lance.auto_cleanup.interval": "100", "lance.auto_cleanup.older_than": "7d"})
    healthy, reserved, hang, lines = directory_of(catalog).commits, count(), Hang(monkeypatch), list[UpsertLine]()

    def hanging(name: str, _: int) -> None:
        if name == "reserve" and next(reserved) == 1:  # of the group
            lines.append(line_of(catalog))
            hang()

    directory_of(catalog).ledger.commits = TableCommits(
        healthy.objects, Faulty(healthy.rows, hanging), "tester", healthy.retry
    )
    given = [people(each, by=each) for each in (1, 3)]
    _, *answers = together.run(
        lambda: upsert(catalog, people(0)),
        [partial(upsert, catalog, rows, patience=0.01) for rows in given],
    )
    errors = [answer.exception() for answer in answers]
    assert {type(error) for error in errors} == {StoreUnavailable if by_engine else lancekeep.CommitUnknown}
    if is_overtaken:
        hang.upsert_elsewhere(catalog, people(2, by=9))
    hang.end(catalog, *lines)
    assert rows_of(catalog) == ({0: 0, 1: 0, 2: 9} if is_overtaken else {0: 0, 1: 1, 2: 0, 3: 3})
    for error in errors:
        if isinstance(error, lancekeep.CommitUnknown):
            kind = lancekeep.Conflict if is_overtaken else lancekeep.Committed
            assert isinstance(catalog.resolve(error.token), kind)


FORMS: dict[str, tuple[MergeRule, pa.Table]] = {
    "inserts only": (MergeRule(["id"], update=False, insert=True), people(1, 5, by=1)),
    "updates only": (MergeRule(["id"], update=True, insert=False), people(1, 5, by=1)),
    "updates on a condition": (
        MergeRule(["id"], update=True, update_if="target.by = 0", insert=True),
        people(1, 5, by=1),
    ),
    "deletes": (MergeRule(["id"], update=True, insert=True, delete=True), people(1, 5, by=1)),
    "two columns are the key": (MergeRule(["id", "by"], update=True, insert=True), people(1, 5)),
    "some columns": (MergeRule(["id"], update=True, insert=True), people(1).select(["id"])),
    "columns in another order": (MergeRule(["id"], update=True, insert=True), people(1, 5, by=1).select(["by", "id"])),
    "a null key": (MergeRule(["by"], update=True, insert=True), pa.table({"id": [7], "by": pa.array([None], "int64")})),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_merge_has_the_effect_that_pylance_gives_it(tmp_path: Path, form: str) -> None:
    catalog, twin = connect(tmp_path), str(tmp_path / "twin.lance")
    catalog.write("t", people(1, 2, 3))
    rule, rows = FORMS[form]
    merge = lance.write_dataset(people(1, 2, 3), twin).merge_insert(list(rule.on))
    merge = merge.when_matched_update_all(rule.update_if) if rule.update else merge
    merge = merge.when_not_matched_insert_all() if rule.insert else merge
    merge = merge.when_not_matched_by_source_delete() if rule.delete else merge
    try:
        expected = merge.execute(rows)
    except Exception:
        with pytest.raises(lancekeep.LancekeepError):
            upsert(catalog, rows, rule)
    else:
        _, counts = upsert(catalog, rows, rule)
        assert counts.inserted == expected["num_inserted_rows"]
        assert counts.updated == expected["num_updated_rows"]
        assert counts.deleted == expected["num_deleted_rows"]
    by_id = [("id", "ascending")]
    assert plain(catalog).to_table().sort_by(by_id) == lance.dataset(twin).to_table().sort_by(by_id)


TEXTS = ["plain", "it's", "''", "back\\slash", "a\nb", "`x`", '"', "ü\U0001f600", "", "%_", "-- x", "$1", "\x00"]


def test_keys_of_two_columns_and_any_text_are_counted(tmp_path: Path, together: Together) -> None:
    catalog = connect(tmp_path)

    def rows(texts: Sequence[str], kind: int, by: int) -> pa.Table:
        columns = {"Te xt": pa.array(texts, pa.large_string()), "kind": pa.array([kind] * len(texts), pa.uint8())}
        return pa.table({**columns, "by": pa.array([by] * len(texts), pa.int64())})

    catalog.write("t", rows(TEXTS, 1, 0))
    rule = MergeRule(["Te xt", "kind"], update=True, insert=True)
    version = plain(catalog).version
    _, *answers = together.run(
        lambda: upsert(catalog, rows(["other"], 1, 0), rule),
        [partial(upsert, catalog, rows(TEXTS, kind, 5), rule) for kind in (1, 2)],
    )
    first, second = (answer.result() for answer in answers)
    assert first[0].version == second[0].version == version + 2
    assert first[1] == MergeCounts(0, len(TEXTS), 0)
    assert second[1] == MergeCounts(len(TEXTS), 0, 0)
    found = plain(catalog).to_table(filter="kind = 1")
    by_text = dict(zip(found["Te xt"].to_pylist(), found["by"].to_pylist(), strict=True))
    assert by_text == dict.fromkeys(TEXTS, 5) | {"other": 0}


def plain_index(catalog: lancekeep.Catalog, column: str, kind: str) -> None:
    catalog.open("t").create_scalar_index(column, kind, name=f"{column}_{kind}".lower())


@pytest.mark.parametrize("stable", [False, True])
def test_indexes_answer_as_scans_do_after_shared_upserts(tmp_path: Path, together: Together, stable: bool) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(*range(200)), stable_row_ids=stable)
    ids = {row["id"]: row["_rowid"] for row in plain(catalog).to_table(with_row_id=True).to_pylist()}
    for column, kind in (("id", "BTREE"), ("by", "BITMAP"), ("by", "BTREE")):
        plain_index(catalog, column, kind)
    for turn in range(1, 4):
        _, *answers = together.run(
            partial(upsert, catalog, people(0, by=turn)),
            [partial(upsert, catalog, people(each, each + 50, 1000 + 10 * turn + each, by=turn)) for each in (1, 2, 3)],
        )
        assert [answer.result()[1] for answer in answers] == [MergeCounts(1, 2, 0)] * 3
        catalog.open("t").optimize.optimize_indices(num_indices_to_merge=0)
        dataset, rows = plain(catalog), rows_of(catalog)
        for by in range(4):
            expected = sorted(key for key, value in rows.items() if value == by)
            assert sorted(dataset.to_table(filter=f"by = {by}")["id"].to_pylist()) == expected
            scanned = dataset.scanner(filter=f"by = {by}", use_scalar_index=False).to_table()
            assert sorted(scanned["id"].to_pylist()) == expected
        for key in (0, 1, 51, 100, 1011):
            assert dataset.to_table(filter=f"id = {key}")["by"].to_pylist() == [rows[key]]
    if stable:
        after = {row["id"]: row["_rowid"] for row in plain(catalog).to_table(with_row_id=True).to_pylist()}
        assert {key: after[key] for key in ids} == ids


def test_older_engine_reads_shared_upserts_and_follows_them(
    tmp_path: Path, together: Together, engine_of: Callable[[str], Engine]
) -> None:
    catalog = connect(tmp_path, "none")
    catalog.write("t", people(*range(5)))
    handle = engine_of(PYLANCE_4).open(catalog.describe_table("t").uri)
    together.run(
        lambda: upsert(catalog, people(0, by=1)), [partial(upsert, catalog, people(each, by=1)) for each in (1, 7)]
    )
    handle.append(people(8))
    assert rows_of(catalog) == {0: 1, 1: 1, 2: 0, 3: 0, 4: 0, 7: 1, 8: 0}
    handle.refresh()
    assert sorted(handle.rows()["id"].to_pylist()) == [0, 1, 2, 3, 4, 7, 8]


def test_first_upserts_of_a_declared_table_and_a_missing_table(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    with pytest.raises(lancekeep.TableNotFound):
        upsert(catalog, people(1))
    catalog.declare_table("t")
    answers = race(3, lambda number: upsert(catalog, people(number, 10, by=number)))
    assert sum(counts.inserted for _, counts in answers) == 4
    assert set(rows_of(catalog)) == {0, 1, 2, 10}


def test_upsert_merges_into_a_first_version_that_another_writer_has_just_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(tmp_path)
    catalog.declare_table("t")
    change = TableData._change

    def change_late(data: TableData, *given: Any, **more: Any) -> Any:
        try:
            return change(data, *given, **more)
        except lancekeep.VersionNotFound:
            monkeypatch.undo()
            catalog.write("t", people(1), "overwrite")
            raise

    monkeypatch.setattr(TableData, "_change", change_late)
    _, counts = upsert(catalog, people(1, 2, by=7))
    assert (counts.inserted, counts.updated) == (1, 1)
    assert rows_of(catalog) == {1: 7, 2: 7}


def test_interrupt_while_a_committer_starts_blocks_no_later_upsert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1))

    def interrupted(act: Callable[[], object]) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("lancekeep.application.rows.committer.in_background", interrupted)
    with pytest.raises(KeyboardInterrupt):
        upsert(catalog, people(2))
    later = Thread(target=upsert, args=(catalog, people(3)), daemon=True)
    later.start()
    later.join(60)
    assert not later.is_alive()
    assert rows_of(catalog) == {1: 0, 3: 0}


class _Crash(BaseException):
    """The process ends here."""


def test_upsert_that_dies_before_its_commit_leaves_files_that_a_clean_up_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(1, 2))
    directory = Path(plain(catalog).uri.removeprefix("file://"))

    def files() -> set[str]:
        return {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}

    before = files()

    def crash(*given: Any) -> None:
        raise _Crash

    with monkeypatch.context() as patched:
        patched.setattr(TableTransactions, "commit_staged", crash)
        with pytest.raises(_Crash):
            upsert(catalog, people(1, 5, by=1))
    assert any(name.startswith("_versions/d") for name in files() - before), "a detached version was staged"
    catalog.write("u", people(1))  # the newest manifest stands for now
    catalog.upkeep.cleanup(older_than=0.0)
    assert files() > before, "the files are not older than the grace time"
    catalog.upkeep.cleanup(older_than=0.0, grace=0.0)
    assert files() == before
    assert rows_of(catalog) == {1: 0, 2: 0}


def test_caller_that_may_not_read_a_base_path_merges_nothing(tmp_path: Path) -> None:
    """The committer has no caller, so a table with base paths is left to the caller's own thread."""
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store="conditional-put://")
    namespace.create_table(api.CreateTableRequest(id=["source"]), stream(people(1)))
    namespace.catalog.clone("source", "t")
    from lancekeep.application.entries.base_paths import restricted, within_one_table

    request = api.MergeInsertIntoTableRequest(
        id=["t"], on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    with restricted(within_one_table), pytest.raises(api_errors.PermissionDeniedError):
        namespace.merge_insert_into_table(request, stream(people(2)))
    assert rows_of(namespace.catalog) == {1: 0}
    assert namespace.merge_insert_into_table(request, stream(people(2))).num_inserted_rows == 1


# -- races -------------------------------------------------------------------------------------------------------


WORKERS = pytest.mark.skipif(sys.platform != "linux", reason="committers are shared on Linux only")


@pytest.mark.parametrize(
    ("store", "turns"),
    [
        ("none", 8),
        ("sqlite", 12),
        ("conditional-put", 60),
        pytest.param("none workers", 8, marks=WORKERS),
        pytest.param("sqlite workers", 60, marks=WORKERS),
    ],
)
def test_each_version_has_exactly_the_effect_and_counts_of_its_upserts(tmp_path: Path, store: str, turns: int) -> None:
    """Upserts of two processes' catalogs race with deletes, appends and compactions; the versions are the judge.

    As workers, they have one committer.
    """
    catalogs = [connect(tmp_path, store), connect(tmp_path, store)]
    catalogs[0].write("t", people(*range(20), by=-1), stable_row_ids=store == "sqlite")
    plain_index(catalogs[0], "id", "BTREE")
    done: list[tuple[int, dict[int, int], MergeCounts]] = []

    def work(number: int) -> None:
        chance, catalog = random.Random(number), catalogs[number % 2]
        for turn in range(turns):
            rows = dict.fromkeys(chance.sample(range(40), chance.randint(1, 4)), number * 1000 + turn)
            table = pa.table({"id": pa.array(rows, pa.int64()), "by": pa.array(rows.values(), pa.int64())})
            change, counts = upsert(catalog, table)
            done.append((change.version, rows, counts))

    def disturb(number: int) -> None:
        for turn in range(turns // 4):
            catalog = catalogs[turn % 2]
            catalog.data.delete("t", f"id % 7 = {turn % 7}")
            catalog.write("t", people(10_000 + turn, by=-2), "append")
            with suppress(lancekeep.ConcurrentModification):  # upserts that never pause win
                catalog.upkeep.compact("t")

    race(9, lambda number: work(number) if number < 8 else disturb(number))
    by_version: dict[int, list[tuple[dict[int, int], MergeCounts]]] = {}
    for version, rows, counts in done:
        by_version.setdefault(version, []).append((rows, counts))
    assert len(done) == 8 * turns
    assert len(by_version) < len(done), "no upserts have shared a version"
    for version, upserts in by_version.items():
        before, after = rows_of(catalogs[0], version - 1), rows_of(catalogs[0], version)
        expected = dict(before)
        for rows, counts in upserts:
            updated = len(rows.keys() & before.keys())
            assert counts == MergeCounts(len(rows) - updated, updated, 0)
            expected |= rows
        assert sum(len(rows) for rows, _ in upserts) == len({key for rows, _ in upserts for key in rows})
        assert after == expected
    dataset = plain(catalogs[0])
    for key, by in rows_of(catalogs[0]).items():
        assert dataset.to_table(filter=f"id = {key}")["by"].to_pylist() == [by]
    for catalog in catalogs:
        catalog.close()


def upsert_until_killed(root: str, store: str, writer: int, ledger: str) -> None:
    """Upsert from four threads; record every acknowledged upsert in a file."""
    catalog = lancekeep.connect(root, commit_store=store or None)
    with open(ledger, "a", buffering=1) as acknowledged:

        def many(thread: int) -> None:
            me = writer * 10 + thread
            for number in count():
                _, counts = upsert(catalog, people(me, 1000 * me + number, by=number))
                assert counts == (MergeCounts(1, 1, 0) if number else MergeCounts(2, 0, 0))
                acknowledged.write(f"{me} {number}\n")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(many, range(4)))


@pytest.mark.parametrize(("store", "works"), [("sqlite", 8), ("", 8), ("sqlite", 200), ("", 200)])
def test_killed_writers_lose_and_double_nothing(tmp_path: Path, store: str, works: int) -> None:
    url, root = f"sqlite://{tmp_path}/commits.db" if store else "", str(tmp_path / "lake")
    catalog = lancekeep.connect(root, commit_store=url or None)
    catalog.write("t", people(1))
    plain_index(catalog, "id", "BTREE")
    lines = kill_two_at_work(tmp_path, upsert_until_killed, root, url, works=works)
    upsert(catalog, people(0))
    found = rows_of(catalog)
    last = Counter[int]()
    for me, number in (map(int, line.split()) for line in lines):
        assert found[1000 * me + number] == number
        last[me] = max(last[me], number)
    for me, number in last.items():  # at most the upsert in progress is there without an answer
        assert found[me] in (number, number + 1)
        assert (1000 * me + number + 1 in found) == (found[me] == number + 1)
        assert 1000 * me + number + 2 not in found
