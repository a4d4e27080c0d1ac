"""What every table, branch, tag and clone must hold, and what one change makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import lance
import pyarrow as pa

Content = tuple[tuple[str, ...], list[tuple[int | None, ...]]]
"""Column names, and rows in the order of their ids."""


def content_of(dataset: Any) -> Content:
    """Read a dataset completely."""
    table = dataset.to_table()
    rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    return tuple(table.column_names), sorted(rows, key=repr)


@attrs.frozen
class State:
    """The content of one version. Ids are unique, so a row that appears twice is found, too."""

    columns: tuple[str, ...] = ("id", "value")
    rows: Mapping[int, tuple[int | None, ...]] = attrs.field(factory=dict)

    @property
    def content(self) -> Content:
        return self.columns, sorted(self.rows.values(), key=repr)

    @property
    def arrow(self) -> pa.Table:
        columns = zip(*self.rows.values(), strict=True) if self.rows else ((),) * len(self.columns)
        return pa.table(
            {name: pa.array(values, pa.int64()) for name, values in zip(self.columns, columns, strict=True)}
        )

    def put(self, ids: list[int], value: int) -> State:
        """Insert rows, or replace those with the same id."""
        new = {number: (number, *([value] * (len(self.columns) - 1))) for number in ids}
        return attrs.evolve(self, rows={**self.rows, **new})


@attrs.define(eq=False)
class History:
    """The versions of a table's main branch or of another branch.

    A history is compared by identity: a branch that is deleted and created again has another history. ``kept`` are the
    versions that no clean-up may have removed.
    """

    versions: dict[int, State] = attrs.field(factory=dict)
    kept: set[int] = attrs.field(factory=set)

    @property
    def latest(self) -> int:
        return max(self.versions)

    @property
    def state(self) -> State:
        return self.versions[self.latest]

    def add(self, version: int, state: State) -> None:
        """Record the version that a change has made. A change without effect may make none."""
        assert version >= self.latest, f"version {version} follows version {self.latest}"
        assert version > self.latest or state == self.state, f"version {version} has changed"
        self.versions[version] = state
        self.kept.add(version)


@attrs.define(eq=False)
class Table:
    """One incarnation of a table, compared by identity: a table that is recreated is another one."""

    path: str
    uri: str
    main: History
    branches: dict[str, History] = attrs.field(factory=dict)
    parents: dict[str, int] = attrs.field(factory=dict)
    tags: dict[str, tuple[str | None, int]] = attrs.field(factory=dict)
    sources: frozenset[Table] = frozenset()
    """The tables whose files this clone reads."""
    originals: frozenset[Table] = frozenset()
    """The tables whose files this deep clone has copied, under the same names."""
    detached: dict[int, State] = attrs.field(factory=dict)
    """The detached versions that no clean-up has removed."""
    is_tiered: bool = False
    """Whether it may name files at a base."""
    left: int = 0
    """The number of moves between commit stores before the table was deregistered."""

    def history(self, branch: str | None) -> History | None:
        return self.main if branch is None else self.branches.get(branch)

    def clean_up(self) -> None:
        """Keep what a clean-up has to keep."""
        for branch in (None, *self.branches):
            history = self.history(branch)
            assert history is not None
            tagged = {version for of, version in self.tags.values() if of == branch}
            parents = set(self.parents.values()) if branch is None else set()
            history.kept = {history.latest} | (tagged | parents) & history.kept


# -- changes -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Given:
    """The arguments of a change: new ids, an id to change, and a value."""

    ids: list[int]
    chosen: int
    value: int

    def rows(self, columns: tuple[str, ...], *more: int) -> pa.Table:
        ids = [*self.ids, *more]
        types = pa.schema([(name, pa.int64()) for name in columns])
        return pa.table({name: ids if name == "id" else [self.value] * len(ids) for name in columns}, types)


@attrs.frozen
class Change:
    """A change of a dataset as pylance makes it, and the state that it makes of the latest one.

    Attributes:
        after: Computes the new state from the latest state and the state that the handle reads.
        rebased: pylance repeats the change on the table at the handle's path, which may have been recreated.
    """

    act: Callable[[Any, Given], object]
    after: Callable[[State, State, Given], State]
    rebased: bool = False


@attrs.define(eq=False)
class Target:
    """What one commit would make of one history. version, seen: what the writer has read, and where (uri)."""

    table: Table
    uri: str
    version: int
    branch: str | None
    history: History
    change: Change
    given: Given
    seen: State
    native: bool = False

    @property
    def is_without_effect(self) -> bool:
        return self.change.after(self.seen, self.seen, self.given) == self.seen


def _columns(dataset: Any) -> tuple[str, ...]:
    return tuple(dataset.schema.names)


def _renamed(column: str) -> str:
    """Return what a column keeps when it is renamed."""
    return column.partition("_")[0]


def _known(column: str, seen: State) -> bool:
    return _renamed(column) in map(_renamed, seen.columns)


def _append(latest: State, seen: State, given: Given) -> State:
    """Columns that the writer does not know are null."""
    values = [given.value if _known(column, seen) else None for column in latest.columns[1:]]
    return attrs.evolve(latest, rows={**latest.rows, **{number: (number, *values) for number in given.ids}})


def _overwrite(latest: State, seen: State, given: Given) -> State:
    return State().put(given.ids, given.value)


def _delete(latest: State, seen: State, given: Given) -> State:
    return attrs.evolve(latest, rows={key: row for key, row in latest.rows.items() if key != given.chosen})


def _update(latest: State, seen: State, given: Given) -> State:
    row = latest.rows.get(given.chosen)
    if row is None:
        return latest
    return attrs.evolve(latest, rows={**latest.rows, given.chosen: (row[0], given.value, *row[2:])})


def _merge(dataset: Any, given: Given) -> None:
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(given.rows(_columns(dataset), given.chosen))


def _merged(latest: State, seen: State, given: Given) -> State:
    """Columns that the writer does not know keep their values, and are null in new rows."""
    rows = dict(latest.rows)
    for number in (*given.ids, given.chosen):
        row = rows.get(number, (number,) + (None,) * (len(latest.columns) - 1))
        pairs = zip(latest.columns[1:], row[1:], strict=True)
        rows[number] = (number, *(given.value if _known(column, seen) else before for column, before in pairs))
    return attrs.evolve(latest, rows=rows)


def _add_column(latest: State, seen: State, given: Given) -> State:
    rows = {key: (*row, None if row[1] is None else row[1] + 1) for key, row in latest.rows.items()}
    return State((*latest.columns, f"c{given.ids[0]}"), rows)


def _drop_column(latest: State, seen: State, given: Given) -> State:
    if len(seen.columns) < 3 or seen.columns[-1] not in latest.columns:
        return latest
    at = latest.columns.index(seen.columns[-1])
    rows = {key: row[:at] + row[at + 1 :] for key, row in latest.rows.items()}
    return State(latest.columns[:at] + latest.columns[at + 1 :], rows)


def _rename_column(latest: State, seen: State, given: Given) -> State:
    if len(seen.columns) < 3 or seen.columns[-1] not in latest.columns:
        return latest
    renamed = f"{_renamed(seen.columns[-1])}_{given.ids[0]}"
    return attrs.evolve(latest, columns=tuple(renamed if c == seen.columns[-1] else c for c in latest.columns))


def _same(latest: State, seen: State, given: Given) -> State:
    return latest


def _remove_last_column(dataset: Any, given: Given) -> None:
    columns = _columns(dataset)
    if len(columns) > 2:
        dataset.drop_columns([columns[-1]])


def _rename_last_column(dataset: Any, given: Given) -> None:
    columns = _columns(dataset)
    if len(columns) > 2:
        dataset.alter_columns({"path": columns[-1], "name": f"{_renamed(columns[-1])}_{given.ids[0]}"})


CHANGES: Mapping[str, Change] = {
    "append": Change(lambda ds, given: ds.insert(given.rows(_columns(ds))), _append, True),
    "write": Change(lambda ds, given: lance.write_dataset(given.rows(_columns(ds)), ds, mode="append"), _append, True),
    "overwrite": Change(
        lambda ds, given: lance.write_dataset(given.rows(("id", "value")), ds, mode="overwrite"), _overwrite, True
    ),
    "delete": Change(lambda ds, given: ds.delete(f"id = {given.chosen}"), _delete),
    "update": Change(lambda ds, given: ds.update({"value": str(given.value)}, where=f"id = {given.chosen}"), _update),
    "merge": Change(_merge, _merged),
    "add column": Change(lambda ds, given: ds.add_columns({f"c{given.ids[0]}": "value + 1"}), _add_column),
    "drop column": Change(_remove_last_column, _drop_column),
    "rename column": Change(_rename_last_column, _rename_column),
    "compact": Change(lambda ds, given: ds.optimize.compact_files(), _same),
    "index": Change(lambda ds, given: ds.create_scalar_index("id", "BTREE"), _same),
    "restore": Change(lambda ds, given: ds.restore(), lambda latest, seen, given: seen, True),
}
