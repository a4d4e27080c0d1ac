"""Decisions of several callers that one change carries out have the effect of one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product, starmap

import pytest

from lancekeep.domain.catalog import AddColumns, CatalogView, Change, Entries, Put, Remove, SetProperties
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.joint_changes import MOST_CHANGES, Decided, decide_jointly
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.namespace import alter_namespace, create_namespace, drop_namespace
from lancekeep.domain.table import Table, add_table, find_table, remove_table, rename_table

Decide = Callable[[CatalogView], tuple[Sequence[Change], object]]
EMPTY = Entries(0, [], {})


def create(name: str) -> Decide:
    return lambda view: (create_namespace(view, ObjectId.of(name), {}), name)


def drop(name: str) -> Decide:
    return lambda view: (drop_namespace(view, ObjectId.of(name), cascade=False)[0], name)


def drop_all(name: str) -> Decide:
    def decide(view: CatalogView) -> tuple[Sequence[Change], object]:
        changes, tables = drop_namespace(view, ObjectId.of(name), cascade=True)
        return changes, sorted(str(table.id) for table in tables)

    return decide


def declare(name: str, location: str) -> Decide:
    return lambda view: (add_table(view, Table(ObjectId.of(name), location, {})), location)


def deregister(name: str) -> Decide:
    return lambda view: (remove_table(view, ObjectId.of(name)), name)


def rename(source: str, target: str) -> Decide:
    def decide(view: CatalogView) -> tuple[Sequence[Change], object]:
        table = find_table(view, ObjectId.of(source))
        return rename_table(view, table, ObjectId.of(target), table.location), table.location

    return decide


def alter(name: str, value: str) -> Decide:
    return lambda view: (alter_namespace(view, ObjectId.of(name), {"k": value}), value)


def count(view: CatalogView) -> tuple[Sequence[Change], object]:
    number = sum(1 for _ in view.all_of(TABLE))
    return [SetProperties({"n": str(number)})], (number, dict(view.properties))


def look(name: str, view: CatalogView) -> tuple[Sequence[Change], object]:
    parent = ObjectId.of(name)
    below = sorted(entry.object_id for entry in view.descendants(parent))
    return [], (view.children(parent, TABLE), view.children(parent, NAMESPACE), below, dict(view.columns))


NAMESPACES, TABLES, LOCATIONS = ["", "a", "b", "a.c"], ["t", "a.t", "a.u", "b.t", "a.c.t"], ["x", "x/y", "x/y/z", "w"]
DECISIONS: list[Decide] = [
    *map(create, NAMESPACES),
    *map(drop, NAMESPACES),
    *map(drop_all, NAMESPACES),
    *starmap(declare, product(TABLES, LOCATIONS)),
    *map(deregister, TABLES),
    *starmap(rename, product(TABLES, TABLES)),
    *starmap(alter, product(NAMESPACES, "xy")),
    *(partial(look, name) for name in NAMESPACES),
    count,
    lambda view: ([AddColumns({f"c{len(view.columns)}": "int64"})], len(view.columns)),
    lambda view: ([], dict(view.entered)),
    *(partial(lambda place, view: ([], view.owner_of(place)), place) for place in LOCATIONS),
]
CATALOGS = [
    [],
    [create("a"), create("b"), create("a.c"), declare("a.t", "x/y")],
    [create("a"), declare("t", "w"), declare("a.u", "x"), alter("a", "x")],
]


def carried_out(view: Entries, decisions: Sequence[Decide]) -> tuple[Entries, list[object]]:
    """Return the catalog after decisions one after the other, with their results; the refused ones have no effect."""
    results: list[object] = []
    for decide in decisions:
        try:
            changes, result = decide(view)
        except LancekeepError as error:
            results.append(type(error))
        else:
            view = view.after(changes)
            results.append(result)
    return view, results


def stored(view: Entries) -> object:
    return {entry.object_id: entry for entry in view.descendants(ObjectId(()))}, view.properties, view.columns


@pytest.mark.parametrize("first", CATALOGS)
def test_joint_decisions_have_the_effect_of_one_after_the_other(first: list[Decide]) -> None:
    before, _ = carried_out(EMPTY, first)
    together = 0
    for then in product(DECISIONS, repeat=2):
        changes, decided = decide_jointly(before, then)
        made = [decide for decide, each in zip(then, decided, strict=True) if each is not None]
        after, results = carried_out(before, made)
        assert stored(before.after(changes)) == stored(after)
        assert [each.result for each in decided if each is not None] == results
        together += len(made) == 2
    assert together > 100


def test_declarations_in_one_namespace_are_made_together() -> None:
    before, _ = carried_out(EMPTY, [create("a")])
    changes, decided = decide_jointly(before, [declare(f"a.t{number}", f"d{number}") for number in range(64)])
    assert len(changes) == 64
    assert decided == [Decided(f"d{number}") for number in range(64)]


def test_only_the_refused_and_the_affected_are_left_out() -> None:
    before, _ = carried_out(EMPTY, [create("a")])
    asked = [declare("a.t", "x"), create("a"), declare("a.t", "w"), declare("a.u", "x/y"), create("b"), drop("a")]
    _, decided = decide_jointly(before, asked)
    assert decided == [Decided("x"), None, None, None, Decided("b"), None]


def test_view_that_cannot_be_read_refuses_all() -> None:
    class Away(Entries):
        def find(self, object_id: str) -> ManifestEntry | None:
            raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable, match="away"):
        decide_jointly(Away(0, [], {}), [create("a"), create("b")])


def test_large_changes_and_blind_ones_are_left_out() -> None:
    entry = ManifestEntry.namespace(ObjectId.of("a"), {})
    many = [Put(ManifestEntry.namespace(ObjectId.of(f"n{number}"), {})) for number in range(MOST_CHANGES)]
    asked: list[Decide] = [lambda _: ([Put(entry)], 1), lambda _: (many, 2), lambda _: ([Remove("a")], 3)]
    changes, decided = decide_jointly(EMPTY, asked)
    assert (changes, decided) == ([Put(entry)], [Decided(1), None, None])
