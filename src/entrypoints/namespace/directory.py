"""``lancekeep.DirectoryNamespace``, which is configured by properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.composition import open_catalog
from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace


class DirectoryNamespace(CatalogNamespace):
    """A directory namespace whose commits go through a commit store.

    It takes the properties of `ConnectionConfig` and of the native namespace, as text. ``root``, ``commit_store``,
    ``storage.*`` and ``commit_store.*`` say where the catalog and its commit store are. ``manifest_enabled`` and
    ``dir_listing_enabled`` select the mode: compatible if both are true, V2 for the first alone, V1 for the second
    alone. ``dir_listing_to_manifest_migration_enabled`` is always true: the specification reads tables of the root
    from the manifest first. With ``vend_input_storage_options``, answers hold the storage options, credentials
    included (``true``), never hold them (``false``), or hold them only for requests with ``vend_credentials=true``
    (left out). With ``spark_master``, backfills of columns run as Spark jobs. Native properties without a counterpart
    are accepted with a warning.

    ``lance_namespace.connect("lancekeep.DirectoryNamespace", properties)`` creates one. It pickles as its resolved
    properties, credentials included.

    Raises:
        lance_namespace.errors.InvalidInputError: A property is unknown or cannot be honoured.
    """

    @translating
    def __init__(self, **properties: str) -> None:
        config = ConnectionConfig.resolve(properties)
        if config.root is None:
            config = attrs.evolve(config, root=".")
        if config.impl != "dir":
            raise InvalidInput("a directory namespace has impl 'dir'; for a server, use lancekeep.RestNamespace")
        vend, master = config.vend_input_storage_options, config.spark_master
        super().__init__(open_catalog(config), vend_storage_options=vend, spark_master=master)
        self._config = config

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (self._config.as_properties(),)


def _restore(properties: Mapping[str, str]) -> DirectoryNamespace:
    return DirectoryNamespace(**properties)
