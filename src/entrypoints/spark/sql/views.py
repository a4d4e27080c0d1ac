"""Implement Spark's interface for views; keep their definitions as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from pyspark.errors import PySparkException

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.entries.sql_views import SqlViews
from lancekeep.domain.errors import (
    Damaged,
    NamespaceNotFound,
    TableAlreadyExists,
    Unsupported,
    ViewAlreadyExists,
    ViewNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.internals.classes import CATALOG, TYPE
from lancekeep.entrypoints.spark.internals.driver import GatewayError
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy


class ViewCatalog(Proxy):
    """The views of a catalog."""

    _declared: ClassVar = {
        "listViews": (NamespaceNotFound,),
        "loadView": (ViewNotFound,),
        "createView": (ViewAlreadyExists, NamespaceNotFound),
        "replaceView": (ViewNotFound,),
        "createOrReplaceView": (ViewAlreadyExists, NamespaceNotFound),
        "renameView": (ViewNotFound, ViewAlreadyExists),
    }

    _name: str
    _catalog: Catalog

    @property
    def _stored(self) -> SqlViews:
        return directory_of(self._catalog, "SQL views").sql_views

    def listViews(self, namespace: Any) -> Any:
        kind = self._jvm.java(CATALOG + "Identifier")
        return self._jvm.array(CATALOG + "Identifier", [kind.of(namespace, name) for name in self._views(namespace)])

    def loadView(self, identifier: Any) -> Any:
        return self._view(object_id(identifier))

    def viewExists(self, identifier: Any) -> bool:
        try:
            self._definition_of(object_id(identifier))
        except ViewNotFound:
            return False
        return True

    def invalidateView(self, identifier: Any) -> None:
        pass

    def createView(self, identifier: Any, view: Any) -> Any:
        return self._put_view(identifier, view, replaces=False)

    def createOrReplaceView(self, identifier: Any, view: Any) -> Any:
        return self._put_view(identifier, view, replaces=True)

    def replaceView(self, identifier: Any, view: Any) -> Any:
        self._stored.replace(object_id(identifier), stored_definition(view, self._name))
        return view

    def dropView(self, identifier: Any) -> bool:
        try:
            self._stored.drop(object_id(identifier))
        except ViewNotFound:
            return False
        return True

    def renameView(self, source: Any, target: Any) -> None:
        wanted = self._without_own_name(object_id(target))
        if wanted.parent.is_root:  # an unqualified new name
            wanted = ObjectId((*object_id(source).parent.names, *wanted.names))
        self._stored.rename(object_id(source), wanted)

    def _put_view(self, identifier: Any, view: Any, *, replaces: bool) -> Any:
        if not len(identifier.namespace()):
            raise Unsupported(
                f"{self._shown(object_id(identifier))}: Spark cannot read a view of the root; create it in a namespace"
            )
        self._stored.create(object_id(identifier), stored_definition(view, self._name), replaces=replaces)
        return view

    def _view(self, view: ObjectId) -> Any:
        return spark_view(self._jvm, self._name, self._shown(view), self._definition_of(view))

    def _definition_of(self, view: ObjectId) -> str:
        try:
            return self._stored.definition(view)
        except Unsupported as error:  # a server keeps no views
            raise ViewNotFound(str(error)) from error

    def _views(self, namespace: Any) -> list[str]:
        try:
            return self._stored.names(ObjectId.of(list(namespace)))
        except Unsupported:
            return []

    def _require_no_view(self, table: ObjectId) -> None:
        """Check that no view has the name of a new table.

        Raises:
            TableAlreadyExists: A view has it.
        """
        with suppress(ViewNotFound):
            self._definition_of(table)
            raise TableAlreadyExists(
                f"the name {self._shown(table)} is taken by a view; drop it, or choose another name"
            )

    def _shown(self, table: ObjectId) -> str:
        return ".".join((self._name, *table.names))

    def _without_own_name(self, wanted: ObjectId) -> ObjectId:
        """Return a new name without the name of this catalog, which Spark parses as a namespace."""
        return ObjectId(wanted.names[1:]) if len(wanted.names) > 1 and wanted.names[0] == self._name else wanted


def object_id(identifier: Any) -> ObjectId:
    """Return the name of an ``Identifier`` of Spark."""
    return ObjectId.of([*identifier.namespace(), identifier.name()])


def stored_definition(view: Any, catalog: str) -> str:
    """Return the definition of a ``View`` of Spark as JSON.

    ``catalog`` is the name of the view's catalog in this session. It is left out, so that the view can be read where
    the catalog has another name; the text of the query keeps the names that it states.
    """
    current = view.currentCatalog()
    return json.dumps(
        {
            "query": view.queryText(),
            "schema": json.loads(view.schema().json()),
            "query_columns": list(view.queryColumnNames()),
            "catalog": None if current == catalog else current,
            "namespace": list(view.currentNamespace() or ()),
            "configuration": dict(view.sqlConfigs()),
            "schema_mode": view.schemaMode(),
            "properties": dict(view.properties()),
        },
        ensure_ascii=False,
    )


def spark_view(jvm: Jvm, catalog: str, name: str, definition: str) -> Any:
    """Return a view as Spark reads it; the inverse of `stored_definition`.

    Raises:
        Damaged: The definition is not readable.
    """
    try:
        stored: Mapping[str, Any] = json.loads(definition)
        schema = jvm.java(TYPE).fromJson(json.dumps(stored["schema"]))
        return (
            jvm.java(CATALOG + "View$Builder")()
            .withQueryText(stored["query"])
            .withSchema(schema)
            .withQueryColumnNames(jvm.strings(stored["query_columns"]))
            .withCurrentCatalog(stored["catalog"] or catalog)
            .withCurrentNamespace(jvm.strings(stored["namespace"]))
            .withSqlConfigs(jvm.map(stored["configuration"]))
            .withSchemaMode(stored["schema_mode"])
            .withProperties(jvm.map(stored["properties"]))
            .build()
        )
    except (ValueError, KeyError, TypeError, PySparkException, GatewayError) as error:
        raise Damaged(f"the definition of the view {name} is not readable: {error!r}; drop it and create it") from error
