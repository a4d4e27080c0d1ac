"""A catalog in PostgreSQL at one version, found by indexes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.adapters.manifest_stores.columns import SCHEMA, added_columns, array_of, value_of, with_columns
from lancekeep.domain.catalog import AddColumns, Change, ManifestStoreGuarantees, SetProperties, ancestors
from lancekeep.domain.errors import ConcurrentModification, Damaged
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.joint_changes import Touched
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.questions import Questions

LAST = 2**63 - 1
"""The ``until`` of an entry that no later version has changed."""
KEPT = 512
"""Answers that a view keeps: an operation asks about its namespace and its table more than once."""
FORESEEN = 16
"""Pages that a view keeps until they are asked for."""
PAGE = 1000
"""Entries per statement of a listing."""
Page = tuple[ObjectId, str, str | None, int | None]
"""Which page of names is asked for: the arguments of `CatalogView.children`."""
OBJECT, OWNER = "object", "owner"
"""What is asked: the entry of an id, or the owner of a location."""
COLUMNS = "object_id, object_type, location, metadata, extension"
# A session may plan a statement while the tables are empty. Then all indexes cost alike, and the one with most columns
# of the condition wins. The key has the columns catalog, object_id and since: it wins with `_ENTRIES` and an id. With
# `_NOT_BY_ID`, only the catalog is left to it.
_ENTRIES = "FROM {schema}.entry WHERE catalog = %(catalog)s AND since <= %(version)s AND until > %(version)s"
_NOT_BY_ID = _ENTRIES.replace("since", "since + 0")
FIND = f"SELECT {COLUMNS} {_ENTRIES} AND object_id = %(object_id)s"
CHILDREN = f"""
SELECT name {_NOT_BY_ID} AND parent = %(parent)s AND object_type = %(object_type)s AND name >= %(first)s
ORDER BY name LIMIT %(limit)s
"""
_BETWEEN = f"""
SELECT {COLUMNS} {_ENTRIES} AND object_id >= %(first)s AND object_id < %(high)s ORDER BY object_id LIMIT {PAGE}
"""
_FROM = f"SELECT {COLUMNS} {_ENTRIES} AND object_id >= %(first)s ORDER BY object_id LIMIT {PAGE}"
_OF_TYPE = f"""
SELECT {COLUMNS} {_NOT_BY_ID} AND object_type = %(object_type)s AND object_id >= %(first)s
ORDER BY object_id LIMIT {PAGE}
"""
_OWNER = f"""
SELECT {COLUMNS} FROM (
    (SELECT {COLUMNS}, 1 AS choice {_NOT_BY_ID} AND location = ANY(%(ancestors)s::text[])
     ORDER BY length(location) DESC, object_type <> '{TABLE}' LIMIT 1)
    UNION ALL
    (SELECT {COLUMNS}, 2 {_NOT_BY_ID} AND location > %(below)s AND location < %(beyond)s ORDER BY location LIMIT 1)
) AS owner ORDER BY choice LIMIT 1
"""
# A clean-up removes the change of a version before the entries that only this version and earlier ones have. Then this
# row, whose first column is null, is in every answer.
_NOT_KEPT = """
UNION ALL SELECT {nulls}
WHERE NOT EXISTS (
    SELECT FROM {schema}.change
    WHERE catalog = %(catalog)s AND version = %(version)s AND (%(token)s::text IS NULL OR token = %(token)s)
)
"""


@attrs.frozen(slots=False)
class PostgresView:
    """A `CatalogView` by statements that use indexes, whatever its size.

    Attributes:
        rows: Returns the rows of a statement.
        schema: The schema of the tables.
        catalog: The id of the catalog; None if there is none yet.
        version: The version of the catalog.
        token: The token of the change that made the version; None if it is not known.
        properties: The properties of the root namespace.
        columns: The logical types of the columns that extensions have.
        guarantees: What the store can hold.
        found: Entries that were found in this version, by what was asked. Views of one version share them.
        foreseen: Names that were read with the view, until they are asked for.
    """

    unnamed = 0

    rows: Callable[[str, Any], list[tuple[Any, ...]]] = attrs.field(repr=False)
    schema: str
    catalog: int | None
    version: int
    token: str | None
    properties: Mapping[str, str]
    columns: Mapping[str, str]
    guarantees: ManifestStoreGuarantees
    found: dict[tuple[str, str], ManifestEntry | None] = attrs.field(factory=dict, eq=False, repr=False)
    foreseen: dict[Page, list[str]] = attrs.field(factory=dict, eq=False, repr=False, init=False)

    def stamp(self, parent: ObjectId, object_type: str) -> object | None:
        """Return the change that made the version: its random token is no other change's."""
        return None if self.token is None else (self.catalog, self.version, self.token)

    @property
    def entered(self) -> Mapping[str, str]:
        return self.properties

    @cached_property
    def column_types(self) -> pa.Schema:
        """The columns of extensions, with their types."""
        return with_columns(SCHEMA, self.columns)

    def find(self, object_id: str) -> ManifestEntry | None:
        return self._once((OBJECT, object_id), partial(self._rows, FIND, object_id=object_id))

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        names = self.foreseen.pop((parent, object_type, after, limit), None)
        if names is None:
            values = page_values(parent, object_type, after, limit)
            names = [name for (name,) in self._rows(CHILDREN, **values)]
        chosen = names[:limit]
        return chosen, chosen[-1] if chosen and len(chosen) < len(names) else None

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        if parent.is_root:
            return self._pages(_FROM, "")
        low = parent.key + MANIFEST_DELIMITER
        return self._pages(_BETWEEN, low, high=parent.key + chr(ord(MANIFEST_DELIMITER) + 1))

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        return self._pages(_OF_TYPE, after or "", object_type=object_type)

    def owner_of(self, location: str) -> ManifestEntry | None:
        places, below, beyond = list(ancestors(location)), f"{location}/", f"{location}0"  # "0" follows "/"
        read = partial(self._rows, _OWNER, ancestors=places, below=below, beyond=beyond)
        return self._once((OWNER, location), read)

    def keep_entry(self, object_id: str, entry: ManifestEntry | None) -> None:
        """Keep an entry of this version, which was read together with it."""
        self._keep((OBJECT, object_id), entry)

    def keep_page(self, page: Page, names: list[str]) -> None:
        """Keep names of this version until they are asked for.

        Args:
            page: Which page.
            names: Its names, and the name after it.
        """
        if len(self.foreseen) >= FORESEEN:
            self.foreseen.clear()
        self.foreseen[page] = names

    @property
    def state(self) -> tuple[int, str | None]:
        """What distinguishes states, also of a server that was restored from a backup."""
        return self.version, self.token

    def after(self, changes: Sequence[Change], token: str) -> PostgresView:
        """Return the view of the next version, which has these changes."""
        properties, schema = self.properties, self.column_types
        for change in changes:
            match change:
                case SetProperties():
                    properties = change.merged_into(properties)
                case AddColumns(columns):
                    schema = with_columns(schema, columns)
        columns = added_columns(schema)
        return attrs.evolve(
            self,
            version=self.version + 1,
            token=token,
            properties=properties,
            columns=columns,
            found=self._unaltered(changes),
        )

    def restricted_to(self, questions: Questions) -> PostgresView:
        """Return the view with what it has found about these questions only."""
        asked = {(OBJECT, object_id) for object_id in questions.object_ids}
        asked |= {(OWNER, location) for location in questions.locations}
        return attrs.evolve(self, found={each: self.found[each] for each in asked & self.found.keys()})

    def sharing(self, other: PostgresView | None) -> PostgresView:
        """Return the view with what another view of the same version has found."""
        if other is None or self.token is None or (self.catalog, self.state) != (other.catalog, other.state):
            return self
        return attrs.evolve(self, found=other.found)

    def _unaltered(self, changes: Sequence[Change]) -> dict[tuple[str, str], ManifestEntry | None]:
        """Return the answers that hold after changes, too."""
        touched = Touched()
        touched.add(changes)

        def is_altered(kind: str, asked: str, answer: ManifestEntry | None) -> bool:
            return asked in touched.entries if kind == OBJECT else touched.owner(asked, answer)

        answers = dict(self.found).items()  # a copy, because other threads add answers
        return {asked: answer for asked, answer in answers if not is_altered(*asked, answer)}

    def _pages(self, statement: str, low: str, **values: Any) -> Iterator[ManifestEntry]:
        found = [entry_of(row) for row in self._rows(statement, first=_first_after(low), **values)]
        while len(found) == PAGE:
            yield from found
            low = found[-1].object_id
            found = [entry_of(row) for row in self._rows(statement, first=_first_after(low), **values)]
        yield from found

    def _once(self, asked: tuple[str, str], read: Callable[[], list[tuple[Any, ...]]]) -> ManifestEntry | None:
        """Return the entry that was asked for, which is read the first time."""
        try:
            return self.found[asked]
        except KeyError:
            entry = next(map(entry_of, read()), None)
        self._keep(asked, entry)
        return entry

    def _keep(self, asked: tuple[str, str], entry: ManifestEntry | None) -> None:
        if len(self.found) >= KEPT:
            self.found.clear()
        self.found[asked] = entry

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        if self.version == 0:
            return []
        place = {"catalog": self.catalog, "version": self.version, "token": self.token}
        found = self.rows(_checked(statement).replace("{schema}", f'"{self.schema}"'), {**place, **values})
        if any(row[0] is None for row in found):
            raise ConcurrentModification(
                f"version {self.version} of the catalog was removed from PostgreSQL while it was read: the operation "
                "took longer than a day, the clock of the server was changed, or the server was restored from a "
                "backup. Repeat the operation"
            )
        return found


def page_values(parent: ObjectId, object_type: str, after: str | None, limit: int | None) -> dict[str, Any]:
    """Return the values of `CHILDREN` for a page, and the name after it."""
    most = None if limit is None else limit + 1
    return {"parent": parent.key, "object_type": object_type, "first": _first_after(after or ""), "limit": most}


@cache
def _checked(statement: str) -> str:
    """Return a statement that also tells whether the version of the view is complete."""
    nulls = "NULL" if statement == CHILDREN else ", ".join(["NULL"] * 5)
    return f"SELECT * FROM ({statement}) AS found {_NOT_KEPT.replace('{nulls}', nulls)}"


def _first_after(name: str) -> str:
    """Return the first text after a name that UTF-8 and PostgreSQL can hold, in the order of code points.

    Tokens of pages are what a client sends: they may hold NUL or half of a surrogate pair, which no stored name has.
    """
    name, _, _ = name.partition("\0")
    surrogate = re.search("[\ud800-\udfff]", name)
    return f"{name}\x01" if surrogate is None else f"{name[: surrogate.start()]}\ue000"


def parted(object_id: str) -> tuple[str, str]:
    """Return the id of an object's namespace, and its name in it."""
    parent, _, name = object_id.rpartition(MANIFEST_DELIMITER)
    return parent, name


def encode_extension(extension: Mapping[str, Any], columns: pa.Schema) -> bytes | None:
    """Return the values of an extension as one row in a stream of Arrow.

    Returns:
        The stream; None if the extension has no values.
    """
    fields = [field for field in columns if extension.get(field.name) is not None]
    if not fields:
        return None
    batch = pa.RecordBatch.from_arrays(
        [array_of([extension[field.name]], field.type) for field in fields], schema=pa.schema(fields)
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _extension(stored: bytes | None, object_id: str) -> dict[str, Any]:
    if stored is None:
        return {}
    try:
        (batch,) = pa.ipc.open_stream(stored)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(
            f"the values of the entry {object_id!r} in PostgreSQL are not one row of Arrow: {error}. Restore the row "
            "of the table entry from a backup."
        ) from error
    return {name: value_of(column, 0) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def entry_of(row: tuple[Any, ...]) -> ManifestEntry:
    object_id, object_type, location, metadata, extension = row
    return ManifestEntry(object_id, object_type, location, metadata, _extension(extension, object_id))
