"""Materialized views: their definitions, and the decision how to refresh them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import FORMER_VIEW_PROPERTY, OWN_PROPERTIES
from lancekeep.domain.properties import OwnProperties

VIEW_PROPERTY = f"{OWN_PROPERTIES}materialized_view"
"""The property of a table that makes it a materialized view: its definition as JSON. Only the catalog sets it."""

REFRESHED = "lancekeep.view.source"
"""The property of a refresh's transaction that holds the version of the source, as JSON."""

_KEYS = ("table", "branch", "columns", "filter")

_UNORDERED = "the rows of a table have no order, so the same query may find other rows; select rows with filter"
_SEARCH = "the rows that a search finds depend on the indexes of the source; select rows with filter"
_REFUSED: Mapping[str, str] = {
    "version": "a view follows its source; give src_version to a refresh",
    "with_row_id": 'name the column instead, for example "columns": {"row": "_rowid"}',
    **dict.fromkeys(("k", "limit", "offset", "order_by"), _UNORDERED),
    **dict.fromkeys(
        (
            "vector",
            "vector_column",
            "distance_type",
            "nprobes",
            "minimum_nprobes",
            "maximum_nprobes",
            "refine_factor",
            "ef",
            "lower_bound",
            "upper_bound",
            "bypass_vector_index",
            "fast_search",
            "full_text_query",
            "prefilter",
        ),
        _SEARCH,
    ),
}
"""The other members of a query over a table, and why a view has none of them."""

_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`""")
_CHANGING = re.compile(
    r"\b(random|uuid|now|today)\s*\(|\b(current_date|current_time|current_timestamp)\b", re.IGNORECASE
)
"""SQL whose value differs from one evaluation to the next."""


@attrs.frozen
class ViewDefinition:
    """A view of kind ``query``: columns and rows of one table.

    The rows of a view are a function of one version of its source, so a refresh by appended versions has the same
    rows as a full one. Any other query is refused.

    Attributes:
        query: the ``source_query`` as it was given: a JSON object with ``table`` (the names of the source's
            identifier), ``branch`` (of the source; its main branch without it), ``columns`` (a list of columns, or
            SQL expressions by the names of the view's columns; all columns without it) and ``filter`` (an SQL
            condition; all rows without it).
        source: the source.
        branch: the branch of the source; None for its main branch.
        columns: its columns, or expressions by name; None for all.
        condition: the condition of the rows; None for all.
        auto_refresh: whether the server refreshes the view when its source changes.
    """

    query: str
    source: ObjectId
    branch: str | None
    columns: Sequence[str] | Mapping[str, str] | None
    condition: str | None
    auto_refresh: bool

    @staticmethod
    def parse(query: str, *, auto_refresh: bool) -> ViewDefinition:
        """Parse a ``source_query``.

        Raises:
            InvalidInput: it is malformed, or has a member that is not known.
            Unsupported: it is no function of one version of its source.
        """
        try:
            found = json.loads(query)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"source_query is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidInput(f"source_query is a JSON object with {', '.join(_KEYS)}; found {query[:80]!r}")
        _refuse_members(found.keys() - set(_KEYS))
        names, branch, columns, condition = (found.get(key) for key in _KEYS)
        if not _is_texts(names) or not names:
            raise InvalidInput("table in source_query is the identifier of the source as a list of names")
        if branch is not None and not _is_texts([branch]):
            raise InvalidInput("branch in source_query is the name of a branch of the source")
        if condition is not None and not _is_texts([condition]):
            raise InvalidInput("filter in source_query is an SQL condition as text")
        chosen = _columns(columns)
        _refuse_changing([*(chosen.values() if isinstance(chosen, Mapping) else ()), condition or ""])
        return ViewDefinition(query, ObjectId.of(names), branch, chosen, condition, auto_refresh)

    @staticmethod
    def of_properties(properties: Mapping[str, str], name: str) -> ViewDefinition | None:
        """Return the definition in a table's properties; None if it is no view.

        Raises:
            InvalidInput: it is malformed.
            Unsupported: it is no function of one version of its source.
        """
        text = properties.get(VIEW_PROPERTY, properties.get(FORMER_VIEW_PROPERTY))
        if text is None:
            return None
        try:
            found = json.loads(text)
            query, auto_refresh = found["source_query"], bool(found.get("auto_refresh"))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the property {VIEW_PROPERTY!r} of {name} defines no view; create the view again"
            ) from error
        return ViewDefinition.parse(query, auto_refresh=auto_refresh)

    @property
    def properties(self) -> OwnProperties:
        """The definition as the property of a table."""
        members = {"kind": "query", "source_query": self.query, "auto_refresh": self.auto_refresh}
        return OwnProperties({VIEW_PROPERTY: json.dumps(members, ensure_ascii=False)})


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
    """It added fragments, and changed no other fragment."""
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
        last: the version of the source whose rows the view has; None if it has none, or if other writers changed its
            rows.
        wanted: the version to refresh it to.
        continues: whether the source still has ``last``, as the same version.
        effects: the effects of the versions after ``last`` up to ``wanted``.
    """
    if last == wanted:
        return Refresh.NOTHING
    grown = last is not None and last.location == wanted.location and last.version < wanted.version and continues
    if grown and all(effect in (Effect.APPENDED, Effect.KEPT) for effect in effects):
        return Refresh.APPEND
    return Refresh.FULL


def _refuse_members(names: Iterable[str]) -> None:
    """Refuse the members of a ``source_query`` that a view does not have."""
    for name in sorted(names):
        if name in _REFUSED:
            raise Unsupported(f"source_query has {name!r}: {_REFUSED[name]}. Nothing was changed")
        raise InvalidInput(f"source_query has no member {name!r}; its members are {', '.join(_KEYS)}")


def _columns(given: Any) -> Sequence[str] | Mapping[str, str] | None:
    """Return ``columns``, which is also accepted in the form of a request of QueryTable."""
    columns = given
    if isinstance(given, dict) and len(given) == 1:
        names, aliases = given.get("column_names"), given.get("column_aliases")
        columns = names if isinstance(names, list) else aliases if isinstance(aliases, dict) else given
    named = isinstance(columns, dict) and _is_texts([*columns.keys(), *columns.values()])
    if columns is not None and not (columns and (named or _is_texts(columns))):
        raise InvalidInput("columns in source_query is a list of columns, or an object of SQL expressions by name")
    names = [] if columns is None else list(columns)
    dotted = next((name for name in names if "." in name), None)
    if dotted is not None:
        raise InvalidInput(
            f"the column {dotted!r} of source_query cannot be the name of a column, because it contains a dot; name "
            f'the field, for example "columns": {{"{dotted.rpartition(".")[2]}": "{dotted}"}}'
        )
    return columns


def _refuse_changing(expressions: Iterable[str]) -> None:
    """Refuse SQL whose value differs from one evaluation to the next."""
    for expression in expressions:
        found = _CHANGING.search(_QUOTED.sub("''", expression))
        if found is not None:
            raise Unsupported(
                f"source_query has {(found[1] or found[2])!r} in {expression!r}: its value changes with each refresh, "
                "so the view would not be a query of its source. Nothing was changed"
            )


def _is_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) and value for value in values)
