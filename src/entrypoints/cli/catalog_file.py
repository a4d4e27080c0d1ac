"""A catalog as a file, and the plan that makes a catalog like a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.arrow_json import exact_schema_text, schema_json, schema_of
from lancekeep.domain.dropped import kept_for
from lancekeep.domain.errors import Damaged, InvalidInput, Refused
from lancekeep.domain.identifiers import DELIMITER, ObjectId
from lancekeep.domain.partitioning import SCHEMA_PROPERTY, is_spec_property
from lancekeep.domain.properties import is_own
from lancekeep.domain.protection import PROTECTED
from lancekeep.domain.view import VIEW_PROPERTY
from lancekeep.entrypoints.spans import shown_span

_FORMAT = 1
_READERS = 16
"""Tables that are read at the same time."""
_PARTITIONS = re.compile(r"v[1-9][0-9]{0,8}")
_ROOT = {"format", "properties", "protected", "namespaces", "tables"}
_NAMESPACE = {"name", "properties", "protected"}
_TABLE = {*_NAMESPACE, "schema", "tags"}


@attrs.frozen
class Namespace:
    """A namespace in a file or a catalog."""

    properties: Mapping[str, str] = attrs.field(factory=dict)
    protected: bool = False


@attrs.frozen
class Table(Namespace):
    """A table in a file or a catalog; without a schema, it is only declared."""

    schema: pa.Schema | None = None
    tags: Mapping[str, tuple[int, str | None]] = attrs.field(factory=dict)


Objects = Mapping[ObjectId, Namespace]
"""The namespaces and tables of a catalog, among them the root."""


# -- the catalog ---------------------------------------------------------------------------------------------------


def read_catalog(catalog: Catalog, message: Callable[[str], None]) -> Objects:
    """Return what a catalog holds.

    Args:
        catalog: The catalog.
        message: Takes what is left out: partitions and views, which their own commands create.
    """
    found: dict[ObjectId, Namespace] = {}
    tables: list[ObjectId] = []
    waiting = [ObjectId()]
    is_partitioned = any(map(is_spec_property, catalog.describe_namespace("").properties))
    while waiting:
        parent = waiting.pop()
        if is_partitioned and len(parent.names) == 1 and _PARTITIONS.fullmatch(parent.name):
            message(f"Left out the partitions in {parent}.")
            continue
        found[parent] = _namespace(parent, catalog.describe_namespace(parent).properties, is_partitioned)
        waiting.extend(parent.child(name) for name in catalog.list_namespaces(parent))
        tables.extend(parent.child(name) for name in catalog.list_tables(parent))
    with ThreadPoolExecutor(_READERS) as pool:
        for object_id, table in zip(tables, pool.map(lambda each: _table(catalog, each), tables), strict=True):
            if table is None:
                message(f"Left out the materialized view {object_id}.")
            else:
                found[object_id] = table
    return found


def _namespace(object_id: ObjectId, properties: Mapping[str, str], is_partitioned: bool) -> Namespace:
    own = {SCHEMA_PROPERTY} if is_partitioned and object_id.is_root else set()
    kept = {name: value for name, value in properties.items() if not is_spec_property(name) and name not in own}
    return Namespace(_settable(kept), PROTECTED in properties)


def _table(catalog: Catalog, object_id: ObjectId) -> Table | None:
    described = catalog.describe_table(object_id)
    properties, is_protected = described.properties, PROTECTED in described.properties
    if VIEW_PROPERTY in properties:
        return None
    if described.version is None:
        return Table(_settable(properties), is_protected)
    tags = {name: (tag.version, tag.branch) for name, tag in catalog.tags.list(object_id).items()}
    schema = catalog.versions.describe(object_id).schema
    return Table(_settable(properties), is_protected, schema, tags)


def _settable(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not is_own(name)}


# -- the file ------------------------------------------------------------------------------------------------------


def encoded(objects: Objects) -> str:
    """Return a catalog as the text of a file, sorted."""
    root: dict[str, Any] = {"format": _FORMAT, **_members(objects[ObjectId()])}
    named = sorted((object_id, each) for object_id, each in objects.items() if not object_id.is_root)
    for section, kind in (("namespaces", Namespace), ("tables", Table)):
        root[section] = [
            {"name": _written(object_id), **_members(each)} for object_id, each in named if type(each) is kind
        ]
    return json.dumps(root, indent=2, ensure_ascii=False) + "\n"


def _members(each: Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"properties": dict(sorted(each.properties.items())), "protected": each.protected}
    if isinstance(each, Table):
        found["schema"] = None if each.schema is None else _schema_json(each.schema)
        found["tags"] = {
            name: version if branch is None else {"version": version, "branch": branch}
            for name, (version, branch) in sorted(each.tags.items())
        }
    return {name: value for name, value in found.items() if value}


def _written(object_id: ObjectId) -> str | list[str]:
    return list(object_id.names) if any(DELIMITER in name for name in object_id.names) else str(object_id)


def _schema_json(schema: pa.Schema) -> Any:
    """Return a schema as JSON, with its exact form only if the JSON has no place for it."""
    plain = schema_json(schema)
    try:
        if schema_of(json.dumps(plain)).equals(schema, check_metadata=True):
            return plain
    except Damaged:
        pass
    return json.loads(exact_schema_text(schema))


def decoded(text: str, source: str) -> Objects:
    """Return the catalog in the text of a file.

    Raises:
        InvalidInput: The text is no such file.
    """
    try:
        root = json.loads(text, object_pairs_hook=_members_once)
        json.dumps(root, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{source} is no JSON: {error}") from error
    _require(root, dict, f"{source}: the file")
    if type(root.get("format")) is not int or root["format"] != _FORMAT:
        raise InvalidInput(f"{source} is no file of `lancekeep export-catalog`: its format is not {_FORMAT}")
    found = {ObjectId(): Namespace(*_properties(root, _ROOT, f"{source}: the catalog"))}
    for section, members in (("namespaces", _NAMESPACE), ("tables", _TABLE)):
        for each in _require(root.get(section, []), list, f"{source}: {section}"):
            name = _require(each, dict, f"{source}: an item of {section}").get("name")
            object_id = ObjectId.of(name)
            where = f"{source}: {object_id}"
            if object_id.is_root or object_id in found:
                raise InvalidInput(f"{where} is in the file twice, or has no name")
            given = _properties(each, members, where)
            found[object_id] = Namespace(*given) if section == "namespaces" else _decoded_table(each, given, where)
    return found


def _members_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Two members of one name are refused: a reader may see only the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidInput(f"an object has the member {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _properties(each: Mapping[str, Any], members: set[str], where: str) -> tuple[dict[str, str], bool]:
    unknown = each.keys() - members
    if unknown:
        raise InvalidInput(f"{where} has the unknown member {min(unknown)!r}; known are {', '.join(sorted(members))}")
    properties = _require(each.get("properties", {}), dict, f"{where}: properties")
    if not all(isinstance(value, str) for value in properties.values()):
        raise InvalidInput(f"{where}: properties have texts as values")
    return properties, _require(each.get("protected", False), bool, f"{where}: protected")


def _decoded_table(each: Mapping[str, Any], given: tuple[dict[str, str], bool], where: str) -> Table:
    tags: dict[str, tuple[int, str | None]] = {}
    for name, tag in _require(each.get("tags", {}), dict, f"{where}: tags").items():
        at = tag if isinstance(tag, dict) else {"version": tag}
        version, branch = at.get("version"), at.get("branch")
        is_text = branch is None or isinstance(branch, str)
        if type(version) is not int or not is_text or at.keys() - {"version", "branch"}:
            raise InvalidInput(f'{where}: the tag {name} names no version; write 3 or {{"version": 3, "branch": "b"}}')
        tags[name] = version, branch
    return Table(*given, _decoded_schema(each.get("schema"), where), tags)


def _decoded_schema(found: Any, where: str) -> pa.Schema | None:
    if found is None:
        return None
    try:
        schema = schema_of(json.dumps(found))
    except Damaged as error:
        raise InvalidInput(f"{where}: {error}") from error
    try:
        return pa.ipc.read_schema(schema.serialize())
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{where}: the schema is nested too deeply for Arrow: {error}") from error


def _require(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidInput(f"{where} is {str(value)[:100]!r}; expected a value of type {kind.__name__}")
    return value


# -- the plan ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Step:
    """One change of the catalog.

    Attributes:
        action: What it does.
        name: The namespace or table.
        detail: What it sets, and what was there.
        act: Makes the change.
        exact: What the detail leaves out.
    """

    action: str
    name: str
    detail: str
    act: Callable[[Catalog], object] = attrs.field(eq=False, repr=False)
    exact: str = ""


@attrs.frozen
class Plan:
    """The changes that make a catalog like a file.

    Attributes:
        steps: The changes, in their order.
        differences: What no change of this kind makes alike.
    """

    steps: Sequence[Step]
    differences: Sequence[str]

    @property
    def id(self) -> str:
        """A text that differs if the changes differ."""
        listed = [(step.action, step.name, step.detail, step.exact) for step in self.steps]
        return hashlib.sha256(json.dumps([listed, list(self.differences)]).encode()).hexdigest()[:12]


def plan_of(present: Objects, wanted: Objects, *, prune: bool) -> Plan:
    """Return the changes from one catalog to another.

    Args:
        present: The catalog.
        wanted: The file.
        prune: Also remove what the file does not have.

    Raises:
        InvalidInput: A name is a table in one and a namespace in the other, or its namespace is in neither.
        Refused: What the file lacks is protected.
    """
    differences: list[str] = []
    steps = _drops(present, wanted) if prune else []
    ordered = sorted(wanted, key=lambda each: (isinstance(wanted[each], Table), len(each.names), each))
    for object_id in ordered:
        want, have = wanted[object_id], present.get(object_id)
        if have is not None and type(have) is not type(want):
            raise InvalidInput(f"{object_id} is a {_kind(want)} in the file, and a {_kind(have)} in the catalog")
        if type(wanted.get(object_id.parent, present.get(object_id.parent))) is not Namespace:
            parent = object_id.parent
            raise InvalidInput(f"the namespace {parent} of {object_id} is neither in the file nor in the catalog")
        if prune and have is not None:
            steps += _removals(object_id, have, want)
        steps += _additions(object_id, have, want, differences)
    unprotected = [each for each in ordered if wanted[each].protected and not _is_protected(present.get(each))]
    return Plan([*steps, *map(_protect, unprotected)], differences)


def _is_protected(each: Namespace | None) -> bool:
    return each is not None and each.protected


def _protect(object_id: ObjectId) -> Step:
    return Step("protect", str(object_id), "", lambda on: on.protect(object_id))


def _kind(each: Namespace) -> str:
    return "table" if isinstance(each, Table) else "namespace"


def _additions(object_id: ObjectId, have: Namespace | None, want: Namespace, differences: list[str]) -> Iterator[Step]:
    """Return the changes that create an object, and set its properties and tags."""
    if have is None:
        yield _create(object_id, want)
    elif isinstance(want, Table) and isinstance(have, Table) and want.schema not in (None, have.schema):
        has = "is only declared" if have.schema is None else f"has other columns: {_compared(have.schema, want.schema)}"
        differences.append(f"{object_id} {has}")
    known = {} if have is None else have.properties
    changed = {} if have is None else {name: text for name, text in want.properties.items() if known.get(name) != text}
    if changed:
        detail = ", ".join(f"{name}={text!r} (was {known.get(name)!r})" for name, text in sorted(changed.items()))
        alter = "alter_table" if isinstance(want, Table) else "alter_namespace"
        yield Step("set", str(object_id), detail, lambda catalog: getattr(catalog, alter)(object_id, changed))
    if isinstance(want, Table):
        tags = have.tags if isinstance(have, Table) else {}
        for name, (version, branch) in sorted(want.tags.items()):
            if tags.get(name) != (version, branch):
                yield _tag(object_id, name, version, branch, tags.get(name))


def _create(object_id: ObjectId, want: Namespace) -> Step:
    properties = dict(want.properties)
    shown = ", ".join(f"{name}={text!r}" for name, text in sorted(properties.items()))
    if not isinstance(want, Table):
        return Step("create namespace", str(object_id), shown, lambda on: on.create_namespace(object_id, properties))
    if want.schema is None:
        return Step("declare table", str(object_id), shown, lambda on: on.declare_table(object_id, properties))
    columns = ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in want.schema)
    rows = want.schema.empty_table()
    return Step(
        "create table",
        str(object_id),
        f"{columns}{'; ' if shown else ''}{shown}",
        lambda on: on.write(object_id, rows, properties=properties),
        exact_schema_text(want.schema),
    )


def _tag(
    object_id: ObjectId, name: str, version: int, branch: str | None, known: tuple[int, str | None] | None
) -> Step:
    at = f"{name}: version {version}{f' of the branch {branch}' if branch else ''}"
    if known is None:
        return Step("tag", str(object_id), at, lambda on: on.tags.create(object_id, name, version, branch))
    detail = f"{at} (was version {known[0]}{f' of the branch {known[1]}' if known[1] else ''})"
    return Step("move tag", str(object_id), detail, lambda on: on.tags.update(object_id, name, version, branch))


def _removals(object_id: ObjectId, have: Namespace, want: Namespace) -> Iterator[Step]:
    """Return the changes that remove what the file does not have of an object."""
    names = sorted(have.properties.keys() - want.properties.keys())
    if names:
        alter = "alter_table" if isinstance(want, Table) else "alter_namespace"
        detail = ", ".join(f"{name} (was {have.properties[name]!r})" for name in names)
        yield Step("unset", str(object_id), detail, lambda on: getattr(on, alter)(object_id, remove=names))
    if isinstance(have, Table) and isinstance(want, Table):
        yield from (_untag(object_id, tag, have.tags[tag][0]) for tag in sorted(have.tags.keys() - want.tags.keys()))


def _untag(object_id: ObjectId, tag: str, version: int) -> Step:
    detail = f"{tag} (was version {version})"
    return Step("delete tag", str(object_id), detail, lambda on: on.tags.delete(object_id, tag))


def _drops(present: Objects, wanted: Objects) -> list[Step]:
    """Return the changes that end protection and drop what the file lacks.

    They come first: a later change of `UNDROP` must not decide whether a dropped table can be brought back.
    """
    free = [each for each in sorted(present.keys() & wanted.keys()) if _is_protected(present[each])]
    gone = present.keys() - wanted.keys()
    _require_unprotected(gone, present, wanted)
    tables = sorted(each for each in gone if isinstance(present[each], Table))
    namespaces = sorted(gone - set(tables), key=lambda each: (-len(each.names), each))
    return [
        *(_unprotect(each) for each in free if not wanted[each].protected),
        *(_drop_table(each, present[ObjectId()].properties, present[each].properties) for each in tables),
        *map(_drop_namespace, namespaces),
    ]


def _require_unprotected(gone: Iterable[ObjectId], present: Objects, wanted: Objects) -> None:
    """Check that no protection remains which would end a plan after some of its drops."""
    kept = {each for each in present if _is_protected(present[each]) and (each not in wanted or wanted[each].protected)}
    for object_id in sorted(gone):
        names = object_id.names
        by = next((each for length in range(len(names), -1, -1) if (each := ObjectId(names[:length])) in kept), None)
        if by is not None:
            raise Refused(
                f"cannot drop {object_id}: {'it' if by == object_id else by} is protected. Nothing was changed. Add "
                f"{object_id} to the file, or end the protection with `lancekeep unprotect`"
            )


def _unprotect(object_id: ObjectId) -> Step:
    return Step("unprotect", str(object_id), "", lambda on: on.unprotect(object_id))


def _drop_table(object_id: ObjectId, catalog: Mapping[str, str], table: Mapping[str, str]) -> Step:
    kept = timedelta(microseconds=kept_for(None, catalog, table))
    detail = f"`lancekeep undrop` brings it back for {shown_span(kept)}" if kept else "its files are removed"
    return Step("drop table", str(object_id), detail, lambda on: on.drop_table(object_id))


def _drop_namespace(object_id: ObjectId) -> Step:
    return Step("drop namespace", str(object_id), "", lambda on: on.drop_namespace(object_id))


def _compared(have: Any, want: Any) -> str:
    """Return how two schemas differ."""
    present, wanted = ({field.name: field for field in schema} for schema in (have, want))
    parts = {
        "only in the catalog": present.keys() - wanted.keys(),
        "only in the file": wanted.keys() - present.keys(),
        "of another type": {name for name in present.keys() & wanted.keys() if present[name] != wanted[name]},
    }
    shown = [f"{', '.join(sorted(names))} {how}" for how, names in parts.items() if names]
    return "; ".join(shown) or "their order"
