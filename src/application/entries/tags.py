"""The tags of tables, which name versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import attrs

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.application.entries.tag_files import TagFiles
from lancekeep.domain.bounds import require_short
from lancekeep.domain.errors import (
    BranchNotFound,
    InvalidInput,
    TagAlreadyExists,
    TagNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.tags import Tag


class Tags:
    """The tags of tables: ``catalog.tags``.

    Identifiers are as in `Catalog`. ``branch`` None is the main history. Every method raises `TableNotFound` if the
    table does not exist.
    """

    def __init__(self, ledger: Ledger, places: Places, tables: Tables, files: TagFiles) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._files = files

    def get(self, identifier: Identifier, name: str) -> Tag:
        """Return a tag.

        Raises:
            TagNotFound: The table has no such tag.
        """
        _check(name)
        object_id = ObjectId.of(identifier)
        return self._read(object_id, self._root(object_id), name)

    def list(self, identifier: Identifier) -> Mapping[str, Tag]:
        """Return the tags of a table, by name in byte order."""
        return self._files.list(self._root(ObjectId.of(identifier)))

    def create(self, identifier: Identifier, name: str, version: int, branch: str | None = None) -> None:
        """Create a tag.

        Of several concurrent callers, one succeeds if the storage has put-if-absent.

        Args:
            identifier: The table.
            name: The name of the tag.
            version: The version that the tag points at.
            branch: The branch of the version.

        Raises:
            TagAlreadyExists: The table has the tag.
            BranchNotFound, VersionNotFound: The branch or the version does not exist.
            InvalidInput: The name is not valid.
        """
        _check(name)
        object_id = ObjectId.of(identifier)
        root = self._root(object_id)
        row = self._version(object_id, root.branch(branch), version, branch)
        now = _now()
        tag = Tag(version, branch, row.size or 0, {"createdAt": now, "updatedAt": now, "metadata": {}})
        if not self._files.create(root, name, tag):
            raise TagAlreadyExists(
                f"the table {object_id} has a tag {name!r}; choose another name, or move the tag with update_table_tag"
            )

    def update(self, identifier: Identifier, name: str, version: int, branch: str | None = None) -> None:
        """Let a tag point at another version.

        Args:
            identifier: The table.
            name: The name of the tag.
            version: The new version.
            branch: The branch of the new version.

        Raises:
            TagNotFound, BranchNotFound, VersionNotFound: The tag, the branch or the version does not exist.
        """
        _check(name)
        object_id = ObjectId.of(identifier)
        root = self._root(object_id)
        tag = self._read(object_id, root, name)
        row = self._version(object_id, root.branch(branch), version, branch)
        moved = attrs.evolve(
            tag,
            version=version,
            branch=branch,
            manifest_size=row.size or 0,
            others=tag.others | {"updatedAt": _now()},
        )
        self._files.replace(root, name, moved)

    def delete(self, identifier: Identifier, name: str) -> None:
        """Delete a tag.

        Raises:
            TagNotFound: The table has no such tag.
        """
        _check(name)
        object_id = ObjectId.of(identifier)
        root = self._root(object_id)
        if not self._files.exists(root, name):
            raise _missing(object_id, name)
        # Without rows of their own, versions are found by a hint, which may be stale because of the tag.
        if self._ledger.commits.rows.of(root.base_uri).guarantees.derived:
            self._ledger.commits.latest(root)
        self._files.delete(root, name)

    def _root(self, object_id: ObjectId) -> DatasetRoot:
        return self._places.dataset_root(self._tables.find(object_id))

    def _read(self, object_id: ObjectId, root: DatasetRoot, name: str) -> Tag:
        tag = self._files.get(root, name)
        if tag is None:
            raise _missing(object_id, name)
        return tag

    def _version(self, object_id: ObjectId, history: DatasetRoot, version: int, branch: str | None) -> VersionRow:
        row = self._ledger.commits.existing(history, version)
        if row is not None:
            return row
        if branch is not None and self._ledger.commits.latest(history) is None:
            raise BranchNotFound(f"the table {object_id} has no branch {branch!r}")
        raise VersionNotFound(f"the table {object_id} has no version {version} on {branch or 'the main history'}")


def _missing(object_id: ObjectId, name: str) -> TagNotFound:
    return TagNotFound(f"the table {object_id} has no tag {name!r}")


def _check(name: str) -> None:
    """Raise `InvalidInput` unless pylance can read a tag of this name.

    pylance also creates tags with letters outside of ASCII, but cannot list any tag afterwards.
    """
    require_short("the name of the tag", name)
    wrong = not name or name.startswith(".") or name.endswith((".", ".lock")) or ".." in name
    if wrong or not name.isascii() or not all(each.isalnum() or each in "._-" for each in name):
        raise InvalidInput(
            f"{name[:80]!r} is no name of a tag: ASCII letters, digits, '.', '-' and '_', which neither begins nor "
            "ends with '.', has no '..' in it and does not end with '.lock'"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
