"""Reads of a catalog in PostgreSQL: how many statements they take, and which state they show (ADR 175, 193)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.domain.catalog import Listing, Lookup, SetProperties
from lancekeep.domain.errors import (
    CommitStoreMismatch,
    Damaged,
    LancekeepError,
    NamespaceNotFound,
    Refused,
    TableNotFound,
)
from lancekeep.domain.home_copy import MOVED_PROPERTY
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE

ROWS = pa.table({"a": [1]})


@pytest.fixture
def home(tmp_path: Path, postgres_url: str) -> Callable[[], lancekeep.Catalog]:
    """Return a function that opens one catalog, each time as a process of its own does."""
    root, url = str(tmp_path / "lake"), f"{postgres_url}?catalog={uuid4()}"
    return lambda: lancekeep.connect(root, impl="postgres", uri=url)


@pytest.fixture
def catalog(home: Callable[[], lancekeep.Catalog]) -> Iterator[lancekeep.Catalog]:
    with home() as catalog:
        catalog.create_namespace("n")
        catalog.create_namespace("n.m")
        for number in range(6):
            catalog.declare_table(f"n.t{number}")
        catalog.write("n.w", ROWS)
        yield catalog


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets each statement that this process sends."""
    sent: list[Any] = []
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(statement)
        return execute(cursor, statement, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    return sent


def page(catalog: lancekeep.Catalog, namespace: str, after: str | None, limit: int | None) -> list[str]:
    return services_of(catalog).tables.page(ObjectId.of(namespace), after, limit, include_declared=True)[0]


def namespaces(catalog: lancekeep.Catalog, namespace: str) -> list[str]:
    return services_of(catalog).namespaces.page(ObjectId.of(namespace), NAMESPACE, None, 9)[0]


READS: dict[str, tuple[Callable[[lancekeep.Catalog], object], object, int]] = {
    "describe a declared table": (lambda it: it.describe_table("n.t1").version, None, 1),
    "describe a table": (lambda it: it.describe_table("n.w").version, 1, 1),
    "exists": (lambda it: it.table_exists("n.t1"), True, 1),
    "does not exist": (lambda it: it.table_exists("n.t1x"), False, 1),
    "page of tables": (lambda it: page(it, "n", "t2", 2), ["t3", "t4"], 1),
    "last page of tables": (lambda it: page(it, "n", "t4", 9), ["t5", "w"], 1),
    "all tables": (lambda it: it.list_tables("n"), [*(f"t{number}" for number in range(6)), "w"], 2),
    "page of namespaces": (lambda it: namespaces(it, "n"), ["m"], 1),
    "empty page": (lambda it: page(it, "n.m", None, 9), [], 2),
    "describe a namespace": (lambda it: it.describe_namespace("n.m").id, ObjectId.of("n.m"), 1),
}


@pytest.mark.parametrize("read", READS)
def test_read_takes_few_statements(
    home: Callable[[], lancekeep.Catalog], catalog: lancekeep.Catalog, statements: list[Any], read: str
) -> None:
    """No read depends on what the process has read before."""
    act, expected, most = READS[read]
    with home() as other:
        other.table_exists("x")  # which connects
        for change in (None, lambda: catalog.create_namespace("x")):
            if change is not None:
                change()
            for _ in range(2):
                statements.clear()
                assert act(other) == expected
                assert len(statements) <= most, statements


def test_long_page_is_read_by_rows(catalog: lancekeep.Catalog, statements: list[Any]) -> None:
    """An idle connection keeps the answer of a short page until its next statement."""
    names = page(catalog, "n", None, 1000)
    assert len(statements) == 1
    assert page(catalog, "n", None, 1001) == names
    assert len(statements) == 3


def test_reads_name_what_is_missing(catalog: lancekeep.Catalog) -> None:
    with pytest.raises(NamespaceNotFound, match=r"x does not exist"):
        page(catalog, "x", None, 9)
    with pytest.raises(NamespaceNotFound, match="is a table"):
        namespaces(catalog, "n.t1")
    with pytest.raises(TableNotFound, match="is a namespace"):
        catalog.describe_table("n.m")
    assert namespaces(catalog, "n.m") == []


def test_entry_and_page_are_of_the_version_of_their_view(
    home: Callable[[], lancekeep.Catalog], catalog: lancekeep.Catalog
) -> None:
    """A writer alters, drops and creates the table, whose property tells the version."""
    end = Event()

    def write() -> None:
        with home() as writer:
            ledger = directory_of(writer).ledger
            while not end.is_set():
                writer.alter_table("n.t0", {"version": str(ledger.view().version + 1)})
                writer.drop_table("n.t0")
                writer.declare_table("n.t0", {"version": str(ledger.view().version + 1)})

    catalog.alter_table("n.t0", {"version": str(directory_of(catalog).ledger.view().version + 1)})
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            seen = set()
            for _ in range(300):
                view = directory_of(catalog).ledger.view(Lookup("n$t0"))
                entry = view.find("n$t0")
                seen.add(entry is None)
                assert entry is None or entry.properties["version"] == str(view.version)
                view = directory_of(catalog).ledger.view(Listing(ObjectId.of("n"), TABLE, None, 1))
                (first,), _ = view.children(ObjectId.of("n"), TABLE, None, 1)
                assert (first == "t0") == (view.find("n$t0") is not None)
        finally:
            end.set()
        writing.result()
    assert seen == {True, False}


def test_threads_get_their_own_pages_of_one_state(catalog: lancekeep.Catalog) -> None:
    names = [*(f"t{number}" for number in range(6)), "w"]

    def read(number: int) -> None:
        start, limit = number % 5, 1 + number % 3
        assert page(catalog, "n", names[start], limit) == names[start + 1 : start + 1 + limit]
        assert catalog.table_exists(f"n.{names[start]}")
        assert page(catalog, "n.m", names[start], limit) == []
        assert namespaces(catalog, "n") == ["m"]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read, range(120)))


def test_page_that_was_read_with_a_view_is_not_a_page_of_the_next_state(
    home: Callable[[], lancekeep.Catalog], catalog: lancekeep.Catalog
) -> None:
    question, asked = Listing(ObjectId.of("n"), TABLE, "w", 5), (ObjectId.of("n"), TABLE, "w", 5)
    ledger = directory_of(catalog).ledger
    before = ledger.view(question)  # does not ask
    catalog.declare_table("n.x")
    with home() as other:
        other.declare_table("n.y")
    assert ledger.recent().children(*asked)[0] == ["x"]
    assert ledger.view().children(*asked)[0] == ["x", "y"]
    assert before.children(*asked)[0] == []


@pytest.mark.parametrize(
    "read", [lambda it: it.describe_table("n.t1"), lambda it: page(it, "n", None, 3), lambda it: it.table_exists("x.y")]
)
def test_fence_is_seen_by_the_next_read(
    home: Callable[[], lancekeep.Catalog], catalog: lancekeep.Catalog, read: Callable[[lancekeep.Catalog], object]
) -> None:
    with home() as other:
        for _ in range(2):
            read(other)
        fence = SetProperties({MOVED_PROPERTY: "postgresql://elsewhere/db?catalog=c"})
        directory_of(catalog).ledger.manifest.apply(lambda _: ([fence], None))
        with pytest.raises(Refused, match="elsewhere"):
            read(other)


def test_damaged_entry_does_not_hide_a_fence(
    home: Callable[[], lancekeep.Catalog], catalog: lancekeep.Catalog, postgres_url: str
) -> None:
    with home() as other, closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
        admin.execute(
            "UPDATE lancekeep.entry SET extension = 'x' WHERE object_id = 'n$t1' AND catalog = %s", (of(catalog),)
        )
        assert other.table_exists("n.t2")
        for _ in range(2):
            with pytest.raises(Damaged, match="n\\$t1"):
                other.describe_table("n.t1")
        fence = SetProperties({MOVED_PROPERTY: "postgresql://elsewhere/db?catalog=c"})
        directory_of(catalog).ledger.manifest.apply(lambda _: ([fence], None))
        with pytest.raises(Refused, match="elsewhere"):
            other.describe_table("n.t1")


def test_row_of_the_catalog_that_is_changed_by_hand_is_seen_by_the_next_read(
    catalog: lancekeep.Catalog, postgres_url: str
) -> None:
    """Neither the version nor the token of the state changes."""

    def properties() -> dict[str, str]:
        return dict(catalog.describe_namespace("").properties)

    before = properties()
    with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
        values = (of(catalog),)
        added = """(properties::jsonb || '{"k": "1"}')::text"""
        admin.execute(f"UPDATE lancekeep.catalog SET properties = {added} WHERE id = %s".encode(), values)
        assert properties() == {**before, "k": "1"}
        admin.execute("UPDATE lancekeep.catalog SET root = 's3://elsewhere/lake' WHERE id = %s", values)
        for read in (properties, lambda: catalog.table_exists("n.t1"), lambda: page(catalog, "n", None, 1)):
            with pytest.raises(Refused, match="is the catalog of s3://elsewhere/lake"):
                read()


def test_state_that_is_read_again_keeps_its_answers(catalog: lancekeep.Catalog, statements: list[Any]) -> None:
    """The early check of a change asks the same state about the same entries."""
    catalog.describe_namespace("n")
    catalog.table_exists("n.new")
    statements.clear()
    ledger = directory_of(catalog).ledger
    view = ledger.recent()
    assert view.find("n") is not None
    assert view.find("n$new") is None
    assert statements == []
    assert ledger.view() is view
    catalog.declare_table("n.other")
    assert ledger.view() is not view


def test_statement_after_a_failed_one_gets_its_own_rows(catalog: lancekeep.Catalog) -> None:
    with pytest.raises(LancekeepError):
        directory_of(catalog).ledger.view(Lookup("n$\0"))
    assert catalog.describe_table("n.w").version == 1
    assert page(catalog, "n", None, 1) == ["t0"]


# -- a description, which one statement reads (ADR 193) ---------------------------------------------------------------


def test_description_has_the_versions_that_were_acknowledged_before_it(
    home: Callable[[], lancekeep.Catalog], catalog: lancekeep.Catalog
) -> None:
    """A writer appends, drops and creates the table; each table of the name begins with its first version."""
    end, acknowledged = Event(), [1]

    def write() -> None:
        with home() as writer:
            while not end.is_set():
                for version in (2, 3):
                    writer.write("n.w", ROWS, mode="append")
                    acknowledged.append(version)
                writer.drop_table("n.w")
                acknowledged.append(0)
                writer.write("n.w", ROWS)
                acknowledged.append(1)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            seen = set()
            for _ in range(400):
                before = len(acknowledged)
                try:
                    found = catalog.describe_table("n.w").version or 0
                except TableNotFound:
                    found = 0
                during = acknowledged[before - 1 :]
                assert found in {*during, (during[-1] + 1) % 4}, during
                seen.add(found)
        finally:
            end.set()
        writing.result()
    assert {1, 2, 3} <= seen


def test_version_row_of_another_program_is_refused(catalog: lancekeep.Catalog, postgres_url: str) -> None:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
        catalog.write("n.foreign", ROWS)
        uri = directory_of(catalog).places.base_uri + catalog.find_table("n.foreign").location
        elsewhere = "UPDATE lancekeep.version_row SET path = 'other.lance/_versions/1.manifest' WHERE base_uri = %s"
        assert admin.execute(elsewhere.encode(), (uri,)).rowcount == 1
    with pytest.raises(Damaged, match="Another program wrote it"):
        catalog.describe_table("n.foreign")


@pytest.mark.parametrize("other", ["conditional-put://", "sqlite", "the same server, with other connections"])
def test_versions_that_are_elsewhere_are_read_there(
    home: Callable[[], lancekeep.Catalog],
    catalog: lancekeep.Catalog,
    statements: list[Any],
    tmp_path: Path,
    postgres_url: str,
    other: str,
) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path}/rows.db", "conditional-put://": other}
    url = urls.get(other, f"{postgres_url}?connections=3")
    root = catalog.root_uri
    name = directory_of(catalog).ledger.manifest.url.partition("?")[2]  # type: ignore[attr-defined]  # of this home
    with home() as late:
        assert late.describe_table("n.w").version == 1
        if other in urls:
            catalog.upkeep.change_commit_store(url)
            with pytest.raises(CommitStoreMismatch):
                late.describe_table("n.w")
    catalog.describe_table("n.w")  # which connects
    statements.clear()
    assert catalog.describe_table("n.w").version == 1
    assert len(statements) == 1
    with lancekeep.connect(root, impl="postgres", uri=f"{postgres_url}?{name}", commit_store=url) as there:
        there.write("n.w", ROWS, mode="append")
        statements.clear()
        assert there.describe_table("n.w").version == 2
        assert len(statements) == (1 if other in urls else 2)


def of(catalog: lancekeep.Catalog) -> int:
    """Return the number of a catalog in its database."""
    view: Any = directory_of(catalog).ledger.view()
    return int(view.catalog)
