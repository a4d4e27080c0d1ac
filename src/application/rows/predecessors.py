"""The versions that new versions of tables follow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import attrs

from lancekeep.application.concurrency import alongside, is_remote
from lancekeep.application.rows.append_lines import Predecessor
from lancekeep.application.rows.handover import Handover
from lancekeep.application.rows.versions import Versions
from lancekeep.domain.dataset_files import DATA
from lancekeep.domain.errors import LancekeepError, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.table import is_reusable
from lancekeep.domain.version_row import scheme_of
from lancekeep.format.append import Appendable
from lancekeep.format.json_files import version_hint

T = TypeVar("T")

_HINT_EVERY = 16
"""A version hint this far behind costs a reader of local files a few microseconds per version."""


class Predecessors:
    """Reads the versions that new versions follow.

    It also writes the files of new versions.

    Args:
        versions: The versions of the catalog's tables.
    """

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def begin(self, act: Callable[[], T], *, syncs: bool = False) -> Callable[[], T]:
        """Start ``act`` in another thread if it is a request.

        Otherwise it runs when its result is asked for.

        An act that syncs a file waits as a request does: two syncs at the same time take little longer than one.
        """
        objects = self._versions.commits.objects
        waits = is_remote(objects) or (syncs and objects.guarantees.durable)
        return alongside(act).result if waits else act

    def put(self, key: str, content: bytes) -> None:
        """Write a file that no version names yet."""
        commits = self._versions.commits
        commits.retry.call(partial(commits.objects.put, key, content))

    def has(self, key: str) -> bool:
        """Return whether a file exists."""
        commits = self._versions.commits
        return commits.retry.call(partial(commits.objects.head, key)) is not None

    def delete(self, key: str) -> None:
        """Remove a file that no version names."""
        with suppress(LancekeepError):  # an orphan, which clean-up removes
            self._versions.commits.objects.delete(key)

    def hint(self, base: Predecessor) -> None:
        """Write the version hint every few versions, where readers need it."""
        version, objects = base.version.version, self._versions.commits.objects
        if version % _HINT_EVERY == 0 and not objects.guarantees.paged:
            with suppress(LancekeepError):
                objects.put(base.root.hint_key, version_hint(version))

    def begin_checks(self, table: ObjectId, base: Predecessor) -> Callable[[int], bool]:
        """Start to check whether ``base`` is still the latest version of the table.

        Returns:
            A function that waits for the answer. It takes the number of a later version that this process has
            committed since, or else the number of ``base``.
        """
        commits = self._versions.commits
        found = self.begin(lambda: self._versions.find_table(table))
        latest = proof = None
        if commits.rows.guarantees.derived:  # otherwise the reservation checks it
            latest = self.begin(lambda: commits.retry.call(lambda: commits.rows.latest(base.root.base_uri)))
        if is_reusable(base.table.location):  # another table may have the location now
            key = f"{base.root.key}/{DATA}/{base.version.last_file}"
            proof = self.begin(lambda: commits.retry.call(lambda: commits.objects.head(key)))

        def is_current(newest: int) -> bool:
            entry = found()
            if self._versions.dataset_root(entry) != base.root or entry.rules != base.table.rules:
                return False
            if proof is not None and not (base.version.last_file and proof()):
                return False
            row = None if latest is None else latest()
            return latest is None or (row is not None and row.version in (base.version.version, newest))

        return is_current

    def committed_by(self, handover: Handover, base: Predecessor) -> Predecessor | None:
        """Return the version that another writer has committed in its turn.

        None if it has committed none after ``base``.
        """
        root, built = handover.following() or (None, None)
        if built is None or root != base.root or built.follows != base.version.transaction:
            return None
        return attrs.evolve(base, version=Appendable.parse(built.content, root.versions_key))

    def load(self, table: ObjectId) -> Predecessor:
        """Read the latest version of a table; see `read`."""
        return self.read(table)[0]

    def read(self, table: ObjectId) -> tuple[Predecessor, bytes]:
        """Read the latest version of a table, and return it with its manifest file.

        Raises:
            Unsupported: The table has no version, or only the engine can append to it.
            Damaged: The names of its manifests mix both schemes.
        """
        found = self._versions.find_table(table)
        root, commits = self._versions.dataset_root(found), self._versions.commits
        if commits.rows.guarantees.derived and not commits.objects.guarantees.atomic_create:
            raise Unsupported(f"{table}: the storage has no create-only write")
        self._versions.require_one_scheme(found)
        row = commits.latest(root)
        if row is None or scheme_of(row) is not NamingScheme.V2:
            raise Unsupported(f"{table}: it has no version, or its manifests have names of the scheme V1")
        content = commits.retry.call(partial(commits.objects.get, row.path))
        return Predecessor(found, root, Appendable.parse(content, row.path)), content
