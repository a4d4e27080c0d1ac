"""The `lance_namespace.LanceNamespace` interface over a catalog.

Every operation accepts a request model of ``lance_namespace``, a dict, or a subclass of dict, and raises the errors of
``lance_namespace.errors``; see `boundary`.
"""

from __future__ import annotations

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.namespace.data import DataOperations
from lancekeep.entrypoints.namespace.extensions import ExtensionOperations
from lancekeep.entrypoints.namespace.indexes import IndexOperations
from lancekeep.entrypoints.namespace.legacy_operations import LegacyOperations
from lancekeep.entrypoints.namespace.schema import SchemaOperations
from lancekeep.entrypoints.namespace.tags import TagOperations
from lancekeep.entrypoints.namespace.transactions import TransactionOperations
from lancekeep.entrypoints.namespace.views import ViewOperations


class CatalogNamespace(
    LegacyOperations,
    DataOperations,
    TransactionOperations,
    TagOperations,
    IndexOperations,
    SchemaOperations,
    ViewOperations,
    ExtensionOperations,
):
    """Any catalog as a Lance namespace.

    With a commit store the catalog answers ``managed_versioning=True``, and every native commit goes through
    `create_table_version`.

    Every field of a request is honoured or refused, except two that address a server in between: ``identity``, since
    the storage's own credentials decide about access here, and ``context``, of which only `TIMESTAMP` counts.
    """

    @property
    def catalog(self) -> Catalog:
        """The catalog of this namespace."""
        return self._catalog

    def namespace_id(self) -> str:
        return f"lancekeep {self._catalog!r}"

    def retrieve_ops_metrics(self) -> dict[str, int]:
        """Return no metrics, as the native namespace does by default."""
        return {}

    def reset_ops_metrics(self) -> None:
        """Do nothing: there are no metrics."""
