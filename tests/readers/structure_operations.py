"""Changes of columns, indexes, metadata, branches, tags and namespaces, and materialized views."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pyarrow as pa
from hypothesis.stateful import RuleBasedStateMachine
from readers.model import CHANGES, Change, State, content_of
from readers.operations import FEW, FLAG, has_pending, has_tables, operation

from lancekeep.application.catalog import services_of
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.view import ViewDefinition
from lancekeep.ports.table_structure import FieldMetadata

DECLARED = "d"
"""The first letter of the columns that have an expression and may be filled by it."""

VIEW = ("view",)


class StructureOperations(RuleBasedStateMachine):
    """Rules of `readers.machine.Readers`, which has the model."""

    view: View | None

    # -- columns and metadata ---------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, weight=2)
    def declare_column(self: Any, at: int) -> None:
        """Add a column of nulls, which keeps its expression."""
        name = self.named(at)
        if name is None:
            return
        target, column = self.target(name, "compact", at), f"{DECLARED}{next(self.numbers)}"
        target.change = Change(target.change.act, lambda latest, seen, given: _with_column(latest, column))
        act = lambda: self.catalogs[at % 2].structure.declare_columns(ObjectId.of(name), {column: "value + 1"}, None)  # noqa: E731
        self.commit(act, [target], must=True, what="declare a column")

    @operation(has_tables, at=FEW, column=FEW, some=FLAG, weight=3)
    def fill_column(self: Any, at: int, column: int, some: bool) -> None:
        """Compute a declared column for all rows or for one, which assigns it by column files."""
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, "compact", column)
        declared = [each for each in target.seen.columns if each.startswith(DECLARED)]
        if not declared:
            return
        chosen, row = self.pick(declared, column), target.given.chosen if some else None
        target.change = Change(target.change.act, lambda latest, seen, given: _filled(latest, chosen, row))
        where = None if row is None else f"id = {row}"
        act = lambda: self.catalogs[at % 2].structure.fill_column(ObjectId.of(name), chosen, where, None)  # noqa: E731
        self.commit(act, [target], must=True, what="fill a column")

    @operation(has_tables, at=FEW, of_field=FLAG)
    def set_metadata(self: Any, at: int, of_field: bool) -> None:
        """Set a key of the metadata of the schema, or of a field."""
        name = self.named(at)
        if name is None:
            return
        target, value = self.target(name, "compact", at), {"owner": str(next(self.numbers))}
        structure = self.catalogs[at % 2].structure

        def act() -> None:
            if of_field:
                structure.set_field_metadata(ObjectId.of(name), [FieldMetadata("value", value)], None)
            else:
                structure.set_metadata(ObjectId.of(name), value, None)

        self.commit(act, [target], must=True, what="set metadata")

    # -- indexes ----------------------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, index=FEW, drop=FLAG)
    def keep_index(self: Any, at: int, index: int, drop: bool) -> None:
        """Merge the segments of an index, or drop the index."""
        name = self.named(at)
        if name is None:
            return
        target, catalog = self.target(name, "compact", at), self.catalogs[at % 2]
        names = sorted(found.name for found in catalog.open(name).describe_indices() if not found.name.startswith("__"))
        if not names:
            return
        chosen = self.pick(names, index)
        if drop:
            act = lambda: catalog.structure.drop_index(ObjectId.of(name), chosen, None)  # noqa: E731
        else:
            act = lambda: catalog.structure.merge_indexes(ObjectId.of(name), [chosen])  # noqa: E731
        must = drop or not target.table.sources  # pylance cannot rewrite an index whose files are at the source
        self.commit(act, [target], must=must, what="drop an index" if drop else "merge an index")

    # -- branches and tags ------------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, branch=FEW, value=FEW, weight=2)
    def fast_forward(self: Any, at: int, branch: int, value: int) -> None:
        """Publish the rows of a branch as a version of the main history, which has none after its beginning.

        Without a branch, create one and append to it.
        """
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        if not table.branches:
            self.create_branch(at, branch)
            [history] = table.branches.values()
            given = self.given(history.state, value)
            dataset = self.catalogs[value % 2].open(name, branch=next(iter(table.branches)))
            dataset.insert(given.rows(history.state.columns))
            history.add(dataset.version, CHANGES["append"].after(history.state, history.state, given))
        chosen = self.pick(sorted(table.branches), branch)
        history, main = table.branches[chosen], table.main
        publishable = main.latest == table.parents[chosen] and history.latest > min(history.versions)
        target = self.target(name, "compact", at)
        target.change = Change(target.change.act, lambda latest, seen, given: history.state)
        act = lambda: self.catalogs[at % 2].branches.fast_forward(ObjectId.of(name), chosen)  # noqa: E731
        must = publishable and history.state.columns == main.state.columns
        if self.commit(act, [target], must=must, what="fast-forward"):
            assert publishable, f"{name}: the branch {chosen} was published past later versions"

    @operation(has_tables, at=FEW, tag=FEW, branch=FEW, version=FEW)
    def move_tag(self: Any, at: int, tag: int, branch: int, version: int) -> None:
        name = self.named(at)
        if name is None or not self.tables[name].tags:
            return
        table = self.tables[name]
        chosen, of = self.pick(sorted(table.tags), tag), self.pick([None, *table.branches], branch)
        number = self.pick(sorted(table.history(of).kept), version)
        self.namespace.update_table_tag({"id": list(name), "tag": chosen, "version": number, "branch": of})
        table.tags[chosen] = (of, number)

    # -- the catalog ------------------------------------------------------------------------------------------------

    @operation(at=FEW, cascade=FLAG)
    def drop_namespace(self: Any, at: int, cascade: bool) -> None:
        """Drop the namespace ``n``, with its tables or if it is empty, and create it again with a property."""
        within = [name for name in self.tables if len(name) > 1]
        if self.mode == "v1":
            return
        catalog = self.catalogs[at % 2]
        act = lambda: catalog.drop_namespace("n", cascade=cascade)  # noqa: E731
        may_refuse = any(self.is_source(self.tables[name]) for name in within) if cascade else bool(within)
        if not self.attempt(act, may_refuse=may_refuse, what="drop a namespace"):
            return
        assert cascade or not within, f"{within} were dropped with their namespace"
        for name in within:
            self.forget_table(name)
        catalog.create_namespace("n")
        value = str(next(self.numbers))
        catalog.alter_namespace("n", {"owner": value})
        assert self.catalogs[(at + 1) % 2].describe_namespace("n").properties["owner"] == value

    @operation(at=FEW, value=FEW, filled=FLAG)
    def declare(self: Any, at: int, value: int, filled: bool) -> None:
        """Declare a table, and write its first rows; or drop it."""
        name = self.free(at)
        if name is None or self.is_occupied(name):
            return
        catalog, state = self.catalogs[at % 2], State().put([next(self.numbers)], value)
        catalog.declare_table(name)
        if not filled:
            self.catalogs[value % 2].drop_table(name)
        else:
            self.catalogs[value % 2].write(name, state.arrow, "overwrite")
            self.enter(name, state)

    @operation(has_pending, at=FEW)
    def abandon(self: Any, at: int) -> None:
        """Undo the reservation of a planned write, which is then not finished."""
        plans = [pending for pending in self.pending if pending.abandon is not None]
        if plans:
            pending = self.pick(plans, at)
            self.pending.remove(pending)
            pending.abandon()

    # -- materialized views -----------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, automatic=FLAG)
    def create_view(self: Any, at: int, automatic: bool) -> None:
        """Create a view of the rows of a table with a value above 2, in the place of the one before."""
        name = self.named(at)
        if name is None or self.mode == "v1":
            return
        catalog = self.catalogs[at % 2]
        if self.view is not None:
            catalog.drop_table(VIEW)
            self.view = None
        query = {"table": list(name), "columns": {"id": "id", "value": "value"}, "filter": "value > 2"}
        definition = ViewDefinition.parse(json.dumps(query), auto_refresh=automatic)
        catalog.views.create(ObjectId.of(VIEW), definition, pa.schema([("id", pa.int64()), ("value", pa.int64())]))
        self.view = View(name, automatic)

    @operation(lambda machine: machine.view is not None, at=FEW, due=FLAG, weight=2)
    def refresh_view(self: Any, at: int, due: bool) -> None:
        """Refresh the view; afterwards it has the rows of the table that has the name of its source."""
        if self.view is None or (due and not self.view.automatic):
            return
        views, source = self.catalogs[at % 2].views, self.tables.get(self.view.source)

        def act() -> None:
            if not due:
                views.refresh(ObjectId.of(VIEW))
            for outcome in views.refresh_due().values() if due else ():
                if isinstance(outcome, Exception):
                    raise outcome

        if self.attempt(act, may_refuse=source is None, what="refresh a view") and source is not None:
            rows = (row[:2] for row in source.main.state.rows.values())
            self.view.rows = sorted(row for row in rows if row[1] is not None and row[1] > 2)

    def judge_view(self: Any) -> None:
        """Read the view by plain pylance."""
        if self.view is not None:
            catalog = self.catalogs[self.steps % 2]
            _, found = content_of(self.lake.plain(services_of(catalog).uri(catalog.find_table(VIEW))))
            assert sorted(found) == self.view.rows, f"the view has the rows {found}, expected {self.view.rows}"


@attrs.define
class View:
    """A materialized view, and the rows of its last refresh."""

    source: tuple[str, ...]
    automatic: bool
    rows: list[tuple[int | None, ...]] = attrs.field(factory=list)


def _with_column(state: State, column: str) -> State:
    return State((*state.columns, column), {key: (*row, None) for key, row in state.rows.items()})


def _filled(state: State, column: str, only: int | None) -> State:
    """Assign a declared column, which is one more than the value of its row."""
    at = state.columns.index(column)
    rows = {
        key: (*row[:at], None if row[1] is None else row[1] + 1, *row[at + 1 :]) if only in (None, key) else row
        for key, row in state.rows.items()
    }
    return attrs.evolve(state, rows=rows)
