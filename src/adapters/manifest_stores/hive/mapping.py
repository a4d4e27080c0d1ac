"""How a Metastore stores entries, without I/O (Hive specification)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import attrs

from lancekeep.domain.catalog import ManifestStoreGuarantees, ancestors
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.identifiers import DROPPED, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, OWN_PROPERTIES, TABLE, ManifestEntry, encode_properties
from lancekeep.hive.messages import EXTERNAL, GROUP, ROLE, USER, VIEW, Catalog, Database, SerDeInfo, StorageDescriptor
from lancekeep.hive.messages import Table as HiveTable

DEFAULT_CATALOG, DEFAULT_DATABASE = "hive", "default"
NAMES = re.compile(r"[a-z0-9_]{1,128}")
"""The names that every Metastore can have, with the default settings."""
REVISION = f"{OWN_PROPERTIES}revision"
"""The parameter of a table or database that each change of Lancekeep replaces."""
LAST_CHANGE = "transient_lastDdlTime"
"""The parameter that stands for the revision of a table that other software created."""
ID = f"{OWN_PROPERTIES}id"
"""The parameter of the catalog's own tables that holds the object id of an entry."""
LOCATION = f"{OWN_PROPERTIES}location"
"""The parameter of the catalog's own tables that holds a directory."""
OWN_TYPE = "lancekeep"
"""The ``table_type`` of the catalog's own tables, which are no entries for other software."""
TABLE_TYPE, _MANAGED_BY, _EXTERNAL = "table_type", "managed_by", "EXTERNAL"
_LANCE = "lance"
_PURGE = "external.table.purge"
"""The parameter by which a drop in Hive removes the files of an external table, too."""
_GIVEN = f"{OWN_PROPERTIES}given"
"""The parameter of a database that lists the fields that are properties of the namespace."""
_HIDDEN = frozenset(
    (
        *(REVISION, ID, LOCATION, TABLE_TYPE, _MANAGED_BY, _EXTERNAL, _GIVEN, LAST_CHANGE),
        *("last_modified_by", "last_modified_time", "numFiles", "totalSize", "numRows", "rawDataSize"),
        *("COLUMN_STATS_ACCURATE", "numFilesErasureCoded", "bucketing_version", _PURGE),
        *("TRANSLATED_TO_EXTERNAL", "DO_NOT_UPDATE_STATS", "STATS_GENERATED_VIA_STATS_TASK"),
    )
)
"""Parameters that are no properties: the Metastore, or this adapter, sets them."""
_DESCRIPTION, _LOCATION_URI = "database.description", "database.location-uri"
_OWNER, _OWNER_TYPE = "database.owner", "database.owner-type"
_FIELDS = (_DESCRIPTION, _LOCATION_URI, _OWNER, _OWNER_TYPE)
_CATALOG_DESCRIPTION, _CATALOG_LOCATION = "catalog.description", "catalog.location-uri"
_OWNERS = {"USER": USER, "ROLE": ROLE, "GROUP": GROUP}
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Schemes of Hadoop, and the scheme of the same storage in Lancekeep."""
_LONGEST_TABLE_PARAMETER, _LONGEST_DATABASE_PARAMETER = (256, 1 << 20), (180, 4000)
_PIECE = 3900
"""Characters in one parameter: before Hive 2.3 it holds 4,000."""

_HIVE2 = ManifestStoreGuarantees(
    atomic_changes=False,
    shared=True,
    columns=False,
    levels=1,
    permanent=frozenset({DEFAULT_DATABASE}),
    names=NAMES.pattern,
    home="a Hive Metastore",
)
_HIVE3 = attrs.evolve(_HIVE2, levels=2, permanent=frozenset({DEFAULT_CATALOG, f"{DEFAULT_CATALOG}${DEFAULT_DATABASE}"}))


@attrs.frozen
class Place:
    """The place of a table or database.

    ``catalog`` is None before Hive 3, ``table`` is empty for a database.
    """

    catalog: str | None
    database: str
    table: str = ""


@attrs.frozen
class Layout:
    """The names and locations of one catalog.

    Attributes:
        root: The URI of the root.
        catalogs: Whether the first level of namespaces is a catalog of Hive 3.
    """

    root: str
    catalogs: bool = False

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        return _HIVE3 if self.catalogs else _HIVE2

    @property
    def levels(self) -> int:
        return 2 if self.catalogs else 1

    @property
    def own_database(self) -> str:
        """The database of the catalog's own tables, in each catalog of Hive."""
        return f"{OWN_TYPE}_{_digest(normalized(self.root), 8)}"

    @property
    def control(self) -> Place:
        """The table that holds the version of the catalog."""
        return self.own(DEFAULT_CATALOG if self.catalogs else None, "catalog")

    def own(self, catalog: str | None, table: str) -> Place:
        """Return the place of one of the catalog's own tables."""
        return Place(catalog, self.own_database, table)

    # -- identifiers ---------------------------------------------------------------------------------------------

    def place_of(self, object_id: str) -> Place | None:
        """Return the place of a table, a database, or the record of a dropped table.

        Returns:
            The place; None if a Metastore has no such object. A catalog of Hive 3 has no place.
        """
        names = ObjectId.from_key(object_id).names
        if names[:1] == (DROPPED,):
            return self._place_of_record(names[1:]) if len(names) > self.levels + 2 else None
        if not self.can_hold(names) or len(names) > self.levels + 1 or len(names) < self.levels:
            return None
        catalog, names = (names[0], names[1:]) if self.catalogs else (None, names)
        return Place(catalog, *names)

    def catalog_of(self, object_id: str) -> str | None:
        """Return the name of the catalog of Hive 3 that a namespace is, or None."""
        return object_id if self.catalogs and self.can_hold((object_id,)) and object_id else None

    def can_hold(self, names: tuple[str, ...]) -> bool:
        """Return whether the names are possible ones of entries."""
        return all(NAMES.fullmatch(name) and not is_own_database(name) for name in names)

    def _place_of_record(self, names: tuple[str, ...]) -> Place:
        return self.own(names[0] if self.catalogs else None, record_prefix(names))

    # -- locations -----------------------------------------------------------------------------------------------

    def location_of(self, table_id: ObjectId) -> str | None:
        """Return the directory of a new table (specification, "DeclareTable")."""
        if len(table_id.names) != self.levels + 1:
            return None
        *above, database, table = table_id.names
        catalog = [name for name in above if name != DEFAULT_CATALOG]
        return "/".join([*catalog, f"{database}.db", table])

    def id_at(self, location: str) -> str | None:
        """Return the id of the table with a prescribed directory, or None."""
        parts = location.split("/")
        if self.catalogs and len(parts) == 2:
            parts = [DEFAULT_CATALOG, *parts]
        if len(parts) != self.levels + 1 or not parts[-2].endswith(".db"):
            return None
        table_id = ObjectId((*parts[:-2], parts[-2].removesuffix(".db"), parts[-1]))
        return table_id.key if self.location_of(table_id) == location and self.can_hold(table_id.names) else None

    def uri_of(self, location: str) -> str:
        return f"{self.root}/{location}"

    def relative(self, uri: str | None) -> str | None:
        """Return a location relative to the root; None outside of the root."""
        if uri is None:
            return None
        root, place = normalized(self.root), normalized(uri)
        return place[len(root) + 1 :] or None if place.startswith(f"{root}/") else None

    def owner_rows(self, object_id: str, location: str, token: str) -> list[str]:
        """Return the names of the rows that find an entry by its directory.

        The prescribed directory needs none.

        Args:
            object_id: The entry.
            location: Its directory.
            token: The token of the change that enters it.
        """
        if self.id_at(location) == object_id:
            return []
        end = f"{self.row_key(object_id)}_{token}"
        above = list(ancestors(location))[1:]
        return [f"at_{_digest(location)}_{end}", *(f"in_{_digest(place)}_{end}" for place in above)]

    def row_key(self, object_id: str) -> str:
        """Return the part of the names of `owner_rows` that belongs to an entry."""
        return _digest(object_id)

    def owner_patterns(self, location: str) -> list[str]:
        """Return patterns for the names of rows: at a location, above it, below it."""
        at = [f"at_{_digest(place)}_*" for place in ancestors(location)]
        return [*at, f"in_{_digest(location)}_*"]

    # -- entries -------------------------------------------------------------------------------------------------

    def entry_of_table(self, object_id: str, table: HiveTable) -> ManifestEntry | None:
        """Return the entry of a table; None if it is no Lance table of this catalog."""
        parameters = table.parameters or {}
        if parameters.get(TABLE_TYPE, "").lower() != _LANCE or not (table.kind == EXTERNAL or REVISION in parameters):
            return None
        location = self.relative(table.storage.location if table.storage else None)
        if location is None:
            return None
        return ManifestEntry(object_id, TABLE, location, encode_properties(properties_of(parameters)))

    def entry_of_record(self, table: HiveTable) -> ManifestEntry | None:
        """Return the record of a dropped table; None if the table is no record."""
        parameters = table.parameters or {}
        if ID not in parameters or not (table.name or "").startswith(_RECORD):
            return None
        location = self.relative(table.storage.location if table.storage else None)
        return ManifestEntry(parameters[ID], NAMESPACE, location, encode_properties(properties_of(parameters)))

    def table_of(self, entry: ManifestEntry, place: Place, base: HiveTable, revision: str, managed: bool) -> HiveTable:
        """Return a table of the Metastore that holds an entry.

        Args:
            entry: The entry of a table, or the record of a dropped table.
            place: The place of the entry.
            base: The present table, whose other values are kept.
            revision: The new revision.
            managed: Whether a commit store manages the versions.
        """
        if entry.extension:
            raise Unsupported(
                f"a Hive Metastore has no place for the values {', '.join(sorted(entry.extension))} of the entry "
                f"{ObjectId.from_key(entry.object_id)}; nothing was changed"
            )
        properties = entry.properties
        _check(properties, _LONGEST_TABLE_PARAMETER)
        kept = {
            name: value for name, value in (base.parameters or {}).items() if name in _HIDDEN - {ID, LOCATION, _PURGE}
        }
        kind = {TABLE_TYPE: _LANCE} if entry.object_type == TABLE else {TABLE_TYPE: OWN_TYPE, ID: entry.object_id}
        own = {_EXTERNAL: "TRUE", _MANAGED_BY: "impl" if managed else "storage", REVISION: revision, **kind}
        storage = base.storage if base.storage and base.storage.location else _STORAGE
        present = self.relative(storage.location)
        if entry.location != present:
            storage = attrs.evolve(storage, location=self.uri_of(entry.location or ""))
        return attrs.evolve(
            base,
            catalog=place.catalog,
            database=place.database,
            name=place.table,
            kind=EXTERNAL,
            view_text=None,
            view_expanded_text=None,
            storage=storage,
            parameters={**kept, **properties, **own},
        )


_RECORD = "entry_"
_STORAGE = StorageDescriptor(
    columns=[],
    input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
    compressed=False,
    buckets=-1,
    serde=SerDeInfo(None, "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", {}),
    bucket_columns=[],
    sort_columns=[],
    parameters={},
)
"""How Hive reads a Lance table: not at all. It shows the table and refuses to read the rows."""
_EMPTY = StorageDescriptor(
    columns=[],
    compressed=False,
    buckets=-1,
    serde=SerDeInfo(None, None, {}),
    bucket_columns=[],
    sort_columns=[],
    parameters={},
)


def own_table(place: Place, parameters: Mapping[str, str]) -> HiveTable:
    """Return a table of the catalog's own: a view, which has no directory."""
    return HiveTable(
        name=place.table,
        database=place.database,
        catalog=place.catalog,
        owner=OWN_TYPE,
        storage=_EMPTY,
        partition_keys=[],
        parameters={TABLE_TYPE: OWN_TYPE, **parameters},
        view_text="",
        view_expanded_text="",
        kind=VIEW,
    )


def is_own_database(name: str) -> bool:
    """Return whether a database belongs to Lancekeep and is no namespace."""
    return name.startswith(f"{OWN_TYPE}_")


def is_foreign(table: HiveTable) -> bool:
    """Return whether other software created a table."""
    return REVISION not in (table.parameters or {})


def is_exposed(table: HiveTable) -> bool:
    """Return whether a drop by other software would remove a table's files."""
    parameters = table.parameters or {}
    return table.kind != EXTERNAL or parameters.get(_PURGE, "").lower() == "true"


def record_prefix(names: tuple[str, ...]) -> str:
    """Return the name of a record, or the beginning of the names below a namespace."""
    return _RECORD + "_".join(_digest(name) for name in names)


def properties_of(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the properties among parameters, sorted by name."""
    return {name: parameters[name] for name in sorted(parameters) if name not in _HIDDEN}


def _check(properties: Mapping[str, str], longest: tuple[int, int]) -> None:
    """Check that a Metastore can store properties, before a change is claimed.

    Args:
        properties: The properties.
        longest: The maximum lengths of a name and of a value.

    Raises:
        InvalidInput: It cannot.
    """
    for name, value in properties.items():
        if name in _HIDDEN:
            raise InvalidInput(f"the property {name!r} is a parameter that the Hive Metastore sets; use another name")
        if not name or len(name.encode()) > longest[0] or len(value.encode()) > longest[1] or "\0" in name + value:
            raise InvalidInput(
                f"the property {name[:80]!r} has {len(name.encode())} bytes, and its value {len(value.encode())}; a "
                f"Hive Metastore stores at most {longest[0]} and {longest[1]}, and no NUL"
            )


# -- databases and catalogs --------------------------------------------------------------------------------------------


def entry_of_database(object_id: str, database: Database) -> ManifestEntry:
    """Return the entry of a namespace.

    A database that other software created has all fields as properties. Otherwise the creator gave some of them.
    """
    parameters = database.parameters or {}
    kinds = {number: name for name, number in _OWNERS.items()}
    values = {
        _DESCRIPTION: database.description,
        _LOCATION_URI: database.location,
        _OWNER: database.owner,
        _OWNER_TYPE: kinds.get(database.owner_kind or 0) if database.owner else None,
    }
    shown = parameters.get(_GIVEN, "").split(",") if REVISION in parameters else _FIELDS
    fields = {name: value for name in shown if (value := values.get(name))}
    properties = dict(sorted({**properties_of(parameters), **fields}.items()))
    return ManifestEntry(object_id, NAMESPACE, None, encode_properties(properties))


def database_of(entry: ManifestEntry, place: Place, base: Database | None, revision: str) -> Database:
    """Return the database of a namespace.

    Args:
        entry: The entry of the namespace.
        place: The place of the database.
        base: The present database.
        revision: The new revision.

    Raises:
        Unsupported: A property changes that a Metastore does not change.
        InvalidInput: A property is a parameter that the Metastore sets, or has a value without a meaning.
    """
    properties = entry.properties
    given = [name for name in _FIELDS if name in properties]
    fields = {name: properties.pop(name) for name in given}
    _check({**properties, **fields}, _LONGEST_DATABASE_PARAMETER)
    owner_type = fields.get(_OWNER_TYPE, "USER").upper()
    if owner_type not in _OWNERS or (_OWNER_TYPE in fields and _OWNER not in fields):
        raise InvalidInput(
            f"the property {_OWNER_TYPE!r} is {fields.get(_OWNER_TYPE)!r}; expected USER, ROLE or GROUP, beside "
            f"{_OWNER!r}"
        )
    if base is not None:
        present = entry_of_database(entry.object_id, base).properties
        fixed = next((name for name in (_DESCRIPTION, _LOCATION_URI) if fields.get(name) != present.get(name)), None)
        if fixed is not None:
            raise Unsupported(
                f"a Hive Metastore does not change {fixed!r} of the database {place.database!r} after its creation; "
                "nothing was changed. Drop the namespace and create it again"
            )
    own = {REVISION: revision, **({_GIVEN: ",".join(given)} if given else {})}
    return attrs.evolve(
        base or Database(name=place.database, catalog=place.catalog),
        description=base.description if base else fields.get(_DESCRIPTION),
        location=base.location if base else fields.get(_LOCATION_URI),
        owner=fields.get(_OWNER) or (base.owner if base and _OWNER not in given else None),
        owner_kind=_OWNERS[owner_type] if _OWNER in fields or base is None else base.owner_kind,
        parameters={**properties, **own},
    )


def entry_of_catalog(object_id: str, catalog: Catalog) -> ManifestEntry:
    """Return the entry of a namespace that is a catalog of Hive 3."""
    properties = {_CATALOG_DESCRIPTION: catalog.description, _CATALOG_LOCATION: catalog.location}
    return ManifestEntry(
        object_id, NAMESPACE, None, encode_properties({name: value for name, value in properties.items() if value})
    )


def new_catalog(entry: ManifestEntry, root: str) -> Catalog:
    """Return a catalog of Hive 3 for a namespace.

    Raises:
        Unsupported: It has a property for which such a catalog has no place.
    """
    properties = entry.properties
    description = properties.pop(_CATALOG_DESCRIPTION, None)
    location = properties.pop(_CATALOG_LOCATION, f"{root}/{entry.object_id}")
    if properties:
        raise Unsupported(
            f"a catalog of Hive has no place for the property {min(properties)!r} of the namespace {entry.object_id}; "
            f"it has {_CATALOG_DESCRIPTION!r} and {_CATALOG_LOCATION!r}. Set it for a namespace below"
        )
    return Catalog(entry.object_id, description, location)


# -- texts ----------------------------------------------------------------------------------------------------------


def in_pieces(name: str, text: str) -> dict[str, str]:
    """Return a text of any length as parameters."""
    return {f"{name}.{at // _PIECE}": text[at : at + _PIECE] for at in range(0, len(text), _PIECE)}


def joined(name: str, parameters: Mapping[str, str]) -> str:
    """Return the text that `in_pieces` has divided."""
    pieces: list[str] = []
    while (piece := parameters.get(f"{name}.{len(pieces)}")) is not None:
        pieces.append(piece)
    return "".join(pieces)


def normalized(uri: str) -> str:
    """Return one spelling for every spelling of a location that a Metastore has."""
    scheme, separator, rest = uri.rstrip("/").partition(":")
    if not separator or "/" in scheme:
        scheme, rest = "file", uri.rstrip("/")
    scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        return f"file:/{rest.lstrip('/')}"
    return f"{scheme}:{rest}"


def _digest(text: str, length: int = 16) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
