"""Group commit of appends: exact rows, the version of each append, and fairness."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import attrs
import lance
import pyarrow as pa
import pytest
from appending import all_at_once, held_back
from deployments import Deployment, bucket, deployment, s3_options
from faults import Faulty, lost_replies
from s3_front import Answer, Asked, s3_front
from writers import kill_two_at_work

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.retry import Retry
from lancekeep.application.rows import appends as application_appends
from lancekeep.application.rows.versions import Versions
from lancekeep.application.rows.waiting_appends import Append
from lancekeep.domain.appends import PATIENCE, Pace, Turn
from lancekeep.domain.errors import CommitRefused, InvalidInput, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import WAITING_DIRECTORY, Table
from lancekeep.format.append import Appendable

SCHEMA = pa.schema([("writer", pa.int64()), ("number", pa.int64())])
STORES = ("storage-managed", "conditional-put", "sqlite", "files", "redis", "dynamodb", "conditional-put-s3")


def row(writer: int, number: int) -> pa.Table:
    return pa.table({"writer": [writer], "number": [number]}, SCHEMA)


def rows_of(catalog: lancekeep.Catalog, table: str, options: Mapping[str, str] | None = None) -> Counter[Any]:
    """Return the rows that plain pylance reads, without any catalog."""
    dataset = lance.dataset(catalog.open(table).uri, storage_options=dict(options or {}) or None)
    return Counter(zip(*(column.to_pylist() for column in dataset.to_table(columns=["writer", "number"])), strict=True))


@attrs.frozen
class Site:
    deployment: Deployment
    catalog: lancekeep.Catalog
    options: Mapping[str, str]

    def open(self) -> lancekeep.Catalog:
        return connect(self.deployment)


def connect(at: Deployment) -> lancekeep.Catalog:
    return lancekeep.connect(at.root, commit_store=at.commit_store or None, storage_options=at.storage_options)


@pytest.fixture(params=STORES)
def site(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str) -> Site:
    if request.param == "storage-managed":
        at = Deployment(str(tmp_path / "lake"), "")
    else:
        at = deployment(request.param, tmp_path, redis_url, moto_endpoint)
    catalog = connect(at)
    catalog.create_namespace("ml")
    catalog.write("ml.t", row(0, 0))
    return Site(at, catalog, at.storage_options)


def test_appends_of_threads_share_commits_and_each_learns_its_version(site: Site) -> None:
    held_back(site.catalog, until=12)
    answers = all_at_once([partial(site.catalog.write, "ml.t", row(n, 0), "append") for n in range(1, 13)])
    assert [answer.rows for answer in answers] == [1] * 12
    assert {answer.version for answer in answers} == {2}
    for number in range(1, 4):
        assert site.catalog.write("ml.t", row(20, number), "append").version == 2 + number
    assert rows_of(site.catalog, "ml.t", site.options) == Counter(
        [(n, 0) for n in range(13)] + [(20, n) for n in range(1, 4)]
    )
    history = site.catalog.versions.history("ml.t")
    assert [entry.version for entry in history] == [5, 4, 3, 2, 1]
    assert {entry.operation for entry in history[:4]} == {"Append"}


class Interrupted:
    """The answer of an append whose thread is interrupted while it waits."""

    def get(self, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    def put(self, answer: None) -> None: ...


@pytest.mark.parametrize("interrupted", [{0}, {1}, {2}, {0, 1, 2}])
def test_an_interrupted_append_does_not_hold_up_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: set[int]
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://")
    catalog.write("t", pa.table({"n": [-1]}))
    held_back(catalog, until=3)

    def append(number: int) -> Any:
        while (
            number and sum(len(line.waiting) for line in directory_of(catalog).versions.lines._lines.values()) < number
        ):
            threading.Event().wait(0.001)
        try:
            return catalog.write("t", pa.table({"n": [number]}), "append").version
        except KeyboardInterrupt:
            return "interrupted"

    wait = Append.wait

    def interrupted_wait(append: Append) -> None:
        if append.rows.table["n"][0].as_py() in interrupted:
            append._answered = cast(Any, Interrupted())
        wait(append)

    monkeypatch.setattr(Append, "wait", interrupted_wait)
    answers = all_at_once([partial(append, number) for number in range(3)])
    assert answers == ["interrupted" if number in interrupted else 2 for number in range(3)]
    catalog.write("t", pa.table({"n": [3]}), "append")
    assert sorted(catalog.open("t").to_table()["n"].to_pylist()) == [-1, 0, 1, 2, 3]


def test_a_bad_append_fails_alone(site: Site) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield row(5, 5).to_batches()[0]
        raise ValueError("the source broke")

    bad: list[Callable[[], Any]] = [
        lambda: site.catalog.write("ml.t", pa.table({"strange": [1]}), "append"),
        lambda: site.catalog.write("ml.t", pa.RecordBatchReader.from_batches(SCHEMA, broken()), "append"),
        lambda: site.catalog.write("ml.t", pa.table({"writer": ["text"], "number": [1]}), "append"),
    ]
    answers = all_at_once([partial(site.catalog.write, "ml.t", row(n, 0), "append") for n in range(6)] + bad)
    assert all(isinstance(answer, InvalidInput) for answer in answers[6:]), answers
    assert rows_of(site.catalog, "ml.t", site.options) == Counter([(0, 0), *[(n, 0) for n in range(6)]])


def test_a_fault_of_the_process_reaches_its_caller_and_spares_later_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://")
    catalog.write("t", pa.table({"n": [1]}))
    followed_by = Appendable.followed_by

    def fail(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(Appendable, "followed_by", followed_by)
        raise MemoryError

    monkeypatch.setattr(Appendable, "followed_by", fail)
    with pytest.raises(MemoryError):
        catalog.write("t", pa.table({"n": [2]}), "append")
    catalog.write("t", pa.table({"n": [3]}), "append")
    assert catalog.open("t").to_table()["n"].to_pylist() == [1, 3]


def test_another_schema_and_a_large_append_commit_alone(site: Site) -> None:
    large = pa.table({"writer": [7] * 530_000, "number": range(530_000)}, SCHEMA)
    appends = [
        lambda: site.catalog.write("ml.t", row(1, 1), "append"),
        lambda: site.catalog.write("ml.t", row(2, 2).select(["number", "writer"]), "append"),
        lambda: site.catalog.write("ml.t", row(3, 3).select(["writer"]), "append"),
        lambda: site.catalog.write("ml.t", large, "append"),
        lambda: site.catalog.write("ml.t", row(4, 4), "append"),
    ]
    answers = all_at_once(appends)
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    found = rows_of(site.catalog, "ml.t", site.options)
    assert found == Counter([(0, 0), (1, 1), (2, 2), (3, None), (4, 4), *[(7, number) for number in range(530_000)]])


def test_two_catalogs_and_native_writers_share_a_table(site: Site) -> None:
    other = site.open()
    native = site.open()

    def many(catalog: lancekeep.Catalog, writer: int) -> None:
        for number in range(6):
            catalog.write("ml.t", row(writer, number), "append")

    def natively() -> None:
        for number in range(3):
            native.open("ml.t").insert(row(99, number))

    answers = all_at_once(
        [partial(many, site.catalog, n) for n in range(1, 5)]
        + [partial(many, other, n) for n in range(11, 15)]
        + [natively]
    )
    assert answers == [None] * 9
    wanted = [(n, number) for n in (1, 2, 3, 4, 11, 12, 13, 14) for number in range(6)]
    assert rows_of(site.catalog, "ml.t", site.options) == Counter(
        [(0, 0), *wanted, *[(99, number) for number in range(3)]]
    )


def test_appends_follow_deletes_compaction_and_new_columns(site: Site) -> None:
    catalog = site.catalog

    def append(writer: int) -> None:
        catalog.write("ml.t", row(writer, 0), "append")

    append(1)
    native = site.open().open("ml.t")
    native.delete("writer = 0")
    append(2)
    native = site.open().open("ml.t")
    native.optimize.compact_files()
    append(3)
    native = site.open().open("ml.t")
    native.create_scalar_index("number", "BTREE")
    append(4)
    native = site.open().open("ml.t")
    native.add_columns({"third": "writer + 1"})
    append(5)  # lacks the new column
    catalog.write("ml.t", pa.table({"writer": [6], "number": [0], "third": [70]}), "append")
    native = site.open().open("ml.t")
    native.drop_columns(["third"])
    append(7)
    assert rows_of(catalog, "ml.t", site.options) == Counter([(n, 0) for n in range(1, 8)])
    dataset = lance.dataset(catalog.open("ml.t").uri, storage_options=dict(site.options) or None)
    assert sorted(dataset.to_table(filter="number = 0")["writer"].to_pylist()) == list(range(1, 8))


def test_appends_after_an_overwrite_by_another_process_follow_it(site: Site) -> None:
    site.catalog.write("ml.t", row(1, 1), "append")
    site.open().write("ml.t", row(2, 2), "overwrite")
    site.catalog.write("ml.t", row(3, 3), "append")
    assert rows_of(site.catalog, "ml.t", site.options) == Counter([(2, 2), (3, 3)])
    site.open().write("ml.t", pa.table({"text": ["x"]}), "overwrite")
    with pytest.raises(InvalidInput):
        site.catalog.write("ml.t", row(4, 4), "append")
    assert site.catalog.write("ml.t", pa.table({"text": ["y"]}), "append").rows == 1


@pytest.mark.parametrize("name", ["t", "ml.t"])
def test_a_table_that_was_recreated_gets_the_rows_of_later_appends_only(site: Site, name: str) -> None:
    if name == "t":
        site.catalog.write("t", row(0, 0))
    for number in range(3):
        site.catalog.write(name, row(1, number), "append")
    other = site.open()
    other.drop_table(name)
    other.write(name, row(8, 8))
    for number in range(3):
        other.write(name, row(9, number), "append")
    site.catalog.write(name, row(2, 2), "append")
    assert rows_of(site.catalog, name, site.options) == Counter([(8, 8), (9, 0), (9, 1), (9, 2), (2, 2)])
    other.drop_table(name)
    with pytest.raises(lancekeep.NotFound):
        site.catalog.write(name, row(3, 3), "append")


@pytest.mark.parametrize("location", [None, "shared/x"])
def test_an_append_to_a_table_that_is_recreated_with_more_versions_keeps_its_rows(
    site: Site, location: str | None
) -> None:
    """The drop removes the data file that the append has written; the new table has the next version already."""

    def create(catalog: lancekeep.Catalog) -> None:
        catalog.declare_table("t", location=location)
        catalog.write("t", row(0, 0), "overwrite")

    create(site.catalog)
    site.catalog.write("t", row(1, 0), "append")
    commits, other = directory_of(site.catalog).versions.commits, site.open()
    pending = [1]

    def decide(name: str, _: int) -> None:
        if pending and name in ("put", "put_if_absent") and len(data_files(other, "t")) == 3:  # its file is written
            pending.clear()
            other.drop_table("t")
            create(other)
            for number in range(4):
                other.write("t", row(9, number), "append")

    commits.objects = Faulty(commits.objects, decide)
    with suppress(CommitRefused):
        site.catalog.write("t", row(2, 0), "append")
    assert not pending
    wanted = [(0, 0), *[(9, number) for number in range(4)]]
    assert rows_of(other, "t", site.options) in (Counter(wanted), Counter([*wanted, (2, 0)]))


@pytest.mark.parametrize("location", [None, "shared/x"])
def test_fragments_of_a_table_that_was_recreated_are_refused(site: Site, location: str | None) -> None:
    """The drop removes the files of the fragments."""

    def create(catalog: lancekeep.Catalog) -> None:
        catalog.declare_table("t", location=location)
        catalog.write("t", row(0, 0), "overwrite")

    create(site.catalog)
    plan = site.catalog.begin_write("t", row(2, 0).schema, "append")
    options = dict(site.options) or None
    fragments = lance.fragment.write_fragments(row(2, 0), plan.uri, schema=plan.schema, storage_options=options)
    other = site.open()
    other.drop_table("t")
    create(other)
    for number in range(3):
        other.write("t", row(9, number), "append")
    with pytest.raises(CommitRefused, match="does not descend"):
        site.catalog.commit_fragments(plan, fragments)
    assert rows_of(other, "t", site.options) == Counter([(0, 0), (9, 0), (9, 1), (9, 2)])


def data_files(catalog: lancekeep.Catalog, name: str) -> list[str]:
    """Return the data files of a table."""
    versions = directory_of(catalog).versions
    root = versions.dataset_root(versions.find_table(ObjectId.of(name)))
    return [info.key for info in versions.commits.objects.list(f"{root.key}/data/")]


def test_an_idle_writer_does_not_fill_a_gap_that_clean_up_left(site: Site) -> None:
    """Version 3 no longer exists when the idle writer, which has read version 2, continues."""
    site.catalog.write("ml.t", row(1, 0), "append")
    other = site.open()
    for number in range(5):
        other.write("ml.t", row(2, number), "append")
    table = directory_of(other).versions.find_table(ObjectId.of("ml.t"))
    directory_of(other).versions.delete_versions(directory_of(other).versions.dataset_root(table), [3, 4])
    assert site.catalog.write("ml.t", row(3, 0), "append").version == 8
    assert rows_of(site.catalog, "ml.t", site.options) == Counter(
        [(0, 0), (1, 0), (3, 0), *[(2, number) for number in range(5)]]
    )


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
@pytest.mark.parametrize("times", [1, 3])
def test_lost_replies_of_the_store_neither_lose_nor_double_rows(site: Site, method: str, times: int) -> None:
    site.catalog.write("ml.t", row(1, 0), "append")
    commits = directory_of(site.catalog).versions.commits
    commits.objects = Faulty(commits.objects, lost_replies(method, times))
    answers = all_at_once([partial(site.catalog.write, "ml.t", row(n, 0), "append") for n in range(2, 10)])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert rows_of(site.catalog, "ml.t", site.options) == Counter([(n, 0) for n in range(10)])


@pytest.mark.parametrize("took_effect", [False, True])
def test_an_outage_during_the_commit_leaves_an_outcome_that_can_be_resolved(tmp_path: Path, took_effect: bool) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", row(0, 0))
    catalog.write("t", row(1, 0), "append")
    commits = directory_of(catalog).versions.commits
    commits.retry = Retry(patience=0.0)
    honest = commits.objects
    out = ("after" if took_effect else "before"), StoreUnavailable("no answer")
    dead = [False]

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "put_if_absent":
            dead[0] = True
            return out
        return ("before", StoreUnavailable("no answer")) if dead[0] and name in ("get", "head") else None

    commits.objects = Faulty(honest, decide)
    held_back(catalog, until=3)
    answers = all_at_once([partial(catalog.write, "t", row(n, 0), "append") for n in range(2, 5)])
    commits.objects = honest
    [token] = {str(answer.token) for answer in answers}
    assert isinstance(catalog.resolve(token), lancekeep.Committed) is took_effect
    wanted = range(5) if took_effect else range(2)
    assert rows_of(catalog, "t") == Counter((n, 0) for n in wanted)


def test_refusals_and_lost_answers_of_s3_neither_lose_nor_double_rows(moto_endpoint: str) -> None:
    """Every third write fails: with 503 before its effect, or with 500 or an outage after it."""
    turn = count(1)
    lock = threading.Lock()

    def answer(asked: Asked) -> Answer:
        if asked.method != "PUT" or ("/data/" not in asked.path and "/_versions/" not in asked.path):
            return asked.forward()
        with lock:
            nth = next(turn)
        if nth % 3:
            return asked.forward()
        if nth % 2:
            return Answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
        asked.forward()
        return Answer(500, {}, b"<Error><Code>InternalError</Code></Error>")

    name = bucket(moto_endpoint)
    connect(Deployment(f"s3://{name}/lake", "", s3_options(moto_endpoint))).write("t", row(0, 0))
    with s3_front(moto_endpoint, answer) as url:
        catalog = connect(Deployment(f"s3://{name}/lake", "", s3_options(url)))

        def many(writer: int) -> list[int]:
            return [catalog.write("t", row(writer, number), "append").version for number in range(5)]

        answers = all_at_once([partial(many, n) for n in range(1, 9)])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    options = s3_options(moto_endpoint)
    found = rows_of(connect(Deployment(f"s3://{name}/lake", "", options)), "t", options)
    assert found == Counter([(0, 0), *[(n, number) for n in range(1, 9) for number in range(5)]])


def requests_of(
    moto_endpoint: str, act: Callable[[lancekeep.Catalog], Any], commit_store: str | None = None
) -> list[str]:
    """Return the S3 requests of an act on a table whose latest version this process has committed."""
    seen: list[str] = []

    def answer(asked: Asked) -> Answer:
        told = asked.forward()
        seen.append(f"{asked.method} {told.status}")
        return told

    with s3_front(moto_endpoint, answer) as url:
        at = Deployment(f"s3://{bucket(moto_endpoint)}/lake", "", s3_options(url))
        catalog = connect(at)
        catalog.create_namespace("ml")
        catalog.write("ml.t", row(0, 0))
        catalog.write("ml.t", row(1, 0), "append")
        seen.clear()
        act(catalog)
        return sorted(seen)


def test_a_group_costs_three_writes_and_two_checks(moto_endpoint: str) -> None:
    """The checks, of the catalog and of the latest version, run at the same time as the first two writes."""

    def sixteen(catalog: lancekeep.Catalog) -> None:
        held_back(catalog, until=16)
        all_at_once([partial(catalog.write, "ml.t", row(n, 0), "append") for n in range(16)])

    wanted = ["GET 200", "HEAD 404", "PUT 200", "PUT 200", "PUT 200"]
    assert requests_of(moto_endpoint, lambda catalog: catalog.write("ml.t", row(2, 0), "append")) == wanted
    assert requests_of(moto_endpoint, sixteen) == wanted


def test_stable_row_ids_stay_unique_and_with_their_rows(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    plan = catalog.begin_write("t", SCHEMA, "overwrite")
    lance.write_dataset(row(0, 0), plan.uri, enable_stable_row_ids=True, mode="overwrite")
    for number in range(3):
        all_at_once([partial(catalog.write, "t", row(n, number), "append") for n in range(1, 6)])
        lance.dataset(plan.uri).delete(f"writer = {number + 1} AND number = {number}")
    before = lance.dataset(plan.uri).to_table(with_row_id=True)
    lance.dataset(plan.uri).optimize.compact_files()
    catalog.write("t", row(9, 9), "append")
    after = lance.dataset(plan.uri).to_table(with_row_id=True)
    ids = after["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids) == 14
    assert {tuple(each.values()) for each in before.to_pylist()} < {tuple(each.values()) for each in after.to_pylist()}
    assert lance.dataset(plan.uri).take([0]).num_rows == 1


def changed(catalog: lancekeep.Catalog, change: Callable[[lance.LanceDataset], lance.LanceDataset]) -> int:
    """Commit a change, again as long as other writers win: a loaded machine makes it lose all of Lance's attempts."""
    while True:
        with suppress(lancekeep.ConcurrentModification):
            return catalog.commit_change("t", change).version


@pytest.mark.parametrize("commit_store", ["", "sqlite"])
def test_native_changes_progress_beside_saturating_appends(tmp_path: Path, commit_store: str) -> None:
    """A delete and a compaction of the same catalog finish while appends never stop."""
    store = f"sqlite://{tmp_path}/commits.db" if commit_store else None
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=store)
    catalog.write("t", row(0, 0))
    appended = [(9, number) for number in range(5)]
    for writer, number in appended:
        catalog.write("t", row(writer, number), "append")
    stop = threading.Event()

    def appender(writer: int) -> None:
        for number in count():
            if stop.is_set():
                return
            catalog.write("t", row(writer, number), "append")
            appended.append((writer, number))

    def delete(dataset: lance.LanceDataset) -> lance.LanceDataset:
        dataset.delete("writer = 0")
        return dataset

    def compact(dataset: lance.LanceDataset) -> lance.LanceDataset:
        dataset.optimize.compact_files()
        return dataset

    threads = [threading.Thread(target=appender, args=(writer,)) for writer in range(1, 5)]
    for thread in threads:
        thread.start()
    try:
        assert changed(catalog, delete) > 6
        assert changed(catalog, compact) > 7
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert rows_of(catalog, "t") == Counter(appended)


def test_a_writer_that_has_lost_gets_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committer waits for a writer that has lost a commit and is slower than any breath."""
    monkeypatch.setattr(application_appends, "turn", lambda here, elsewhere: Turn(60.0, 10.0) if here else None)
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    catalog.write("t", row(0, 0))
    stop, attempts = threading.Event(), []
    commit = Versions.commit_version

    def commit_late(versions: Versions, table: Table, branch: Any, version: int, *others: Any, **more: Any) -> Any:
        attempts.append(version)
        for _ in range(30):  # as long as this, appends may take the version
            if catalog.versions.history("t")[0].version >= version:
                break
            threading.Event().wait(0.01)
        return commit(versions, table, branch, version, *others, **more)

    def appender() -> None:
        while not stop.is_set():
            catalog.write("t", row(1, 1), "append")

    monkeypatch.setattr(Versions, "commit_version", commit_late)
    threads = [threading.Thread(target=appender) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        catalog.open("t").update({"number": "2"}, where="writer = 0")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert rows_of(catalog, "t")[0, 2] == 1
    assert 1 < len(attempts) < 5


def test_a_writer_that_never_wins_does_not_hold_up_appends(tmp_path: Path) -> None:
    """It commits a version that is taken, again and again."""
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    catalog.write("t", row(0, 0))
    appends = directory_of(catalog).writes._appends
    waits: list[float] = []

    class Won(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    catalog.write("t", row(1, 0), "append")
    [line] = appends._lines._lines.values()
    line.won, appends._clock = Won(), lambda: 0.0
    for number in range(1, 5):
        appends._lines.note_other(ObjectId(("t",)), won=False)
        catalog.write("t", row(1, number), "append")
    assert waits == [3.0]


def two_catalogs(tmp_path: Path, commit_store: str) -> list[lancekeep.Catalog]:
    """Return two catalogs of one root, with a table, as two processes have them."""
    store = f"sqlite://{tmp_path}/commits.db" if commit_store == "sqlite" else commit_store
    catalogs = [lancekeep.connect(str(tmp_path / "lake"), commit_store=store) for _ in range(2)]
    catalogs[0].write("t", row(0, 0))
    return catalogs


@pytest.mark.parametrize("commit_store", ["conditional-put://", "sqlite"])
def test_a_writer_of_another_process_that_has_lost_gets_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit_store: str
) -> None:
    catalog, other = two_catalogs(tmp_path, commit_store)
    appends, now = directory_of(catalog).writes._appends, [0.0]
    monkeypatch.setattr(appends, "_clock", lambda: now[0])

    def append_busily() -> None:
        for number in range(8):
            now[0] += 0.4
            catalog.write("t", row(1, number), "append")

    append_busily()
    [line] = appends._lines._lines.values()
    assert line.pace.met == float("-inf")
    commit, pending = Versions.commit_version, [1]

    def commit_late(versions: Versions, *arguments: Any, **more: Any) -> Any:
        if pending:
            catalog.write("t", row(2, pending.pop()), "append")
        return commit(versions, *arguments, **more)

    monkeypatch.setattr(Versions, "commit_version", commit_late)
    settings = lance.LanceOperation.UpdateConfig(config_updates=lance.LanceOperation.UpdateMap({"k": "v"}, False))

    def commit_once(dataset: lance.LanceDataset) -> lance.LanceDataset:
        return lance.LanceDataset.commit(dataset, settings, read_version=dataset.version, max_retries=0)

    with pytest.raises(lancekeep.ConcurrentModification):
        other.commit_change("t", commit_once)
    while not list((tmp_path / "lake" / WAITING_DIRECTORY).glob("*")):
        time.sleep(0.01)
    looks: list[float] = []

    def look_later(seconds: float) -> None:
        looks.append(seconds)
        now[0] += seconds
        if len(looks) == 3:
            other.commit_change("t", commit_once)

    monkeypatch.setattr(directory_of(catalog).commits.retry, "sleep", look_later)
    append_busily()
    assert looks[:3] == [0.2] * 3, "the committer waits until the other process has committed"
    assert now[0] - line.pace.met < 10
    rows = lance.dataset(catalog.open("t").uri)
    assert rows.config()["k"] == "v"
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("commit_store", ["conditional-put://", "sqlite"])
@pytest.mark.parametrize(("act", "losses"), [("append", PATIENCE), ("compact", 5)])
def test_a_committer_of_another_process_that_always_loses_gets_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit_store: str, act: str, losses: int
) -> None:
    fast, slow = two_catalogs(tmp_path, commit_store)
    appends, now = directory_of(fast).writes._appends, [0.0]
    monkeypatch.setattr(appends, "_clock", lambda: now[0])
    number, looks, waiting = count(), list[float](), tmp_path / "lake" / WAITING_DIRECTORY

    def append_busily() -> None:
        for _ in range(8):
            now[0] += 0.4
            fast.write("t", row(1, next(number)), "append")

    def look_later(seconds: float) -> None:
        looks.append(seconds)
        now[0] += seconds
        if len(looks) == 3:
            slow.write("t", row(3, 0), "append")

    append_busily()
    versions = directory_of(slow).versions
    commit, attempts = versions.commit_built, list[int]()

    def commit_late(*arguments: Any, **more: Any) -> Any:
        attempts.append(1)
        if len(attempts) <= losses:
            fast.write("t", row(1, next(number)), "append")
        else:
            while not any(waiting.glob("*")):  # the note of the loss is written in the background
                time.sleep(0.01)
        return commit(*arguments, **more)

    monkeypatch.setattr(versions, "commit_built", commit_late)
    if act == "append":
        slow.write("t", row(2, 0), "append")
    else:
        slow.upkeep.compact("t")
    assert len(attempts) == losses + 1
    monkeypatch.setattr(directory_of(fast).commits.retry, "sleep", look_later)
    append_busily()
    assert looks == [0.2] * 3, "the committer waits until the other process has committed, once"
    [line] = appends._lines._lines.values()
    assert line.pace.met == float("-inf"), "the loser needs no pauses"
    expected = [(2, 0)] if act == "append" else []
    assert rows_of(fast, "t") == Counter([(0, 0), *expected, (3, 0), *((1, at) for at in range(next(number)))])


def append_until_killed(root: str, commit_store: str, writer: int, ledger: str) -> None:
    """Append from four threads; record every acknowledged row in a file."""
    catalog = lancekeep.connect(root, commit_store=commit_store or None)
    with open(ledger, "a", buffering=1) as acknowledged:

        def many(thread: int) -> None:
            for number in count():
                catalog.write("t", row(writer * 10 + thread, number), "append")
                acknowledged.write(f"{writer * 10 + thread} {number}\n")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(many, range(4)))


@pytest.mark.parametrize("commit_store", ["", "sqlite"])
def test_killed_writers_lose_and_double_nothing(tmp_path: Path, commit_store: str) -> None:
    store = f"sqlite://{tmp_path}/commits.db" if commit_store else ""
    root = str(tmp_path / "lake")
    catalog = lancekeep.connect(root, commit_store=store or None)
    catalog.write("t", row(0, 0))
    lines = kill_two_at_work(tmp_path, append_until_killed, root, store, works=8)
    catalog.write("t", row(7, 7), "append")
    found = rows_of(catalog, "t")
    acknowledged = {tuple(map(int, line.split())) for line in lines}
    assert set(found.values()) == {1}
    assert acknowledged <= set(found)
    for writer in {writer for writer, _ in found}:  # at most the append in progress is there without an answer
        unanswered = {number for other, number in found if other == writer} - {
            number for other, number in acknowledged if other == writer
        }
        assert len(unanswered) <= 1 or writer in (0, 7)


def test_small_streams_that_have_arrived_share_commits(tmp_path: Path) -> None:
    """The namespace's insert receives a stream; a declared table gets its first version with every row of it."""
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.declare_table("t")
    object_id = ObjectId.of("t")
    catalog.data.insert(object_id, row(0, 0).to_reader())
    held_back(catalog, until=8)
    answers = all_at_once([partial(catalog.data.insert, object_id, row(n, 0).to_reader()) for n in range(1, 9)])
    assert {answer.version for answer in answers} == {2}
    assert rows_of(catalog, "t") == Counter((n, 0) for n in range(9))


# -- commits in the thread of the caller -------------------------------------------------------------------------------


def no_thread(act: Callable[[], object]) -> None:
    raise RuntimeError("no thread is started")


def test_second_append_of_a_thread_commits_without_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("t", row(0, 0))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(catalog.write, "t", row(0, 1), "append").result()
        monkeypatch.setattr("lancekeep.application.rows.committer.in_background", no_thread)
        pool.submit(catalog.write, "t", row(0, 2), "append").result()
    with pytest.raises(StoreUnavailable, match="starts no thread"):
        catalog.write("t", row(0, 3), "append")  # signals interrupt the main thread
    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnavailable, match="starts no thread"):
        pool.submit(catalog.write, "t", row(0, 3), "append").result()  # the engine would set the new thread up
    assert rows_of(catalog, "t") == Counter([(0, 0), (0, 1), (0, 2)])


NOW = time.monotonic()


@pytest.mark.parametrize(
    "state",
    [
        {"pace": Pace(appends=2, took=0.5)},
        {"pace": Pace(appends=1, left=1, took=0.5)},
        {"pace": Pace(appends=1, took=0.01, ended=NOW + 1000, busy_since=NOW - 11)},
        {"is_owed": True},
        {"is_owed_elsewhere": True},
    ],
    ids=["clients", "another client", "breath", "turn", "turn elsewhere"],
)
def test_append_that_needs_a_pause_is_left_to_a_committer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Mapping[str, Any]
) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("t", row(0, 0))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(catalog.write, "t", row(0, 1), "append").result()
        line: Any = directory_of(catalog).writes._appends._lines.of(ObjectId.of("t"))
        for name, value in state.items():
            setattr(line, name, value)
        monkeypatch.setattr("lancekeep.application.rows.committer.in_background", no_thread)
        with pytest.raises(StoreUnavailable, match="starts no thread"):
            pool.submit(catalog.write, "t", row(0, 2), "append").result()


@pytest.mark.parametrize("fails", [False, True])
def test_appends_that_wait_for_the_commit_of_another_thread_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("t", row(0, 0))
    commit, begun, waiting = Versions.commit_built, threading.Event(), threading.Event()

    def held(*given: Any, **named: Any) -> Any:
        if threading.current_thread() is committer:
            begun.set()
            assert waiting.wait(60)
            if fails:
                raise MemoryError
        return commit(*given, **named)

    def append_twice() -> None:
        catalog.write("t", row(0, 1), "append")
        monkeypatch.setattr(Versions, "commit_built", held)
        with suppress(MemoryError):
            catalog.write("t", row(0, 2), "append")

    committer = threading.Thread(target=append_twice)
    committer.start()
    assert begun.wait(60)
    others = [threading.Thread(target=catalog.write, args=("t", row(1, number), "append")) for number in range(3)]
    line = directory_of(catalog).writes._appends._lines.of(ObjectId.of("t"))
    for other in others:
        other.start()
    while len(line.waiting) < len(others):
        threading.Event().wait(0.001)
    waiting.set()
    for each in (committer, *others):
        each.join(60)
        assert not each.is_alive()
    assert rows_of(catalog, "t") == Counter([(0, 0), (0, 1), *[(0, 2)] * (not fails), (1, 0), (1, 1), (1, 2)])


def test_commit_in_the_thread_of_a_caller_knows_nothing_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, mine = lancekeep.connect(str(tmp_path)), ContextVar("mine", default=0)
    catalog.write("t", row(0, 0))
    commit, seen = Versions.commit_built, list[int]()

    def seeing(*given: Any, **named: Any) -> Any:
        seen.append(mine.get())
        return commit(*given, **named)

    def append(number: int) -> None:
        mine.set(1)
        catalog.write("t", row(0, number), "append")

    monkeypatch.setattr(Versions, "commit_built", seeing)
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(append, range(1, 4)))
    assert seen == [0, 0, 0]
