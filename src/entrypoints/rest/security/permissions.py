"""The permissions that each operation of the specification needs, as one table.

An operation that the table does not name needs the role admin on the whole catalog. Some requests reach objects that
their identifier does not name:

- A location may be the directory of another table, so a request with a location needs the role admin on the whole
catalog.
- A batch needs the permissions of all of its members, a rename the permissions for both names.
- To create a namespace with the mode overwrite drops the one that exists, so it needs what a drop needs.
- A purge with force may make clones of other subtrees unreadable, so it needs the role admin on the whole catalog.
- A materialized view reads its source, so creating one needs the role read on the source. No request can set the
  property that defines a view: a refresh reads whatever source it names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import attrs

from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.namespace.extensions import undrop_target
from lancekeep.entrypoints.namespace.operations import namespace_mode


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
        action: What the request does with the object.
        object_id: The object.
        kind: The kind of the object.
    """

    action: Action
    object_id: ObjectId
    kind: Kind


READ, WRITE, ADMIN = Action.READ, Action.WRITE, Action.ADMIN
_WHOLE_CATALOG = Need(ADMIN, ObjectId(), Kind.NAMESPACE)


def needs(operation: str, request: Any) -> list[Need]:
    """Return the permissions that a request needs: at least one.

    Args:
        operation: The method of `lance_namespace.LanceNamespace`.
        request: Its request model.

    Raises:
        InvalidInput: An identifier or the mode in the request is not valid, or the source of a view cannot be
            understood.
    """
    special = _SPECIAL.get(operation)
    if special is not None:
        return special(request)
    simple = SIMPLE.get(operation)
    if simple is None:
        return [_WHOLE_CATALOG]
    action, kind = simple
    return [Need(action, ObjectId.of(request.id), kind)]


SIMPLE: Mapping[str, tuple[Action, Kind]] = {
    "list_namespaces": (READ, Kind.LISTING),
    "list_tables": (READ, Kind.LISTING),
    "list_all_tables": (READ, Kind.LISTING),
    "list_dropped_tables": (READ, Kind.LISTING),
    "describe_namespace": (READ, Kind.NAMESPACE),
    "alter_namespace": (WRITE, Kind.NAMESPACE),
    "namespace_exists": (READ, Kind.NAMESPACE),
    "drop_namespace": (ADMIN, Kind.NAMESPACE),
    "describe_table": (READ, Kind.TABLE),
    "alter_table": (WRITE, Kind.TABLE),
    "table_exists": (READ, Kind.TABLE),
    "drop_table": (ADMIN, Kind.TABLE),
    "deregister_table": (ADMIN, Kind.TABLE),
    "restore_table": (WRITE, Kind.TABLE),
    "list_table_versions": (READ, Kind.TABLE),
    "describe_table_version": (READ, Kind.TABLE),
    "create_table_version": (WRITE, Kind.TABLE),
    "batch_delete_table_versions": (ADMIN, Kind.TABLE),
    "get_table_stats": (READ, Kind.TABLE),
    "count_table_rows": (READ, Kind.TABLE),
    "query_table": (READ, Kind.TABLE),
    "explain_table_query_plan": (READ, Kind.TABLE),
    "analyze_table_query_plan": (READ, Kind.TABLE),
    "insert_into_table": (WRITE, Kind.TABLE),
    "merge_insert_into_table": (WRITE, Kind.TABLE),
    "update_table": (WRITE, Kind.TABLE),
    "delete_from_table": (WRITE, Kind.TABLE),
    "alter_table_add_columns": (WRITE, Kind.TABLE),
    "alter_table_alter_columns": (WRITE, Kind.TABLE),
    "alter_table_drop_columns": (WRITE, Kind.TABLE),
    "alter_table_backfill_columns": (WRITE, Kind.TABLE),
    "update_table_schema_metadata": (WRITE, Kind.TABLE),
    "update_field_metadata": (WRITE, Kind.TABLE),
    "create_table_index": (WRITE, Kind.TABLE),
    "create_table_scalar_index": (WRITE, Kind.TABLE),
    "list_table_indices": (READ, Kind.TABLE),
    "describe_table_index_stats": (READ, Kind.TABLE),
    "drop_table_index": (WRITE, Kind.TABLE),
    "list_table_tags": (READ, Kind.TABLE),
    "get_table_tag_version": (READ, Kind.TABLE),
    "create_table_tag": (WRITE, Kind.TABLE),
    "update_table_tag": (WRITE, Kind.TABLE),
    "delete_table_tag": (WRITE, Kind.TABLE),
    "list_table_branches": (READ, Kind.TABLE),
    "create_table_branch": (WRITE, Kind.TABLE),
    "delete_table_branch": (WRITE, Kind.TABLE),
    "refresh_materialized_view": (WRITE, Kind.TABLE),
}
"""The operations that concern the object of their identifier alone."""


def _namespace(request: Any) -> list[Need]:
    """Return what creating a namespace needs; to replace one, its drop."""
    replaces = namespace_mode(request.mode) == "overwrite"
    return [Need(ADMIN if replaces else WRITE, ObjectId.of(request.id), Kind.NEW)]


CREATING = ("declare_table", "create_table", "create_empty_table")


def _creation(request: Any) -> list[Need]:
    """Return what creating a table needs; a location or storage options may lead to another table."""
    found = [Need(WRITE, ObjectId.of(request.id), Kind.NEW)]
    if getattr(request, "location", None) is not None or getattr(request, "storage_options", None):
        found.append(_WHOLE_CATALOG)
    return found


def _registration(request: Any) -> list[Need]:
    return [Need(WRITE, ObjectId.of(request.id), Kind.NEW), _WHOLE_CATALOG]


def _rename(request: Any) -> list[Need]:
    source = ObjectId.of(request.id)
    namespace = source.parent if request.new_namespace_id is None else ObjectId.of(request.new_namespace_id)
    target = namespace.child(request.new_table_name)
    return [Need(ADMIN, source, Kind.TABLE), Need(WRITE, target, Kind.NEW)]


def _versions(request: Any) -> list[Need]:
    return [Need(WRITE, ObjectId.of(each.id), Kind.TABLE) for each in request.entries] or [_WHOLE_CATALOG]


_MEMBERS = {
    "declare_table": "declare_table",
    "create_table_version": "create_table_version",
    "delete_table_versions": "batch_delete_table_versions",
    "deregister_table": "deregister_table",
}
"""The operation of each kind of member of a batch."""


def _batch(request: Any) -> list[Need]:
    found: list[Need] = []
    for member in request.operations:
        for field in type(member).model_fields:
            inner = getattr(member, field)
            if inner is not None:
                found += needs(_MEMBERS.get(field, field), inner)
    return found or [_WHOLE_CATALOG]


def _view(request: Any) -> list[Need]:
    """Return what creating a view needs; a source that names no table needs the whole catalog."""
    found = [Need(WRITE, ObjectId.of(request.id), Kind.NEW)]
    sources = list(_tables_in(request.source_query))
    return found + ([Need(READ, each, Kind.TABLE) for each in sources] or [_WHOLE_CATALOG])


def _tables_in(query: str) -> Iterable[ObjectId]:
    """Yield the identifiers of the tables that a query names: a JSON object with ``table``, a list of names."""
    try:
        source = json.loads(query)
    except ValueError as error:
        raise InvalidInput(f"source_query is not JSON: {error}") from error
    if isinstance(source, dict) and isinstance(source.get("table"), list | str):
        yield ObjectId.of(source["table"])


def _transaction(action: Action) -> Callable[[Any], list[Need]]:
    """Return the needs of a transaction, which may concern any table."""
    return lambda _: [Need(action, ObjectId(), Kind.NAMESPACE)]


def _undrop(request: Any) -> list[Need]:
    """Return what bringing a table back needs: what its drop needs, and the permission to create its name."""
    source, target = ObjectId.of(request.id), undrop_target(request)
    return [Need(ADMIN, source, Kind.TABLE), Need(WRITE, target, Kind.NEW)]


def _purge(request: Any) -> list[Need]:
    """Return what a purge needs; with force it may make clones in other subtrees unreadable."""
    found = [Need(ADMIN, ObjectId.of(request.id), Kind.TABLE)]
    return [*found, _WHOLE_CATALOG] if request.force else found


def _protection(request: Any) -> list[Need]:
    object_id = ObjectId.of(request.id)
    return [Need(ADMIN, object_id, Kind.NAMESPACE if object_id.is_root else Kind.TABLE)]


def _descriptions(request: Any) -> list[Need]:
    """Return what the valid members of a batch need: each member is described, or refused, on its own."""
    found = []
    for names in request.ids or []:
        with suppress(InvalidInput):
            found.append(Need(READ, ObjectId.of(names), Kind.TABLE))
    return found or [_WHOLE_CATALOG]


_SPECIAL: Mapping[str, Callable[[Any], list[Need]]] = {
    "list_operations": lambda _: [Need(READ, ObjectId(), Kind.LISTING)],
    "create_namespace": _namespace,
    **dict.fromkeys(CREATING, _creation),
    "register_table": _registration,
    "rename_table": _rename,
    "batch_create_table_versions": _versions,
    "batch_commit_tables": _batch,
    "create_materialized_view": _view,
    "describe_tables": _descriptions,
    "describe_transaction": _transaction(READ),
    "alter_transaction": _transaction(ADMIN),
    "undrop_table": _undrop,
    "purge_table": _purge,
    "protect_object": _protection,
    "unprotect_object": _protection,
}

KNOWN = frozenset((*SIMPLE, *_SPECIAL))
"""The operations that the table names."""
