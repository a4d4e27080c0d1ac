"""Changes in PostgreSQL that were decided about a state that other processes have changed since (ADR 156)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.catalog import AddColumns, CatalogView, Change, Entries, Put, Remove, SetProperties
from lancekeep.domain.errors import LancekeepError, NamespaceNotFound, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.namespace import create_namespace, drop_namespace
from lancekeep.domain.table import Table, add_table, find_table, remove_table, rename_table
from lancekeep.postgres.address import Address
from lancekeep.postgres.database import Database
from lancekeep.store_urls import MANIFEST_STORES, StoreUrl
from lancekeep.testing.manifest_store import change, create, ids

Ask = Callable[[CatalogView], object]
Decide = Callable[[CatalogView], tuple[Sequence[Change], Any]]


def opened(url: str) -> PostgresManifestStore:
    """Return a store that knows only what it has read itself, as in a process of its own."""
    location = StoreUrl.parse(url, {}, MANIFEST_STORES)
    root = MemoryObjectStore().root_uri + "lake"
    return PostgresManifestStore(Database.of(Address.of(location)), location.options["catalog"], root)


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}?catalog={uuid4()}"


@pytest.fixture
def stores(url: str) -> Iterator[tuple[PostgresManifestStore, PostgresManifestStore]]:
    with closing(opened(url)) as store, closing(opened(url)) as other:
        yield store, other


def namespace(name: str, **properties: str) -> Put:
    return Put(ManifestEntry.namespace(ObjectId.of(name), properties))


def table(name: str, location: str) -> Put:
    return Put(ManifestEntry.table(ObjectId.of(name), location, {}))


def finds(object_id: str) -> Ask:
    return lambda view: view.find(object_id)


def owns(location: str) -> Ask:
    return lambda view: view.owner_of(location)


BEGIN: list[Change] = [
    namespace("a", k="1"),
    table("t", "t-files/in"),
    SetProperties({"k": "1"}),
    AddColumns({"c": "string"}),
]

AFFECTED: dict[str, tuple[Ask, list[Change]]] = {
    "entered": (finds("b"), [namespace("b")]),
    "altered": (finds("a"), [namespace("a", k="2")]),
    "removed": (finds("a"), [Remove("a")]),
    "owned": (owns("x"), [table("u", "x")]),
    "owned above": (owns("x/y"), [table("u", "x")]),
    "owned below": (owns("x"), [table("u", "x/y")]),
    "left": (owns("t-files/in"), [Remove("t")]),
    "left above": (owns("t-files/in/it"), [Remove("t")]),
    "left below": (owns("t-files"), [table("t", "elsewhere")]),
    "properties": (lambda view: view.properties["k"], [SetProperties({"k": "2"})]),
    "columns": (lambda view: dict(view.columns), [AddColumns({"d": "string"})]),
    "version": (lambda view: view.version, [namespace("z")]),
    "listed": (lambda view: view.children(ObjectId(), NAMESPACE)[0], [namespace("z")]),
    "listed below": (lambda view: ids(view), [namespace("z")]),
    "listed by type": (lambda view: [each.object_id for each in view.all_of(TABLE)], [table("z", "z")]),
}
UNAFFECTED: dict[str, tuple[Ask, list[Change]]] = {
    "another entry": (finds("a"), [namespace("b")]),
    "another directory": (owns("t-files/in"), [table("u", "t-files/inner"), table("v", "t-files/i")]),
    "a directory beside": (owns("x"), [table("u", "x0"), table("v", "x.y"), table("w", "y/x")]),
    "an entry without files": (owns("x/y"), [Remove("t"), namespace("x")]),
}


@pytest.mark.parametrize("case", AFFECTED)
def test_decision_whose_answers_have_changed_is_made_again(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], case: str
) -> None:
    (store, other), (ask, changes) = stores, AFFECTED[case]
    change(store, lambda view: BEGIN)
    expected = ask(change(other, lambda view: changes))

    def decide(view: CatalogView) -> tuple[list[Change], object]:
        return [namespace("made")], ask(view)

    view, result = store.apply(decide)
    latest = other.view()
    assert result == expected
    assert view.version == latest.version == 3
    assert ids(store.recent()) == ids(latest)
    assert "made" in ids(latest)


@pytest.mark.parametrize("case", UNAFFECTED)
def test_decision_whose_answers_have_not_changed_is_applied_to_the_latest_state(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], case: str
) -> None:
    (store, other), (ask, changes) = stores, UNAFFECTED[case]
    change(store, lambda view: BEGIN)
    for each in "un", "z":
        assert store.recent().find(each) is None
        assert store.recent().owner_of(each) is None
    change(other, lambda view: [*changes, table("un", "un"), namespace("z")])
    before, asked = other.feed.latest(), []

    def decide(view: CatalogView) -> tuple[list[Change], str]:
        asked.append(ask(view))
        return [table("made", "made-files"), Remove("a")], "told"

    view, result = store.apply(decide)
    assert (len(asked), result, view.version) == (1, "told", 3)
    latest = other.view()
    assert latest.version == 3
    assert ids(view) == ids(store.recent()) == ids(latest)
    for entry in "un", "z", "a", "made":
        assert store.recent().find(entry) == latest.find(entry)
        assert view.find(entry) == latest.find(entry)
    assert store.recent().owner_of("un") == latest.find("un")
    assert latest.find("a") is None
    told = [(each.version, set(each.before), set(each.after)) for each in other.feed.versions(before, 10)]
    assert told == [(3, {"a"}, {"made"})]


def test_change_without_a_question_replaces_what_another_process_entered(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], postgres_url: str
) -> None:
    store, other = stores
    create(store, "a")
    change(other, lambda view: [namespace("b", k="theirs"), Remove("a")])
    change(store, lambda view: [namespace("b", k="ours"), Remove("a")])
    with psycopg.connect(postgres_url) as admin:
        current = "SELECT object_id FROM lancekeep.entry WHERE catalog = %s AND until > 3"
        assert admin.execute(current, (store.view().catalog,)).fetchall() == [("b",)]
    found = other.view().find("b")
    assert found is not None
    assert found.properties == {"k": "ours"}


def test_decision_about_a_state_that_a_restored_backup_lacks_is_made_again(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], postgres_url: str
) -> None:
    """The entries of the lost state are not in the database, so only the token of its version tells."""
    (store, other), declare = stores, declaring("lost.t", "files")
    create(store, "a")
    create(store, "lost")
    declare(store.recent())  # now no answer has to be read
    with psycopg.connect(postgres_url) as admin:
        for statement in (
            "DELETE FROM lancekeep.change WHERE catalog = %s AND version = 2",
            "DELETE FROM lancekeep.entry WHERE catalog = %s AND since = 2",
            "UPDATE lancekeep.catalog SET version = 1 WHERE id = %s",
        ):
            assert admin.execute(statement, (store.recent().catalog,)).rowcount == 1
    create(other, "b")
    with pytest.raises(NamespaceNotFound):
        store.apply(declare)
    assert ids(other.view()) == ["a", "b"]


def test_decision_about_a_state_that_a_clean_up_removed_is_made_again(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], postgres_url: str
) -> None:
    """The entry that ended is no longer in the database."""
    (store, other), declare = stores, declaring("a.t", "files")
    create(store, "a")
    declare(store.recent())  # now no answer has to be read
    change(other, lambda view: [Remove("a")])
    with psycopg.connect(postgres_url) as admin:
        place = (store.recent().catalog,)
        admin.execute("UPDATE lancekeep.change SET at = at - interval '2 days' WHERE catalog = %s", place)
    assert other.clean_up() == 1
    with pytest.raises(NamespaceNotFound):
        store.apply(declare)
    assert ids(other.view()) == []


def test_root_that_has_got_another_catalog_is_refused(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], postgres_url: str
) -> None:
    store, _ = stores
    create(store, "a")
    with psycopg.connect(postgres_url) as admin:
        admin.execute("UPDATE lancekeep.catalog SET root = root || '2' WHERE id = %s", (store.recent().catalog,))
    with pytest.raises(Refused, match="is the catalog of"):
        create(store, "b")


# -- races -------------------------------------------------------------------------------------------------------------


def creating(name: str) -> Decide:
    return lambda view: (create_namespace(view, ObjectId.of(name), {}), ("create", name))


def dropping(name: str) -> Decide:
    return lambda view: (drop_namespace(view, ObjectId.of(name), cascade=False)[0], ("drop", name))


def declaring(name: str, location: str) -> Decide:
    return lambda view: (add_table(view, Table(ObjectId.of(name), location, {})), ("declare", name, location))


def withdrawing(name: str) -> Decide:
    def decide(view: CatalogView) -> tuple[Sequence[Change], object]:
        return remove_table(view, ObjectId.of(name)), ("remove", name, find_table(view, ObjectId.of(name)).location)

    return decide


def renaming(name: str, target: str) -> Decide:
    def decide(view: CatalogView) -> tuple[Sequence[Change], object]:
        found = find_table(view, ObjectId.of(name))
        return rename_table(view, found, ObjectId.of(target), found.location), ("rename", name, target, found.location)

    return decide


def some_decision(chance: random.Random) -> Decide:
    """Return a decision about one of few ids and directories."""
    parent, name, target = (chance.choice("nm") for _ in range(3))
    place = chance.choice(("x", "x/y", "x/y/z", "w"))
    one = f"{parent}.{name}"
    return chance.choice(
        (
            *[declaring(one, place)] * 3,
            *[withdrawing(one)] * 2,
            renaming(one, f"{target}.{chance.choice('nm')}"),
            creating(parent),
            dropping(parent),
        )
    )


WRITERS, CALLS = 8, 25


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_changes_of_racing_processes_have_an_order(url: str, isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change that was made is what its decision returns about the changes before it."""
    monkeypatch.setenv("PGOPTIONS", f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}")
    url = f"{url}&connections={WRITERS + len(isolation)}"  # of this test alone, so that they have the isolation
    start, made = Barrier(WRITERS), {}

    def use(number: int) -> None:
        chance = random.Random(number)
        with closing(opened(url)) as store:
            start.wait()
            for _ in range(CALLS):
                decide = some_decision(chance)
                try:
                    view, result = store.apply(decide)
                except LancekeepError:
                    continue
                assert view.version not in made
                made[view.version] = decide, result

    with closing(opened(url)) as first:
        change(first, lambda view: [namespace("n"), namespace("m")])
        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(use, range(WRITERS)))
        assert sorted(made) == list(range(2, len(made) + 2))
        model = Entries(0, [], {}).after([namespace("n"), namespace("m")])
        for version, (decide, result) in sorted(made.items()):
            changes, told = decide(model)
            assert told == result, version
            model = model.after(changes)
        latest = first.view()
        assert ids(latest) == ids(model)
        assert all(latest.find(each) == model.find(each) for each in ids(latest))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (declaring("n.t", "x"), declaring("n.t", "y")),
        (declaring("n.t", "x"), declaring("n.u", "x")),
        (declaring("n.t", "x"), declaring("n.u", "x/y")),
        (declaring("n.t", "x/y"), declaring("n.u", "x")),
        (declaring("n.t", "x"), dropping("n")),
        (declaring("n.t", "x"), renaming("m.s", "n.t")),
        (renaming("m.s", "n.t"), declaring("n.t", "x")),
        (renaming("m.s", "n.t"), dropping("n")),
        (withdrawing("m.s"), renaming("m.s", "n.t")),
        (renaming("m.s", "m.r"), renaming("m.s", "n.t")),
    ],
)
def test_second_of_two_changes_that_exclude_each_other_is_refused(
    stores: tuple[PostgresManifestStore, PostgresManifestStore], first: Decide, second: Decide
) -> None:
    store, other = stores
    change(store, lambda view: [namespace("n"), namespace("m"), table("m.s", "s")])
    other.view()
    store.apply(first)
    after = store.view()
    with pytest.raises(LancekeepError):
        other.apply(second)
    assert store.view() == after


def test_namespace_that_is_dropped_while_tables_are_declared_in_it_has_none(url: str) -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(opened(url))) for _ in range(WRITERS)]
        create(stores[0], "n")
        for each in stores:
            each.view()
        start = Barrier(WRITERS)

        def use(number: int) -> str:
            start.wait()
            decide = dropping("n") if number == 0 else declaring(f"n.t{number}", f"files{number}")
            try:
                stores[number].apply(decide)
            except LancekeepError as error:
                return type(error).__name__
            return "made"

        with ThreadPoolExecutor(WRITERS) as threads:
            dropped, *declared = threads.map(use, range(WRITERS))
        told = dropped, set(declared)
        assert told in [("made", {"NamespaceNotFound"}), ("NamespaceNotEmpty", {"made"})]
        assert len(ids(stores[0].view())) == (0 if dropped == "made" else WRITERS)
