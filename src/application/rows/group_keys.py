"""Record the idempotency keys of upserts that share a merge.

`recorded_keys` has the rules: an attempt records its keys before it commits a version, after it has read the keys of
others up to the version that it follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from lancekeep.application.concurrency import in_background
from lancekeep.application.rows.recorded_keys import Claim, RecordedKeys
from lancekeep.application.rows.waiting_upserts import Upsert
from lancekeep.application.rows.write_checks import BuiltVersion
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import Effect, Group
from lancekeep.ports.rows import MergeCounts


class GroupKeys:
    """The keys of a group of upserts, over the attempts to commit it.

    An upsert whose key is recorded is dropped: its request then has a log, and finds what the record says.

    Args:
        recorded: The keys of the catalog.
        table: The table.
        group: The upserts.
    """

    def __init__(self, recorded: RecordedKeys, table: ObjectId, group: Sequence[Upsert]) -> None:
        self._recorded = recorded
        self._table = table
        self._group = group
        self._keyed = [upsert for upsert in group if upsert.key is not None]
        self._attempt: BuiltVersion | None = None
        self._claim: Claim | None = None

    def drop_known(self) -> None:
        """Drop upserts that cannot commit together, if memory already says so."""
        keys = [upsert.key for upsert in self._keyed if upsert.key is not None]
        if not keys:
            return
        logged = self._recorded.with_logs(keys)
        found, names = self._recorded.of(self._table), set[bytes]()
        for upsert, key in zip(self._keyed, keys, strict=True):
            record = found.find(key, None, 0)  # in no version that is not known to be committed
            is_decided = record is not None and record.effect is not Effect.PENDING
            if is_decided or key.request_name in logged or key.name in names:
                upsert.drop()
            names.add(key.name)

    def claim(self, attempt: BuiltVersion, counts: Sequence[MergeCounts]) -> None:
        """Record the keys before an attempt.

        If this drops an upsert, the attempt must not be made.

        Args:
            attempt: The attempt. The one before it has certainly committed nothing.
            counts: What each upsert inserts and updates.
        """
        self.withdraw()
        self._attempt = attempt
        if not self._keyed:
            return
        keys = self._recorded.of(self._table)
        if keys.is_behind(*attempt.after):
            keys.follow(*attempt.after)
        self._drop_recorded(attempt)
        named = []
        for upsert, each in zip(self._group, counts, strict=True):
            if upsert.key is not None:
                key = upsert.key.counted(each.inserted, each.updated)
                named += [key] if key is not None else []
                if key is None:
                    upsert.drop()
        if any(upsert.is_dropped for upsert in self._keyed):
            return
        self._claim = keys.claim(Group(tuple(named), attempt.version, attempt.transaction))
        if not self._recorded.managed:
            # Nothing excludes a version that the engine commits for an attempt with a log: of two attempts that record
            # their keys first, one reads the record of the other.
            keys.follow(*attempt.after)
            self._drop_recorded(attempt)

    def committed(self, version: int) -> None:
        """Note the version that the group is in."""
        attempt = self._attempt
        if attempt is None or attempt.version != version:
            return  # the engine has committed it
        if self._claim is not None:
            self._claim.committed(attempt.after[0])
        self._recorded.followed(self._table, attempt.after, attempt.version, attempt.transaction)

    def withdraw(self) -> None:
        """Remove the record of an attempt that has certainly committed nothing."""
        claim, self._claim = self._claim, None
        if claim is not None:
            in_background(claim.withdraw)

    def _drop_recorded(self, attempt: BuiltVersion) -> None:
        keys, (root, latest, _) = self._recorded.of(self._table), attempt.after
        seen = dict[int, str | None]()
        for upsert in self._keyed:
            assert upsert.key is not None
            record = keys.find(upsert.key, root, latest, seen)
            if record is not None and record.effect is not Effect.PENDING:
                upsert.drop()
