"""The permissions that each request needs.

A request needs the right of its operation, which `lancekeep.domain.rights` has, and what its fields need besides. An
operation without a right needs the right administer on the whole catalog. Some requests do more than their operation
says, or reach objects that their identifier does not name:

- A location may be the directory of another table, so a request with a location needs the right administer on the
  whole catalog.
- A batch needs the permissions of all of its members, a rename the permissions for both names.
- To replace an existing object needs what its removal or change needs.
- Operations that compute with rows need the right read: their counts and errors show what the rows hold.
- To create an object unless it exists describes one that exists.
- A purge with force may make clones of other subtrees unreadable, so it needs the right administer on the whole
  catalog.
- A materialized view reads its source, so creating one needs the right read on the source. No request can set the
  property that defines a view: a refresh reads whatever source it names.
- Properties whose names begin with ``lancekeep.`` steer maintenance, which removes versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from enum import Enum
from typing import Any

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import OWN_PROPERTIES
from lancekeep.domain.rights import OF_ADMINS, RIGHT_OF, Permission, Right, name_of, permission_of
from lancekeep.entrypoints.namespace.boundary import context_value
from lancekeep.entrypoints.namespace.extensions import described_ids, undrop_target
from lancekeep.entrypoints.namespace.operations import KEEP, choice, members_of, namespace_mode


class Kind(Enum):
    """The kind of an object, which decides what its absence looks like."""

    NAMESPACE = "namespace"
    TABLE = "table"
    NEW = "new"
    """An object that the operation creates: what can be absent is the namespace above it."""
    LISTING = "listing"
    """A namespace whose contents are listed, as far as the principal may see them."""


@attrs.frozen
class Need:
    """A permission that a request needs.

    Attributes:
        permission: The right, and the single operation that a policy may name in its place.
        object_id: The object.
        kind: The kind of the object.
    """

    permission: Permission
    object_id: ObjectId
    kind: Kind

    @property
    def right(self) -> Right:
        """The right."""
        return self.permission.right


_WHOLE_CATALOG = Need(Permission(Right.ADMINISTER), ObjectId(), Kind.NAMESPACE)

LISTINGS = frozenset(
    ("list_namespaces", "list_tables", "list_all_tables", "list_dropped_tables", "list_events", "list_quotas")
)
"""The operations that list the names in an object, as far as the principal may see them."""

OF_NAMESPACES = frozenset(("describe_namespace", "alter_namespace", "namespace_exists", "drop_namespace"))
"""The operations on existing namespaces."""

COMPUTING = frozenset(
    (
        "update_table",
        "delete_from_table",
        "merge_insert_into_table",
        "alter_table_add_columns",
        "alter_table_alter_columns",
        "alter_table_backfill_columns",
    )
)
"""The operations whose counts or errors show what the rows hold."""

_OF_ROOT = frozenset(("protect_object", "unprotect_object", "describe_transaction", "alter_transaction"))
"""The operations on tables whose object may also be the root."""

CREATING = frozenset(
    (
        "create_namespace",
        "create_table",
        "create_empty_table",
        "declare_table",
        "register_table",
        "create_materialized_view",
    )
)
"""The operations that create the object of their identifier."""


def needs(operation: str, request: Any) -> list[Need]:
    """Return the permissions that a request needs: at least one.

    Args:
        operation: The method of `lance_namespace.LanceNamespace`.
        request: Its request model.

    Raises:
        InvalidInput: An identifier or a mode in the request is not valid, a batch is too long, or the source of a view
            cannot be understood.
    """
    whole = _WHOLE.get(operation)
    if whole is not None:
        return whole(request)
    if operation not in RIGHT_OF:
        return [_WHOLE_CATALOG]
    found = plain_needs(operation, ObjectId.of(request.id))
    return [*found, *_MORE.get(operation, _nothing)(request)]


def plain_needs(operation: str, object_id: ObjectId) -> list[Need]:
    """Return what an operation needs on the object of its identifier.

    A single operation in a policy permits all of it.

    Args:
        operation: A key of `lancekeep.domain.rights.RIGHT_OF`.
        object_id: The object.
    """
    permission, kind = permission_of(operation), Kind.TABLE
    if operation in LISTINGS or operation == "list_operations":
        kind = Kind.LISTING
    elif operation in OF_NAMESPACES or (operation in _OF_ROOT and object_id.is_root):
        kind = Kind.NAMESPACE
    elif operation in CREATING:
        kind = Kind.NEW
    found = [Need(permission, object_id, kind)]
    if operation in COMPUTING:
        found.append(Need(attrs.evolve(permission, right=Right.READ), object_id, kind))
    return found


def _nothing(_: Any) -> list[Need]:
    return []


def _also(request: Any, kind: Kind, *rights: Right) -> list[Need]:
    return [Need(Permission(right), ObjectId.of(request.id), kind) for right in rights]


def _namespace(request: Any) -> list[Need]:
    """Return what a mode of creating a namespace needs; to replace one, its drop."""
    mode = namespace_mode(request.mode)
    if mode == "overwrite":
        return _also(request, Kind.NEW, Right.DROP)
    return _also(request, Kind.NEW, Right.DESCRIBE) if mode == "exist_ok" else []


def _creation(request: Any) -> list[Need]:
    """Return what creating a table needs besides; a location or storage options may lead to another table."""
    mode = choice(getattr(request, "mode", None), "mode", "create", "exist_ok", "overwrite")
    found: list[Need] = []
    if mode == "overwrite":  # replaces rows, columns and properties
        found += _also(request, Kind.NEW, Right.APPEND, Right.CHANGE, Right.SCHEMA, Right.PROPERTIES, Right.MAINTAIN)
    elif mode == "exist_ok":
        found += _also(request, Kind.NEW, Right.DESCRIBE)
    if getattr(request, "location", None) is not None or getattr(request, "storage_options", None):
        found.append(_WHOLE_CATALOG)
    return found


def _registration(request: Any) -> list[Need]:
    replaces = choice(request.mode, "mode", "create", "overwrite") == "overwrite"
    return [*(_also(request, Kind.NEW, Right.DROP) if replaces else ()), _WHOLE_CATALOG]


def _insert(request: Any) -> list[Need]:
    replaces = choice(request.mode, "mode", "append", "overwrite") == "overwrite"
    return _also(request, Kind.TABLE, Right.CHANGE, Right.SCHEMA) if replaces else []


def _merge(request: Any) -> list[Need]:
    """Return what a merge needs on its table: one that only inserts appends."""
    changes = (
        request.when_matched_update_all,
        request.when_matched_update_all_filt,
        request.when_not_matched_by_source_delete,
        request.when_not_matched_by_source_delete_filt,
    )
    rights = [Right.APPEND] if request.when_not_matched_insert_all is True else []
    if not rights or any(each not in (None, False) for each in changes):
        rights.append(Right.CHANGE)
    permission, object_id = permission_of("merge_insert_into_table"), ObjectId.of(request.id)
    return [Need(attrs.evolve(permission, right=right), object_id, Kind.TABLE) for right in (*rights, Right.READ)]


def _properties(kind: Kind) -> Callable[[Any], list[Need]]:
    def properties(request: Any) -> list[Need]:
        steers = any(name.startswith(OWN_PROPERTIES) for name in request.properties or ())
        return _also(request, kind, Right.MAINTAIN) if steers else []

    return properties


def _drop(kind: Kind) -> Callable[[Any], list[Need]]:
    def drop(request: Any) -> list[Need]:
        """Return what a drop needs that says itself how long the files stay."""
        return _also(request, kind, Right.PURGE) if context_value(request, KEEP) is not None else []

    return drop


def _refresh(request: Any) -> list[Need]:
    """Return what a refresh needs to an earlier version of the source."""
    return _also(request, Kind.TABLE, Right.RESTORE) if request.src_version is not None else []


def move_of(operation: str, request: Any) -> tuple[ObjectId, ObjectId] | None:
    """Return the old and the new name of an object that a request moves.

    Returns:
        None if the request does not move an object.

    Raises:
        InvalidInput: An identifier in the request is not valid.
    """
    source = ObjectId.of(getattr(request, "id", None) or [])
    if operation == "rename_table":
        namespace = source.parent if request.new_namespace_id is None else ObjectId.of(request.new_namespace_id)
        return source, namespace.child(request.new_table_name)
    return (source, undrop_target(request)) if operation == "undrop_table" else None


def gained(before: Set[str], after: Set[str]) -> list[str]:
    """Return the rights and single operations that a move adds.

    Args:
        before: The rights on the object at its old name.
        after: The rights on the object at its new name.
    """
    known = {name_of(operation) for operation, right in RIGHT_OF.items() if right in before}
    more = frozenset(after - before - known)
    return [*(right.value for right in Right if right in more), *sorted(more.difference(Right))]


def _move(operation: str) -> Callable[[Any], list[Need]]:
    def move(request: Any) -> list[Need]:
        moved = move_of(operation, request)
        permission = attrs.evolve(permission_of(operation), right=Right.CREATE)
        return [] if moved is None else [Need(permission, moved[1], Kind.NEW)]

    return move


def _view(request: Any) -> list[Need]:
    """Return what the source of a view needs; a source that names no table needs the whole catalog."""
    sources = list(_tables_in(request.source_query))
    return [Need(Permission(Right.READ), each, Kind.TABLE) for each in sources] or [_WHOLE_CATALOG]


def _tables_in(query: str) -> Iterable[ObjectId]:
    """Yield the identifiers of the tables that a query names: a JSON object with ``table``, a list of names."""
    try:
        source = json.loads(query)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"source_query is not JSON: {error}") from error
    if isinstance(source, dict) and isinstance(source.get("table"), list | str):
        yield ObjectId.of(source["table"])


def _purge(request: Any) -> list[Need]:
    """Return what a purge with force needs: it may make clones in other subtrees unreadable."""
    return [_WHOLE_CATALOG] if request.force else []


_MORE: Mapping[str, Callable[[Any], list[Need]]] = {
    "create_namespace": _namespace,
    **dict.fromkeys(("declare_table", "create_table", "create_empty_table"), _creation),
    "register_table": _registration,
    "insert_into_table": _insert,
    "alter_namespace": _properties(Kind.NAMESPACE),
    "alter_table": _properties(Kind.TABLE),
    "drop_namespace": _drop(Kind.NAMESPACE),
    "drop_table": _drop(Kind.TABLE),
    "refresh_materialized_view": _refresh,
    "rename_table": _move("rename_table"),
    "undrop_table": _move("undrop_table"),
    "create_materialized_view": _view,
    "purge_table": _purge,
}
"""What requests need besides the needs of their operation, by operation."""


def _versions(request: Any) -> list[Need]:
    entries = members_of(request, "entries")
    return [each for entry in entries for each in needs("create_table_version", entry)] or [_WHOLE_CATALOG]


_MEMBERS = {
    "declare_table": "declare_table",
    "create_table_version": "create_table_version",
    "delete_table_versions": "batch_delete_table_versions",
    "deregister_table": "deregister_table",
}
"""The operation of each kind of member of a batch."""


def _batch(request: Any) -> list[Need]:
    found: list[Need] = []
    for member in members_of(request, "operations"):
        for field in type(member).model_fields:
            inner = getattr(member, field)
            if inner is not None:
                found += needs(_MEMBERS.get(field, field), inner)
    return found or [_WHOLE_CATALOG]


def _of_catalog(operation: str) -> Callable[[Any], list[Need]]:
    """Return the needs of an operation on the whole catalog: a transaction may concern any table."""
    return lambda _: plain_needs(operation, ObjectId())


def _descriptions(request: Any) -> list[Need]:
    """Return what the valid members of a batch need: each member is described, or refused, on its own."""
    found: list[Need] = []
    for names in described_ids(request):
        with suppress(InvalidInput):
            found += plain_needs("describe_table", ObjectId.of(names))
    return found or [_WHOLE_CATALOG]


def _of_admins(_: Any) -> list[Need]:
    """Return what operations need that give rights: every right on the whole catalog."""
    return [Need(Permission(right), ObjectId(), Kind.NAMESPACE) for right in reversed(Right)]


_WHOLE: Mapping[str, Callable[[Any], list[Need]]] = {
    **dict.fromkeys(OF_ADMINS, _of_admins),
    **{each: _of_catalog(each) for each in ("list_operations", "describe_transaction", "alter_transaction")},
    "merge_insert_into_table": _merge,
    "batch_create_table_versions": _versions,
    "batch_commit_tables": _batch,
    "describe_tables": _descriptions,
}
"""The operations whose needs depend on more than the object of their identifier."""
