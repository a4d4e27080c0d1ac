"""Changes that threads make together in PostgreSQL, and the plans of its statements."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any
from uuid import uuid4

import lance
import psycopg
import pyarrow as pa
import pytest
from contracts.test_postgres_commit_store import pgbouncer
from postgres_servers import migrated_server
from redis_servers import poll

import lancekeep
from lancekeep.adapters.manifest_stores.joint_changes import MOST_TOGETHER, JointChanges
from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.catalog import services_of
from lancekeep.application.retry import Retry
from lancekeep.domain.catalog import CatalogView, Change, Entries, SetProperties
from lancekeep.domain.errors import NamespaceAlreadyExists, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.namespace import create_namespace
from lancekeep.postgres.address import Address
from lancekeep.postgres.database import BoundedConnection, Database, Row, Unanswered
from lancekeep.store_urls import MANIFEST_STORES, StoreUrl
from lancekeep.testing.manifest_store import create, ids

NAMES = [f"n{number:02}" for number in range(12)]


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}?catalog={uuid4()}"


def opened(url: str, kind: type[Database] = Database, **settings: Any) -> PostgresManifestStore:
    location = StoreUrl.parse(url, {}, MANIFEST_STORES)
    root = MemoryObjectStore().root_uri + "lake"
    return PostgresManifestStore(kind(Address.of(location)), location.options["catalog"], root, **settings)


def deciding(name: str) -> Callable[[CatalogView], tuple[Sequence[Change], str]]:
    return lambda view: (create_namespace(view, ObjectId.of(name), {}), name)


@contextmanager
def gathered(joint: JointChanges, names: Sequence[str]) -> Iterator[list[Future[tuple[CatalogView, str]]]]:
    """Let decisions of several threads gather while another thread makes a change, and yield their outcomes."""
    holds, goes_on = Event(), Event()

    def hold(view: CatalogView) -> tuple[Sequence[Change], None]:
        holds.set()
        assert goes_on.wait(20)
        return [], None

    with ThreadPoolExecutor(len(names) + 1) as threads:
        first = threads.submit(joint.apply, hold)
        assert holds.wait(20)
        told = []
        for number, name in enumerate(names, 1):
            told.append(threads.submit(joint.apply, deciding(name)))
            poll(lambda number=number: len(joint._waiting) == number)  # type: ignore[misc]
        goes_on.set()
        first.result()
        yield told


# -- what is made together -------------------------------------------------------------------------------------------


def test_changes_that_gather_are_one_version(url: str) -> None:
    with closing(opened(url)) as store, closing(opened(url)) as other:
        create(store, "n")
        with gathered(store._joint, NAMES) as told:
            for name, each in zip(NAMES, told, strict=True):
                view, result = each.result()
                assert (result, view.version) == (name, 2)
        assert ids(other.view()) == ids(store.recent()) == ["n", *NAMES]
        assert other.view().version == 2


def test_refused_change_is_refused_alone(url: str) -> None:
    with closing(opened(url)) as store:
        create(store, "n05")
        with gathered(store._joint, NAMES) as told:
            for name, each in zip(NAMES, told, strict=True):
                if name == "n05":
                    with pytest.raises(NamespaceAlreadyExists):
                        each.result()
                else:
                    assert each.result()[1] == name
        assert (ids(store.view()), store.view().version) == (NAMES, 2)


def test_changes_of_one_thing_are_made_one_after_the_other(url: str) -> None:
    with closing(opened(url)) as store, ThreadPoolExecutor(16) as threads:
        create(store, "n")

        def add(view: CatalogView) -> tuple[Sequence[Change], int]:
            number = int(view.properties.get("n", "0"))
            return [SetProperties({"n": str(number + 1)})], number

        told = [threads.submit(store.apply, add) for _ in range(40)]
        assert sorted(each.result()[1] for each in told) == list(range(40))
        assert store.view().properties["n"] == "40"


def test_text_that_cannot_be_stored_is_refused_alone(url: str) -> None:
    """The server refuses the statement with all changes, and then the one."""
    with closing(opened(url)) as store:
        create(store, "n")
        joint = JointChanges(store._apply_now)
        with gathered(joint, ["a", "b\0", "c"]) as told:
            assert (told[0].result()[1], told[2].result()[1]) == ("a", "c")
            assert told[1].exception() is not None
        assert ids(store.view()) == ["a", "c", "n"]


# -- outcomes ----------------------------------------------------------------------------------------------------------


class Losing(Database):
    """Loses replies to changes, with or without an effect."""

    losses = 0
    has_effect = True
    is_gone = False

    def rows(self, statement: str, values: Any = None, *, seconds: float = 5) -> list[Row]:
        change = partial(super().rows, statement, values, seconds=seconds)
        return self._lost(change) if "WITH won" in statement and self.losses else change()

    def transact(self, steps: Sequence[tuple[str, Any]], *, seconds: float = 5) -> list[Row]:
        change = partial(super().transact, steps, seconds=seconds)
        return self._lost(change) if self.losses else change()

    def _lost(self, change: Callable[[], list[Row]]) -> list[Row]:
        if self.has_effect:
            change()
        self.losses -= 1
        raise Unanswered("no answer")

    def call(self, act: Callable[[BoundedConnection], Any], *, seconds: float = 5, once: bool = False) -> Any:
        if self.is_gone and not self.losses:
            raise StoreUnavailable("the server is away")
        return super().call(act, seconds=seconds, once=once)


@pytest.mark.parametrize("has_effect", [True, False])
@pytest.mark.parametrize("session", ["", "&prepared_statements=false"])
def test_lost_reply_is_settled_for_all(url: str, has_effect: bool, session: str) -> None:
    with closing(opened(url + session, Losing)) as store:
        database = store._database
        assert isinstance(database, Losing)
        create(store, "n")
        database.has_effect = has_effect
        with gathered(store._joint, NAMES) as told:
            database.losses = 1
            assert [each.result()[1] for each in told] == NAMES
        assert (ids(store.view()), store.view().version) == (["n", *NAMES], 2)


@pytest.mark.parametrize("session", ["", "&prepared_statements=false"])
def test_outcome_that_cannot_be_settled_is_unknown_to_all(url: str, session: str) -> None:
    with closing(opened(url + session, Losing, retry=Retry(patience=0))) as store:
        database = store._database
        assert isinstance(database, Losing)
        create(store, "n")
        database.losses, database.is_gone = 1, True
        told = list(_told_by_a_store_that_fails(store))
        assert len({id(error) for error in told}) == len(NAMES)
        assert {type(error) for error in told} == {StoreUnavailable}
        assert all("It is unknown whether the change was made" in str(error) for error in told)
        database.is_gone = False
        assert ids(store.view()) == ["n", *NAMES]


def _told_by_a_store_that_fails(store: PostgresManifestStore) -> Iterator[BaseException | None]:
    with gathered(store._joint, NAMES) as told:
        for each in told:
            yield each.exception()


def test_interrupted_change_is_unknown_to_the_other_threads() -> None:
    def interrupted(decide: Callable[[CatalogView], tuple[Sequence[Change], Any]], /) -> tuple[CatalogView, Any]:
        view = Entries(0, [], {})
        changes, result = decide(view)
        if changes:
            raise KeyboardInterrupt
        return view, result

    with gathered(JointChanges(interrupted), NAMES[:3]) as told:
        errors = [each.exception() for each in told]
    kinds = sorted(type(error).__name__ for error in errors)
    assert kinds == ["KeyboardInterrupt", "StoreUnavailable", "StoreUnavailable"]
    assert all("unknown whether it was made" in str(error) for error in errors if isinstance(error, StoreUnavailable))


def test_change_whose_wait_is_interrupted_is_not_made() -> None:
    made: list[str] = []

    def apply(decide: Callable[[CatalogView], tuple[Sequence[Change], Any]], /) -> tuple[CatalogView, Any]:
        made.append(str(decide(Entries(0, [], {}))[1]))
        return Entries(0, [], {}), made[-1]

    joint, holds, goes_on, is_interrupted = JointChanges(apply), Event(), Event(), Event()

    def hold(view: CatalogView) -> tuple[Sequence[Change], str]:
        holds.set()
        assert goes_on.wait(120)
        return [], "first"

    waits = get_ident()

    def interrupt() -> None:
        poll(lambda: len(joint._waiting) == 1)
        while not is_interrupted.wait(0.1):  # a signal that arrives just before the wait for the lock does not end it
            signal.pthread_kill(waits, signal.SIGINT)

    def once(*_: object) -> None:
        if not is_interrupted.is_set():
            is_interrupted.set()
            raise KeyboardInterrupt

    first, interrupter = Thread(target=joint.apply, args=(hold,)), Thread(target=interrupt)
    first.start()
    assert holds.wait(120)
    former = signal.signal(signal.SIGINT, once)
    try:
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            joint.apply(deciding("a"))
        interrupter.join()
    finally:
        signal.signal(signal.SIGINT, former)
    goes_on.set()
    first.join()
    assert joint.apply(deciding("b"))[1] == "b"
    assert made == ["first", "b"]


def test_child_that_is_forked_during_a_change_can_make_changes() -> None:
    def apply(decide: Callable[[CatalogView], tuple[Sequence[Change], Any]], /) -> tuple[CatalogView, Any]:
        return Entries(0, [], {}), decide(Entries(0, [], {}))[1]

    joint, holds, goes_on = JointChanges(apply), Event(), Event()

    def hold(view: CatalogView) -> tuple[Sequence[Change], None]:
        holds.set()
        assert goes_on.wait(20)
        return [], None

    first = Thread(target=joint.apply, args=(hold,))
    first.start()
    assert holds.wait(20)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if joint.apply(deciding("a"))[1] == "a" else 1)
    assert os.waitpid(child, 0)[1] == 0
    goes_on.set()
    first.join()


def test_more_changes_than_one_version_holds_are_all_made(url: str) -> None:
    names = [f"n{number:03}" for number in range(MOST_TOGETHER + 6)]
    with closing(opened(url)) as store:
        create(store, "n")
        with gathered(store._joint, names) as told:
            assert [each.result()[1] for each in told] == names
        assert (ids(store.view()), store.view().version) == (["n", *names], 3)


def test_tables_that_threads_declare_together_are_seen_by_native_readers(tmp_path: Path, url: str) -> None:
    rows = pa.table({"a": [1, 2]})
    with lancekeep.connect(str(tmp_path / "lake"), impl="postgres", uri=url) as catalog:
        catalog.create_namespace("n")
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda number: catalog.write(f"n.t{number:02}", rows), range(24)))
            list(threads.map(lambda number: catalog.rename_table(f"n.t{number:02}", f"n.u{number:02}"), range(12)))
            list(threads.map(lambda number: catalog.drop_table(f"n.t{number:02}"), range(12, 18)))
        expected = [*(f"t{number}" for number in range(18, 24)), *(f"u{number:02}" for number in range(12))]
        assert catalog.list_tables("n") == expected
        for name in expected:
            assert lance.dataset(catalog.describe_table(f"n.{name}").uri).to_table() == rows
        assert catalog.upkeep.fsck(deep=True).findings == ()


# -- the statements ----------------------------------------------------------------------------------------------------


def test_table_that_grew_since_its_statistics_is_read_by_its_indexes(tmp_path: Path) -> None:
    """Plans that were made for a few rows stay in the session."""
    with (
        migrated_server("autovacuum=off") as server,
        lancekeep.connect(str(tmp_path / "lake"), impl="postgres", uri=f"{server.url()}?catalog=c") as catalog,
        psycopg.connect(server.dsn, autocommit=True) as admin,
    ):

        def use(names: str) -> None:
            for number in range(12):
                assert not catalog.table_exists(f"n.{names}{number}x")
                catalog.declare_table(f"n.{names}{number}")
                services_of(catalog).tables.page(ObjectId.of("n"), names, 5, include_declared=True)

        def scans() -> object:
            return admin.execute(
                "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'entry' AND schemaname = 'lancekeep'"
            ).fetchone()

        catalog.create_namespace("n")
        admin.execute("VACUUM ANALYZE lancekeep.entry")
        before = scans()  # of the creation of the indexes
        use("a")
        admin.execute(
            "INSERT INTO lancekeep.entry (catalog, since, object_id, parent, name, object_type, location) "
            "SELECT id, version, 'n$u' || each, 'n', 'u' || each, 'table', 'd' || each "
            "FROM lancekeep.catalog, generate_series(1, 2000) AS each"
        )
        use("b")
        catalog.close()  # the session reports what it counted
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres'"
        poll(lambda: admin.execute(sessions).fetchone() == (1,))
        assert scans() == before


def test_session_of_a_pooler_keeps_its_settings(tmp_path: Path) -> None:
    with migrated_server() as server, pgbouncer(server) as address:
        for host, plans in (f"127.0.0.1:{server.port}", "force_generic_plan"), (address, "auto"):
            url = f"postgresql://postgres@{host}/postgres?prepared_statements=false&catalog=c"
            with closing(Database.of(Address.of(StoreUrl.parse(url, {}, MANIFEST_STORES)))) as database:
                assert database.rows("SHOW plan_cache_mode") == [(plans,)]
