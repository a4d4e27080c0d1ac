"""The rights of a policy, and the right that each operation needs, as one table.

A right permits a group of operations on an object and everything below it. A policy may also name a single operation.
The roles are sets of rights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from difflib import get_close_matches
from enum import StrEnum

import attrs

from lancekeep.domain.errors import InvalidInput


class Right(StrEnum):
    """What a principal may do with an object and everything below it."""

    CONNECT = "connect"
    LIST = "list"
    DESCRIBE = "describe"
    READ = "read"
    APPEND = "append"
    CHANGE = "change"
    SCHEMA = "schema"
    INDEX = "index"
    TAG = "tag"
    BRANCH = "branch"
    RESTORE = "restore"
    COMMIT = "commit"
    CREATE = "create"
    PROPERTIES = "properties"
    MAINTAIN = "maintain"
    DROP = "drop"
    PURGE = "purge"
    PROTECT = "protect"
    ADMINISTER = "administer"


OPERATIONS: Mapping[Right, tuple[str, ...]] = {
    Right.CONNECT: ("list_operations",),
    Right.LIST: ("list_namespaces", "list_tables", "list_all_tables", "list_dropped_tables"),
    Right.DESCRIBE: (
        "describe_namespace",
        "namespace_exists",
        "describe_table",
        "table_exists",
        "list_table_versions",
        "describe_table_version",
        "get_table_stats",
        "list_table_indices",
        "describe_table_index_stats",
        "list_table_tags",
        "get_table_tag_version",
        "list_table_branches",
        "describe_transaction",
        "list_events",
        "list_quotas",
    ),
    Right.READ: ("query_table", "count_table_rows", "explain_table_query_plan", "analyze_table_query_plan"),
    Right.APPEND: ("insert_into_table",),
    Right.CHANGE: ("update_table", "delete_from_table", "merge_insert_into_table"),
    Right.SCHEMA: (
        "alter_table_add_columns",
        "alter_table_alter_columns",
        "alter_table_drop_columns",
        "alter_table_backfill_columns",
        "update_table_schema_metadata",
        "update_field_metadata",
    ),
    Right.INDEX: ("create_table_index", "create_table_scalar_index", "drop_table_index"),
    Right.TAG: ("create_table_tag", "update_table_tag", "delete_table_tag"),
    Right.BRANCH: ("create_table_branch", "delete_table_branch"),
    Right.RESTORE: ("restore_table",),
    Right.COMMIT: ("create_table_version",),
    Right.CREATE: (
        "create_namespace",
        "create_table",
        "create_empty_table",
        "declare_table",
        "register_table",
        "create_materialized_view",
    ),
    Right.PROPERTIES: ("alter_namespace", "alter_table"),
    Right.MAINTAIN: ("refresh_materialized_view",),
    Right.DROP: ("drop_namespace", "drop_table", "deregister_table", "rename_table", "undrop_table"),
    Right.PURGE: ("batch_delete_table_versions", "purge_table"),
    Right.PROTECT: ("protect_object", "unprotect_object"),
    Right.ADMINISTER: ("alter_transaction",),
}
"""The operations that each right permits, by the methods of the namespace."""

BATCHES: Mapping[str, tuple[str, ...]] = {
    "describe_tables": ("describe_table",),
    "batch_create_table_versions": ("create_table_version",),
    "batch_commit_tables": (
        "declare_table",
        "create_table_version",
        "batch_delete_table_versions",
        "deregister_table",
    ),
}
"""The operations that need the rights of their members, each on the object of the member."""

OF_ADMINS: tuple[str, ...] = (
    "list_keys",
    "create_key",
    "rotate_key",
    "expire_key",
    "revoke_key",
    "describe_policy",
    "explain_decision",
    "add_grant",
    "remove_grant",
    "replace_policy",
)
"""The operations that need every right on the whole catalog.

They give rights, so a caller with less could give itself more. No single one can be granted.
"""

RIGHT_OF: Mapping[str, Right] = {operation: right for right, each in OPERATIONS.items() for operation in each}
"""The right of each operation that is no batch."""

INCLUDED: Mapping[Right, frozenset[Right]] = {
    Right.COMMIT: frozenset(
        (
            Right.READ,
            Right.APPEND,
            Right.CHANGE,
            Right.SCHEMA,
            Right.INDEX,
            Right.TAG,
            Right.BRANCH,
            Right.RESTORE,
        )
    )
}
"""The rights that a right includes: a version that the client wrote itself can hold any change of its table."""

_READ = frozenset((Right.CONNECT, Right.LIST, Right.DESCRIBE, Right.READ))
_WRITE = _READ | INCLUDED[Right.COMMIT] | {Right.COMMIT, Right.CREATE, Right.PROPERTIES, Right.MAINTAIN}
ROLES: Mapping[str, frozenset[Right]] = {"read": _READ, "write": _WRITE, "admin": frozenset(Right)}
"""The rights of each role, the weakest role first."""


def name_of(operation: str) -> str:
    """Return the name of an operation in the specification."""
    return "".join(map(str.capitalize, operation.split("_")))


SINGLE: Mapping[str, str] = {name_of(operation): operation for operation in RIGHT_OF}
"""The operations that a policy may name, by their names in the specification."""

_RIGHTS: Mapping[str, Right] = {right.value: right for right in Right}


@attrs.frozen
class Permission:
    """A right on an object, or a single operation in its place.

    Attributes:
        right: The right.
        operation: The name of the operation in the specification; empty if only the right permits it.
    """

    right: Right
    operation: str = ""

    def is_in(self, granted: Set[str]) -> bool:
        """Return whether granted rights and operations contain the permission."""
        return self.right in granted or self.operation in granted


def permission_of(operation: str) -> Permission:
    """Return the permission that an operation needs on its object."""
    return Permission(RIGHT_OF[operation], name_of(operation))


def role_of(right: Right) -> str:
    """Return the weakest role that has a right."""
    return next(role for role, rights in ROLES.items() if right in rights)


def granted(names: Collection[str]) -> frozenset[str]:
    """Return what names of rights and operations grant.

    A right grants the rights that it includes, too.

    Raises:
        InvalidInput: A name is neither a right nor an operation that a policy may name.
    """
    found: set[str] = {Right.CONNECT} if names else set()
    for name in names:
        if name in SINGLE:
            found.add(name)
        elif name in _RIGHTS:
            found |= {name, *INCLUDED.get(_RIGHTS[name], ())}
        else:
            raise InvalidInput(_unknown(name))
    return frozenset(found)


def _unknown(name: str) -> str:
    members = {name_of(batch): each for batch, each in BATCHES.items()}.get(name)
    if members is not None:
        return f"{name} needs the rights of its members; name {', '.join(map(name_of, members))}"
    if name in map(name_of, OF_ADMINS):
        return f"{name} gives rights, so it needs the role admin on the whole catalog; write role = 'admin' and on = ''"
    if name in ROLES:
        return f"{name!r} is a role and no right; write role = {name!r}"
    known = {each.lower(): each for each in (*_RIGHTS, *SINGLE)}
    [nearest] = get_close_matches(name.lower(), known, 1, 0.0)
    return (
        f"{name!r} is neither a right nor an operation; the nearest is {known[nearest]!r}. The rights are "
        f"{', '.join(Right)}"
    )
