"""Record the keys of appends and upserts that share commits, and find them again.

The keys of a table are in one directory of immutable objects; `lancekeep.domain.recorded_keys` describes them. A
process keeps the keys in memory, and reads objects of other processes when another writer has committed a version.
Two rules make an append or upsert with a key one effect:

- An attempt writes the object with its key before it commits a version.
- It reads the objects of others after it knows the version that it follows, unless it has committed every version since
  it last read them itself.

Of two attempts, the one with the higher version therefore reads the object of the other one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from uuid import uuid4
from weakref import WeakSet

import attrs

from lancekeep.application.concurrency import all_alongside, in_background, is_remote
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.errors import LancekeepError, ObjectNotFound, StoreUnavailable, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.recorded_keys import (
    GROUPS,
    MERGED_GROUPS,
    MOST_LEVEL,
    Effect,
    Group,
    Recorded,
    Segment,
    SharedKey,
    decisive,
    level_of,
    object_name,
    to_merge,
)
from lancekeep.domain.table import MANIFEST_DIRECTORY, REQUESTS_DIRECTORY
from lancekeep.format.manifest import message_at, transaction_name

MOST_LOGS = 20_000
"""The number of logs of single requests up to which their names are read once instead of one by one."""

_TABLES = 256
_LISTINGS = 10
_ONE_READ = 256
"""The number of names that a file system returns at once. A longer listing may lack both the old and the new name of
records that are merged at the same time; a second listing has the new name."""
_LOG = re.compile("[0-9a-f]{64}")
_DIRECTORY = re.compile("keys-[0-9a-f]{64}")

_OPEN: WeakSet[RecordedKeys] = WeakSet()


def _after_fork() -> None:
    for keys in _OPEN:
        keys.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def requests_directory(places: Places) -> str:
    """Return the directory of keyed requests, with a trailing slash."""
    return f"{places.prefix}{MANIFEST_DIRECTORY}/{REQUESTS_DIRECTORY}/"


def holds_keys(directory: str) -> bool:
    """Return whether a directory of requests holds the keys of a table."""
    return _DIRECTORY.fullmatch(directory) is not None


def keys_of(ledger: Ledger, places: Places, table: ObjectId) -> TableKeys:
    """Return the keys of a table; nothing is in memory yet."""
    digest = hashlib.sha256(json.dumps(list(table.names)).encode()).hexdigest()
    return TableKeys(ledger, f"{requests_directory(places)}keys-{digest}/")


class RecordedKeys:
    """The keys of appends and upserts to the tables of one catalog."""

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places
        self._directory = requests_directory(places)
        self._lock = Lock()
        self._tables: OrderedDict[ObjectId, TableKeys] = OrderedDict()
        self._logs: frozenset[str] | None = None
        self._has_many_logs = False
        _OPEN.add(self)

    def after_fork(self) -> None:
        """Forget what threads of the parent may have been changing."""
        self._lock = Lock()
        self._tables.clear()

    @property
    def managed(self) -> bool:
        """Whether a commit store manages the versions."""
        return self._ledger.managed

    @property
    def is_possible(self) -> bool:
        """Whether keys can be recorded with a group: one manifest can become a version."""
        return self._ledger.commits.objects.guarantees.atomic_create

    def of(self, table: ObjectId) -> TableKeys:
        """Return the keys of a table."""
        with self._lock:
            found = self._tables.get(table)
            if found is None:
                found = self._tables[table] = keys_of(self._ledger, self._places, table)
            self._tables.move_to_end(table)
            if len(self._tables) > _TABLES:
                self._tables.popitem(last=False)
            return found

    def followed(self, table: ObjectId, at: tuple[DatasetRoot, int, str], version: int, transaction: str) -> None:
        """Note that this process has made the version that follows ``at``.

        Args:
            table: the table.
            at: the version before: its table, number and transaction file.
            version: the new version.
            transaction: the name of its transaction file.
        """
        with self._lock:
            keys = self._tables.get(table)
        if keys is not None:
            keys.followed(at, version, transaction)

    def with_logs(self, keys: Sequence[SharedKey]) -> set[str]:
        """Return the names of the requests with a log.

        A log counts if it existed when this process first asked. Releases that recorded no keys wrote a log for each
        append, and for each upsert. Later logs are recorded with the keys.
        """
        logs, names = self._read_logs(), [key.request_name for key in keys]
        if not self._has_many_logs:
            return {name for name in names if name in logs}
        commits = self._ledger.commits

        def has_log(name: str) -> bool:
            return commits.retry.call(partial(commits.objects.head, f"{self._directory}{name}/{0:08}.json")) is not None

        found = all_alongside(has_log, names) if is_remote(commits.objects) else map(has_log, names)
        return {name for name, has in zip(names, found, strict=True) if has}

    def _read_logs(self) -> frozenset[str]:
        if self._logs is None:
            commits = self._ledger.commits

            def read() -> frozenset[str]:
                found: set[str] = set()
                for name in commits.objects.directories(self._directory):
                    if _LOG.fullmatch(name):
                        found.add(name)
                    if len(found) > MOST_LOGS:
                        self._has_many_logs = True
                        return frozenset()
                return frozenset(found)

            self._logs = commits.retry.call(read)
        return self._logs


@attrs.define
class _Known:
    """A group in memory, and its effect if that was found out."""

    group: Group
    effect: Effect | None = None


def _is_final(known: _Known) -> bool:
    return known.effect is not None or not known.group.version


@attrs.frozen
class Claim:
    """The record of a group that is about to commit.

    Attributes:
        keys: the keys of the table.
        group: the group.
        name: the name of the record.
    """

    keys: TableKeys
    group: Group
    name: str

    def committed(self, root: DatasetRoot) -> None:
        """Note that the group is committed."""
        self.keys.committed(self.name, root)

    def withdraw(self) -> None:
        """Remove the record: the group will never be committed as this version."""
        self.keys.withdraw(self.name)


class TableKeys:
    """The keys of one table; threads may share an instance."""

    def __init__(self, ledger: Ledger, directory: str) -> None:
        self._commits = ledger.commits
        self._directory = directory
        self._lock = Lock()
        self._groups: dict[str, _Known] = {}
        self._names: dict[bytes, set[str]] = {}
        self._segments: dict[str, Segment] = {}
        self._own: set[str] | None = None
        self._is_merging = False
        self._complete_at: tuple[str, int, str] | None = None
        """The version up to which every key is in memory: its table, number and transaction file."""

    # -- recording ----------------------------------------------------------------------------------------------

    def claim(self, group: Group) -> Claim:
        """Record the keys of a group, before its commit."""
        name = object_name(GROUPS, str(uuid4()))
        self._commits.retry.call(partial(self._commits.objects.put, self._directory + name, group.encode()))
        with self._lock:
            self._add(name, group)
            if self._own is not None:
                self._own.add(name)
        return Claim(self, group, name)

    def committed(self, name: str, root: DatasetRoot) -> None:
        """Note that a group of this process is committed."""
        with self._lock:
            known = self._groups.get(name)
            if known is not None:
                known.effect = Effect.COMMITTED
        self.merge_many(root)

    def merge_many(self, root: DatasetRoot | None = None) -> None:
        """Merge the records of groups in another thread if there are many.

        Args:
            root: the table, to find out the effects of groups that earlier processes have recorded.
        """
        with self._lock:
            own = sum(level_of(each) == GROUPS for each in self._own or ())
            if self._is_merging or own < MERGED_GROUPS:
                return
            self._is_merging = True
        try:
            in_background(partial(self._merge, root))
        except RuntimeError:  # the system starts no thread; a later group merges
            self._is_merging = False

    def withdraw(self, name: str) -> None:
        """Remove the record of a group that will never be committed."""
        with self._lock:
            self._drop(name)
        with suppress(LancekeepError):  # nothing depends on it
            self._commits.objects.delete(self._directory + name)

    # -- finding ------------------------------------------------------------------------------------------------

    def is_behind(self, root: DatasetRoot, version: int, transaction: str) -> bool:
        """Return whether keys up to a version may not be in memory.

        Args:
            root: the table.
            version: the version.
            transaction: the name of its transaction file, which no version of another table at this place has.
        """
        return self._complete_at != (root.base_uri, version, transaction)

    def followed(self, at: tuple[DatasetRoot, int, str], version: int, transaction: str) -> None:
        """Note that this process has made the version that follows ``at``."""
        if not self.is_behind(*at):
            self._complete_at = at[0].base_uri, version, transaction

    def follow(self, root: DatasetRoot, version: int, transaction: str) -> None:
        """Read every key of a version that exists, and of the versions before it."""
        self.refresh()
        self._complete_at = root.base_uri, version, transaction

    def refresh(self) -> None:
        """Read the records that are not in memory yet.

        Raises:
            Damaged: a record is not readable.
            Unsupported: a later release has written a record.
        """
        with self._lock:
            for _ in range(_LISTINGS):
                if self._refreshed():
                    return
        raise StoreUnavailable(f"{self._directory}: the records were merged again and again; repeat the request")

    def _refreshed(self) -> bool:
        """Read new records; return False if one of them was merged after the listing."""
        commits, length = self._commits, len(self._directory)

        def listed() -> list[str]:
            names = (info.key[length:] for info in commits.objects.list(self._directory))
            return [name for name in names if not name.startswith(".")]  # no release writes hidden files

        names = commits.retry.call(listed)
        if len(names) > _ONE_READ and not commits.objects.guarantees.paged:
            names = list(dict.fromkeys([*names, *commits.retry.call(listed)]))
        foreign = next((name for name in names if level_of(name) is None), None)
        if foreign is not None:
            raise Unsupported(
                f"{self._directory}{foreign} was written by a later release of Lancekeep; use that release for "
                "appends with idempotency keys"
            )
        new = [name for name in names if name not in self._groups and name not in self._segments]
        contents = all_alongside(self._get, new) if is_remote(commits.objects) else map(self._get, new)
        is_whole = True
        for name, content in zip(new, contents, strict=True):
            if content is None:
                is_whole = False
            elif level_of(name) == GROUPS:
                self._add(name, Group.decode(content, self._directory + name))
            else:
                self._segments[name] = Segment.decode(content, self._directory + name)
        if is_whole:
            for name in {*self._groups, *self._segments} - {*names}:  # merged by another process, or cleaned up
                self._drop(name)
            if self._own is None:  # records of processes that have ended are merged, too
                self._own = {*names}
        return is_whole

    def _get(self, name: str) -> bytes | None:
        try:
            return self._commits.retry.call(partial(self._commits.objects.get, self._directory + name))
        except ObjectNotFound:
            return None

    def find(
        self, key: SharedKey, root: DatasetRoot | None, latest: int, seen: dict[int, str | None] | None = None
    ) -> Recorded | None:
        """Return the record that decides about a key; None if no record concerns it.

        Args:
            key: the key.
            root: the table; None if it does not exist.
            latest: its latest version.
            seen: the transaction files of versions that earlier calls for this ``latest`` have read, by version. The
                keys of a group that lost its version share one record, and then one read.
        """
        seen = {} if seen is None else seen
        with self._lock:
            groups = [self._groups[name] for name in self._names.get(key.name, ())]
            segments = list(self._segments.values())
        found = [each for segment in segments for each in segment.find(key.name)]
        for known in groups:
            effect = self._effect(known, root, latest, seen)
            if effect is not None:
                group = known.group
                same = next(each for each in group.keys if each.name == key.name)
                found.append(Recorded(same, effect, group.version, group.transaction))
        return decisive(found)

    def _effect(
        self, known: _Known, root: DatasetRoot | None, latest: int, seen: dict[int, str | None]
    ) -> Effect | None:
        if known.effect is not None:
            return known.effect
        version = known.group.version
        if root is not None and 0 < version <= latest and version not in seen:
            seen[version] = self._transaction(root, version)
        effect = known.group.effect(latest, seen.get(version))
        if effect is Effect.COMMITTED:
            known.effect = effect
        return effect

    def _transaction(self, root: DatasetRoot, version: int) -> str | None:
        row = self._commits.get(root, version)
        if row is None:
            return None
        try:
            return transaction_name(message_at(self._commits.retry.call(partial(self._commits.objects.get, row.path))))
        except ObjectNotFound:
            return None

    # -- merging ------------------------------------------------------------------------------------------------

    def settle(self, root: DatasetRoot, latest: int) -> None:
        """Merge the records of groups up to a version.

        A clean-up calls it before it removes the versions that show the effects of these groups.
        Idempotent; other processes may merge the same records.

        Args:
            root: the table.
            latest: a version that exists.

        Raises:
            Damaged: a record is not readable.
            Unsupported: a later release has written a record.
        """
        self.refresh()
        self._settle(root, latest)
        with self._lock:
            names = self._of_level(GROUPS)
        if names:
            self._merge_level(GROUPS, names)
            self._merge_levels()

    def _merge(self, root: DatasetRoot | None) -> None:
        """Merge records of this process, so that a listing stays short. Idempotent."""
        try:
            with suppress(LancekeepError):  # the records stay, and a later group merges them
                complete_at = self._complete_at
                if root is not None and complete_at is not None and complete_at[0] == root.base_uri:
                    self._settle(root, complete_at[1])
                self._merge_levels()
        finally:
            self._is_merging = False

    def _merge_levels(self) -> None:
        for level in range(MOST_LEVEL):
            with self._lock:
                names = self._of_level(level)
            if to_merge(level, names):
                self._merge_level(level, names)

    def _of_level(self, level: int) -> Sequence[str]:
        """Return the records of a level that this process may merge. The caller has the lock."""
        own = sorted(name for name in self._own or () if level_of(name) == level)
        if level == GROUPS:
            return [name for name in own if name in self._groups and _is_final(self._groups[name])]
        return [name for name in own if name in self._segments]

    def _settle(self, root: DatasetRoot, latest: int) -> None:
        """Find out the effects of groups of earlier processes, up to a version."""
        with self._lock:
            groups = [(name, self._groups[name]) for name in self._own or () if name in self._groups]
        for name, known in groups:
            if _is_final(known) or known.group.version > latest:
                continue
            effect = self._effect(known, root, latest, {})
            if effect is None:
                self.withdraw(name)
            else:
                known.effect = effect

    def _merge_level(self, level: int, names: Sequence[str]) -> None:
        objects = self._commits.objects
        if level == GROUPS:
            known = [self._groups[name] for name in names]
            merged = Segment.of(each for one in known for each in one.group.recorded(one.effect or Effect.IN_LOG))
        else:
            merged = Segment.merged([self._segments[name] for name in names])
        name = object_name(level + 1, str(uuid4()))
        self._commits.retry.call(partial(objects.put, self._directory + name, merged.encode()))
        with self._lock:
            self._segments[name] = merged
            assert self._own is not None
            self._own.add(name)
            for each in names:
                self._drop(each)
        for each in names:
            self._commits.retry.call(partial(objects.delete, self._directory + each))

    # -- memory; the caller has the lock --------------------------------------------------------------------------

    def _add(self, name: str, group: Group) -> None:
        self._groups[name] = _Known(group)
        for key in group.keys:
            self._names.setdefault(key.name, set()).add(name)

    def _drop(self, name: str) -> None:
        self._segments.pop(name, None)
        known = self._groups.pop(name, None)
        if self._own is not None:
            self._own.discard(name)
        for key in () if known is None else known.group.keys:
            names = self._names.get(key.name, set())
            names.discard(name)
            if not names:
                self._names.pop(key.name, None)
