"""The tags of tables, which name versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import attrs

from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.domain.errors import (
    BranchNotFound,
    InvalidInput,
    ObjectNotFound,
    TagAlreadyExists,
    TagNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.tags import DIRECTORY, SUFFIX, Tag

Answer = TypeVar("Answer")


class Tags:
    """The tags of tables: ``catalog.tags``.

    Identifiers are those of `Catalog`. ``branch`` None is the main history. Every method raises `TableNotFound` if the
    table does not exist.

    A tag is a small file in the directory of its table. The engine can write it, too, but it checks for the file and
    then writes it, so two writers can both create one tag. Here the storage's put-if-absent decides.
    """

    def __init__(self, ledger: Ledger, places: Places, tables: Tables) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables

    def get(self, identifier: Identifier, name: str) -> Tag:
        """Return a tag.

        Raises:
            TagNotFound: The table has no such tag.
        """
        object_id = ObjectId.of(identifier)
        return self._read(object_id, name, self._key(object_id, name))

    def list(self, identifier: Identifier) -> Mapping[str, Tag]:
        """Return the tags of a table, by name in byte order."""
        object_id = ObjectId.of(identifier)
        directory, objects = self._directory(object_id), self._places.objects
        keys = self._ask(lambda: [info.key for info in objects.list(directory) if info.key.endswith(SUFFIX)])
        names = [key[len(directory) : -len(SUFFIX)] for key in keys]
        contents = all_alongside(self._content, keys) if is_remote(objects) else map(self._content, keys)
        found = dict(zip(names, zip(keys, contents, strict=True), strict=True))
        return {name: Tag.parse(content, key) for name, (key, content) in sorted(found.items()) if content is not None}

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
        object_id = ObjectId.of(identifier)
        key = self._key(object_id, name)
        row = self._version(object_id, version, branch)
        now = _now()
        content = Tag(version, branch, row.size or 0, {"createdAt": now, "updatedAt": now, "metadata": {}}).content()
        if not self._created(key, content):
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
        object_id = ObjectId.of(identifier)
        key = self._key(object_id, name)
        tag = self._read(object_id, name, key)
        row = self._version(object_id, version, branch)
        moved = attrs.evolve(
            tag,
            version=version,
            branch=branch,
            manifest_size=row.size or 0,
            others=tag.others | {"updatedAt": _now()},
        )
        self._ask(lambda: self._places.objects.put(key, moved.content()))

    def delete(self, identifier: Identifier, name: str) -> None:
        """Delete a tag.

        Raises:
            TagNotFound: The table has no such tag.
        """
        object_id = ObjectId.of(identifier)
        key = self._key(object_id, name)
        if self._ask(lambda: self._places.objects.head(key)) is None:
            raise _missing(object_id, name)
        if self._ledger.commits.rows.guarantees.derived:  # removes a hint that is stale because of the tag
            self._ledger.commits.latest(self._places.dataset_root(self._tables.find(object_id)))
        self._ask(lambda: self._places.objects.delete(key))

    # -- files --------------------------------------------------------------------------------------------------

    def _directory(self, object_id: ObjectId) -> str:
        table = self._tables.find(object_id)
        return f"{self._places.dataset_root(table).key}/{DIRECTORY}"

    def _key(self, object_id: ObjectId, name: str) -> str:
        directory = self._directory(object_id)
        _check(name)
        return f"{directory}{name}{SUFFIX}"

    def _read(self, object_id: ObjectId, name: str, key: str) -> Tag:
        content = self._content(key)
        if content is None:
            raise _missing(object_id, name)
        return Tag.parse(content, key)

    def _content(self, key: str) -> bytes | None:
        try:
            return self._ask(lambda: self._places.objects.get(key))
        except ObjectNotFound:
            return None

    def _created(self, key: str, content: bytes) -> bool:
        objects = self._places.objects
        if objects.guarantees.atomic_create:
            if self._ask(partial(objects.put_if_absent, key, content)):
                return True
            return self._content(key) == content  # the reply to the first request may be lost
        if self._ask(partial(objects.head, key)) is not None:
            return False
        self._ask(partial(objects.put, key, content))
        return True

    def _version(self, object_id: ObjectId, version: int, branch: str | None) -> VersionRow:
        root = self._places.dataset_root(self._tables.find(object_id)).branch(branch)
        row = self._ledger.commits.existing(root, version)
        if row is not None:
            return row
        if branch is not None and self._ledger.commits.latest(root) is None:
            raise BranchNotFound(f"the table {object_id} has no branch {branch!r}")
        raise VersionNotFound(f"the table {object_id} has no version {version} on {branch or 'the main history'}")

    def _ask(self, act: Callable[[], Answer]) -> Answer:
        return self._ledger.commits.retry.call(act)


def _missing(object_id: ObjectId, name: str) -> TagNotFound:
    return TagNotFound(f"the table {object_id} has no tag {name!r}")


def _check(name: str) -> None:
    """Raise `InvalidInput` unless pylance can read a tag of this name.

    It also accepts other letters than those of ASCII, but cannot list any tag afterwards.
    """
    wrong = not name or name.startswith(".") or name.endswith((".", ".lock")) or ".." in name
    if wrong or not name.isascii() or not all(each.isalnum() or each in "._-" for each in name):
        raise InvalidInput(
            f"{name[:80]!r} is no name of a tag: ASCII letters, digits, '.', '-' and '_', which neither begins nor "
            "ends with '.', has no '..' in it and does not end with '.lock'"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
