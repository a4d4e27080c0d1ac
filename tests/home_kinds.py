"""Homes of catalogs: where the entries and the version rows are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
from hive_places import empty

import lancekeep
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

HOMES = ("sqlite", "file", "postgres", "hive")
FAST = {"fsync": "false"}


@attrs.frozen
class Home:
    """Where a catalog keeps its entries and its version rows.

    Attributes:
        directory: Contains all that is not in a server.
        settings: The arguments of `lancekeep.connect`.
        other: The URL of a commit store that the catalog does not have.
    """

    directory: Path
    settings: dict[str, Any]
    other: str

    @property
    def root(self) -> str:
        return str(self.directory / "lake")

    def connect(self, **more: Any) -> lancekeep.Catalog:
        """Open the catalog as a process does; it has the namespace ``n``."""
        catalog = lancekeep.connect(self.root, **{"storage_options": FAST, **self.settings, **more})
        catalog.create_namespace("n", exist_ok=True)
        return catalog

    def namespace(self) -> CatalogNamespace:
        """Return the catalog as a namespace."""
        self.connect().close()
        kind = {"postgres": lancekeep.PostgresNamespace, "hive": lancekeep.HiveNamespace}.get(
            self.settings.get("impl", ""), lancekeep.DirectoryNamespace
        )
        given = {key: value for key, value in self.settings.items() if key != "impl"}
        return kind(root=self.root, **{"storage.fsync": "false", **given})


def home_of(kind: str, directory: Path, server: Callable[[str], str]) -> Home:
    """Return a new home: a directory with a commit store, or a server that keeps entries and version rows."""
    directory.mkdir(exist_ok=True)
    other = f"sqlite://{directory}/other.db"
    match kind:
        case "postgres":
            url = server("postgres_url")
            settings = {"impl": "postgres", "uri": f"{url}?catalog={uuid4()}", "commit_store": f"{url}?durable=true"}
        case "hive":
            url = server("hive_url")
            with suppress(FileNotFoundError):
                empty(url)
            settings = {"impl": "hive", "uri": url, "commit_store": f"{url}/rows_{uuid4().hex[:8]}?durable=true"}
        case _:
            settings = {"commit_store": f"{kind}://{directory}/commits"}
    return Home(directory, settings, other)
