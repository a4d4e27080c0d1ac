"""Let upserts of one table that wait at the same time share one version.

In the workers of a server they wait for one committer, in the process that commits for the table.

`lancekeep.domain.upserts` decides which upserts form a group: no two of them have a common key. The committer of a
table is a task that runs while upserts wait. The engine merges the rows of a group as it merges one caller's rows, and
the commit is the commit of one merge. If only some of the keys had rows, the committer looks the keys up in the version
that the merge has read, to count for each caller what was inserted and updated. An upsert whose share it cannot tell
commits alone. So does an upsert that has waited too long, in the thread of its caller, if its group has not begun to
commit: the group then leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

import attrs

from lancekeep.application.commits.keyed_requests import current_request, current_sharing
from lancekeep.application.retry import Retry
from lancekeep.application.rows.changes import change_table
from lancekeep.application.rows.committer import Committer
from lancekeep.application.rows.direct_upserts import DirectUpserts
from lancekeep.application.rows.forwarding import Forwarding
from lancekeep.application.rows.group_keys import GroupKeys
from lancekeep.application.rows.recorded_keys import RecordedKeys
from lancekeep.application.rows.row_rules import check_rows
from lancekeep.application.rows.services import WriteService
from lancekeep.application.rows.waiting_upserts import Upsert, UpsertLine, UpsertLines, announce, rows_of
from lancekeep.application.rows.waiting_writes import answer_all
from lancekeep.application.rows.write_checks import BuiltVersion, CommitAttempt
from lancekeep.domain.commit import Changed
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import (
    ConcurrentModification,
    EngineFailed,
    InvalidInput,
    LancekeepError,
    StoreUnavailable,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.row_rules import Rules
from lancekeep.domain.upserts import MOST_BYTES, MOST_ROWS, Key, upserts_of_group
from lancekeep.ports.committers import Declined, Received
from lancekeep.ports.rows import MergeCounts, MergeRule, Source
from lancekeep.ports.table_engine import TableEngine

LOST = (ConcurrentModification, VersionTaken)
"""The errors of a commit that another writer has certainly overtaken."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
"""Seconds. A process has one committer for a table, so few compete, and one that waits long would never win."""


class Upserts(Committer[UpsertLine, Upsert]):
    """Commits the upserts of this process, together where they meet.

    Args:
        writes: Commits the changes of the engine.
        engine: The table engine.
        keys: The keys of earlier upserts; None if no request has keys here.
        forwarding: Sends upserts to other processes of this host; None if this process commits its own.
        direct: Commits groups without the engine; None if the engine commits all.
        clock: Returns monotonic seconds.
        sleep: Waits for a number of seconds.
    """

    kind = "upserts"

    def __init__(
        self,
        writes: WriteService,
        engine: TableEngine,
        keys: RecordedKeys | None = None,
        forwarding: Forwarding | None = None,
        direct: DirectUpserts | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(UpsertLines(clock), clock)
        self._writes = writes
        self._engine = engine
        self._keys = keys
        self._forwarding = forwarding
        self._direct = direct
        self._sleep = sleep

    def gather(self, data: Any, rule: MergeRule, patience: float) -> tuple[Upsert | None, Any]:
        """Read a stream if it may be an upsert that shares a commit.

        Args:
            data: A ``pyarrow.RecordBatchReader``, which is consumed; a ``pyarrow.Table``, or `Rows`.
            rule: The rule of the merge.
            patience: The seconds after which no further attempt begins.

        Returns:
            The upsert, or None if it has to commit alone; and all its rows.
        """
        is_plain = rule.update and rule.insert and not rule.delete and rule.update_if is None
        if not is_plain or current_request() is not None:  # the log of a request claims a commit of its own
            return None, data
        shared = current_sharing()
        if shared is not None and (self._keys is None or not self._keys.is_possible):
            return None, data
        rows, data = self._engine.data_files.gather(data, MOST_BYTES)
        if rows is None or rows.count > MOST_ROWS:
            return None, data
        keys = self._engine.rows.keys(rows.table, rule.on)
        now = self._clock()
        if keys is None:
            return None, data
        key = None if shared is None else shared.key
        return Upsert(rows, rule, keys, now + patience, now, key=key), data

    def commit(self, table: ObjectId, upsert: Upsert) -> tuple[Changed, MergeCounts] | None:
        """Commit an upsert together with the upserts that wait.

        Returns:
            The change, and the rows that the upsert inserted and updated; None if it has to commit alone. Nothing of it
            was committed then.

        Raises:
            ConcurrentModification: Other writers won every attempt; nothing was committed.
            CommitUnknown: The outcome is unknown.
            CommitRefused: As `Versions.commit_version`.
            StoreUnavailable: A store did not answer; nothing was committed.
            InvalidInput: A row violates a rule of the table; nothing was committed.
        """
        for may_move in (True, False):
            done = self._forwarded(table, upsert) or self._committed(table, upsert, may_move=may_move)
            if not done.is_moved:
                break
        if done.error is not None:
            raise copy(done.error) from done.error  # several threads raise it
        return done.done

    def take(self, received: Received) -> None:
        """Let an upsert of another process wait, if it can share a commit."""
        rows, how, keys = received.rows, received.upsert, None
        if how is not None and rows.count <= MOST_ROWS:
            keys = self._engine.rows.keys(rows.table, how.on)
        if how is None or keys is None:
            received.asker.answer([received.number], Declined.ALONE)
            return
        rule, now = MergeRule(how.on, update=True, insert=True, use_index=how.use_index), self._clock()
        upsert = Upsert(
            rows, rule, keys, now + how.seconds, now, key=received.key, asker=received.asker, number=received.number
        )
        self._enter(received.table, upsert)

    def _forwarded(self, table: ObjectId, upsert: Upsert) -> Upsert | None:
        """Let another process commit an upsert; return it answered, or None if this process has to commit it."""
        if self._forwarding is None:
            return None
        return self._forwarding.forward(table, lambda: upsert.again(self._clock()))

    def _committed(self, table: ObjectId, upsert: Upsert, *, may_move: bool) -> Upsert:
        """Commit an upsert in this process, unless it moves; return it answered.

        An upsert with a key that has waited too long gets no answer: its request then has a log.
        """
        upsert = upsert.again(self._clock(), may_move=may_move)
        self._enter(table, upsert)
        if not self._is_answered(table, upsert):
            upsert = upsert.again(self._clock())
            if upsert.key is None:
                self._commit_divided(UpsertLine(table), [upsert])
        return upsert

    def _is_answered(self, table: ObjectId, upsert: Upsert) -> bool:
        """Wait for the answer; return False if it takes too long, and the group will not commit the upsert.

        Raises:
            CommitUnknown, StoreUnavailable: The group began to commit it, and has not ended.
        """
        while not upsert.wait(upsert.patient_until - self._clock()):
            if self._clock() < upsert.patient_until:
                continue  # its merge has begun
            if upsert.leave():
                return False
            if upsert.wait(0):
                break
            open_outcome = f"{table}: whether the upsert was committed is not known: its commit has not ended in time"
            if upsert.token is None:
                raise StoreUnavailable(f"{open_outcome}. Compare the rows of its keys, or upsert again")
            raise CommitUnknown(f"{open_outcome}. Settle it with catalog.resolve(error.token)", upsert.token)
        return True

    def patience(self, upsert: Upsert) -> float:
        """Return the seconds that are left for attempts."""
        return max(0.0, upsert.deadline - self._clock())

    # -- the line of a table ------------------------------------------------------------------------------------

    def _chosen(self, line: UpsertLine) -> Collection[int]:
        return upserts_of_group([upsert.waiting for upsert in line.waiting])

    def _answer(self, group: Sequence[Upsert], error: Exception | None = None) -> None:
        if error is not None:
            for upsert in group:
                upsert.error = error
        answer_all(group)

    def _pause(self, line: UpsertLine) -> None:
        breath = line.pace.breath(self._clock(), 0)
        if breath:
            self._sleep(breath)
            line.pace = attrs.evolve(line.pace, busy_since=self._clock())
        self._linger(line)

    # -- one group ----------------------------------------------------------------------------------------------

    def _commit(self, line: UpsertLine, group: Sequence[Upsert]) -> None:
        began = self._clock()
        if self._forwarding is not None:
            self._forwarding.move(line.table, group)
        self._commit_divided(line, group)
        line.end()
        line.pace = line.pace.committed(len(group), began, self._clock(), left=len(line.waiting), met=False)

    def _commit_divided(self, line: UpsertLine, group: Sequence[Upsert]) -> None:
        left = group
        try:
            while left := [upsert for upsert in left if not upsert.is_dropped]:
                left = self._commit_together(line, left)
        except BaseException as error:  # a fault of this process: whether it came before the commit is not known
            for upsert in left:
                if upsert.done is None:
                    upsert.error = upsert.error or error

    def _commit_together(self, line: UpsertLine, group: Sequence[Upsert]) -> Sequence[Upsert]:
        """Commit a group, or divide it.

        An error before the commit that rows may have caused divides the group into halves, to find the upsert. Other
        errors before the commit send every upsert to the engine alone, which commits it or raises its own error.

        Returns:
            The upserts to commit together next.
        """
        keys = None if self._keys is None else GroupKeys(self._keys, line.table, group)
        attempt = _Merge(self._writes, self._engine, line, group, keys, self._direct)

        def commit(source: Source) -> Changed:
            now = self._clock()
            if attempt.has_begun and self._forwarding is not None:
                self._forwarding.note_lost(line.table)
                self._forwarding.move(line.table, group)
            line.begin(now)
            for upsert in group:
                upsert.begin(now)
            return attempt.commit(source)

        last = min(upsert.deadline for upsert in group)
        retry = Retry(
            max(0.0, last - self._clock()),
            _FIRST_PAUSE,
            _LONGEST_PAUSE,
            clock=self._clock,
            sleep=self._sleep,
            retried=LOST,
        )
        try:
            with self._engine.rows.repeatable(rows_of(group)) as source:
                change = retry.call(lambda: commit(source), deadline=last)
        except _Divided as divided:
            return divided.rest
        except LOST as error:
            for upsert in group:
                if upsert.deadline <= last:
                    upsert.error = error
            return [upsert for upsert in group if upsert.error is None]
        except (CommitUnknown, StoreUnavailable) as error:
            for upsert in group:
                upsert.error = error
        except Exception as error:
            for upsert in group if attempt.has_begun else ():
                upsert.error = error
            if not attempt.has_begun and isinstance(error, _OF_ROWS) and len(group) > 1:
                middle = len(group) // 2
                self._commit_divided(line, group[:middle])
                return group[middle:]
        else:
            for upsert, counts in zip(group, attempt.counts, strict=True):
                upsert.done = change, counts
        return []


class _Divided(LancekeepError):
    """A group must not be merged together; nothing was committed."""

    def __init__(self, rest: Sequence[Upsert]) -> None:
        super().__init__("some upserts of the group fail, or have to commit alone")
        self.rest = rest


class _Frequent(LancekeepError):
    """The keys of the table have to be read first; nothing was committed."""


class _Uncounted(LancekeepError):
    """The keys that were found do not explain what the merge inserts and updates; nothing was committed."""


_OF_ROWS = (InvalidInput, EngineFailed, _Uncounted)
"""The errors that the rows of one upsert may cause."""


class _Merge:
    """The merge of a group.

    Attributes:
        has_begun: Whether the last attempt has begun to commit.
        counts: What each upsert inserts and updates, in the last attempt.
    """

    def __init__(
        self,
        writes: WriteService,
        engine: TableEngine,
        line: UpsertLine,
        group: Sequence[Upsert],
        keys: GroupKeys | None,
        direct: DirectUpserts | None,
    ) -> None:
        self._direct = direct
        self._writes = writes
        self._engine = engine
        self._line = line
        self._table = line.table
        self._group = group
        self._keys = keys
        self.has_begun = False
        self.counts: Sequence[MergeCounts] = ()
        self._is_by_engine = False
        self._may_become_direct = direct is not None

    def commit(self, source: Source) -> Changed:
        """Merge the rows into the latest version.

        Raises:
            _Divided: The group has to be divided. Nothing was committed.
        """
        if self._keys is None:
            return self._commit(source)
        self._keys.drop_known()
        try:
            change = self._commit(source)
        except (_Divided, *LOST):
            self._keys.withdraw()
            raise
        self._keys.committed(change.version)
        return change

    def _commit(self, source: Source) -> Changed:
        while True:
            self._require_callers()
            self.has_begun = self._is_by_engine = False
            with suppress(_Frequent):
                return self._commit_directly() or self._commit_by_engine(source)

    def _commit_by_engine(self, source: Source) -> Changed:
        rows, rule = self._engine.rows, self._group[0].rule

        def merge(dataset: Any) -> Any:
            self._require_rare(rule)
            sharing = [upsert for upsert in self._group if rows.takes(dataset, upsert.rows.table)]
            if len(sharing) < len(self._group):
                raise _Divided(sharing)
            commit, together = rows.merge(dataset, source.stream(), rule)
            self.counts = [together] if len(self._group) == 1 else self._divided(dataset, together)
            if self._is_by_engine:
                self._announce(None)
            self.has_begun = True
            return commit()

        return change_table(
            self._writes,
            self._engine,
            self._table,
            merge,
            None,
            exactly=True,
            admits=lambda dataset, version: rows.keeps_apart(dataset, version, source, rule),
            checks=self._check,
            rebased=True,
            announce=self._begin,
        )

    def _commit_directly(self) -> Changed | None:
        """Commit the group without the engine, if possible; see `DirectUpserts.commit`."""
        if self._direct is None:
            return None

        def claim(built: BuiltVersion, counts: Sequence[MergeCounts]) -> None:
            self.counts = counts
            if self._keys is not None:
                self._keys.claim(built, counts)

        def announced(attempt: CommitAttempt) -> None:
            self._announce(attempt.token())
            self.has_begun = True

        rows, rule = [upsert.rows for upsert in self._group], self._group[0].rule
        return self._direct.commit(
            self._table,
            rule,
            rows,
            waiting=len(self._line.waiting),
            claim=claim,
            checks=partial(self._check, None),
            announce=announced,
        )

    def _require_rare(self, rule: MergeRule) -> None:
        """Stop a merge of the engine before it begins, if many upserts wait.

        The first of many clients makes a group of its own. The merge takes seconds on an object store, but the engine
        has only opened the table so far. Reading all keys is worth it then.

        Raises:
            _Frequent: Once at most, so that the engine commits what `DirectUpserts` cannot.
        """
        if self._may_become_direct and self._direct is not None:
            self._may_become_direct = not self._direct.has_become_worth_it(self._table, rule, len(self._line.waiting))
            if not self._may_become_direct:
                raise _Frequent(f"{self._table}: upserts come often")

    def _begin(self, attempt: CommitAttempt | None) -> None:
        """Record the keys and let the callers learn of an attempt; None if the engine commits without a token.

        Raises:
            _Divided: A caller waits no longer, or has to commit otherwise.
        """
        self._is_by_engine = attempt is None
        if attempt is not None:
            if self._keys is not None:
                self._keys.claim(attempt, self.counts)
            self._announce(attempt.token())
            return
        for upsert in self._group:
            if upsert.asker is not None or upsert.key is not None:  # which needs the token, or the version
                upsert.drop()
        self._require_callers()

    def _announce(self, token: CommitToken | None) -> None:
        """Let the callers learn that an attempt is about to commit.

        Raises:
            _Divided: A caller waits no longer.
        """
        self._require_callers()
        announce(self._group, self.counts, token)
        self._require_callers()

    def _require_callers(self) -> None:
        if any(upsert.is_dropped for upsert in self._group):
            raise _Divided([upsert for upsert in self._group if not upsert.is_dropped])

    def _check(self, dataset: Any, rules: Rules) -> None:
        """Answer the upserts that violate a rule."""
        for upsert in self._group:
            try:
                check_rows(upsert.rows.table, rules)
            except InvalidInput as error:
                upsert.error = error
        if any(upsert.error is not None for upsert in self._group):
            raise _Divided([upsert for upsert in self._group if upsert.error is None])

    def _divided(self, dataset: Any, together: MergeCounts) -> Sequence[MergeCounts]:
        """Return what each upsert inserts and updates.

        Raises:
            _Divided: A key has several rows in the table.
            _Uncounted: The keys do not add up.
        """
        rows, group = self._engine.rows, self._group
        keys = frozenset[Key]().union(*(upsert.keys for upsert in group))
        if (together.inserted, together.updated) == (len(keys), 0):
            return [MergeCounts(len(upsert.keys), 0, 0) for upsert in group]
        if (together.inserted, together.updated) == (0, len(keys)):  # each key has a row, so none has two
            return [MergeCounts(0, len(upsert.keys), 0) for upsert in group]
        found = rows.found(dataset, group[0].rule.on, keys)
        sharing = [upsert for upsert in group if all(found.get(key, 0) < 2 for key in upsert.keys)]
        if len(sharing) < len(group):
            raise _Divided(sharing)
        updated = [sum(key in found for key in upsert.keys) for upsert in group]
        if (len(keys) - sum(updated), sum(updated)) != (together.inserted, together.updated):
            raise _Uncounted(
                f"{self._table}: the merge counts {together}, but finds {sum(updated)} of {len(keys)} keys"
            )
        return [MergeCounts(len(upsert.keys) - each, each, 0) for upsert, each in zip(group, updated, strict=True)]
