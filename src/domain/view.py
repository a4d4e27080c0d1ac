"""Materialized views: their definitions, and the decision how to refresh them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId

VIEW_PROPERTY = "materialized_view"
"""The property of a table that makes it a materialized view: its definition as JSON."""

REFRESHED = "lancekeep.view.source"
"""The property of a refresh's transaction that holds the version of the source, as JSON."""

_KEYS = ("table", "columns", "filter")


@attrs.frozen
class ViewDefinition:
    """A view of kind ``query``: columns and rows of one table.

    Attributes:
        query: the ``source_query`` as it was given: a JSON object with ``table`` (the names of the source's
            identifier), ``columns`` (a list of columns, or SQL expressions by the names of the view's columns; all
            columns without it) and ``filter`` (an SQL condition; all rows without it).
        source: the source.
        columns: its columns, or expressions by name; None for all.
        condition: the condition of the rows; None for all.
        auto_refresh: whether the server refreshes the view when its source changes.
    """

    query: str
    source: ObjectId
    columns: Sequence[str] | Mapping[str, str] | None
    condition: str | None
    auto_refresh: bool

    @staticmethod
    def parse(query: str, *, auto_refresh: bool) -> ViewDefinition:
        """Parse a ``source_query``.

        Raises:
            InvalidInput: it is malformed, or has a member that is not known.
        """
        try:
            found = json.loads(query)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"source_query is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidInput(f"source_query is a JSON object with {', '.join(_KEYS)}; found {query[:80]!r}")
        unknown = sorted(found.keys() - set(_KEYS))
        if unknown:
            raise InvalidInput(f"source_query has no member {unknown[0]!r}; its members are {', '.join(_KEYS)}")
        names, columns, condition = (found.get(key) for key in _KEYS)
        if not _is_texts(names) or not names:
            raise InvalidInput("table in source_query is the identifier of the source as a list of names")
        named = isinstance(columns, dict) and _is_texts([*columns.keys(), *columns.values()])
        if columns is not None and not (columns and (named or _is_texts(columns))):
            raise InvalidInput("columns in source_query is a list of columns, or an object of SQL expressions by name")
        if condition is not None and not (isinstance(condition, str) and condition):
            raise InvalidInput("filter in source_query is an SQL condition as text")
        return ViewDefinition(query, ObjectId.of(names), columns, condition, auto_refresh)

    @staticmethod
    def of_property(text: str, name: str) -> ViewDefinition:
        """Return the definition in the property of a table.

        Raises:
            InvalidInput: it is malformed.
        """
        try:
            found = json.loads(text)
            query, auto_refresh = found["source_query"], bool(found.get("auto_refresh"))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the property {VIEW_PROPERTY!r} of {name} defines no view; create the view again"
            ) from error
        return ViewDefinition.parse(query, auto_refresh=auto_refresh)

    @property
    def text(self) -> str:
        """The definition as the value of the property."""
        members = {"kind": "query", "source_query": self.query, "auto_refresh": self.auto_refresh}
        return json.dumps(members, ensure_ascii=False)


@attrs.frozen
class SourceVersion:
    """A version of the source of a view.

    A location and a number may belong to another table later; no other version has the name of the transaction file.
    """

    location: str
    version: int
    transaction: str

    @property
    def text(self) -> str:
        """The version as the value of a transaction's property."""
        return json.dumps(attrs.asdict(self))

    @staticmethod
    def parse(text: str) -> SourceVersion | None:
        """Return the version in a transaction's property; None if it is malformed."""
        try:
            found = SourceVersion(**json.loads(text))
        except (TypeError, ValueError, RecursionError):
            return None
        return found if [type(value) for value in attrs.astuple(found)] == [str, int, str] else None


class Effect(Enum):
    """What a version did to the rows of its table, as far as views need to know."""

    APPENDED = "appended"
    """It added fragments, and changed no other one."""
    KEPT = "kept"
    """It changed neither rows nor fragments: an index, or metadata."""
    REWROTE = "rewrote"
    """It changed fragments, but no row: a compaction."""
    CHANGED = "changed"
    """Anything else."""


class Refresh(Enum):
    """How to refresh a view."""

    NOTHING = "nothing"
    APPEND = "append"
    FULL = "full"


def plan_refresh(
    last: SourceVersion | None, wanted: SourceVersion, *, continues: bool, effects: Sequence[Effect]
) -> Refresh:
    """Decide how to refresh a view.

    Args:
        last: the version of the source that the view holds; None if it holds none, or others changed its rows.
        wanted: the version to refresh it to.
        continues: whether the source still has ``last``, as the same version.
        effects: those of the versions after ``last`` up to ``wanted``.
    """
    if last == wanted:
        return Refresh.NOTHING
    grown = last is not None and last.location == wanted.location and last.version < wanted.version and continues
    if grown and all(effect in (Effect.APPENDED, Effect.KEPT) for effect in effects):
        return Refresh.APPEND
    return Refresh.FULL


def _is_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) and value for value in values)
