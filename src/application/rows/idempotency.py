"""Perform each request with an idempotency key once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import TypeVar
from uuid import uuid4

import attrs

from lancekeep.application.commits.keyed_requests import Sharing, performing, sharing
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.rows.recorded_keys import RecordedKeys, holds_keys, requests_directory
from lancekeep.application.rows.versions import Versions
from lancekeep.application.rows.waiting_appends import unknown_append
from lancekeep.domain import recorded_keys
from lancekeep.domain.catalog import CatalogView, Change, SetProperties
from lancekeep.domain.commit import Committed, Unknown, Upserted
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import LancekeepError, ObjectNotFound, StoreUnavailable, TableNotFound
from lancekeep.domain.idempotency import (
    PROOFS,
    PROPERTY,
    Answered,
    Begun,
    Claimed,
    Effect,
    Entry,
    Proof,
    RequestKey,
    Superseded,
    TakenOver,
    another_request,
    decode_entry,
    encode_entry,
    record_of,
    recording,
    take_over,
    withdrawing,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.recorded_keys import Group, SharedKey
from lancekeep.domain.transaction import AllCommitted
from lancekeep.ports.manifest_store import Decision

Result = TypeVar("Result")

KEEP_REQUESTS = timedelta(days=7)
"""How long a clean-up keeps the log of a request, counted from its last entry."""


_SETTLED = 100
"""The number of answered requests whose records this process removes with its next change."""


@attrs.frozen
class Answer:
    """What an attempt answers.

    Attributes:
        text: The answer, in a form of the caller.
        refused: The operation was refused and had no effect.
    """

    text: str
    refused: bool = False


@attrs.frozen(kw_only=True)
class Attempt:
    """What the caller knows about a request.

    Attributes:
        fingerprint: A digest of the request, apart from its data.
        act: Performs the operation. It answers success and definite refusals, and raises every other error.
        committed: Returns the answer to a request whose commit an earlier attempt has made.
        body: Returns the digest of the request's data. It reads what the operation has not read; empty if the
            fingerprint covers everything.
        shares: Whether ``act`` appends rows to the main history of a table, or upserts them, so that the request may
            share its commit with others. ``act`` is then called again if it cannot.
        upserts: Whether it then upserts. ``committed`` gets `Upserted` if the request has shared a commit.
    """

    fingerprint: str
    act: Callable[[], Answer]
    committed: Callable[[Committed | AllCommitted], Answer]
    body: Callable[[], str] = lambda: ""
    shares: bool = False
    upserts: bool = False


class IdempotentRequests:
    """The keyed requests of one catalog.

    The log of a request is a directory of numbered entries, which are created by put-if-absent. A request that is not
    repeated costs two requests to the object store, and a third request if it commits a version. Requests
    that share a commit have no logs: their keys are recorded together, in `RecordedKeys`.
    """

    def __init__(self, ledger: Ledger, places: Places, versions: Versions, keys: RecordedKeys) -> None:
        self._ledger = ledger
        self._places = places
        self._versions = versions
        self._keys = keys
        self._settled: set[str] = set()

    def perform(self, key: RequestKey, attempt: Attempt) -> str:
        """Perform a request, or return the answer to its first attempt.

        Args:
            key: The key of the request.
            attempt: The request.

        Returns:
            The text of the answer.

        Raises:
            InvalidInput: The key belongs to another request.
            StoreUnavailable, CommitUnknown: The outcome is unknown, or another attempt is in progress. The client
                repeats the request with its key.
        """
        check = None
        if attempt.shares:
            shared = SharedKey.of(key.name, attempt.fingerprint, attempt.body(), is_upsert=attempt.upserts)
            answer = self._share(shared, attempt)
            if answer is not None:
                return answer.text
            table = ObjectId(key.object_id)
            earlier = self._recorded(table, shared)
            if earlier is not None:
                return attempt.committed(earlier).text
            keys = self._keys.of(table)
            keys.claim(Group((shared,)))  # appends that share commits exclude it from now on
            keys.merge_many()
            earlier = self._recorded(table, shared)
            if earlier is not None:
                return attempt.committed(earlier).text
            check = partial(self._require_unrecorded, table, shared)
        log = _Log(self._ledger, f"{self._directory}{key.name}/", attempt.body)
        mine = Begun(attempt.fingerprint, uuid4().hex)
        first = log.begin(mine)
        if first.fingerprint != mine.fingerprint:
            raise another_request()
        running = _Running(self._ledger, self._versions, key.name, log, tuple(self._settled), check)
        proof = self._proof(key.operation)
        if first != mine:
            answered = log.read()
            if answered is not None:
                if answered.body != attempt.body():
                    raise another_request()
                return answered.answer
            if proof is Proof.NONE:
                raise StoreUnavailable(
                    f"an earlier attempt of this {key.operation} has left no answer: it is in progress, or it was "
                    "stopped. Whether it took effect cannot be determined here. Repeat the request with its key later, "
                    "or check the state and send a request with a new key"
                )
            committed = running.take_over(proof)
            if committed is not None:
                if log.claimed[-1].body != attempt.body():
                    raise another_request()
                return log.answer(attempt.committed(committed).text)
        answer = self._answer(running, attempt, proof)
        text = log.answer(answer.text)
        if running.is_only_attempt:  # an earlier attempt may still be running, and must find the record
            self._settled = {key.name} if len(self._settled) > _SETTLED else {*self._settled, key.name}
        return text

    def _share(self, key: SharedKey, attempt: Attempt) -> Answer | None:
        """Write together with other requests; return None if the request needs a log, or was refused."""
        append = Sharing(key)
        try:
            with sharing(append):
                answer = attempt.act()
        except Exception:
            if append.needs_log:
                return None
            raise
        return None if append.needs_log or answer.refused else answer

    def _recorded(self, table: ObjectId, key: SharedKey, before: int | None = None) -> Committed | None:
        """Return the version that an earlier attempt shared; None if none did.

        Args:
            table: The table.
            key: The key of the request.
            before: The version that this attempt is about to commit, if it is known.

        Raises:
            InvalidInput: The key belongs to another request.
            StoreUnavailable: The outcome of an earlier attempt is not known, or not yet.
        """
        keys, (root, latest) = self._keys.of(table), self._latest(table)
        keys.refresh()
        record = keys.find(key, root, latest if before is None else before - 1)
        if record is None or record.effect is recorded_keys.Effect.IN_LOG:
            return None
        if record.effect is recorded_keys.Effect.UNKNOWN:
            raise unknown_append()
        if record.effect is recorded_keys.Effect.PENDING:
            if self._ledger.managed:  # both attempts claim the same version
                return None
            raise StoreUnavailable(
                "an earlier attempt of the request is in progress, or was stopped before its commit; repeat it with "
                "its key"
            )
        if not key.repeats(record.key):
            raise another_request()
        if not key.is_upsert:
            return Committed(record.version, "", 0, record.transaction)
        inserted, updated = record.counts
        return Upserted(record.version, "", 0, record.transaction, inserted=inserted, updated=updated)

    def _latest(self, table: ObjectId) -> tuple[DatasetRoot | None, int]:
        """Return the root of a table and its latest version."""
        try:
            root = self._versions.dataset_root(self._versions.find_table(table))
        except TableNotFound:
            return None, 0
        row = self._ledger.commits.latest(root)
        return root, 0 if row is None else row.version

    def _require_unrecorded(self, table: ObjectId, key: SharedKey, token: CommitToken) -> None:
        """Raise `Superseded` if another attempt has shared its commit before a version."""
        if self._recorded(table, key, token.staged.version) is not None:
            raise Superseded("another attempt of the request has committed; repeat it with its key")

    def clean_up(self, keep: timedelta = KEEP_REQUESTS) -> int:
        """Remove the logs and records of old requests. Idempotent.

        Ages are differences between timestamps of the storage. A request that is repeated after its log was removed is
        a new request.

        Args:
            keep: Must exceed the time in which a client repeats a request.

        Returns:
            The number of removed logs.
        """
        objects, logs = self._places.objects, dict[str, dict[str, datetime | None]]()
        for info in objects.list(self._directory):
            name = info.key.removeprefix(self._directory).partition("/")[0]
            logs.setdefault(name, {})[info.key] = info.modified
        moments = [moment for keys in logs.values() for moment in keys.values() if moment is not None]
        newest, removed = max(moments, default=None), []

        def is_old(moment: datetime | None) -> bool:
            return newest is not None and moment is not None and newest - moment >= keep

        for name, keys in logs.items():
            if holds_keys(name):
                for each, moment in keys.items():
                    if is_old(moment):
                        objects.delete(each)
            elif all(map(is_old, keys.values())):
                for each in sorted(keys, reverse=True):  # a log is never without its beginning
                    objects.delete(each)
                objects.prune(f"{self._directory}{name}")
                removed.append(name)
        stale = {PROPERTY + name for name in removed} & self._ledger.view().properties.keys()
        if stale:
            self._ledger.apply(lambda view: ([SetProperties(dict.fromkeys(stale))], None))
        return len(removed)

    @property
    def _directory(self) -> str:
        return requests_directory(self._places)

    def _proof(self, operation: str) -> Proof:
        """Return what proves an operation in this catalog."""
        proof = PROOFS.get(operation, Proof.NONE)
        if proof is Proof.VERSION and not self._ledger.managed:
            return Proof.NONE
        guarantees = self._ledger.guarantees
        if proof is Proof.ENTRY and not (guarantees.properties and guarantees.atomic_changes):
            return Proof.NONE
        return proof

    def _answer(self, running: _Running, attempt: Attempt, proof: Proof) -> Answer:
        """Return the answer of an attempt.

        A refusal may be the effect of another attempt of the same request; then that attempt's effect is the answer.
        """
        for last in (False, True):
            try:
                with performing(None if proof is Proof.NONE else running):
                    answer = attempt.act()
                if not answer.refused or proof is Proof.NONE:
                    return answer
            except LancekeepError:
                if last or running.committed is None:
                    raise
                answer = Answer("", refused=True)
            committed = running.settle()
            if committed is not None:
                return attempt.committed(committed)
            if last or proof is not Proof.ENTRY or not running.resume():
                return answer
        raise AssertionError("the second attempt returns or raises")


class _Log:
    """The log of one request, read up to its end."""

    def __init__(self, ledger: Ledger, directory: str, body: Callable[[], str]) -> None:
        self._retry = ledger.commits.retry
        self._objects = ledger.commits.objects
        self._directory = directory
        self._body = body
        self.length = 1
        self.claimed: list[Claimed] = []

    def begin(self, mine: Begun) -> Begun:
        """Append the first entry; return it, or the entry of an earlier attempt."""
        first = self._append(0, mine)
        return first if isinstance(first, Begun) else mine

    def read(self) -> Answered | None:
        """Read the rest of the log, and return the answer if there is one."""
        for number in count(self.length):
            entry = self._get(number)
            if entry is None:
                return None
            if isinstance(entry, Answered):
                return entry
            self._keep(entry)
        raise AssertionError("a log ends")

    def append(self, entry: Entry) -> Entry | None:
        """Append an entry; return the entry of another attempt if that attempt was faster."""
        found = self._append(self.length, entry)
        if found == entry:
            self._keep(entry)
            return None
        return found

    def answer(self, text: str) -> str:
        """Append the answer, and return its text.

        Raises:
            Superseded: Another attempt has taken over.
        """
        found = self.append(Answered(text, self._body()))
        if found is None or (isinstance(found, Answered) and found.answer == text):
            return text
        raise Superseded("another attempt of the request has taken over; repeat the request with its key")

    def claim(self, token: CommitToken) -> Entry | None:
        return self.append(Claimed(token, self._body()))

    def _keep(self, entry: Entry) -> None:
        self.length += 1
        if isinstance(entry, Claimed):
            self.claimed.append(entry)

    def _append(self, number: int, entry: Entry) -> Entry:
        key, content = self._key(number), encode_entry(entry)
        if self._retry.call(lambda: self._objects.put_if_absent(key, content)):
            return entry
        found = self._get(number)
        if found is None:
            raise StoreUnavailable("the log of the request was removed during the request; repeat it")
        return found

    def _get(self, number: int) -> Entry | None:
        key = self._key(number)
        try:
            return decode_entry(self._retry.call(partial(self._objects.get, key)), key)
        except ObjectNotFound:
            return None

    def _key(self, number: int) -> str:
        return f"{self._directory}{number:08}.json"


class _Running:
    """One attempt; see `KeyedRequest`."""

    def __init__(
        self,
        ledger: Ledger,
        versions: Versions,
        name: str,
        log: _Log,
        settled: tuple[str, ...],
        check: Callable[[CommitToken], object] | None = None,
    ) -> None:
        self._ledger = ledger
        self._versions = versions
        self._name = name
        self._log = log
        self._settled = settled
        self._check = check
        self._number = 0
        self._resumes = False
        self.committed: Committed | AllCommitted | None = None

    # -- as `KeyedRequest` --------------------------------------------------------------------------------------

    def recording(self, decide: Decision[Result], effect: Callable[[Result], Effect]) -> Decision[Result]:
        def recorded(view: CatalogView) -> tuple[list[Change], Result]:
            changes, result = recording(
                view, self._name, self._number, partial(decide, view), effect, settled=self._settled
            )
            return list(changes), result

        return recorded

    def withdrawing(self, decide: Decision[Result]) -> Decision[Result]:
        return lambda view: withdrawing(view, self._name, self._number, partial(decide, view))

    def recorded(self) -> Effect | None:
        if not self._resumes:
            return None
        record = record_of(self._ledger.view(), self._name)
        return None if record is None else record.effect

    def claim(self, members: Callable[[], CommitToken]) -> None:
        self.settle()
        if self.committed is None:
            token = members()
            if self._check is not None:
                self._check(token)
            # Only one manifest can become the version, so a claim that is not settled excludes this claim.
            exclusive = all(_same_version(claimed.token, token) for claimed in self._log.claimed)
            if exclusive and self._log.claim(token) is None:
                return
        raise Superseded("another attempt of the request has taken over or has committed; repeat it with its key")

    @property
    def is_only_attempt(self) -> bool:
        """Whether no attempt preceded this one."""
        return self._number == 0

    # -- for the service ----------------------------------------------------------------------------------------

    def take_over(self, proof: Proof) -> Committed | AllCommitted | None:
        """Take over from earlier attempts; return what they have committed.

        Raises:
            Superseded: A third attempt was faster.
        """
        if self.settle() is not None:
            return self.committed
        self._number = self._log.length
        if self._log.append(TakenOver(uuid4().hex)) is not None:
            raise Superseded("another attempt of the request is in progress; repeat the request with its key later")
        if proof is Proof.ENTRY:
            self._ledger.apply(lambda view: (take_over(view, self._name, self._number), None))
            self._resumes = True
        return None

    def resume(self) -> bool:
        """Return whether another attempt has changed the catalog, and take its effect over if so."""
        record = record_of(self._ledger.view(), self._name)
        self._resumes = record is not None and record.effect is not None
        return self._resumes

    def settle(self) -> Committed | AllCommitted | None:
        """Return the commit of an earlier claim; None if no claim was committed.

        A claimed version that is still free is committed by this call if its manifest is staged. Otherwise the claim
        stays, and only a commit of the same version may follow it.

        Raises:
            CommitUnknown: The outcome cannot be determined.
        """
        free: list[Claimed] = []
        while self._log.claimed and self.committed is None:
            token = self._log.claimed[-1].token
            outcome = self._versions.resolve(token)
            if isinstance(outcome, Unknown) and self._versions.is_free(token):
                free.insert(0, self._log.claimed.pop())
            elif isinstance(outcome, Unknown):
                raise CommitUnknown(
                    f"whether an attempt of the request was committed cannot be determined: {outcome.reason}. Repeat "
                    "the request with its key later",
                    outcome.token,
                )
            elif isinstance(outcome, Committed | AllCommitted):
                self.committed = outcome
            else:
                self._log.claimed.pop()
        self._log.claimed = [*free, *self._log.claimed]
        return self.committed


def _same_version(one: CommitToken, other: CommitToken) -> bool:
    """Return whether two commits exclude each other."""
    versions = [{(member.base_uri, member.version) for member in token.members} for token in (one, other)]
    return bool(versions[0] & versions[1])
