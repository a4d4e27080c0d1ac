"""Any sequence of operations, of two catalogs and a native namespace on one directory, against a plain dictionary."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from writers import open_namespace, perform

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.application.upkeep.fsck import Kind

Names = tuple[str, ...]
Rows = list[int] | None

PLAIN = ["a", "b c", "z.z"]
NAMES = [*PLAIN, "Zoë %#", "e\u0301"]
"""Some that go through native unharmed, and some whose directories it encodes twice (docs/interoperability.md)."""

KEYS = ["k", "κ"]
LEFT = {Kind.UNREGISTERED, Kind.DEREGISTERED, Kind.UNREFERENCED}
"""What fsck finds of tables that were deregistered."""


@attrs.define
class Space:
    properties: dict[str, str]


@attrs.define
class Entry:
    """A table in the dictionary; its rows are None while it is only declared."""

    rows: Rows
    properties: dict[str, str]


def table_of(rows: list[int]) -> pa.Table:
    return pa.table({"a": pa.array(rows, pa.int64())})


names = st.sampled_from(NAMES)
Pick = tuple[int, str]
"""Which of what there is, and a name for what is new."""

picks = st.tuples(st.integers(0, 99), names)
plain_picks = st.tuples(st.integers(0, 99), st.sampled_from(PLAIN))
values = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["1", "ü"]), max_size=2)
numbers = st.lists(st.integers(0, 9), max_size=2)
some_numbers = st.lists(st.integers(0, 9), min_size=1, max_size=2)
either = st.booleans()


class CatalogMachine(RuleBasedStateMachine):
    """Rules predict results and errors from the dictionary; invariants compare the stored state."""

    mode = "v2"
    native_properties: dict[str, str] = {}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.spaces: dict[Names, Space] = {(): Space({})}
        self.tables: dict[Names, Entry] = {}
        self.left: dict[str, Rows] = {}  # directories of deregistered tables
        self.catalogs = [self.connect(), self.connect()]
        self.native = open_namespace(True, {"root": self.root, **self.native_properties})

    def teardown(self) -> None:
        try:
            report = self.catalogs[0].upkeep.fsck(grace=0)
            assert {finding.kind for finding in report.findings} <= LEFT, report
            for names, entry in self.tables.items():
                if entry.rows is not None:
                    assert self.catalogs[1].open(names).to_table()["a"].to_pylist() == entry.rows
        finally:
            shutil.rmtree(self.root)

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(self.root, mode=self.mode, storage_options={"fsync": "false"})

    def among(self, found: Iterable[Names], at: Pick) -> Names:
        """One of what there is; now and then something that is not there, or is of another kind."""
        number, name = at
        choices = [*sorted(set(found) - {()}), (name,), ("nothing", name)]
        return choices[number % len(choices)]

    def new(self, at: Pick) -> Names:
        """A name in a namespace that there is, or now and then in one that is not."""
        number, name = at
        parents = [parent for parent in sorted(self.spaces) if len(parent) < 3]
        choices = [*parents, *parents, ("nothing",)]
        return (*choices[number % len(choices)], name)

    # -- what is predicted ---------------------------------------------------------------------------------------

    def expect(self, error: type[Exception] | None, act: Callable[[], Any]) -> Any:
        if error is None:
            return act()
        with pytest.raises(lancekeep.LancekeepError) as raised:
            act()
        assert type(raised.value) is error, raised.value
        return None

    def taken(self, names: Names) -> bool:
        return names in self.spaces or names in self.tables

    def no_space(self, names: Names) -> type[Exception] | None:
        return None if names in self.spaces else lancekeep.NamespaceNotFound

    def no_table(self, names: Names) -> type[Exception] | None:
        return None if names in self.tables else lancekeep.TableNotFound

    def not_new(self, names: Names, taken: type[Exception]) -> type[Exception] | None:
        return self.no_space(names[:-1]) or (taken if self.taken(names) else None)

    def below(self, names: Names) -> list[Names]:
        return [found for found in (*self.spaces, *self.tables) if found != names and found[: len(names)] == names]

    # -- namespaces ----------------------------------------------------------------------------------------------

    @rule(which=either, at=picks, properties=values)
    def create_namespace(self, which: bool, at: Pick, properties: dict[str, str]) -> None:
        path = self.new(at)
        error = self.not_new(path, lancekeep.NamespaceAlreadyExists)
        self.expect(error, lambda: self.catalogs[which].create_namespace(path, properties))
        if error is None:
            self.spaces[path] = Space(properties)

    @rule(which=either, at=picks, properties=values)
    def keep_or_create_namespace(self, which: bool, at: Pick, properties: dict[str, str]) -> None:
        path = self.new(at)
        error = None if path in self.spaces else self.not_new(path, lancekeep.NamespaceAlreadyExists)
        kept = self.expect(error, lambda: self.catalogs[which].create_namespace(path, properties, exist_ok=True))
        if error is None:
            self.spaces.setdefault(path, Space(properties))
            assert kept.properties == self.spaces[path].properties

    @rule(which=either, at=picks, properties=values, removed=st.sampled_from(KEYS))
    def alter_namespace(self, which: bool, at: Pick, properties: dict[str, str], removed: str) -> None:
        path = self.among(self.spaces, at)
        error = self.no_space(path)
        properties.pop(removed, None)
        self.expect(error, lambda: self.catalogs[which].alter_namespace(path, properties, [removed]))
        if error is None:
            kept = {key: value for key, value in self.spaces[path].properties.items() if key != removed}
            self.spaces[path].properties = {**kept, **properties}

    @rule(which=either, at=picks, cascade=either)
    def drop_namespace(self, which: bool, at: Pick, cascade: bool) -> None:
        path = self.among(self.spaces, at)
        full = self.below(path) and not cascade
        error = self.no_space(path) or (lancekeep.NamespaceNotEmpty if full else None)
        self.expect(error, lambda: self.catalogs[which].drop_namespace(path, cascade=cascade))
        if error is None:
            for names in [path, *self.below(path)]:
                self.spaces.pop(names, None)
                self.tables.pop(names, None)

    # -- tables --------------------------------------------------------------------------------------------------

    @rule(which=either, at=picks, properties=values)
    def declare(self, which: bool, at: Pick, properties: dict[str, str]) -> None:
        path = self.new(at)
        error = self.not_new(path, lancekeep.TableAlreadyExists)
        self.expect(error, lambda: self.catalogs[which].declare_table(path, properties))
        if error is None:
            self.tables[path] = Entry(None, properties)

    @rule(which=either, at=picks, rows=numbers)
    def create(self, which: bool, at: Pick, rows: list[int]) -> None:
        path = self.new(at)
        error = self.not_new(path, lancekeep.TableAlreadyExists)
        self.expect(error, lambda: self.catalogs[which].write(path, table_of(rows)))
        if error is None:
            self.tables[path] = Entry(rows, {})

    @rule(which=either, at=picks, rows=numbers)
    def append(self, which: bool, at: Pick, rows: list[int]) -> None:
        path = self.among(self.tables, at)
        error = self.no_table(path)
        if error is None and self.tables[path].rows is None:
            return  # what this means to a declared table is tested elsewhere
        self.expect(error, lambda: self.catalogs[which].write(path, table_of(rows), "append"))
        if error is None:
            self.tables[path].rows = [*(self.tables[path].rows or []), *rows]

    @rule(which=either, at=picks, rows=numbers)
    def overwrite(self, which: bool, at: Pick, rows: list[int]) -> None:
        path = self.new(at) if at[0] % 2 else self.among(self.tables, at)
        error = None if path in self.tables else self.not_new(path, lancekeep.TableAlreadyExists)
        if path in self.spaces:
            error = lancekeep.TableNotFound  # a namespace has the name, and there is no table to overwrite
        self.expect(error, lambda: self.catalogs[which].write(path, table_of(rows), "overwrite"))
        if error is None:
            self.tables.setdefault(path, Entry(None, {})).rows = rows

    @rule(which=either, at=picks, properties=values, removed=st.sampled_from(KEYS))
    def alter_table(self, which: bool, at: Pick, properties: dict[str, str], removed: str) -> None:
        path = self.among(self.tables, at)
        error = self.no_table(path)
        properties.pop(removed, None)
        self.expect(error, lambda: self.catalogs[which].alter_table(path, properties, [removed]))
        if error is None:
            kept = {key: value for key, value in self.tables[path].properties.items() if key != removed}
            self.tables[path].properties = {**kept, **properties}

    @rule(which=either, at=picks)
    def drop(self, which: bool, at: Pick) -> None:
        path = self.among(self.tables, at)
        error = self.no_table(path)
        self.expect(error, lambda: self.catalogs[which].drop_table(path))
        self.tables.pop(path, None)

    @rule(which=either, at=picks)
    def deregister(self, which: bool, at: Pick) -> None:
        path = self.among(self.tables, at)
        error = self.no_table(path)
        table = self.expect(error, lambda: self.catalogs[which].deregister_table(path))
        if error is None:
            self.left[table.location] = self.tables.pop(path).rows

    @rule(which=either, at=picks, data=st.data())
    def register(self, which: bool, at: Pick, data: st.DataObject) -> None:
        path = self.new(at)
        if not self.left:
            return
        place = data.draw(st.sampled_from(sorted(self.left)))
        rows = self.left[place]
        empty = lancekeep.TableNotFound if rows is None else None
        error = empty or self.not_new(path, lancekeep.TableAlreadyExists)
        self.expect(error, lambda: self.catalogs[which].register_table(path, place))
        if error is None:
            self.tables[path] = Entry(self.left.pop(place), {})

    @rule(which=either, at=picks, into=picks)
    def rename(self, which: bool, at: Pick, into: Pick) -> None:
        source, goal = self.among(self.tables, at), self.new(into)
        error = self.no_table(source) or self.not_new(goal, lancekeep.TableAlreadyExists)
        self.expect(error, lambda: self.catalogs[which].rename_table(source, goal))
        if error is None:
            self.tables[goal] = self.tables.pop(source)

    # -- others --------------------------------------------------------------------------------------------------

    @rule(which=either)
    def reopen(self, which: bool) -> None:
        self.catalogs[which] = self.connect()

    @rule(at=plain_picks, properties=values)
    def native_namespace(self, at: Pick, properties: dict[str, str]) -> None:
        path = self.new(at)
        if self.not_new(path, lancekeep.NamespaceAlreadyExists) is None:
            perform(self.native, "create_namespace", {"id": list(path), "properties": properties})
            self.spaces[path] = Space(properties)

    @rule(at=plain_picks, rows=some_numbers, declared=either)
    def native_table(self, at: Pick, rows: list[int], declared: bool) -> None:
        path = self.new(at)
        hidden = self.mode == "compatible" and f"{path[0]}.lance" in self.left  # departure: occupied directory
        plain = set(path) <= set(PLAIN)  # departure: encoded names
        if self.not_new(path, lancekeep.TableAlreadyExists) is not None or hidden or not plain:
            return
        if declared:
            perform(self.native, "declare_table", {"id": list(path)})
        else:
            perform(self.native, "create_table", {"id": list(path), "data": table_of(rows)})
        self.tables[path] = Entry(None if declared else rows, {})

    @rule(data=st.data())
    def native_drop(self, data: st.DataObject) -> None:
        plain = [path for path in self.tables if set(path) <= set(PLAIN) and len(path) > 1]
        if plain:
            path = data.draw(st.sampled_from(sorted(plain)))
            perform(self.native, "drop_table", {"id": list(path)})
            del self.tables[path]

    # -- checks -------------------------------------------------------------------------------------------------

    @rule(which=either, at=picks, limit=st.integers(1, 3))
    def list_pages(self, which: bool, at: Pick, limit: int) -> None:
        path = self.new(at)[:-1]
        catalog, after, found = self.catalogs[which], None, list[str]()
        tables = services_of(catalog).tables
        if self.no_space(path):
            self.expect(lancekeep.NamespaceNotFound, lambda: catalog.list_tables(path))
            return
        while True:
            page, after = tables.page(lancekeep.ObjectId(path), after, limit, include_declared=True)
            assert len(page) <= limit
            found += page
            if after is None:
                break
        assert found == sorted((names[-1] for names in self.tables if names[:-1] == path), key=str.encode)

    @rule(which=either, at=picks)
    def describe(self, which: bool, at: Pick) -> None:
        path = self.among(self.tables, at)
        catalog = self.catalogs[which]
        described = self.expect(self.no_table(path), lambda: catalog.describe_table(path))
        if described is not None:
            entry = self.tables[path]
            assert described.properties == entry.properties
            assert (described.version is None) == (entry.rows is None)
            if entry.rows is not None:
                assert lance.dataset(described.uri).to_table()["a"].to_pylist() == entry.rows

    @initialize(properties=values)
    def begin(self, properties: dict[str, str]) -> None:
        self.catalogs[0].alter_namespace("", properties)
        self.spaces[()].properties = properties

    @invariant()
    def both_catalogs_show_the_dictionary(self) -> None:
        for catalog in self.catalogs:
            assert [table.names for table in catalog.list_all_tables()] == sorted(
                self.tables, key=lambda names: "$".join(names).encode()
            )
            for names, space in self.spaces.items():
                assert catalog.describe_namespace(names).properties == space.properties
                children = [child[-1] for child in self.spaces if child and child[:-1] == names]
                assert catalog.list_namespaces(names) == sorted(children, key=str.encode)


class CompatibleMachine(CatalogMachine):
    mode = "compatible"
    native_properties = {"dir_listing_to_manifest_migration_enabled": "true"}  # noqa: RUF012 - read only


class V2Machine(CatalogMachine):
    native_properties = {"dir_listing_enabled": "false"}  # noqa: RUF012 - read only


@pytest.mark.slow
@pytest.mark.parametrize("machine", [V2Machine, CompatibleMachine])
def test_any_sequence_of_operations_matches_a_dictionary(machine: type[CatalogMachine]) -> None:
    budget = settings(
        max_examples=25,
        stateful_step_count=40,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=budget)
