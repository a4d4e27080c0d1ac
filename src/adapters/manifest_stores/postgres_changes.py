"""Statements that change the entries of a catalog, and their values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from lancekeep.adapters.manifest_stores.postgres_feed import CHANNEL, ROOT
from lancekeep.adapters.manifest_stores.postgres_view import LAST, PostgresView, encode_extension, parted
from lancekeep.domain.catalog import Change, Put, Remove, SetProperties, ancestors
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.questions import Questions
from lancekeep.postgres.listening import WATCHED

# Any current entry is valid since this version or an earlier one. That condition is about a third column of the key, so
# the planner prefers the key to an index with only two of the columns, also if the tables are empty while it plans.
# The update of the catalog decides: the other parts take the new version from it, and do nothing without it.
_CHANGED = f"""
    RETURNING id, version
), ended AS (
    UPDATE {{schema}}.entry SET until = won.version FROM won
    WHERE entry.catalog = won.id AND entry.object_id = ANY(%(changed)s::text[]) AND entry.since <= %(version)s
        AND entry.until = {LAST}
), entered AS (
    INSERT INTO {{schema}}.entry
        (catalog, since, object_id, parent, name, object_type, location, metadata, extension)
    SELECT won.id, won.version, entry.*
    FROM won, unnest(
        %(object_ids)s::text[], %(parents)s::text[], %(names)s::text[], %(object_types)s::text[],
        %(locations)s::text[], %(metadata)s::text[], %(extensions)s::bytea[]
    ) AS entry
), logged AS (
    INSERT INTO {{schema}}.change (catalog, version, token, changed, properties)
    SELECT id, version, %(token)s, %(changed)s::text[], %(set)s FROM won
    RETURNING CASE WHEN {WATCHED} THEN pg_notify('{CHANNEL}', %(topic)s)::text END
)
SELECT version FROM won
"""
# The log of changes makes the statement idempotent, so that it settles a lost reply. The token of the version tells
# apart two versions with one number: one was lost when the server was restored from a backup.
APPLY = f"""
WITH won AS (
    UPDATE {{schema}}.catalog SET version = version + 1, properties = %(properties)s, columns = %(columns)s
    WHERE id = %(catalog)s AND version = %(version)s AND root = %(root)s AND (
        %(seen_token)s::text IS NULL OR %(seen_token)s = (
            SELECT token FROM {{schema}}.change WHERE catalog = %(catalog)s AND version = %(version)s
        )
    )
{_CHANGED}
UNION ALL SELECT version FROM {{schema}}.change WHERE catalog = %(catalog)s AND version > %(seen)s AND token = %(token)s
"""
# The snapshot of a statement is taken before it waits for a lock, so this one comes first, in the same transaction.
LOCK = "SELECT FROM {schema}.catalog WHERE id = %(catalog)s FOR UPDATE"
# Each part is a loop over a few questions, whose plan does not depend on how many entries the planner expects.
_LATERALLY = "LATERAL (SELECT FROM {schema}.entry WHERE catalog = %(catalog)s"
_CHANGED_LATER = f"""
    AND (since + 0 > %(version)s OR (until > %(version)s AND until < {LAST})) LIMIT 1) AS changed"""
# What the decision asked has the same answer as in the version that it saw. The token says that this version precedes
# the present one, and that no clean-up has removed an entry that ended later.
APPLY_IF_UNCHANGED = f"""
WITH won AS (
    UPDATE {{schema}}.catalog SET version = version + 1
    WHERE id = %(catalog)s AND root = %(root)s AND properties = %(properties)s AND columns = %(columns)s
        AND EXISTS (
            SELECT FROM {{schema}}.change
            WHERE catalog = %(catalog)s AND version = %(version)s AND token = %(seen_token)s
        )
        AND NOT EXISTS (
            SELECT FROM unnest(%(asked)s::text[]) AS asked (id), {_LATERALLY} AND object_id = id {_CHANGED_LATER}
        )
        AND NOT EXISTS (
            SELECT FROM unnest(%(above)s::text[]) AS asked (place), {_LATERALLY} AND location = place {_CHANGED_LATER}
        )
        AND NOT EXISTS (
            SELECT FROM unnest(%(below)s::text[], %(beyond)s::text[]) AS asked (below, beyond),
                {_LATERALLY} AND location > below AND location < beyond {_CHANGED_LATER}
        )
{_CHANGED}
"""
# An entry that is valid in no version is seen by no view, but `APPLY_IF_UNCHANGED` finds it.
REVOKE = """
INSERT INTO {schema}.entry (catalog, since, until, object_id, parent, name, object_type)
VALUES (%(catalog)s, %(version)s, %(version)s, %(object_id)s, '', '', '')
"""


def ids_of(changes: Iterable[Change]) -> list[str]:
    """Return the ids of the entries that changes put or remove."""
    return [
        change.entry.object_id if isinstance(change, Put) else change.object_id
        for change in changes
        if isinstance(change, Put | Remove)
    ]


def values_of(after: PostgresView, changes: Sequence[Change]) -> dict[str, Any]:
    """Return what a change makes of the entries and of the root.

    Args:
        after: The view after the changes.
        changes: The changes.
    """
    entries: dict[str, ManifestEntry | None] = {}
    root: list[str] = []
    for change in changes:
        match change:
            case Put(entry):
                entries[entry.object_id] = entry
            case Remove(object_id):
                entries[object_id] = None
            case SetProperties():
                root = [ROOT]
    put = [entry for entry in entries.values() if entry is not None]
    places = [parted(entry.object_id) for entry in put]
    properties = json.dumps(dict(after.properties))
    return {
        "catalog": after.catalog,
        "properties": properties,
        "set": properties if root else None,
        "columns": json.dumps(dict(after.columns)),
        "changed": [*root, *entries],
        "object_ids": [entry.object_id for entry in put],
        "parents": [parent for parent, _ in places],
        "names": [name for _, name in places],
        "object_types": [entry.object_type for entry in put],
        "locations": [entry.location for entry in put],
        "metadata": [entry.metadata for entry in put],
        "extensions": [encode_extension(entry.extension, after.column_types) for entry in put],
        "token": after.token,
    }


def values_of_questions(questions: Questions, changes: Sequence[Change]) -> dict[str, Any]:
    """Return what must not have changed since a decision.

    That is what it asked, and the entries that it changes.
    """
    locations = sorted(questions.locations)
    return {
        "asked": sorted({*questions.object_ids, *ids_of(changes)}),
        "above": sorted({above for location in locations for above in ancestors(location)}),
        "below": [f"{location}/" for location in locations],
        "beyond": [f"{location}0" for location in locations],  # "0" follows "/"
    }
