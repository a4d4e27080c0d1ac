"""Commit groups of upserts without the table engine.

The engine looks keys up, reads the rows that they replace, and stages a version that is then committed: thirty requests
in sequence on an object store. The process that commits group after group to a table holds the keys of the table in
memory instead, with the addresses of their rows. A group then writes its data file, the deletion files of the fragments
whose rows it replaces, and its transaction at the same time, and the manifest after them.

What only the engine can do, it does: `DirectUpserts.commit` returns None, and nothing was committed.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import attrs
import numpy as np
from pyroaring import BitMap

from lancekeep.application.commits.rebase import CommittedVersions
from lancekeep.application.rows.append_lines import Predecessor
from lancekeep.application.rows.known_keys import MOST_BYTES, MOST_BYTES_TOGETHER, MOST_KEYS, Addresses, KnownKeys
from lancekeep.application.rows.predecessors import Predecessors
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.application.rows.write_checks import BuiltVersion, CommitAttempt
from lancekeep.application.rows.writes import Writes
from lancekeep.domain.appends import REBASED
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.commit import Changed, Committed, Conflict
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.dataset_files import DATA, DELETIONS, TRANSACTIONS, data_file_name, deletion_file_name
from lancekeep.domain.errors import ConcurrentModification, LancekeepError, Unsupported, VersionTaken
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest import DeletionFile, DeletionFileType, Fragment, SchemaField
from lancekeep.domain.operations import Transaction, Update
from lancekeep.domain.row_rules import Rules
from lancekeep.format import deletions
from lancekeep.format.append import Appendable, NewFile, fragment_of
from lancekeep.format.data_footer import TooShort
from lancekeep.format.file_facts import data_file_facts
from lancekeep.format.judge import Approved
from lancekeep.format.manifest import transaction_in
from lancekeep.format.next_version import next_version
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts, MergeRule
from lancekeep.ports.table_engine import TableEngine

Claim = Callable[[BuiltVersion, Sequence[MergeCounts]], object]
"""Receives a version that is about to be committed, and what each upsert inserts and updates."""

_STABLE_ROW_IDS = 2
_READS = 2
"""How often a group reads a version that another writer has committed."""
_MOST_LOSSES = 3
"""The attempts in a row that lose to other writers, after which groups are merged by the engine, and rebased."""
_OFTEN, _WITHIN = 32, 30.0
"""The upserts, and the seconds in which they come, that make reading all keys worth it."""
_UNREADABLE, _CROWDED = 60.0, 10.0
"""Seconds without another attempt, if the keys cannot be held, or other writers are faster."""
_REMEMBERED = 256
"""The number of tables whose groups are counted, and whose keys are held."""


@attrs.define(eq=False)
class _Known:
    """What is known of one table.

    Attributes:
        field: the key column.
        base: the version that the next group follows.
        version: the same version.
        keys: the rows of that version.
        deleted: the deleted rows of its fragments, as far as they were read.
        is_stale: whether another writer has committed a later version.
        losses: how often in a row groups have lost to other writers.
    """

    field: SchemaField
    base: Predecessor
    version: TableVersion
    keys: KnownKeys
    deleted: dict[int, BitMap] = attrs.field(factory=dict)
    is_stale: bool = False
    losses: int = 0

    @property
    def at(self) -> tuple[DatasetRoot, int, str]:
        """The table, number and transaction file of that version."""
        return self.base.root, self.base.version.version, self.base.version.transaction

    def lose(self) -> None:
        """Note that another writer was faster."""
        self.is_stale, self.losses = True, self.losses + 1

    def follow(self, built: _Built) -> None:
        """Note that a group is committed."""
        content, name = built.version.content, str(self.base.table.id)
        self.version = TableVersion.parse(content, name)
        self.base = attrs.evolve(self.base, version=Appendable.parse(content, name))
        fragments = self.version.manifest.fragments
        [new] = [each.id for each in fragments if [file.path for file in each.files] == [built.file]]
        self.keys.move(built.values, new, built.found)
        present = {each.id for each in fragments}
        self.deleted = {number: rows for number, rows in {**self.deleted, **built.deleted}.items() if number in present}
        self.is_stale, self.losses = False, 0


@attrs.frozen
class _Built:
    """A version that is built.

    Attributes:
        version: the version.
        files: the files that it adds, by their keys.
        file: the name of its data file.
        values: the values of the key column in that file.
        found: the rows that these rows replace, as of `KnownKeys.find`.
        deleted: the deleted rows of the fragments that had these rows.
        counts: what each upsert inserts and updates.
        since: the entries before the version that it follows was read, or found to be the latest.
    """

    version: Approved
    files: Mapping[str, bytes]
    file: str
    values: Sequence[Any]
    found: Mapping[Any, Sequence[int]]
    deleted: Mapping[int, BitMap]
    counts: Sequence[MergeCounts]
    since: CatalogView

    @property
    def transaction(self) -> str:
        """The id of its transaction."""
        return self.version.transaction.partition("-")[2].removesuffix(".txn")


class DirectUpserts:
    """Commits groups of upserts of this process without the engine.

    Each table is changed by one thread at a time: a group takes what is known of its table, and returns it.

    Args:
        writes: Commits versions that this process builds.
        versions: The versions of the catalog's tables.
        engine: Encodes rows, and reads the keys of tables.
        clock: Returns monotonic seconds.
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    def __init__(
        self,
        writes: Writes,
        versions: Versions,
        engine: TableEngine,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._writes = writes
        self._versions = versions
        self._engine = engine
        self._clock = clock
        self._now = now
        self._predecessors = Predecessors(versions)
        self._known: OrderedDict[ObjectId, _Known] = OrderedDict()
        self._asked: dict[ObjectId, tuple[float, int]] = {}

    def commit(
        self,
        table: ObjectId,
        rule: MergeRule,
        group: Sequence[Rows],
        *,
        waiting: int,
        claim: Claim,
        checks: Callable[[Rules], object],
        announce: Callable[[CommitAttempt], object],
    ) -> Changed | None:
        """Commit a group, if the engine is not needed.

        Args:
            table: The table.
            rule: The key columns, and whether indexes are used.
            group: The rows of each upsert. No two rows of the group have a common key.
            waiting: The number of upserts that wait for the next group.
            claim: Records the keys of the group's requests, while files are written.
            checks: Checks the rows, if the table has rules.
            announce: Is called before the commit. Its errors are raised.

        Returns:
            The change; None if the engine has to commit the group. Nothing of it was committed then.

        Raises:
            ConcurrentModification: Another writer was faster. Nothing was committed.
            CommitUnknown, CommitRefused, StoreUnavailable: As `Versions.commit_built`.
        """
        if len(rule.on) != 1 or not self._is_worth_it(table, len(group), waiting):
            return None
        known = self._known.pop(table, None)
        try:
            if known is None or known.field.name != rule.on[0]:
                known = self._read(table, rule.on[0])
            elif known.is_stale:
                self._read_again(table, known)
        except LancekeepError:
            self._refuse(table, _UNREADABLE)
            return None
        try:
            built = self._prepare(table, known, group, claim, checks)
        except LancekeepError:  # the engine commits the group, or raises the error of the right upsert
            known.is_stale, built = True, None
        if built is None:
            if known.losses >= _MOST_LOSSES:
                self._refuse(table, _CROWDED)
                known.losses = 0
            self._keep(table, known)
            return None
        committed = self._published(table, known, built, announce)
        with suppress(Exception):  # a fault after the commit: the keys are read again
            known.follow(built)
            self._keep(table, known)
            self._predecessors.hint(known.base)
        return Changed(committed.version, built.transaction)

    def has_become_worth_it(self, table: ObjectId, rule: MergeRule, waiting: int) -> bool:
        """Return whether `commit` may take a group now that it has left to the engine.

        Upserts came too seldom, and more wait now.

        Args:
            table: The table.
            rule: As for `commit`.
            waiting: The number of upserts that have arrived since.
        """
        return len(rule.on) == 1 and table not in self._known and self._is_worth_it(table, 0, waiting)

    def _is_worth_it(self, table: ObjectId, upserts: int, waiting: int) -> bool:
        """Count upserts; return whether so many come that reading all keys is worth it."""
        now = self._clock()
        began, count = self._asked.get(table, (now, 0))
        if now < began:
            return False
        if table in self._known:
            return True
        if now - began > _WITHIN:
            began, count = now, 0
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked[table] = began, count + upserts
        return count + upserts + waiting >= _OFTEN

    def _refuse(self, table: ObjectId, seconds: float) -> None:
        """Leave the groups of a table to the engine for some time."""
        self._asked[table] = self._clock() + seconds, _OFTEN

    def _keep(self, table: ObjectId, known: _Known) -> None:
        if known.keys.are_too_many:
            self._refuse(table, _UNREADABLE)
            return
        self._known[table] = known
        with suppress(KeyError, RuntimeError):  # another thread does the same
            while (
                len(self._known) > _REMEMBERED
                or sum(each.keys.size for each in self._known.values()) > MOST_BYTES_TOGETHER
            ):
                self._known.popitem(last=False)

    # -- one group ----------------------------------------------------------------------------------------------

    def _prepare(
        self, table: ObjectId, known: _Known, group: Sequence[Rows], claim: Claim, checks: Callable[[Rules], object]
    ) -> _Built | None:
        """Build the next version, and write its files; None if the engine has to commit the group."""
        for _ in range(_READS):
            is_latest, since = known.is_stale, self._versions.recent()
            if known.is_stale:
                self._read_again(table, known)
            is_current = self._predecessors.begin_checks(table, known.base)
            if known.base.table.rules:
                checks(known.base.table.rules)
            built = self._build(known, group, since)
            may_commit = False
            try:
                if built is not None:
                    self._write(known, built, claim)
                may_commit = is_current(known.base.version.version)
            finally:
                if built is not None and not may_commit:
                    self._discard(built)
            if may_commit and (built is not None or is_latest):
                return built
            if may_commit:  # a version that was not read yet may have the columns of the rows, or one row for each key
                known.is_stale = True
            else:
                known.lose()
        return None

    def _build(self, known: _Known, group: Sequence[Rows], since: CatalogView) -> _Built | None:
        """Return the next version; None if a key has two rows, or the engine has to write the rows."""
        base, files = known.base, self._engine.data_files
        rows = [each for each in (files.conforming(each, base.version) for each in group) if each is not None]
        if len(rows) < len(group):
            return None
        values = [each.table.column(known.field.name).to_pylist() for each in rows]
        together = [value for each in values for value in each]
        found = known.keys.find(together)
        if any(len(addresses) > 1 for addresses in found.values()):
            return None
        counts = [_counts(each, found) for each in values]
        encoded = files.encode(rows, base.version)
        data = NewFile(data_file_name(uuid4().bytes), len(encoded.content), encoded.rows, encoded.layout)
        new = fragment_of(data)
        deleted = self._deleted(known, found)
        removed, updated, added = list[int](), list[Fragment](), dict[str, bytes]()
        for fragment in known.version.manifest.fragments:
            if fragment.id not in deleted:
                continue
            if len(deleted[fragment.id]) == fragment.physical_rows:
                removed.append(fragment.id)
                continue
            name, file, content = _deletion_file(fragment.id, base.version.version, deleted[fragment.id])
            added[f"{base.root.key}/{DELETIONS}/{name}"] = content
            updated.append(attrs.evolve(fragment, deletion_file=file))
        fields = tuple(field.id for field in known.version.manifest.fields)
        update = Update(tuple(removed), tuple(updated), (new,), fields_for_preserving_frag_bitmap=fields)
        transaction = Transaction(
            base.version.version, str(uuid4()), transaction_properties=dict([REBASED]), operation=update
        )
        path = f"{DATA}/{data.name}"
        facts = data_file_facts(encoded.content, data.size, path)
        version = next_version(
            known.version,
            transaction,
            self._now(),
            str(base.table.id),
            facts={} if isinstance(facts, TooShort) else {path: facts},
        )
        version = self._versions.commits.settled_indexes.approved(base.root, known.version, version)
        added[f"{base.root.key}/{path}"] = encoded.content
        added[f"{base.root.key}/{TRANSACTIONS}/{version.transaction}"] = transaction_in(version.content)
        return _Built(version, added, data.name, together, found, deleted, counts, since)

    def _deleted(self, known: _Known, found: Mapping[Any, Sequence[int]]) -> dict[int, BitMap]:
        """Return the deleted rows of each fragment whose rows are replaced, with these rows."""
        replaced = defaultdict[int, BitMap](BitMap)
        for [address] in found.values():
            replaced[address >> 32].add(address & 0xFFFFFFFF)
        versions = CommittedVersions(self._versions.commits, known.base.root)
        unread = {
            fragment.id: self._predecessors.begin(partial(versions.deleted, fragment))
            for fragment in known.version.manifest.fragments
            if fragment.id in replaced and fragment.id not in known.deleted
        }
        known.deleted.update((number, rows()) for number, rows in unread.items())
        return {number: known.deleted[number] | rows for number, rows in replaced.items()}

    def _write(self, known: _Known, built: _Built, claim: Claim) -> None:
        """Write the files of a version, and record the keys of its requests."""
        self._versions.commits.prove()
        put, begin = self._predecessors.put, self._predecessors.begin
        files = [begin(partial(put, *file), syncs=True) for file in built.files.items()]
        claim(BuiltVersion(known.at, built.version.number, built.version.transaction), built.counts)
        for written in files:
            written()

    def _discard(self, built: _Built) -> None:
        for key in built.files:
            self._predecessors.delete(key)

    def _published(
        self, table: ObjectId, known: _Known, built: _Built, announce: Callable[[CommitAttempt], object]
    ) -> Committed:
        """Commit a version whose files are written."""
        has_begun, base = False, known.base

        def announced(token: Callable[[], CommitToken]) -> None:
            nonlocal has_begun
            announce(CommitAttempt(known.at, built.version.number, built.version.transaction, token))
            has_begun = True

        def commit() -> Committed:
            outcome, _ = self._versions.commit_built(base.table, built.version, built.since, announce=announced)
            if isinstance(outcome, Conflict):
                raise ConcurrentModification(f"{table}: another writer has committed version {built.version.number}")
            return raise_unless_committed(outcome, str(table))

        try:
            return self._writes.commit_built(table, commit)
        except (ConcurrentModification, VersionTaken):
            known.lose()
            if known.losses >= _MOST_LOSSES:
                self._refuse(table, _CROWDED)
            self._keep(table, known)
            self._discard(built)
            raise
        except BaseException:
            if not has_begun:
                self._keep(table, known)
                self._discard(built)
            raise

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, table: ObjectId, column: str) -> _Known:
        """Read the latest version and all its keys.

        Raises:
            Unsupported: Only the engine can follow the version, or its keys are too many.
        """
        base, version, field = self._latest(table, column)
        kind, rows = self._keys(table, column, base, {fragment.id for fragment in version.manifest.fragments})
        keys = KnownKeys(kind)
        keys.replace((), rows)
        return _Known(field, base, version, keys)

    def _read_again(self, table: ObjectId, known: _Known) -> None:
        """Read the latest version, and the keys of fragments that others have changed.

        Raises:
            Unsupported: As `_read`; also if another column has its name now.
        """
        base, version, field = self._latest(table, known.field.name)
        if field != known.field or base.root != known.base.root:
            raise Unsupported(f"{table}: another column has the name {field.name} now")
        before = {fragment.id: fragment for fragment in known.version.manifest.fragments}
        after = {fragment.id: fragment for fragment in version.manifest.fragments}
        changed = {number for number, fragment in after.items() if before.get(number) != fragment}
        _, rows = self._keys(table, field.name, base, changed) if changed else (None, ())
        gone = before.keys() - after.keys() | (before.keys() & changed)
        known.keys.replace(gone, rows)
        known.base, known.version, known.is_stale = base, version, False
        known.deleted = {number: rows for number, rows in known.deleted.items() if number not in gone}

    def _latest(self, table: ObjectId, column: str) -> tuple[Predecessor, TableVersion, SchemaField]:
        """Return the latest version, and the field of its key column."""
        base, content = self._predecessors.read(table)
        version = TableVersion.parse(content, str(table))
        _require_plain(table, version)
        return base, version, _field(table, version, column)

    def _keys(
        self, table: ObjectId, column: str, base: Predecessor, fragments: Collection[int]
    ) -> tuple[Any, Sequence[tuple[Any, Addresses]]]:
        """Return the type of the key column, and its values in some fragments with the addresses of their rows."""

        def read(dataset: Any) -> tuple[Any, Sequence[tuple[Any, Addresses]]]:
            if f"-{self._engine.rows.transaction(dataset)}.txn" not in base.version.transaction:
                raise ConcurrentModification(f"{table}: another table is at this place now")
            reader = self._engine.rows.located(dataset, column, sorted(fragments))
            found, size = list[tuple[Any, Addresses]](), 0
            for batch in reader:
                values, addresses = batch.columns
                found.append((values, addresses.to_numpy()))
                size += batch.nbytes
                if size > MOST_BYTES:
                    raise Unsupported(f"{table}: its keys have more than {MOST_BYTES} bytes")
            return reader.schema.field(column).type, found

        return self._writes.examine(table, read, base.version.version, None)


def _require_plain(table: ObjectId, version: TableVersion) -> None:
    """Raise `Unsupported` if only the engine can replace rows of a version; see also `Appendable.parse`."""
    manifest, fragments = version.manifest, version.manifest.fragments
    if manifest.reader_feature_flags & _STABLE_ROW_IDS:
        raise Unsupported(f"{table}: its rows have stable ids")
    if any(field.metadata or field.unenforced_primary_key for field in manifest.fields):
        raise Unsupported(f"{table}: its columns have metadata, or are a primary key")
    if any(fragment.overlays or not fragment.physical_rows for fragment in fragments):
        raise Unsupported(f"{table}: its fragments have overlays, or do not state their rows")
    if sum(fragment.live_rows for fragment in fragments) > MOST_KEYS:
        raise Unsupported(f"{table}: it has more than {MOST_KEYS} rows")


def _field(table: ObjectId, version: TableVersion, column: str) -> SchemaField:
    """Return the field of a key column; a column that was renamed since is another field."""
    found = [field for field in version.manifest.fields if field.name == column and field.parent_id == -1]
    if len(found) != 1 or "." in column:
        raise Unsupported(f"{table}: {column} names a field of a column")
    return found[0]


def _counts(values: Sequence[Any], found: Mapping[Any, Sequence[int]]) -> MergeCounts:
    updated = sum(value in found for value in values)
    return MergeCounts(len(values) - updated, updated, 0)


def _deletion_file(fragment: int, version: int, rows: BitMap) -> tuple[str, DeletionFile, bytes]:
    """Return the name of a deletion file, its entry in the manifest, and its content."""
    kind = deletions.kind_for(len(rows))
    file = DeletionFile(kind, read_version=version, id=secrets.randbits(64), num_deleted_rows=len(rows))
    name = deletion_file_name(fragment, version, file.id, bitmap=kind is DeletionFileType.BITMAP)
    return name, file, deletions.write(np.array(rows.to_array(), np.uint32), kind)
