"""Let appends to one table that wait at the same time share one commit.

`lancekeep.domain.appends` decides which appends form a group and when the committer pauses. The committer of a table is
a task that runs while appends wait. For a group it writes one data file and one transaction file, builds the next
manifest from the previous one, and commits it. While the files are written, it checks that the catalog still has the
table and that the previous manifest is still the latest. An append that needs the table engine commits alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import attrs

from lancekeep.application.commits.keyed_requests import current_request, current_sharing, refuse_to_share
from lancekeep.application.commits.table_commits import READ_AHEAD
from lancekeep.application.concurrency import in_background, is_kept
from lancekeep.application.rows.append_lines import Line, Lines, Predecessor
from lancekeep.application.rows.committer import Committer
from lancekeep.application.rows.digests import Recorder
from lancekeep.application.rows.forwarding import Forwarding
from lancekeep.application.rows.predecessors import Predecessors
from lancekeep.application.rows.recorded_keys import Claim, RecordedKeys, TableKeys
from lancekeep.application.rows.row_rules import check_rows
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.application.rows.waiting_appends import Alone, Append, Dropped, announce, unknown_append
from lancekeep.application.rows.waiting_writers import WaitingWriters
from lancekeep.application.rows.waiting_writes import answer_all
from lancekeep.domain.appends import ATTEMPTS, LOOK_EVERY, MOST_BYTES, PATIENCE, group_of, turn
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.dataset_files import DATA, TRANSACTIONS, data_file_name
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    StoreUnavailable,
)
from lancekeep.domain.idempotency import Superseded, another_request
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.recorded_keys import Effect, Group, Recorded, SharedKey
from lancekeep.domain.table import is_reusable
from lancekeep.format.append import Appendable, NewFile, TransactionFile
from lancekeep.ports.committers import Received
from lancekeep.ports.data_files import Rows
from lancekeep.ports.table_engine import TableEngine

T = TypeVar("T")


@attrs.frozen
class _Files:
    """The files of a group, which no version names yet.

    Attributes:
        claim: the record of the keys of the group for the next version; None without keys.
    """

    root: DatasetRoot
    data: NewFile
    content: bytes = attrs.field(repr=False)
    transaction: TransactionFile
    claim: Claim | None = None

    @property
    def data_key(self) -> str:
        return f"{self.root.key}/{DATA}/{self.data.name}"

    @property
    def transaction_key(self) -> str:
        return f"{self.root.key}/{TRANSACTIONS}/{self.transaction.name}"


class Appends(Committer[Line, Append]):
    """Commits the appends of this process, together where they meet.

    Args:
        versions: The versions of the catalog's tables.
        engine: Its `data_files` encode rows.
        lines: The appends that wait.
        waiting: The writers of other processes that have lost a commit.
        keys: The keys of earlier appends.
        forwarding: Sends appends to other processes; None if this process commits its own.
        clock: Returns monotonic seconds.
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    kind = "appends"

    def __init__(
        self,
        versions: Versions,
        engine: TableEngine,
        lines: Lines,
        waiting: WaitingWriters,
        keys: RecordedKeys,
        forwarding: Forwarding | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(lines, clock)
        self._versions = versions
        self._engine = engine
        self._lines = lines
        self._waiting = waiting
        self._keys = keys
        self._now = now
        self._predecessors = Predecessors(versions)
        self._forwarding = forwarding

    def append(self, table: ObjectId, data: Any) -> Committed | Alone:
        """Append rows, together with the appends that wait.

        Args:
            table: The table.
            data: A ``pyarrow.RecordBatchReader``, a ``pyarrow.Table``, or `Rows`.

        Returns:
            The committed version; or `Alone`, and nothing of this append was committed.

        Raises:
            CommitUnknown: The outcome is unknown.
            CommitRefused: As `Versions.commit_version`.
            StoreUnavailable: A store did not answer; nothing was committed.
            Refused: As `Lines.require_whole`.
        """
        self._lines.require_whole()
        rows, data = self._engine.data_files.gather(data, MOST_BYTES)
        shared = current_sharing()
        is_alone = current_request() is not None  # its log claims a commit of its own
        if shared is not None and not self._versions.commits.objects.guarantees.atomic_create:
            is_alone = True  # nothing would exclude another manifest of the version
        if rows is None or is_alone:
            refuse_to_share()
            return Alone(data)
        append = self._committed(table, rows, None if shared is None else shared.key)
        if append.error is not None:
            raise copy(append.error) from append.error  # several threads raise it
        if append.committed is None:
            refuse_to_share()
            return Alone(data)
        return append.committed

    def _committed(self, table: ObjectId, rows: Rows, key: SharedKey | None) -> Append:
        """Let this process or another process commit an append; return it answered."""
        for may_move in (True, False):
            if self._forwarding is not None:
                sent = self._forwarding.forward(table, lambda: Append(rows, key=key))
                if sent is not None:
                    return sent
            append = Append(rows, key=key, may_move=may_move)
            self._enter(table, append, here=is_kept())
            append.wait()
            if not append.is_moved:
                break
        return append

    def take(self, received: Received) -> None:
        """Let an append of another process wait."""
        self._enter(
            received.table, Append(received.rows, key=received.key, asker=received.asker, number=received.number)
        )

    def are_recent(self, table: ObjectId) -> bool:
        """Return whether appends to a table commit now, or did a moment ago."""
        if self._forwarding is not None and self._forwarding.are_recent(table):
            return True
        line = self._lines.find(table)
        return line is not None and (line.is_served or line.pace.is_recent(self._clock()))

    # -- the line of a table ------------------------------------------------------------------------------------

    def _chosen(self, line: Line) -> Collection[int]:
        return group_of([append.waiting for append in line.waiting])

    def _answer(self, group: Sequence[Append], error: Exception | None = None) -> None:
        if error is not None:
            for append in group:
                append.error = error
        answer_all(group)

    def _may_commit_here(self, line: Line) -> bool:
        """Return whether an append that waits alone needs no pause before its commit; see `_pause`."""
        is_owed = line.is_owed or line.is_owed_elsewhere
        expected, _ = line.pace.linger()
        return not (is_owed or expected or line.pace.breath(self._clock(), line.others))

    def _pause(self, line: Line) -> None:
        breath = line.pace.breath(self._clock(), line.others)
        if breath:
            self._versions.commits.retry.sleep(breath)
            line.pace = attrs.evolve(line.pace, busy_since=self._clock())
        self._give_turn(line)
        self._linger(line)

    def _give_turn(self, line: Line) -> None:
        """Wait, but not for long, until another writer that has lost a commit has won a commit."""
        with self._lines.lock:
            is_here, owed = line.is_owed, turn(line.is_owed, line.is_owed_elsewhere)
            line.is_owed = line.is_owed_elsewhere = False
            line.won.clear()
        if owed is None or self._clock() < line.patient_from:
            return
        if not (line.won.wait(owed.longest) if is_here else self._has_next_version(line, owed.longest)):
            line.patient_from = self._clock() + owed.impatient
        line.pace = attrs.evolve(line.pace, busy_since=self._clock())

    def _has_next_version(self, line: Line, longest: float) -> bool:
        """Wait until another process has committed a version."""
        commits, ends = self._versions.commits, self._clock() + longest
        while line.base is not None and self._clock() < ends:
            commits.retry.sleep(LOOK_EVERY)
            with suppress(LancekeepError):
                row = commits.rows.latest(line.base.root.base_uri)
                if row is not None and row.version != line.base.version.version:
                    return True
        return False

    # -- one group ----------------------------------------------------------------------------------------------

    def _commit(self, line: Line, group: Sequence[Append]) -> None:
        """Commit a group and answer its appends.

        An error before the commit sends every append to the engine alone, which commits it or raises its own error. A
        refused commit goes to the callers: a rename may have moved the version, and a second commit would double its
        rows.
        """
        if self._forwarding is not None:
            self._forwarding.move(line.table, group)
            group = [append for append in group if not append.is_dropped]
            if not group:
                return
        began, base, met = self._clock(), None, False
        has_loser_elsewhere = self._begin_to_ask(line)
        try:
            base, met = self._publish(line, group)
        except (CommitUnknown, CommitRefused) as error:  # of the appends whose rows are in the file
            for append in group:
                if append.is_written and append.committed is None:
                    append.error = append.error or error
        except StoreUnavailable as error:
            for append in group:
                if append.committed is None:
                    append.error = append.error or error
        except LancekeepError:
            pass  # its appends commit alone
        except BaseException as error:  # a fault of this process: whether it came before the commit is not known
            for append in group:
                if append.committed is None:
                    append.error = append.error or error
        line.base = base
        self._lines.hand_over(line)
        line.is_owed_elsewhere = has_loser_elsewhere()
        met = met or (line.is_owed_elsewhere and self._waiting.needs_pauses(line.mark or b""))
        line.pace = line.pace.committed(len(group), began, self._clock(), left=len(line.waiting), met=met)
        if base is not None:
            self._predecessors.hint(base)

    def _begin_to_ask(self, line: Line) -> Callable[[], bool]:
        """Start to check whether a writer of another process has lost a commit since the last check."""
        if not line.pace.is_busy(self._clock()):
            return lambda: False
        last = self._predecessors.begin(lambda: self._waiting.last(line.table))

        def has_changed() -> bool:
            before, line.mark = line.mark, last()
            return before not in (None, line.mark) and not self._waiting.is_own(line.mark)

        return has_changed

    def _publish(self, line: Line, group: Sequence[Append]) -> tuple[Predecessor | None, bool]:
        """Commit a group.

        Returns:
            Its version, or None if every append has to commit alone; and whether it met a commit of another writer
            that needs pauses.
        """
        base, met, since = line.base, False, self._versions.recent()
        keys = self._keys.of(line.table) if any(append.key is not None for append in group) else None
        is_current = None if base is None else self._predecessors.begin_checks(line.table, base)
        if base is None:
            base = self._predecessors.load(line.table)
        if keys is not None:
            group = self._unrecorded(keys, self._without_logs(group), base)
        written_for = base
        appends, files = self._write(base, group, keys)
        try:
            handed = self._lines.take_handed(line)
            newer = None if handed is None else self._predecessors.committed_by(handed, base)
            if is_current is not None and not is_current((newer or base).version.version):
                base = self._predecessors.load(line.table)
                met = not base.version.rebased
            elif newer is not None:
                base = newer
            for attempt in range(ATTEMPTS):
                left: Sequence[Append] = [append for append in group if not append.is_dropped]
                if keys is not None and keys.is_behind(*_place(base)):
                    left = self._unrecorded(keys, left, base)
                if len(left) < len(group) or not self._may_follow(files, base, written_for):
                    self._discard(files)
                    group, written_for = left, base
                    appends, files = self._write(base, group, keys)
                if files is None:
                    return (None if group else base), met
                files = self._rebased(files, base, keys)
                if keys is not None and not self._versions.managed:
                    # Nothing excludes a version that the engine commits for an attempt with a log: of two attempts
                    # that record their keys first, one reads the record of the other.
                    left = self._unrecorded(keys, group, base, afresh=True)
                    if len(left) < len(group):
                        self._discard(files)
                        group, written_for = left, base
                        appends, files = self._write(base, group, keys)
                        continue
                hashed = self._versions.recorder.wants(base.table)
                following, built = base.version.followed_by(
                    files.data, files.transaction, self._now(), str(line.table), hashed=hashed
                )
                try:
                    outcome, found = self._versions.commit_built(
                        base.table, built, since, noted=False, announce=partial(announce, appends)
                    )
                except Dropped:
                    continue  # without the dropped appends
                if not isinstance(outcome, Conflict):
                    committed = raise_unless_committed(outcome, str(line.table))
                    if files.claim is not None:
                        files.claim.committed(base.root)
                    self._keys.followed(line.table, _place(base), following.version, following.transaction)
                    for append in appends:
                        append.committed = attrs.evolve(
                            committed, transaction=following.transaction, rows=append.rows.count
                        )
                    self._versions.committed.add(line.table)
                    self._lines.note_version(line, base.root, built)
                    if hashed:
                        _note(self._versions.recorder, files, following, committed, built.content)
                    return attrs.evolve(base, version=following), met
                if self._forwarding is not None:
                    self._forwarding.note_lost(line.table)
                    self._forwarding.move(line.table, group)
                if (attempt + 1) % PATIENCE == 0:
                    self._waiting.add(line.table, for_one_turn=True)
                base = self._after(base, found, attempt)
                met = met or not base.version.rebased
            raise ConcurrentModification(f"{line.table}: other writers committed {ATTEMPTS} versions in between")
        except (CommitUnknown, CommitRefused, StoreUnavailable):
            raise  # a version may name the file: a rename may have moved it
        except LancekeepError:
            self._discard(files)
            raise

    # -- keys ---------------------------------------------------------------------------------------------------

    def _without_logs(self, group: Sequence[Append]) -> Sequence[Append]:
        """Return the appends of a group whose requests have no log of an earlier release."""
        logged = self._keys.with_logs([append.key for append in group if append.key is not None])
        return [append for append in group if append.key is None or append.key.request_name not in logged]

    def _unrecorded(
        self, keys: TableKeys, group: Sequence[Append], base: Predecessor, *, afresh: bool = False
    ) -> Sequence[Append]:
        """Return the appends of a group that may follow a version.

        Appends whose keys decide otherwise are answered, or have to commit by logs of their own.

        Args:
            keys: The keys of the table.
            group: The appends.
            base: The version.
            afresh: Also read the keys that were recorded after the version.
        """
        if afresh or keys.is_behind(*_place(base)):
            keys.follow(*_place(base))
        left, names, seen = list[Append](), set[bytes](), dict[int, str | None]()
        for append in group:
            if append.key is None:
                left.append(append)
                continue
            was_written, append.is_written = append.is_written, False
            record = keys.find(append.key, base.root, base.version.version, seen)
            if record is not None and record.effect is not Effect.PENDING:
                self._answer_by(record, append, base)
            elif append.key.name in names:
                append.error = Superseded("another attempt of the request is in progress; repeat it with its key")
            else:
                names.add(append.key.name)
                left.append(append)
                append.is_written = was_written
        return left

    def _answer_by(self, record: Recorded, append: Append, base: Predecessor) -> None:
        """Answer an append whose key is recorded, unless it has a log."""
        if record.effect is Effect.UNKNOWN:
            append.error = unknown_append()
        elif record.effect is Effect.COMMITTED and record.key != append.key:
            append.error = another_request()
        elif record.effect is Effect.COMMITTED:
            path = base.root.manifest_key(record.version, NamingScheme.V2)
            append.committed = Committed(record.version, path, 0, record.transaction, append.rows.count)

    # -- files --------------------------------------------------------------------------------------------------

    def _write(
        self, base: Predecessor, group: Sequence[Append], keys: TableKeys | None
    ) -> tuple[Sequence[Append], _Files | None]:
        """Write the conforming rows as one data file, its transaction and its keys; other appends commit alone."""
        engine, rules = self._engine.data_files, base.table.rules
        for append in group:
            try:
                check_rows(append.rows.table, rules)
            except InvalidInput as error:
                append.error = error
        conforming = [
            (append, engine.conforming(append.rows, base.version)) for append in group if append.error is None
        ]
        appends = [append for append, rows in conforming if rows is not None]
        for append, rows in conforming:
            append.is_written = rows is not None  # of the group's other appends, nothing will be committed
        if not appends:
            return appends, None
        encoded = engine.encode([rows for _, rows in conforming if rows is not None], base.version)
        data = NewFile(data_file_name(uuid4().bytes), len(encoded.content), encoded.rows, encoded.layout)
        files = _Files(base.root, data, encoded.content, base.version.adding(data, str(uuid4())))
        self._versions.commits.prove()
        put = self._predecessors.put
        recorded = self._predecessors.begin(partial(put, files.transaction_key, files.transaction.content), syncs=True)
        named = tuple(append.key for append in appends if append.key is not None)
        if keys is not None and named:
            group_keys = Group(named, base.version.version + 1, files.transaction.name)
            claimed = self._predecessors.begin(partial(keys.claim, group_keys), syncs=True)
            put(files.data_key, files.content)
            files = attrs.evolve(files, claim=claimed())
        else:
            put(files.data_key, files.content)
        recorded()
        return appends, files

    def _may_follow(self, files: _Files | None, base: Predecessor, written_for: Predecessor) -> bool:
        """Return whether files that were written to follow a version can follow another version."""
        if not base.has_layout_of(written_for):  # also rules, which change without a version
            return False
        if files is None or base.version.transaction == written_for.version.transaction:
            return True
        # The table may have been dropped, with the files, and created again in the directory.
        return not is_reusable(base.table.location) or self._predecessors.has(files.data_key)

    def _rebased(self, files: _Files, base: Predecessor, keys: TableKeys | None) -> _Files:
        """Return the files with a transaction that read ``base``, or an earlier version if nothing compares the two.

        The keys are recorded again if they are recorded for another version.
        """
        read, version = files.transaction.read_version, base.version.version
        rebased = files
        if read != version and not (read < version and self._versions.commits.rows.guarantees.derived):
            rebased = attrs.evolve(files, transaction=base.version.adding(files.data, str(uuid4())))
            self._predecessors.put(rebased.transaction_key, rebased.transaction.content)
            in_background(partial(self._predecessors.delete, files.transaction_key))
        claim = files.claim
        if keys is None or claim is None:
            return rebased
        group = attrs.evolve(claim.group, version=version + 1, transaction=rebased.transaction.name)
        if group == claim.group:
            return rebased
        again = keys.claim(group)
        in_background(claim.withdraw)
        return attrs.evolve(rebased, claim=again)

    def _discard(self, files: _Files | None) -> None:
        """Remove files that no version names."""
        if files is not None:
            self._predecessors.delete(files.data_key)
            self._predecessors.delete(files.transaction_key)
            if files.claim is not None:
                files.claim.withdraw()

    # -- the version to follow ----------------------------------------------------------------------------------

    def _after(self, base: Predecessor, found: Sequence[bytes], attempt: int) -> Predecessor:
        """Return the latest version after a conflict."""
        retry = self._versions.commits.retry
        if attempt:
            retry.sleep(min(retry.cap, retry.first * 2**attempt) * retry.jitter())
        if 0 < len(found) < READ_AHEAD:
            return attrs.evolve(base, version=Appendable.parse(found[-1], base.root.versions_key))
        return self._predecessors.load(base.table.id)


def _place(base: Predecessor) -> tuple[DatasetRoot, int, str]:
    return base.root, base.version.version, base.version.transaction


def _note(recorder: Recorder, files: _Files, version: Appendable, committed: Committed, manifest: bytes) -> None:
    """Note a committed group, whose files this process has written."""
    root, transaction = files.root, files.transaction
    contents = [
        (f"{DATA}/{files.data.name}", files.content),
        (f"{TRANSACTIONS}/{transaction.name}", transaction.content),
    ]
    path = committed.path[len(root.key) + 1 :]
    recorder.note_append(root, committed.version, contents, (path, version.digest(manifest)))
