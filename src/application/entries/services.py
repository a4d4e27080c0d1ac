"""The protocols of services for entries, of a directory and of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.application.entries.tables import Description
from lancekeep.domain.change_feed import CatalogChange, ChangePage
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.table import Table
from lancekeep.format.tags import Tag


class NamespaceService(Protocol):
    """The namespaces of a catalog. Raises the errors of the methods of `Catalog`."""

    def create(
        self, object_id: ObjectId, properties: Mapping[str, str] | None, *, exist_ok: bool, overwrite: bool
    ) -> Namespace: ...

    def alter(self, object_id: ObjectId, values: Mapping[str, str] | None, remove: Iterable[str]) -> Namespace: ...

    def describe(self, object_id: ObjectId) -> Namespace: ...

    def page(
        self, object_id: ObjectId, object_type: str, after: str | None, limit: int | None
    ) -> tuple[list[str], str | None]: ...

    def drop(self, object_id: ObjectId, *, cascade: bool, force: bool, keep: timedelta | float | None) -> Namespace: ...


class TableService(Protocol):
    """The tables of a catalog. Raises the errors of the methods of `Catalog`."""

    def find(self, object_id: ObjectId) -> Table: ...

    def find_in_namespace(self, object_id: ObjectId) -> Table: ...

    def exists(self, object_id: ObjectId) -> bool: ...

    def describe(self, object_id: ObjectId) -> Description: ...

    def page(
        self, object_id: ObjectId, after: str | None, limit: int | None, *, include_declared: bool
    ) -> tuple[list[str], str | None]: ...

    def all(self, after: str | None, *, include_declared: bool) -> Iterator[ObjectId]: ...

    def usable(self) -> Iterator[Table]: ...

    def declare(self, object_id: ObjectId, properties: Mapping[str, str] | None, location: str | None) -> Table: ...

    def register(
        self, object_id: ObjectId, location: str, properties: Mapping[str, str] | None, *, overwrite: bool
    ) -> Table: ...

    def require_replaceable(self, object_id: ObjectId, action: str) -> None: ...

    def alter(self, object_id: ObjectId, values: Mapping[str, str] | None, remove: Iterable[str]) -> Table: ...

    def deregister(self, object_id: ObjectId) -> Table: ...

    def drop(self, object_id: ObjectId, *, force: bool, keep: timedelta | float | None) -> Table: ...


class ChangeService(Protocol):
    """The changes of a catalog; `CatalogChanges` describes the methods."""

    def read(self, after: str | None = None, limit: int = 100, *, wait: float = 0.0) -> ChangePage: ...

    def watch(self, after: str | None = None, *, poll: float = 1.0) -> Iterator[CatalogChange]: ...

    def latest(self) -> str: ...


class TagService(Protocol):
    """The tags of tables; `Tags` describes the methods."""

    def get(self, identifier: Identifier, name: str) -> Tag: ...

    def list(self, identifier: Identifier) -> Mapping[str, Tag]: ...

    def create(self, identifier: Identifier, name: str, version: int, branch: str | None = None) -> None: ...

    def update(self, identifier: Identifier, name: str, version: int, branch: str | None = None) -> None: ...

    def delete(self, identifier: Identifier, name: str) -> None: ...


class DroppedService(Protocol):
    """Dropped tables. Raises the errors of the methods of `Catalog`."""

    def list(self, below: ObjectId) -> Sequence[DroppedTable]: ...

    def undrop(self, object_id: ObjectId, target: ObjectId, drop: str | datetime | None) -> Table: ...

    def purge(self, object_id: ObjectId, drop: str | datetime | None, *, force: bool) -> DroppedTable: ...


class ProtectionService(Protocol):
    """Protects tables and namespaces. Raises the errors of `Catalog.protect`."""

    def change(self, object_id: ObjectId, *, protected: bool) -> None: ...
