"""Read the commits of a table that the log of events does not have yet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.places import Places
from lancekeep.domain.dataset_files import TRANSACTIONS
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, ObjectNotFound, StoreUnavailable
from lancekeep.domain.events import (
    CommittedVersion,
    Event,
    HistoryPosition,
    TablePosition,
    committed,
    missed,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.table import Table
from lancekeep.format.manifest import message_at, summary_of, transaction_name
from lancekeep.format.table_version import TableVersion, operation_field

_LISTED_FROM = 8
"""From so many new versions on, the directory is listed in place of one request for each version."""
UNKNOWN = "unknown"


class TableHistories:
    """Reads the new versions of tables, of all branches, as events.

    Native commits are versions as all others are.

    Args:
        commits: The commits.
        places: The directories of tables.
    """

    def __init__(self, commits: TableCommits, places: Places) -> None:
        self._commits = commits
        self._places = places

    def latest(self, location: str, position: TablePosition) -> TablePosition:
        """Return the position after the latest versions of a table."""
        for branch, root in self._histories(location, position):
            row = self._commits.latest(root)
            if row is not None:
                content = self._content(row.path)
                transaction = "" if content is None else _identity(content)
                position = position.at(branch, HistoryPosition(row.version, transaction))
        return position

    def after(self, location: str, position: TablePosition, limit: int) -> Iterator[tuple[Event, TablePosition]]:
        """Yield the commits after a position, each with the position after it.

        The commits of one history are in order.

        Args:
            location: The location of the table.
            position: What the log has covered.
            limit: The most versions of each history.
        """
        for branch, root in self._histories(location, position):
            for event, found in self._of_history(location, position, branch, root, limit):
                position = position.at(branch, found)
                yield event, position

    def _histories(self, location: str, position: TablePosition) -> list[tuple[str, DatasetRoot]]:
        try:
            root = self._places.dataset_root(Table(ObjectId.from_key(position.key), location, {}))
        except (Damaged, InvalidInput):  # fsck reports a directory that is not usable
            return []
        objects = self._places.objects
        has_branches = next(objects.list(f"{root.key}/{BRANCHES}/"), None) is not None
        roots = self._commits.histories(root) if has_branches else [root]
        return [(each.key.removeprefix(root.key).removeprefix(f"/{BRANCHES}/"), each) for each in roots]

    def _of_history(
        self, location: str, position: TablePosition, branch: str, root: DatasetRoot, limit: int
    ) -> Iterator[tuple[Event, HistoryPosition]]:
        known = position.of(branch)
        row = self._commits.latest(root)
        if row is None or row.version == known.version:
            return
        if known.version and not self._continues(root, known, row.version):
            known = HistoryPosition()
        expected = known.version + 1
        for version, content in self._versions(root, known.version, row.version, row.path, limit):
            found = self._described(root, version, content)
            if known.version and version > expected:
                yield missed(location, position, branch, expected, version - 1, found.at), known
            expected = version + 1
            yield committed(location, position, branch, found), HistoryPosition(version, found.transaction)

    def _continues(self, root: DatasetRoot, known: HistoryPosition, latest: int) -> bool:
        """Return whether a history is the one that the log has covered, and not a later history at its place."""
        if latest < known.version:
            return False
        content = self._final(root, known.version)
        return content is None or not known.transaction or _identity(content) == known.transaction

    def _versions(
        self, root: DatasetRoot, after: int, latest: int, path: str, limit: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the versions that exist, in order, with their manifest files."""
        if latest - after < _LISTED_FROM:
            names = dict.fromkeys(range(after + 1, latest + 1), "")
        else:
            infos = self._commits.retry.call(lambda: list(self._commits.objects.list(root.versions_key)))
            parsed = ((ManifestName.parse(info.key.removeprefix(root.versions_key)), info.key) for info in infos)
            names = {
                name.version: key
                for name, key in sorted(parsed, key=lambda each: each[1])
                if name is not None and not name.is_staged and after < name.version <= latest
            }
            names.setdefault(latest, path)
        for version in sorted(names)[:limit]:
            content = self._content(names[version]) if names[version] else self._final(root, version)
            if content is not None:
                yield version, content

    def _final(self, root: DatasetRoot, version: int) -> bytes | None:
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            content = self._content(root.manifest_key(version, scheme))
            if content is not None:
                return content
        return None

    def _content(self, key: str) -> bytes | None:
        try:
            return self._commits.retry.call(partial(self._commits.objects.get, key))
        except ObjectNotFound:
            return None

    def _described(self, root: DatasetRoot, version: int, content: bytes) -> CommittedVersion:
        name = f"{root.key}: version {version}"
        try:
            summary = summary_of(content, name)
            operation = self._operation(root, content, name)
            return CommittedVersion(version, _identity(content), operation, summary.rows, summary.committed // 1000)
        except StoreUnavailable:
            raise
        except LancekeepError:  # a damaged version is a version; `verify` reports it
            return CommittedVersion(version, _identity(content), UNKNOWN, None, 0)

    def _operation(self, root: DatasetRoot, content: bytes, name: str) -> str:
        try:
            found = TableVersion.parse(content, name)
        except LancekeepError:
            return UNKNOWN
        if found.transaction is not None:
            return type(found.transaction.operation).__name__
        file = found.manifest.transaction_file
        stored = self._content(f"{root.key}/{TRANSACTIONS}/{file}") if file else None
        field = operation_field(stored, name) if stored is not None else ""
        return "".join(map(str.capitalize, field.split("_"))) or UNKNOWN


def _identity(content: bytes) -> str:
    """Return a name that no other version has: of the transaction file, or a digest."""
    try:
        name = transaction_name(message_at(content))
    except ValueError:
        name = ""
    return name or blake2b(content, digest_size=16).hexdigest()
