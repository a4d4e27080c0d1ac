"""Create and refresh materialized views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from lancekeep.application.entries.services import TableService
from lancekeep.application.rows.services import WriteService
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import (
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    Refused,
    SchemaMismatch,
    VersionNotFound,
    VersionTaken,
)
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.view import (
    REFRESHED,
    Effect,
    Refresh,
    SourceVersion,
    ViewDefinition,
    plan_refresh,
)
from lancekeep.ports.table_engine import TableEngine, WriteMode

_ATTEMPTS = 20
_SEARCHED = 100
"""The versions of a view to read for its last refresh; compactions and indexes may follow it."""


@attrs.frozen
class Refreshed:
    """The result of a refresh.

    Attributes:
        version: The version of the view.
        source: The version of the source whose rows it holds; None if a server does not know it.
        how: What the refresh did.
        job: The id of the transaction that holds the refresh; None if it is not known.
    """

    version: int
    source: SourceVersion | None
    how: Refresh
    job: str | None


class Views:
    """The materialized views of kind ``query``: ``catalog.views``.

    Identifiers are as in `Catalog`.

    A view is a table with the property of a `ViewDefinition`. A refresh is one version of it, whose transaction names
    the version of the source; the version is committed directly after the version that the refresh has read, or not at
    all. So each row of the source is in the view once, also after concurrent or interrupted refreshes.
    """

    def __init__(self, tables: TableService, writes: WriteService, engine: TableEngine) -> None:
        self._tables = tables
        self._writes = writes
        self._engine = engine

    def create(self, identifier: Identifier, definition: ViewDefinition, schema: Any) -> Committed:
        """Create a view without rows.

        Args:
            identifier: The view.
            definition: Its definition.
            schema: The ``pyarrow.Schema`` that the query is expected to have.

        Raises:
            TableAlreadyExists, NamespaceNotFound: Nothing was created.
            TableNotFound, VersionNotFound: The source does not exist, or is only declared.
            InvalidInput, SchemaMismatch: The query is invalid, or has other columns.
            Unsupported: The catalog is a V1 directory, which has no properties.
        """
        object_id = ObjectId.of(identifier)
        found = self._output(definition, None)
        _require_columns(found, schema, "output_schema")
        rows = self._engine.reader(found.empty_table())
        return self._writes.write(object_id, rows, WriteMode.CREATE.value, definition.properties)

    def refresh(self, identifier: Identifier, version: int | None = None) -> Refreshed:
        """Refresh a view from a version of its source, by default the latest.

        Raises:
            TableNotFound, VersionNotFound: The view or its source does not exist.
            InvalidInput: The table is no view.
            SchemaMismatch: The query has other columns than the view.
            ConcurrentModification: Other writers kept changing the view.
        """
        object_id = ObjectId.of(identifier)
        definition = self.definition(object_id)
        for _ in range(_ATTEMPTS):
            try:
                return self._attempt(object_id, definition, version)
            except (ConcurrentModification, VersionTaken):
                continue
        raise ConcurrentModification(
            f"other writers changed the view {object_id} at each of {_ATTEMPTS} attempts; refresh it again"
        )

    def refresh_due(self) -> Mapping[ObjectId, Refreshed | LancekeepError]:
        """Refresh every view with ``auto_refresh`` whose source has changed.

        Returns: The result or the error of each of these views.
        """
        outcomes: dict[ObjectId, Refreshed | LancekeepError] = {}
        for table in self._tables.usable():
            try:
                definition = ViewDefinition.of_properties(table.properties, str(table.id))
                if definition is not None and definition.auto_refresh:
                    outcomes[table.id] = self.refresh(table.id)
            except LancekeepError as error:
                outcomes[table.id] = error
        return {each: found for each, found in outcomes.items() if not _is_idle(found)}

    def definition(self, identifier: Identifier) -> ViewDefinition:
        """Return the definition of a view.

        Raises:
            TableNotFound: The table does not exist.
            InvalidInput: The table is no view.
        """
        object_id = ObjectId.of(identifier)
        definition = ViewDefinition.of_properties(self._tables.find(object_id).properties, str(object_id))
        if definition is None:
            raise InvalidInput(f"the table {object_id} is no materialized view; create one with CreateMaterializedView")
        return definition

    # -- refreshing ---------------------------------------------------------------------------------------------

    def _attempt(self, object_id: ObjectId, definition: ViewDefinition, version: int | None) -> Refreshed:
        output = self._output(definition, version)
        plan = self._writes.begin(object_id, output, WriteMode.OVERWRITE.value, None)
        held, job = self._held(object_id, plan.read_version)
        source, wanted = self._writes.examine(
            definition.source,
            lambda dataset: (dataset, self._version_of(definition, dataset)),
            version,
            definition.branch,
        )
        before, effects = self._since(definition, held, wanted)
        how = plan_refresh(held, wanted, continues=before is not None, effects=effects)
        if how is Refresh.NOTHING:
            return Refreshed(plan.read_version, wanted, how, job)
        if plan.read_version:
            stored = self._writes.describe_version(object_id, plan.read_version, None, None).schema
            _require_columns(output, stored, f"the view {object_id}")
        if how is Refresh.APPEND:
            plan = attrs.evolve(plan, mode=WriteMode.APPEND)
        rows = self._engine.views.rows(
            source, definition.columns, definition.condition, before if how is Refresh.APPEND else None
        )
        fragments = self._engine.write_fragments(plan, rows)
        committed = self._writes.commit_fragments(plan, fragments, {REFRESHED: wanted.text}, exactly=True)
        _, job = self._held(object_id, committed.version)
        return Refreshed(committed.version, wanted, how, job)

    def _output(self, definition: ViewDefinition, version: int | None) -> Any:
        return self._writes.examine(
            definition.source,
            lambda dataset: self._engine.views.output(dataset, definition.columns, definition.condition),
            version,
            definition.branch,
        )

    def _version_of(self, definition: ViewDefinition, dataset: Any) -> SourceVersion:
        location = self._tables.find(definition.source).location
        return SourceVersion(location, dataset.version, self._engine.views.transaction_name(dataset))

    def _held(self, object_id: ObjectId, version: int) -> tuple[SourceVersion | None, str | None]:
        """Return the version of the source that a version of the view holds, and the id of the refresh."""

        def search(dataset: Any) -> tuple[SourceVersion | None, str | None]:
            for earlier in range(version, max(0, version - _SEARCHED), -1):
                effect, properties = self._engine.views.effect(dataset, earlier)
                if REFRESHED in properties:
                    return SourceVersion.parse(properties[REFRESHED]), self._job(object_id, earlier)
                if effect not in (Effect.KEPT, Effect.REWROTE):
                    break
            return None, None

        try:
            return self._writes.examine(object_id, search, version, None) if version else (None, None)
        except VersionNotFound:  # a clean-up has removed the versions before
            return None, None

    def _job(self, object_id: ObjectId, version: int) -> str | None:
        name = self._writes.examine(object_id, self._engine.views.transaction_name, version, None)
        return name.partition("-")[2].removesuffix(".txn") or None

    def _since(
        self, definition: ViewDefinition, held: SourceVersion | None, wanted: SourceVersion
    ) -> tuple[Any | None, list[Effect]]:
        """Return the source at the version that the view holds, and the effects of the later versions.

        Returns:
            None without that version, or if another table has its number.
        """
        if held is None or held.version >= wanted.version:
            return None, []
        try:
            before = self._writes.examine(definition.source, lambda dataset: dataset, held.version, definition.branch)
        except VersionNotFound:
            return None, []
        if self._version_of(definition, before) != held:
            return None, []
        versions = range(held.version + 1, wanted.version + 1)
        try:
            effects = self._writes.examine(
                definition.source,
                lambda dataset: [self._engine.views.effect(dataset, version)[0] for version in versions],
                wanted.version,
                definition.branch,
            )
        except (VersionNotFound, Refused):
            return None, []
        return before, effects


def _is_idle(found: Refreshed | LancekeepError) -> bool:
    return isinstance(found, Refreshed) and found.how is Refresh.NOTHING


def _require_columns(found: Any, expected: Any, name: str) -> None:
    """Raise `SchemaMismatch` unless two schemas have the same columns."""
    ours, theirs = ([(field.name, field.type) for field in schema] for schema in (found, expected))
    if ours != theirs:
        shown = [", ".join(f"{column} {kind}" for column, kind in each) for each in (theirs, ours)]
        raise SchemaMismatch(f"{name} has the columns {shown[0]}, but the query has {shown[1]}; nothing was changed")
