"""The tag files of tables.

A tag is a small file in the directory of its table. The engine can write it, too, but it checks for the file and then
writes it, so two writers can both create one tag. Here the storage's put-if-absent decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.format.tags import DIRECTORY, SUFFIX, Tag
from lancekeep.ports.object_store import ObjectStore

Answer = TypeVar("Answer")


class TagFiles:
    """Reads and writes the tags of tables in one object store.

    A table is given by its dataset root, also for tags of its branches.

    Args:
        objects: The object store.
        retry: Repeats requests that fail.
    """

    def __init__(self, objects: ObjectStore, retry: Retry) -> None:
        self._objects = objects
        self._retry = retry

    def get(self, root: DatasetRoot, name: str) -> Tag | None:
        """Return a tag; None if the table does not have it.

        Raises:
            Damaged: The file is no tag.
        """
        key = _key(root, name)
        content = self._content(key)
        return None if content is None else Tag.parse(content, key)

    def list(self, root: DatasetRoot) -> Mapping[str, Tag]:
        """Return the tags of a table, by name in byte order.

        Raises:
            Damaged: A file is no tag.
        """
        directory, objects = f"{root.key}/{DIRECTORY}", self._objects
        keys = self._ask(lambda: [info.key for info in objects.list(directory) if info.key.endswith(SUFFIX)])
        names = [key[len(directory) : -len(SUFFIX)] for key in keys]
        contents = all_alongside(self._content, keys) if is_remote(objects) else map(self._content, keys)
        found = dict(zip(names, zip(keys, contents, strict=True), strict=True))
        return {name: Tag.parse(content, key) for name, (key, content) in sorted(found.items()) if content is not None}

    def tagged_versions(self, root: DatasetRoot, branch: str | None) -> set[int]:
        """Return the tagged versions of the main history or of a branch."""
        return {tag.version for tag in self.list(root).values() if tag.branch == branch}

    def create(self, root: DatasetRoot, name: str, tag: Tag) -> bool:
        """Create a tag, and return whether the table did not have it."""
        key, content, objects = _key(root, name), tag.content(), self._objects
        if objects.guarantees.atomic_create:
            if self._ask(partial(objects.put_if_absent, key, content)):
                return True
            return self._content(key) == content  # the reply to the first request may be lost
        if self.exists(root, name):
            return False
        self._ask(partial(objects.put, key, content))
        return True

    def replace(self, root: DatasetRoot, name: str, tag: Tag) -> None:
        """Replace a tag."""
        self._ask(partial(self._objects.put, _key(root, name), tag.content()))

    def exists(self, root: DatasetRoot, name: str) -> bool:
        """Return whether a table has a tag."""
        return self._ask(partial(self._objects.head, _key(root, name))) is not None

    def delete(self, root: DatasetRoot, name: str) -> None:
        """Delete a tag. Idempotent."""
        self._ask(partial(self._objects.delete, _key(root, name)))

    def _content(self, key: str) -> bytes | None:
        try:
            return self._ask(partial(self._objects.get, key))
        except ObjectNotFound:
            return None

    def _ask(self, act: Callable[[], Answer]) -> Answer:
        return self._retry.call(act)


def _key(root: DatasetRoot, name: str) -> str:
    return f"{root.key}/{DIRECTORY}{name}{SUFFIX}"
