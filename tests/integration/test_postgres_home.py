"""A catalog whose entries and version rows are in PostgreSQL: faults, races, several catalogs, settings."""

from __future__ import annotations

import pickle
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from uuid import uuid4

import attrs
import lance
import lance_namespace
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from contracts.test_commit_stores import address_of
from contracts.test_postgres_commit_store import pgbouncer
from losing_proxy import LosingProxy, losing_proxy
from postgres_servers import migrated_server, new_server
from redis_servers import poll
from rest_server import serving

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.manifest_stores import open_manifest_store, postgres
from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.retry import Retry
from lancekeep.config import ConnectionConfig
from lancekeep.domain.catalog import AddColumns, CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.change_feed import ChangeCursor
from lancekeep.domain.errors import (
    AccessDenied,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    NamespaceAlreadyExists,
    Refused,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.namespace import create_namespace
from lancekeep.domain.version_row import VersionRow
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.postgres.address import Address
from lancekeep.postgres.database import ATTEMPTS, BoundedConnection, Database, Row, Unanswered, Unmade, seconds_for
from lancekeep.store_urls import MANIFEST_STORES, StoreUrl
from lancekeep.testing.manifest_store import change, create, ids

ROWS = pa.table({"a": [1, 2, 3]})
SESSIONS = {"": 1, "&prepared_statements=false": 2}
"""Options by which changes take one round trip or several, and how often one is sent whose replies are all lost."""


@pytest.fixture
def url(postgres_url: str) -> str:
    """Return the URL of a catalog that no other test uses."""
    return f"{postgres_url}?catalog={uuid4()}"


@pytest.fixture
def store(url: str) -> Iterator[ManifestStore]:
    with closing(opened(url)) as store:
        yield store


def opened(url: str) -> ManifestStore:
    return open_manifest_store(url, {}, MemoryObjectStore(), "lake")


def connect(root: Path, url: str, **settings: Any) -> lancekeep.Catalog:
    return lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"}, **settings)


def create_once(name: str) -> Callable[[CatalogView], list[Change]]:
    return lambda view: create_namespace(view, ObjectId.of(name), {})


# -- versions of a catalog -------------------------------------------------------------------------------------------


def test_view_shows_one_version_whatever_follows(store: ManifestStore, url: str) -> None:
    entries = [ManifestEntry.namespace(ObjectId.of(f"n{number:04}"), {}) for number in range(2500)]
    change(store, lambda view: [Put(entry) for entry in entries])
    before, read = store.view(), []
    with closing(opened(url)) as other:
        for entry in before.all_of(NAMESPACE):
            read.append(entry.object_id)
            if len(read) == 10:
                change(other, lambda view: [Put(ManifestEntry.namespace(ObjectId.of("n0000a"), {}))])
                change(other, lambda view: [Remove("n2400"), Put(_with(view, "n2499"))])
    assert read == [entry.object_id for entry in entries] == ids(before)
    assert before.find("n2499") == entries[-1]
    assert before.find("n0000a") is None
    after = store.view()
    assert set(ids(after)) == {*read, "n0000a"} - {"n2400"}
    assert after.find("n2499") != entries[-1]


def _with(view: CatalogView, name: str) -> ManifestEntry:
    entry = view.find(name)
    assert entry is not None
    return entry.with_properties({"k": "v"})


def test_clean_up_removes_states_of_the_day_before(store: ManifestStore, postgres_url: str) -> None:
    create(store, "a")
    for number in range(3):
        change(store, lambda view, number=number: [Put(_with(view, "a").with_properties({"k": str(number)}))])  # type: ignore[misc]
    assert store.clean_up() == 0
    with psycopg.connect(postgres_url) as admin:
        admin.execute("UPDATE lancekeep.change SET at = at - interval '2 days' WHERE version <= 3")
    assert store.clean_up() == 2
    with psycopg.connect(postgres_url) as admin:
        catalog = store.view().catalog  # type: ignore[attr-defined]
        kept = admin.execute("SELECT count(*) FROM lancekeep.entry WHERE catalog = %s", (catalog,)).fetchone()
    assert kept == (2,)
    assert ids(store.view()) == ["a"]


def test_list_of_a_state_that_a_clean_up_removes_is_refused(store: ManifestStore, url: str, postgres_url: str) -> None:
    entries = [ManifestEntry.namespace(ObjectId.of(f"n{number:04}"), {}) for number in range(1500)]
    change(store, lambda view: [Put(entry) for entry in entries])
    before = store.view()
    listing = before.all_of(NAMESPACE)
    read = [next(listing)]
    for value in "ab":
        change(store, lambda view, value=value: [Put(entry.with_properties({"k": value})) for entry in entries])  # type: ignore[misc]
    with psycopg.connect(postgres_url) as admin:
        catalog = before.catalog  # type: ignore[attr-defined]
        admin.execute("UPDATE lancekeep.change SET at = at - interval '2 days' WHERE catalog = %s", (catalog,))
    assert store.clean_up() == 2
    with pytest.raises(ConcurrentModification, match="Repeat the operation"):
        read.extend(listing)
    assert len(ids(store.view())) == len(entries)


@pytest.mark.parametrize(("column", "stored"), [("properties", "{"), ("properties", "[]"), ("columns", '{"k": 1}')])
def test_damaged_row_of_the_catalog_is_reported(
    store: ManifestStore, postgres_url: str, column: str, stored: str
) -> None:
    create(store, "a")
    with psycopg.connect(postgres_url) as admin:
        catalog = store.view().catalog  # type: ignore[attr-defined]
        admin.execute(f"UPDATE lancekeep.catalog SET {column} = %s WHERE id = %s".encode(), (stored, catalog))
    with pytest.raises(Damaged, match=f"the {column} of the catalog"):
        store.view()


def test_values_of_extensions_are_exact(store: ManifestStore, url: str) -> None:
    columns = {"day": "date32:day", "at": "timestamp:ns:UTC", "price": "decimal:128:10:2", "raw": "binary"}
    nanoseconds = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))
    values: dict[str, Any] = {"day": date(2026, 1, 2), "at": nanoseconds, "price": Decimal("1.10"), "raw": b"\0\xff"}
    values["base_objects"] = ["a$b"]
    entry = ManifestEntry("t", NAMESPACE, extension=values)
    change(store, lambda view: [AddColumns(columns), Put(entry)])
    with closing(opened(url)) as other:
        found = other.view().find("t")
        assert found is not None
        assert pa.array([found.extension["at"]], nanoseconds.type).equals(nanoseconds)
        assert {**found.extension, "at": 0} == {**values, "at": 0}
        with pytest.raises(Refused, match="cannot hold"):
            change(other, lambda view: [AddColumns({"day": "string"})])


def test_text_that_is_not_unicode_is_refused(store: ManifestStore) -> None:
    create(store, "a")
    with pytest.raises(InvalidInput, match="which UTF-8 lacks"):
        change(store, lambda view: [SetProperties({"k": "1"}), Put(ManifestEntry("t", TABLE, "\ud800"))])
    assert store.view().properties == {}


def test_views_of_one_version_read_an_entry_once(store: ManifestStore, url: str) -> None:
    create(store, "a")
    with closing(elsewhere(url)) as other:
        asked: list[str] = []
        views = [other.view(), other.view()]
        for view in views:
            assert view == views[0]
            counted = attrs.evolve(view, rows=lambda *each: asked.append(each[0]) or view.rows(*each))  # type: ignore[func-returns-value]  # noqa: B023
            for _ in range(2):
                assert counted.find("a") is not None
                assert counted.find("b") is counted.owner_of("files") is None
        assert len(asked) == 3
        create(store, "b")
        assert other.view().find("b") is not None
        create(other, "c")
        assert other.view().find("c") is not None
        assert views[0].find("b") is None


def test_read_of_a_state_that_a_clean_up_removed_is_refused(store: ManifestStore, postgres_url: str) -> None:
    """Its entries are gone, so each answer would lack some."""
    change(store, lambda view: [Put(ManifestEntry("t", TABLE, "t-files"))])
    old = store.view()
    for value in "ab":
        change(store, lambda view, value=value: [Put(_with(view, "t").with_properties({"k": value}))])  # type: ignore[misc]
    make_old(old, postgres_url)
    assert store.clean_up() == 2
    for read in (
        lambda: old.find("u"),
        lambda: old.owner_of("t-files"),
        lambda: old.children(ObjectId(), TABLE),
        lambda: list(old.all_of(TABLE)),
        lambda: list(old.descendants(ObjectId())),
    ):
        with pytest.raises(ConcurrentModification, match="Repeat the operation"):
            read()
    assert store.recent().find("t") is not None


def make_old(view: CatalogView, postgres_url: str) -> None:
    """Make the present states of a catalog two days old."""
    with psycopg.connect(postgres_url) as admin:
        catalog = view.catalog  # type: ignore[attr-defined]
        admin.execute("UPDATE lancekeep.change SET at = at - interval '2 days' WHERE catalog = %s", (catalog,))


def test_state_is_recent_for_an_hour(url: str, postgres_url: str) -> None:
    now = [0.0]
    with closing(opened(url)) as other, closing(elsewhere(url, clock=lambda: now[0])) as store:
        create(store, "a")
        change(other, lambda view: [Put(_with(view, "a"))])
        create(other, "b")
        now[0] = 3599
        assert store.recent().find("b") is None
        make_old(other.view(), postgres_url)
        other.clean_up()
        now[0] = 3601
        assert store.recent().find("b") is not None


def elsewhere(url: str, kind: type[Database] = Database, **settings: Any) -> PostgresManifestStore:
    location = StoreUrl.parse(url, {}, MANIFEST_STORES)
    return PostgresManifestStore(
        kind(Address.of(location)), location.options["catalog"], MemoryObjectStore().root_uri + "lake", **settings
    )


# -- lost replies and concurrent processes ---------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[LosingProxy]:
    with losing_proxy(address_of(postgres_url), b"WITH won") as proxy:
        yield proxy


def through(proxy: LosingProxy, url: str) -> str:
    return url.replace(address_of(url), f"127.0.0.1:{proxy.port}")


def test_change_with_lost_reply_is_made_once(url: str, proxy: LosingProxy) -> None:
    with closing(opened(through(proxy, url))) as far, closing(opened(url)) as near:
        create(far, "a")
        proxy.losses = 1
        change(far, create_once("b"))
        assert proxy.lost == 1
        proxy.losses = 1
        proxy.on_loss = lambda: create(near, "between")  # another change follows before the reply is settled
        change(far, create_once("c"))
        assert ids(near.view()) == ["a", "b", "between", "c"]
        assert near.view().version == 4
        with pytest.raises(NamespaceAlreadyExists):
            change(far, create_once("c"))


def test_change_that_waits_for_a_lock_while_its_connection_is_lost_is_made_once(
    url: str, proxy: LosingProxy, postgres_url: str
) -> None:
    """The server makes the change after the second attempt has begun, which does not see it."""
    with (
        closing(opened(through(proxy, url))) as far,
        ThreadPoolExecutor() as threads,
        psycopg.connect(postgres_url) as rival,
        psycopg.connect(postgres_url, autocommit=True) as admin,
    ):
        create(far, "a")

        def require_waiting(count: int) -> None:
            poll(lambda: admin.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount == count)

        rival.execute("SELECT FROM lancekeep.catalog WHERE id = %s FOR UPDATE", (far.view().catalog,))  # type: ignore[attr-defined]
        proxy.early, proxy.losses, proxy.on_loss = True, 1, lambda: require_waiting(1)
        told = threads.submit(change, far, create_once("b"))
        require_waiting(2)
        rival.commit()
        told.result()
        assert proxy.lost == 1
        assert ids(far.recent()) == ids(far.view()) == ["a", "b"]
        assert far.recent().version == far.view().version == 2


@pytest.mark.parametrize(("session", "lost"), SESSIONS.items())
def test_change_with_many_lost_replies_is_made_once(url: str, proxy: LosingProxy, session: str, lost: int) -> None:
    with closing(opened(through(proxy, url) + session)) as far, closing(opened(url)) as near:
        create(far, "a")
        proxy.losses = 3
        change(far, create_once("b"))
        assert proxy.lost == lost
        assert ids(near.view()) == ids(far.recent()) == ["a", "b"]
        assert near.view().version == 2


def test_lost_reply_of_commit_under_the_lock_is_settled(url: str, postgres_url: str) -> None:
    """The first decision loses the race, so the second is made in a transaction."""
    with (
        losing_proxy(address_of(postgres_url), b"COMMIT") as proxy,
        closing(opened(through(proxy, url))) as far,
        closing(opened(url)) as near,
    ):
        create(far, "a")
        asked: list[int] = []

        def decide(view: CatalogView) -> tuple[list[Change], str]:
            asked.append(view.version)
            if len(asked) == 1:
                create(near, "faster")
            else:
                proxy.losses = 1
            return create_namespace(view, ObjectId.of("b"), {}), f"decided at {view.version}"

        view, told = far.apply(decide)
        assert proxy.lost == 1
        assert (asked, told, view.version) == ([1, 2], "decided at 2", 3)
        assert ids(near.view()) == ids(view) == ["a", "b", "faster"]


def restored(postgres_url: str, view: CatalogView) -> None:
    """Make the catalog what it was before its latest change, as a backup does that lacks it."""
    with psycopg.connect(postgres_url) as admin:
        place = {"catalog": view.catalog, "version": view.version}  # type: ignore[attr-defined]
        for statement in (
            "DELETE FROM lancekeep.change WHERE catalog = %(catalog)s AND version = %(version)s",
            "DELETE FROM lancekeep.entry WHERE catalog = %(catalog)s AND since = %(version)s",
            "UPDATE lancekeep.catalog SET version = version - 1 WHERE id = %(catalog)s",
        ):
            assert admin.execute(statement, place).rowcount == 1


def test_restored_backup_refuses_what_was_decided_about_a_lost_state(
    store: ManifestStore, url: str, postgres_url: str
) -> None:
    """The lost state and the one that follows the restored one have the same number."""
    create(store, "a")
    create(store, "lost")
    asked: list[list[str]] = []
    with closing(opened(url)) as other:

        def decide(view: CatalogView) -> list[Change]:
            asked.append(ids(view))
            if len(asked) == 1:
                restored(postgres_url, view)
                create(other, "b")
                assert other.view().version == view.version
            return create_once("c")(view)

        old = store.view()
        change(store, decide)
        assert asked == [["a", "lost"], ["a", "b"]]
        assert ids(other.view()) == ["a", "b", "c"]
        with pytest.raises(ConcurrentModification, match="restored from a backup"):
            old.find("c")


def test_large_change_is_waited_for(store: ManifestStore) -> None:
    entries = [ManifestEntry.namespace(ObjectId.of(f"n{number:05}"), {}) for number in range(20_000)]
    assert change(store, lambda view: [Put(entry) for entry in entries]).version == 1
    assert seconds_for(len(entries)) > seconds_for(1) + 5
    assert len(ids(store.view())) == len(entries)


class Explained(Database):
    """Keeps the plans of its statements."""

    plans: list[str]

    def connect(self) -> BoundedConnection:
        connection = super().connect()
        connection.execute("LOAD 'auto_explain'")
        connection.execute("SELECT set_config('auto_explain.log_min_duration', '0', false)")
        connection.execute("SELECT set_config('auto_explain.log_level', 'notice', false)")
        connection.add_notice_handler(lambda notice: self.plans.append(notice.message_primary or ""))
        return connection


def test_plans_of_an_empty_catalog_suit_a_large_one(url: str) -> None:
    with closing(elsewhere(url, Explained)) as store:
        database = store._database
        assert isinstance(database, Explained)
        database.plans = []
        create(store, "a")

        def indexes(act: Callable[[CatalogView], object]) -> set[str]:
            view = store.view()
            database.plans.clear()
            act(view)
            return set(re.findall(r"(?:using|Scan on) (entry_[a-z]+)", "".join(database.plans)))

        a = ObjectId.of("a")
        assert indexes(lambda view: change(store, lambda view: [Remove("a")])) == {"entry_pkey", "entry_location"}
        assert indexes(lambda view: view.find("b")) == {"entry_pkey"}
        assert indexes(lambda view: view.children(a, TABLE)) == {"entry_child"}
        assert indexes(lambda view: list(view.descendants(a))) == {"entry_pkey"}
        assert indexes(lambda view: list(view.all_of(TABLE))) == {"entry_type"}
        assert indexes(lambda view: view.owner_of("a/b")) == {"entry_location"}
        assert indexes(lambda view: store.feed.versions(ChangeCursor(0, ""), 10)) == {"entry_pkey"}
        assert indexes(lambda view: store.clean_up()) == {"entry_ended"}


def test_change_that_is_made_after_the_deadline_is_made_once(
    url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(opened(url)) as store,
        ThreadPoolExecutor() as threads,
        psycopg.connect(postgres_url) as rival,
        psycopg.connect(postgres_url, autocommit=True) as admin,
    ):
        create(store, "a")
        rival.execute("SELECT FROM lancekeep.catalog WHERE id = %s FOR UPDATE", (store.view().catalog,))  # type: ignore[attr-defined]
        monkeypatch.setattr(postgres, "seconds_for", lambda rows: 0.1)
        told = threads.submit(change, store, create_once("b"))
        poll(lambda: admin.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount == 2)
        rival.commit()
        told.result()
        assert ids(store.recent()) == ids(store.view()) == ["a", "b"]
        assert store.recent().version == store.view().version == 2


class Delaying(Database):
    """Sends the next change to the server only when the test asks for it."""

    delayed: list[Callable[[], list[Row]]] | None = None

    def rows(self, statement: str, values: Any = None, *, seconds: float = 5) -> list[Row]:
        change = partial(super().rows, statement, values, seconds=seconds)
        return self._sent(change) if "WITH won" in statement else change()

    def transact(self, steps: Sequence[tuple[str, Any]], *, seconds: float = 5) -> list[Row]:
        return self._sent(partial(super().transact, steps, seconds=seconds))

    def _sent(self, change: Callable[[], list[Row]]) -> list[Row]:
        if self.delayed == []:
            self.delayed.append(change)
            raise Unanswered("no answer")
        return change()


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("others", [(), ("other",)])
@pytest.mark.parametrize("then", ["changes", "nothing", "an error"])
def test_change_that_reaches_the_server_after_it_was_settled_is_not_made(
    url: str, postgres_url: str, then: str, others: Sequence[str], session: str
) -> None:
    with closing(elsewhere(url + session, Delaying)) as store, closing(opened(url)) as near:
        database = store._database
        assert isinstance(database, Delaying)
        create(store, "a")
        asked: list[ManifestEntry | None] = []

        def decide(view: CatalogView) -> list[Change]:
            asked.append(view.find("b"))
            if len(asked) == 1:
                for other in others:
                    create(near, other)
            if len(asked) == 2 and then == "an error":
                raise Refused("no longer permitted")
            return [] if len(asked) == 2 and then == "nothing" else create_once("b")(view)

        database.delayed = []
        with pytest.raises(Refused) if then == "an error" else nullcontext():
            change(store, decide)
        after = store.view()
        (delayed,) = database.delayed
        assert delayed() == []
        assert asked == [None, None]
        made = ["b"] if then == "changes" else []
        assert ids(store.view()) == ids(after) == ["a", *made, *others]
        assert store.view().version == after.version
        told = [set(each.after) for each in store.feed.versions(ChangeCursor(0, ""), 10)]
        assert set.union(*told) == set(ids(after))
        make_old(after, postgres_url)
        create(store, "last")
        store.clean_up()
        with psycopg.connect(postgres_url) as admin:
            count = "SELECT count(*) FROM lancekeep.entry WHERE catalog = %s"
            kept = admin.execute(count, (after.catalog,)).fetchone()
        assert kept == (len(ids(store.view())),)


def test_change_that_cannot_be_settled_is_unknown(url: str) -> None:
    class Gone(Delaying):
        def call(self, act: Callable[[BoundedConnection], Any], *, seconds: float = 5, once: bool = False) -> Any:
            if self.delayed:
                raise StoreUnavailable("the server is away")
            return super().call(act, seconds=seconds, once=once)

    with closing(elsewhere(url, Gone, retry=Retry(patience=0))) as store:
        create(store, "a")
        store._database.delayed = []  # type: ignore[attr-defined]
        with pytest.raises(StoreUnavailable, match=r"away\. It is unknown whether the change was made"):
            create(store, "b")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("lock_timeout=50", "lock timeout.*Another session holds a lock"),
        ("statement_timeout=50", "canceling statement due to statement timeout"),
    ],
)
def test_change_that_the_server_refuses_is_not_made(
    postgres_url: str, url: str, monkeypatch: pytest.MonkeyPatch, settings: str, message: str
) -> None:
    with closing(opened(url)) as store:
        create(store, "a")
    with closing(elsewhere(url, retry=Retry(patience=0.2))) as store, psycopg.connect(postgres_url) as other:
        monkeypatch.setenv("PGOPTIONS", f"-c {settings}")
        other.execute("LOCK TABLE lancekeep.entry IN EXCLUSIVE MODE")  # readers go on
        with pytest.raises(StoreUnavailable, match=message) as refused:
            create(store, "b")
        assert "unknown" not in str(refused.value)
        other.rollback()
        create(store, "c")
        assert ids(store.view()) == ["a", "c"]


@contextmanager
def failing_with(code: str, when: str, store: ManifestStore, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Let the server fail at the entries of a catalog: in the statement, or at its commit."""
    catalog, name = store.view().catalog, f"fail_{uuid4().hex}"  # type: ignore[attr-defined]
    kind, timing = {
        "statement": ("TRIGGER", "BEFORE INSERT ON lancekeep.entry"),
        "commit": ("CONSTRAINT TRIGGER", "AFTER INSERT ON lancekeep.entry DEFERRABLE INITIALLY DEFERRED"),
    }[when]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'failed' USING ERRCODE = '{code}'; END $$".encode()
        )
        fails = f"FOR EACH ROW WHEN (NEW.catalog = {catalog}) EXECUTE FUNCTION {name}()"
        admin.execute(f"CREATE {kind} {name} {timing} {fails}".encode())
        try:
            yield admin
        finally:
            admin.execute(f"DROP FUNCTION {name} CASCADE".encode())


@pytest.mark.parametrize("when", ["statement", "commit"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("22001", InvalidInput),
        ("23514", StoreUnavailable),
        ("25006", Unsupported),
        ("25P03", StoreUnavailable),
        ("40001", StoreUnavailable),
        ("40P01", StoreUnavailable),
        ("42501", AccessDenied),
        ("42P01", InvalidInput),
        ("53100", StoreUnavailable),
        ("53200", StoreUnavailable),
        ("54000", InvalidInput),
        ("55P03", StoreUnavailable),
        ("57014", StoreUnavailable),
        ("58030", StoreUnavailable),
        ("XX000", StoreUnavailable),
        ("XX001", Damaged),
        ("08006", None),
        ("40003", None),
        ("57P01", None),
    ],
)
def test_only_a_lost_session_leaves_open_whether_a_change_was_made(
    url: str, postgres_url: str, code: str, when: str, error: type[LancekeepError] | None
) -> None:
    with closing(elsewhere(url, retry=Retry(patience=0))) as store:
        create(store, "a")
        asked: list[int] = []

        def decide(view: CatalogView) -> list[Change]:
            asked.append(view.version)
            return create_once("b")(view)

        with failing_with(code, when, store, postgres_url), pytest.raises(error or StoreUnavailable) as failed:
            change(store, decide)
        assert type(failed.value) in (error or StoreUnavailable, Unmade)
        assert ("unknown" in str(failed.value)) == (error is None)
        assert ids(store.view()) == ["a"]
        change(store, decide)
        assert ids(store.view()) == ["a", "b"]


def test_change_that_may_be_made_is_not_reported_as_refused(url: str, postgres_url: str) -> None:
    """The reply is lost, and the role may not ask whether the change was made."""
    with closing(elsewhere(url, Delaying, retry=Retry(patience=0))) as store:
        database = store._database
        assert isinstance(database, Delaying)
        create(store, "a")
        database.delayed = []
        with (
            failing_with("42501", "statement", store, postgres_url),
            pytest.raises(StoreUnavailable, match=r"Check user and password.*It is unknown whether"),
        ):
            change(store, create_once("b"))
        (delayed,) = database.delayed
        assert delayed() != []  # now it is made
        assert ids(store.view()) == ["a", "b"]


def test_change_that_finds_the_disk_full_is_not_made() -> None:
    with migrated_server() as server:
        place, filler = server.directory / "small", server.directory / "small" / "filler"
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip(f"this user may not mount a small file system: {mounted.stderr.strip()}")
        try:
            shutil.chown(place, "postgres", "postgres")
            server.run(
                f"CREATE TABLESPACE small LOCATION '{place}'", "ALTER TABLE lancekeep.entry SET TABLESPACE small"
            )
            with closing(elsewhere(f"{server.url()}?catalog=c", retry=Retry(patience=0))) as store:
                create(store, "a")
                with filler.open("wb", buffering=0) as rest, suppress(OSError):
                    while True:
                        rest.write(b"\0" * 4096)
                value = "".join(str(uuid4()) for _ in range(2000))  # more than the table has room for
                entry = ManifestEntry.namespace(ObjectId.of("b"), {"k": value})
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match=r"No space left.*Free space there\.$"):
                        change(store, lambda view: [Put(entry)])
                    assert ids(store.view()) == ["a"]
                filler.unlink()
                change(store, lambda view: [Put(entry)])
                assert store.view().find("b") == entry
        finally:
            server.stop(signal.SIGQUIT)
            subprocess.run(["umount", str(place)], check=True)


def test_session_that_pauses_for_too_long_in_a_transaction_changes_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(url)) as rival:
        create(rival, "a")
        monkeypatch.setenv("PGOPTIONS", "-c idle_in_transaction_session_timeout=50")
        with closing(elsewhere(url, retry=Retry(patience=0))) as store:
            asked: list[list[str]] = []

            def slow(pauses: int) -> Callable[[CatalogView], list[Change]]:
                def decide(view: CatalogView) -> list[Change]:
                    asked.append(ids(view))
                    if len(asked) == 1:
                        create(rival, f"rival{pauses}")  # so the next decision is made in a transaction
                    elif len(asked) <= pauses + 1:
                        time.sleep(0.2)
                    return create_once("b")(view)

                return decide

            with pytest.raises(StoreUnavailable, match="idle-in-transaction timeout"):
                change(store, slow(ATTEMPTS))
            assert ids(store.view()) == ["a", f"rival{ATTEMPTS}"]
            asked.clear()
            change(store, slow(1))
            assert ids(store.view()) == ["a", "b", "rival1", f"rival{ATTEMPTS}"]


def test_error_of_a_decision_about_an_old_state_is_repeated(store: ManifestStore, url: str) -> None:
    asked: list[list[str]] = []
    create(store, "z")
    with closing(opened(url)) as other:

        def decide(view: CatalogView) -> list[Change]:
            asked.append(ids(view))
            if len(asked) == 1:
                create(other, "a")
                raise Damaged("two reads saw two states")
            return create_once("b")(view)

        change(store, decide)
    assert asked == [["z"], ["a", "z"]]


def test_racing_processes_lose_no_change(url: str) -> None:
    stores, start = [opened(url) for _ in range(6)], Barrier(6)

    def add(store: ManifestStore) -> None:
        start.wait()
        for _ in range(8):
            change(store, lambda view: [SetProperties({"n": str(int(view.properties.get("n", "0")) + 1)})])

    threads = [Thread(target=add, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    view = stores[0].view()
    assert (view.properties["n"], view.version) == ("48", 48)
    for store in stores:
        store.close()


@pytest.mark.parametrize("setting", ["SET default_transaction_isolation = 'serializable'", "SET work_mem = '64kB'"])
def test_default_isolation_of_the_role_changes_no_result(url: str, postgres_url: str, setting: str) -> None:
    role = f"role_{uuid4().hex[:8]}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
        admin.execute(f"ALTER ROLE {role} {setting}".encode())
    test_racing_processes_lose_no_change(url.replace("postgres@", f"{role}@"))


def test_killed_server_keeps_changes_and_refuses_none(tmp_path: Path) -> None:
    with migrated_server("fsync=on") as server:
        catalog = connect(tmp_path / "lake", server.url(), committer="ada")
        catalog.create_namespace("n")
        catalog.write("n.t", ROWS)
        server.kill()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{server.port}"):
            directory_of(catalog).ledger.manifest.view()
        server.start()
        catalog.write("n.t", ROWS, "append")
        catalog.rename_table("n.t", "n.u")
        assert catalog.list_tables("n") == ["u"]
        assert lance.dataset(catalog.describe_table("n.u").uri).count_rows() == 6
        assert catalog.upkeep.fsck(deep=True).findings == ()
        catalog.close()


def test_declarations_while_the_server_crashes_are_made_once(tmp_path: Path) -> None:
    with migrated_server("fsync=on", "max_connections=10") as server, connect(tmp_path / "lake", server.url()) as first:
        first.create_namespace("n")
        started = Barrier(4)

        def declare(number: int) -> None:
            with connect(tmp_path / "lake", server.url()) as catalog:
                started.wait()
                for each in range(15):
                    catalog.declare_table(f"n.t{number}x{each:02}")

        with ThreadPoolExecutor() as threads:
            told = [threads.submit(declare, number) for number in range(3)]
            started.wait()
            for made in (5, 20):
                poll(lambda made=made: len(first.list_tables("n")) >= made)  # type: ignore[misc]
                server.kill()
                server.start()
            for each in told:
                each.result()
        assert first.list_tables("n") == sorted(f"t{number}x{each:02}" for number in range(3) for each in range(15))
        with psycopg.connect(server.dsn) as admin:
            assert admin.execute(
                "SELECT version, (SELECT count(*) FROM lancekeep.change) FROM lancekeep.catalog"
            ).fetchone() == (46, 46)


def test_pooler_in_transaction_mode_loses_no_change(postgres_url: str) -> None:
    with migrated_server() as server, pgbouncer(server) as address:
        test_racing_processes_lose_no_change(
            f"postgresql://postgres@{address}/postgres?prepared_statements=false&catalog={uuid4()}"
        )


def test_change_waits_until_the_server_has_a_connection_left(tmp_path: Path) -> None:
    with migrated_server("max_connections=8") as server, connect(tmp_path / "lake", server.url()) as catalog:
        catalog.create_namespace("n")
        catalog.close()
        taken = [psycopg.connect(server.dsn)]
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(server.dsn))
        with ThreadPoolExecutor() as threads:
            told = threads.submit(catalog.declare_table, "n.t")
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                psycopg.connect(server.dsn)
            for each in taken:
                each.close()
            told.result()
        assert catalog.list_tables("n") == ["t"]


def test_full_disk_changes_nothing_and_writers_go_on_once_it_has_space(tmp_path: Path) -> None:
    """A trigger raises the error with which the server refuses new rows without space."""
    tables = ("entry", "version_row")
    with (
        migrated_server() as server,
        connect(tmp_path / "lake", server.url()) as catalog,
        closing(elsewhere(f"{server.url()}?catalog=other", retry=Retry(patience=0))) as store,
    ):
        create(store, "a")
        catalog.create_namespace("n")
        catalog.write("n.t", ROWS)
        server.run(
            "CREATE SEQUENCE refused",
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('refused'); "
            "RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device'; END $$",
            *(
                f"CREATE TRIGGER full_disk BEFORE INSERT ON lancekeep.{table} FOR EACH ROW EXECUTE FUNCTION full_disk()"
                for table in tables
            ),
        )
        with (
            closing(open_commit_store(server.url(), {}, MemoryObjectStore())) as rows,
            psycopg.connect(server.dsn, autocommit=True) as admin,
            ThreadPoolExecutor() as threads,
        ):
            before = store.view().version
            with pytest.raises(StoreUnavailable, match=r"No space left on device.*Free space there"):
                change(store, create_once("b"))
            with pytest.raises(StoreUnavailable, match=r"is full\. Free space there"):
                rows.reserve(VersionRow("s3://bucket/t", 1, "x.manifest-1", 1, "me"), first=True)
            assert rows.latest("s3://bucket/t") is None
            assert (store.view().version, catalog.open("n.t").count_rows()) == (before, 3)

            def refused() -> int:
                ((count,),) = admin.execute("SELECT last_value FROM refused")
                return int(count)

            known = refused()
            written = threads.submit(catalog.write, "n.t", ROWS, "append")
            declared = threads.submit(catalog.declare_table, "n.u")
            poll(lambda: refused() >= known + 4)
            server.run(*(f"DROP TRIGGER full_disk ON lancekeep.{table}" for table in tables))
            written.result()
            declared.result()
        assert (catalog.list_tables("n"), catalog.open("n.t").count_rows()) == (["t", "u"], 6)
        assert catalog.upkeep.fsck().findings == ()


def test_served_catalog_refuses_and_repeats_like_any(tmp_path: Path, url: str) -> None:
    namespace = lancekeep.PostgresNamespace(root=str(tmp_path / "lake"), uri=url)
    with serving(namespace) as running, closing(lancekeep.connect(running.uri)) as far:
        far.create_namespace("n", {"k": "v"})
        far.write("n.t", ROWS)
        far.write("n.t", ROWS, "append")
        far.declare_table("n.u")
        far.rename_table("n.u", "n.w")
        far.drop_table("n.w")
        assert (far.list_tables("n"), far.open("n.t").count_rows()) == (["t"], 6)
        with pytest.raises(NamespaceAlreadyExists):
            far.create_namespace("n")
        with connect(tmp_path / "lake", url) as near:
            assert near.list_tables("n") == ["t"]
            assert near.upkeep.fsck(deep=True).findings == ()


def test_session_that_ends_inside_of_a_transaction_is_replaced(
    store: ManifestStore, url: str, postgres_url: str
) -> None:
    """As by idle_in_transaction_session_timeout, while the second decision is made under the lock."""
    create(store, "a")
    asked: list[int] = []
    ends = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'lancekeep.catalog'::regclass "
        "AND mode = 'RowShareLock' AND pid <> pg_backend_pid()"
    )
    with closing(opened(url)) as other, psycopg.connect(postgres_url, autocommit=True) as admin:

        def decide(view: CatalogView) -> list[Change]:
            asked.append(view.version)
            if len(asked) == 1:
                create(other, "faster")
            if len(asked) == 2:
                assert admin.execute(ends).rowcount >= 1
            return create_once("b")(view)

        change(store, decide)
    assert asked == [1, 2, 2]
    assert ids(store.view()) == ["a", "b", "faster"]


# -- catalogs, roots and settings ------------------------------------------------------------------------------------


def test_catalogs_of_one_database_are_separate(tmp_path: Path, postgres_url: str) -> None:
    urls = [f"{postgres_url}?catalog={name}-{uuid4()}" for name in ("dev", "prod")]
    dev, prod = (connect(tmp_path / f"lake{number}", url) for number, url in enumerate(urls))
    dev.create_namespace("n")
    dev.write("n.t", ROWS)
    prod.create_namespace("n")
    assert (dev.list_tables("n"), prod.list_tables("n")) == (["t"], [])
    with pytest.raises(Refused, match=r"is the catalog of file://.*Connect with that root"):
        connect(tmp_path / "lake2", urls[0])
    with pytest.raises(Refused, match="manifest store postgresql://"):
        connect(tmp_path / "lake0", urls[1].replace("prod", "other"))
    dev.close()
    prod.close()


def test_one_of_racing_roots_begins_a_catalog_and_the_others_stay_free(tmp_path: Path, postgres_url: str) -> None:
    for number in range(5):
        url, start = f"{postgres_url}?catalog={uuid4()}", Barrier(4)
        roots = [tmp_path / f"{number}-{each}" for each in "abcd"]
        catalogs = [connect(root, url) for root in roots]

        def begin(catalog: lancekeep.Catalog, start: Barrier = start) -> str:
            start.wait()
            try:
                catalog.create_namespace("n")
            except Refused:
                return "refused"
            return "began"

        with ThreadPoolExecutor() as threads:
            told = list(threads.map(begin, catalogs))
        assert sorted(told) == ["began", "refused", "refused", "refused"]
        for catalog, root, result in zip(catalogs, roots, told, strict=True):
            catalog.close()
            if result == "refused":
                with connect(root, f"{postgres_url}?catalog={uuid4()}") as free:
                    free.create_namespace("n")


def test_one_of_racing_catalogs_gets_a_root_and_the_others_leave_nothing(tmp_path: Path, postgres_url: str) -> None:
    names, start = [str(uuid4()) for _ in range(4)], Barrier(4)
    catalogs = [connect(tmp_path / "lake", f"{postgres_url}?catalog={name}") for name in names]

    def begin(catalog: lancekeep.Catalog) -> str:
        start.wait()
        try:
            catalog.create_namespace("n")
        except Refused:
            return "refused"
        return "began"

    with ThreadPoolExecutor() as threads:
        told = list(threads.map(begin, catalogs))
    for catalog in catalogs:
        catalog.close()
    assert sorted(told) == ["began", "refused", "refused", "refused"]
    with psycopg.connect(postgres_url) as admin:
        kept = admin.execute("SELECT name FROM lancekeep.catalog WHERE name = ANY(%s)", (names,)).fetchall()
    assert kept == [(names[told.index("began")],)]


def test_a_root_that_another_catalog_took_first_stays_with_it(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = (connect(tmp_path / "lake", f"{postgres_url}?catalog={uuid4()}") for _ in range(2))
    begin, others = PostgresManifestStore.begin, [fast]

    def begin_late(store: PostgresManifestStore) -> None:
        if others:
            others.pop().create_namespace("n")
        begin(store)

    monkeypatch.setattr(PostgresManifestStore, "begin", begin_late)
    with slow, fast:
        with pytest.raises(Refused, match="are in the manifest store"):
            slow.create_namespace("n")
        assert fast.list_namespaces() == ["n"]
        fast.create_namespace("m")


def adopt(root: Path, url: str, *arguments: str) -> str:
    line = ["adopt-identity", str(root), "--manifest-store", url, *arguments]
    told = CliRunner().invoke(lancekeep_command, line, obj=lancekeep)
    return told.stdout if told.exit_code == 0 else f"refused: {told.output}"


def test_moved_root_is_adopted_with_its_entries(tmp_path: Path, url: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with connect(before, url) as catalog:
        catalog.create_namespace("n")
        catalog.write("n.t", ROWS)
        identity = catalog.upkeep.identity()
    assert identity is not None
    live = connect(before, url)
    before.rename(after)
    with pytest.raises(Refused, match="adopt-identity"):
        connect(after, url)
    assert "is a copy" in adopt(after, url, "--yes")
    assert f"is no longer the catalog of {identity.root}" in adopt(after, url, "--original")
    with pytest.raises(Refused):
        connect(after, url)
    for _ in range(2):
        assert adopt(after, url, "--original", "--yes").startswith(f"id {identity.id}, used at file://{after}")
    with connect(after, url) as catalog:
        catalog.write("n.t", ROWS, "append")
        assert catalog.open("n.t").count_rows() == 6
        assert catalog.upkeep.fsck(deep=True).findings == ()
    with closing(live), pytest.raises(Refused, match=f"is the catalog of file://{after}"):
        live.create_namespace("m")


def test_root_is_not_moved_while_the_former_one_may_be_in_use(tmp_path: Path, url: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with connect(before, url) as catalog:
        catalog.create_namespace("n")
        shutil.copytree(before, after)
        assert "still records" in adopt(after, url, "--original", "--yes")
        catalog.create_namespace("m")
        assert adopt(after, url, "--original", "--force", "--yes").startswith("id ")
        with pytest.raises(Refused, match="is the catalog of"):
            catalog.create_namespace("o")
    with connect(after, url) as catalog:
        assert catalog.list_namespaces("") == ["m", "n"]
    (tmp_path / "stranger").mkdir()
    assert "records no manifest store" in adopt(tmp_path / "stranger", url, "--original", "--force", "--yes")


def test_copied_root_gets_a_copy_of_the_entries(tmp_path: Path, url: str, postgres_url: str) -> None:
    original, copied = tmp_path / "original", tmp_path / "copy"
    with connect(original, url) as catalog:
        catalog.create_namespace("n", {"k": "v"})
        catalog.write("n.t", ROWS)
        catalog.drop_table("n.t")
        catalog.write("n.t", ROWS)
        shutil.copytree(original, copied)
        other = f"{postgres_url}?catalog={uuid4()}"
        assert "receives a copy" in adopt(copied, other)
        assert "refused" in adopt(copied, other, "--original", "--yes")
        for _ in range(2):
            assert adopt(copied, other, "--yes").startswith("id ")
        with connect(copied, other) as copy:
            assert copy.describe_namespace("n").properties == {"k": "v"}
            copy.write("n.t", ROWS, "append")
            copy.declare_table("n.u")
            assert copy.open("n.t").count_rows() == 6
            assert copy.upkeep.identity() != catalog.upkeep.identity()
            assert copy.upkeep.fsck(deep=True).findings == ()
        assert catalog.open("n.t").count_rows() == 3
        assert catalog.list_tables("n") == ["t"]
        assert catalog.upkeep.fsck(deep=True).findings == ()
        third = tmp_path / "third"
        shutil.copytree(original, third)
        assert "hoose another name for the copy" in adopt(third, other, "--yes")


def test_settings_name_one_database_for_entries_and_versions(tmp_path: Path, url: str, postgres_url: str) -> None:
    root, canonical = str(tmp_path / "lake"), postgres_url.replace("postgres@", "")
    catalog = lancekeep.connect(impl="postgres", properties={"postgres.root": root, "postgres.uri": url})
    catalog.create_namespace("n")
    assert catalog.describe_namespace("").properties["lancekeep.commit_store"] == canonical
    given = {"uri": url, "root": root, "postgres.connections": "3"}
    namespace = lance_namespace.connect("lancekeep.PostgresNamespace", given)
    again = pickle.loads(pickle.dumps(namespace))
    for each in (namespace, again):
        found = each.list_namespaces(lance_namespace.ListNamespacesRequest(id=[]))
        assert found.namespaces == ["n"]
    config = ConnectionConfig.from_properties(
        {"impl": "postgres", "root": root, "postgres.uri": url, "postgres.user": "ada"}
    )
    assert config.commit_store == postgres_url
    assert config.commit_store_options == config.manifest_store_options == {"user": "ada"}
    assert ConnectionConfig.from_properties(config.as_properties()) == config
    named = {"impl": "postgres", "root": root, "postgres.uri": postgres_url, "postgres.catalog": url.partition("=")[2]}
    with closing(lancekeep.connect(properties=named)) as same:
        assert same.list_namespaces("") == ["n"]
    sqlite = f"sqlite://{tmp_path}/commits.db"
    other = connect(tmp_path / "other", f"{postgres_url}?catalog={uuid4()}", commit_store=sqlite)
    other.write("t", ROWS)
    assert other.describe_namespace("").properties["lancekeep.commit_store"] == sqlite
    for settings, message in (
        ({"root": root}, "needs the URL of a database"),
        ({"root": root, "uri": "sqlite:///x"}, "needs the URL of a database.*found sqlite:///x"),
        ({"root": root, "uri": f"{url}&poool=3"}, "unknown option 'poool'"),
        ({"root": root, "uri": url, "manifest_store": url}, "both name the place of the entries"),
        ({"root": "http://h", "uri": url}, "use impl 'rest'"),
        ({"root": root, "uri": url, "mode": "v2"}, "mode is about entries in the directory"),
    ):
        with pytest.raises(InvalidInput, match=message):
            lancekeep.connect(impl="postgres", **settings)  # type: ignore[arg-type]


def test_reader_of_a_standby_sees_whole_changes_and_the_latest_rows(tmp_path: Path) -> None:
    with migrated_server("fsync=on") as primary, new_server(primary=primary) as standby:
        url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres?catalog=prod"
        root = tmp_path / "lake"
        with connect(root, url) as writer:
            writer.write("t", pa.table({"a": [1]}))
            read_only = f"{url}&target_session_attrs=prefer-standby"
            with connect(root, read_only) as reader, psycopg.connect(standby.dsn, autocommit=True) as admin:
                poll(lambda: reader.list_tables() == ["t"])
                admin.execute("SELECT pg_wal_replay_pause()")
                poll(lambda: admin.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))
                writer.write("t", pa.table({"a": [2]}), "append")
                lance.write_dataset(pa.table({"a": [3]}), reader.open("t").uri, mode="append")
                writer.write("u", pa.table({"a": [1]}))
                assert reader.list_tables() == ["t"]
                assert reader.open("t").to_table()["a"].to_pylist() == [1, 2, 3]
                assert reader.data.count("t") == 3
                for change in (lambda: reader.create_namespace("n"), reader.upkeep.optimize):
                    with pytest.raises(Unsupported, match="read-only"):
                        change()
                with pytest.raises(Unsupported, match="read-only"):
                    reader.write("t", pa.table({"a": [4]}), "append")
                admin.execute("SELECT pg_wal_replay_resume()")
                poll(lambda: reader.list_tables() == ["t", "u"])
                assert writer.data.count("t") == 3


def test_damaged_values_of_an_extension_are_reported(store: ManifestStore, postgres_url: str) -> None:
    create(store, "a")
    with psycopg.connect(postgres_url) as admin:
        catalog = store.view().catalog  # type: ignore[attr-defined]
        admin.execute("UPDATE lancekeep.entry SET extension = 'x' WHERE catalog = %s", (catalog,))
    with pytest.raises(Damaged, match="entry 'a'"):
        store.view().find("a")
