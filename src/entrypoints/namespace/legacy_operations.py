"""The older names of operations ("Namespace Operations" of the specification).

No request model exists for ``ListOperations``, ``AlterNamespace`` and ``AlterTable``. Their requests and answers are
dicts; the server's requests are models of its routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lance_namespace as api
from pydantic import BaseModel

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.adapters.rest.routes import EXTENSIONS
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.namespace.namespaces import NamespaceOperations
from lancekeep.entrypoints.namespace.tables import TableOperations

_NO_OPERATIONS = ("namespace_id", "retrieve_ops_metrics", "reset_ops_metrics")
_FIELDS = ("id", "properties")


class LegacyOperations(NamespaceOperations, TableOperations):
    """The operations of earlier versions of the specification."""

    @translating
    def list_operations(self, request: Mapping[str, Any] | BaseModel | None = None) -> dict[str, list[str]]:
        """Return the names of the supported operations as ``operations``."""
        _require_known(request or {}, ())
        names = [name for name in dir(api.LanceNamespace) if not name.startswith("_") and name not in _NO_OPERATIONS]
        supported = [
            name for name in names if getattr(type(self), name).__qualname__ != f"{api.LanceNamespace.__name__}.{name}"
        ]
        supported += [route.operation for route in EXTENSIONS if hasattr(self, route.operation)]
        legacy = ["alter_namespace", "alter_table", "get_namespace", "get_table", "list_operations"]
        return {"operations": sorted(name.title().replace("_", "") for name in [*supported, *legacy])}

    def get_namespace(self, request: api.DescribeNamespaceRequest) -> api.DescribeNamespaceResponse:
        """Describe a namespace; the older name of `describe_namespace`."""
        return self.describe_namespace(request)

    def get_table(self, request: api.DescribeTableRequest) -> api.DescribeTableResponse:
        """Describe a table; the older name of `describe_table`."""
        return self.describe_table(request)

    @translating
    def alter_namespace(self, request: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
        """Set properties of a namespace; null as a value removes the property.

        Args:
            request: ``id`` and ``properties``.

        Returns:
            All ``properties`` of the namespace.
        """
        object_id, values, removed = _changes(request)
        namespace = self._catalog.alter_namespace(object_id, values, removed)
        return {"id": list(namespace.id.names), "properties": dict(namespace.properties)}

    @translating
    def alter_table(self, request: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
        """Set properties of a table, as `alter_namespace` does."""
        object_id, values, removed = _changes(request)
        table = self._catalog.alter_table(object_id, values, removed)
        return {"id": list(table.id.names), "properties": dict(table.properties)}


def _changes(request: Mapping[str, Any] | BaseModel) -> tuple[ObjectId, dict[str, str], list[str]]:
    """Return the object of a request, the properties to set and the properties to remove."""
    fields = _require_known(request, _FIELDS)
    properties = fields.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise InvalidInput("properties is an object of the properties to set, with null for those to remove")
    values = {name: value for name, value in properties.items() if value is not None}
    return ObjectId.of(fields.get("id") or []), values, [name for name in properties if name not in values]


def _require_known(request: Any, fields: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the fields of a request. Raises `InvalidInput` for any other field."""
    if isinstance(request, BaseModel):  # of the server's route
        request = vars(request)
    if not isinstance(request, Mapping):
        raise InvalidInput(f"the request is of type {type(request).__name__}; expected a dict")
    unknown = [name for name in request if name not in (*fields, "identity", "context")]
    if unknown:
        raise InvalidInput(f"the request has no field {unknown[0]!r}; its fields are {', '.join(fields) or 'none'}")
    return request
