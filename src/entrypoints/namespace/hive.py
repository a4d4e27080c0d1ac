"""``lancekeep.HiveNamespace``: a namespace whose entries are in a Hive Metastore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.composition import open_catalog
from lancekeep.config import ConnectionConfig
from lancekeep.config_settings import HIVE
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

_OPTIONS = ("uri", "client.pool-size", "catalogs")


class HiveNamespace(CatalogNamespace):
    """A namespace whose entries are in a Hive Metastore.

    It takes the properties of `ConnectionConfig`, as text. ``uri`` is the address of the Metastore,
    ``thrift://HOST:9083`` or ``hive://HOST:9083,HOST:9083``; ``root`` is the directory of the tables, by default the
    current one; ``client.pool-size`` is the maximum number of connections. With ``impl="hive3"`` the first level of
    namespaces is a catalog of Hive 3 or newer. ``hive.*`` are the same properties, and other options of the Metastore.

    It pickles as its resolved properties, credentials included.

    Raises:
        lance_namespace.errors.InvalidInputError: A property is unknown or cannot be honoured.
    """

    @translating
    def __init__(self, **properties: str) -> None:
        named = {f"{HIVE}.{name}" if name in _OPTIONS else name: value for name, value in properties.items()}
        config = ConnectionConfig.resolve({"impl": HIVE, **named})
        vend, master = config.vend_input_storage_options, config.spark_master
        super().__init__(open_catalog(config), vend_storage_options=vend, spark_master=master)
        self._config = config

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (self._config.as_properties(),)


def _restore(properties: Mapping[str, str]) -> HiveNamespace:
    return HiveNamespace(**properties)
