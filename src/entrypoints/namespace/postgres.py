"""``lancekeep.PostgresNamespace``: a namespace whose entries are in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.composition import open_catalog
from lancekeep.config import ConnectionConfig
from lancekeep.config_settings import POSTGRES
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace


class PostgresNamespace(CatalogNamespace):
    """A namespace whose entries and version rows are in a PostgreSQL database.

    It takes the properties of `ConnectionConfig`, as text. ``uri`` is the URL of the database with the name of the
    catalog, ``postgresql://USER@HOST/DATABASE?catalog=NAME``, and ``root`` is the directory of the tables.
    ``postgres.*`` are options of the database, such as ``postgres.sslmode``. Another commit store may be named.

    It pickles as its resolved properties, credentials included.

    Raises:
        lance_namespace.errors.InvalidInputError: A property is unknown or cannot be honoured.
    """

    @translating
    def __init__(self, **properties: str) -> None:
        named = {f"{POSTGRES}.uri" if name == "uri" else name: value for name, value in properties.items()}
        config = ConnectionConfig.resolve({"impl": POSTGRES, **named})
        vend, master = config.vend_input_storage_options, config.spark_master
        super().__init__(open_catalog(config), vend_storage_options=vend, spark_master=master)
        self._config = config

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (self._config.as_properties(),)


def _restore(properties: Mapping[str, str]) -> PostgresNamespace:
    return PostgresNamespace(**properties)
