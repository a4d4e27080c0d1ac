"""The ``__manifest`` Lance table as a manifest store.

Directory namespace V2, "Manifest Table Schema". Native ``DirectoryNamespace`` processes read and write the same table.
A mutation writes one small data file and one manifest, by put-if-absent under the name of the next version. This is a
compare-and-set on the version that the decision read; it is never rebased. (The native engine rebases an Append
silently, and a merge insert loses its key filter if the specified BTREE exists: both write duplicate keys.) Concurrent
decisions of one process are committed together (group commit).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from threading import Condition, Lock, RLock
from typing import TYPE_CHECKING, Any

import attrs

from lancekeep.adapters.manifest_stores.index import IndexedView
from lancekeep.adapters.manifest_stores.table_cleanup import Forget, clean_up, leftovers, versions_of
from lancekeep.adapters.manifest_stores.table_versions import (
    Prepared,
    TableVersions,
    Version,
    empty_version,
    empty_view,
)
from lancekeep.application.parts import part
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    LancekeepError,
    ObjectNotFound,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import HINT, VERSIONS, DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme, final_versions
from lancekeep.format.json_files import hinted_version
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore, StorageTime

if TYPE_CHECKING:
    from lancekeep.ports.change_feed import ChangeFeed

Publish = Callable[[str, bytes], bool]
"""Creates an object by put-if-absent; returns whether this writer created it."""

_ATTEMPTS = 50
_TRUSTED = timedelta(minutes=1)
"""By the clock of the storage; well below the grace period of `clean_up`."""
_HINT_EVERY = 16
_CLEAN_EVERY, _CLEAN_PAUSE = 256, 60.0
"""A clean-up runs at every such version, but pauses for these seconds: it reads all recent versions."""
_STEP_BACK, _LONGEST_STEP_BACK = 0.0005, 0.2
"""Backoff in seconds. It starts at the duration of a commit and keeps losing writers from starving."""
_GATHERING = 0.001
"""The most seconds for which a leader waits for other threads; a commit takes about as long."""


class LanceManifestStore:
    """A `ManifestStore` in a Lance table.

    Args:
        objects: the object store.
        key: the directory of the manifest table.
        publish: gives a manifest its final name; by default put-if-absent of the object store.
        forget: removes the records that ``publish`` keeps of versions; called before the versions are removed.
        index: builds the specified indexes through the native engine; ignored if ``publish`` is given.
        index_inline: whether commits occasionally call ``index``.
        known: a store of the same table, with whose latest version this store begins: it shares the entries.
        clock: seconds, for the pause between two clean-ups; nothing else depends on a local clock (ADR 33).
        sleep: sleeps for the backoff of a writer that lost.
        jitter: returns the random fraction of that backoff.
    """

    guarantees = IndexedView.guarantees

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        *,
        publish: Publish | None = None,
        forget: Forget | None = None,
        index: Callable[[], None] | None = None,
        index_inline: bool = False,
        known: LanceManifestStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._objects = objects
        self._key = key
        self._publish_object = publish or objects.put_if_absent
        self._alone = publish is None
        self.history = None if publish is None else DatasetRoot(key, objects.root_uri + key)
        self._forget_versions = forget
        self._index = index if publish is None else None
        self._index_inline = index_inline
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._versions = TableVersions(objects, key)
        self._scheme: NamingScheme = known._scheme if known else NamingScheme.V2
        self._latest: Version | None = known._latest if known else None
        self._checked: tuple[int, datetime | None] = (0, None)
        self._kept: tuple[int, int, datetime | None] | None = None
        self._cleaned = -_CLEAN_PAUSE
        self._waiting: list[_Request] = []
        self._arrival = Condition()
        self._committing = False
        self._company = 1
        self._reading = RLock()
        self._cleaner: ThreadPoolExecutor | None = None

    @part
    def feed(self) -> ChangeFeed:
        """The changes, which most processes never read."""
        from lancekeep.adapters.manifest_stores.lance_feed import LanceFeed

        return LanceFeed(self._versions, self, self._key)

    def location_of(self, table_id: ObjectId) -> None:
        """Return None: the name of each new directory has a new hash."""

    def view(self) -> CatalogView:
        latest = self._latest
        if latest is None or not self._is_latest(latest):
            self._refresh()
        return self.recent()

    def recent(self) -> CatalogView:
        return self._latest.view if self._latest else empty_view()

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        """Apply a decision by group commit: the first waiter becomes the leader."""
        request = _Request(decide)
        if self._is_to_commit(request):
            try:
                self._commit(request, self._gathered())
            finally:
                self._withdraw(request)
        if isinstance(request.outcome, Exception):
            raise request.outcome
        assert request.outcome is not None  # The leader settled it, or raised.
        return request.outcome

    def optimize(self) -> None:
        if self._index is None:
            raise Unsupported(f"{self._key}: indexes are built by the native engine, which cannot commit safely here")
        self.clean_up()
        if self.view().version:
            self._index()

    def clean_up(self) -> int:
        """Remove old versions with their files; return the number of versions."""
        return clean_up(self._objects, self._key, self._forget_versions)

    def leftovers(self) -> Sequence[ObjectInfo]:
        return leftovers(self._objects, self._key)

    def close(self) -> None:
        """Release all resources, after a clean-up in progress."""
        if self._cleaner is not None:
            self._cleaner.shutdown()
            self._cleaner = None

    # -- the versions of the feed -------------------------------------------------------------------------------

    def content(self, number: int) -> bytes:
        """Return the manifest file of a version. Raises `ObjectNotFound` without one."""
        if self._latest is None:
            self.view()  # finds the scheme of the names
        return self._objects.get(self._name(number))

    def latest(self) -> tuple[int, bytes]:
        """Return the latest version with its manifest file; version 0 has none."""
        self.view()
        latest = self._latest
        return (0, b"") if latest is None else (latest.number, latest.content)

    def numbers(self) -> Sequence[int]:
        """Return the versions that exist, unordered."""
        return [number for number, _ in versions_of(self._objects, self._key)]

    # -- looking ------------------------------------------------------------------------------------------------

    def _is_latest(self, version: Version) -> bool:
        """Check that the next version, whose name is known, does not exist."""
        number = version.number
        with StorageTime() as answered:
            if self._exists(number + 1) or (not self._is_recent(number, answered) and self._is_overtaken(version)):
                return False
        self._checked = number, answered.first
        return True

    def _is_recent(self, number: int, answered: StorageTime) -> bool:
        """Whether a version was the latest within the grace period of clean-up.

        The clock of the storage decides; the answer is False if its replies hold no time. A local clock proves nothing,
        because it may have stopped while this process was suspended.
        """
        checked, at = self._checked
        if checked != number or at is None or answered.last is None:
            return False
        return timedelta(0) <= answered.last - at < _TRUSTED

    def _is_overtaken(self, version: Version) -> bool:
        """Whether the missing next version may have existed and been cleaned up.

        Versions are cleaned up in order: while a version exists, no later version is removed.
        """
        return not self._is_kept(version) if version.number else self._listed() > 0

    def _is_kept(self, version: Version) -> bool:
        """Whether a version exists, and no other version under its name.

        A suspended writer can publish a version under a name that clean-up has freed. The content decides. It is read
        once; afterwards the storage's time of the object proves that it is unchanged.
        """
        info = self._objects.head(self._name(version.number))
        if info is None:
            return False
        found = version.number, info.size, info.modified
        if found == self._kept and info.modified is not None:
            return True
        kept = self._is_stored(version)
        if kept:
            self._kept = found
        return kept

    def _is_stored(self, version: Version) -> bool:
        """Whether the object under the name of a version has its content."""
        try:
            return self._objects.get(self._name(version.number)) == version.content
        except ObjectNotFound:
            return False

    def _is_late(self, base: Version, number: int) -> bool:
        """Whether the version just created has a name that clean-up had freed.

        Then later versions are older, by the times of the storage, and no reader ever finds this version.

        Raises:
            StoreUnavailable: the version has been cleaned up since.
        """
        if base.number and self._is_kept(base):
            return False
        times = {version: info.modified for version, info in versions_of(self._objects, self._key)}
        if number not in times:
            raise self._held_up(number)
        own = times[number]
        later = (when for version, when in times.items() if version > number)
        return own is not None and any(when is not None and when < own for when in later)

    def _held_up(self, number: int) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._key}: this process was suspended while it published version {number}, which has been cleaned "
            "up since. Later versions may follow it: check whether the change exists"
        )

    def _refresh(self) -> bool:
        """Read the latest version; return whether it is new."""
        with self._reading:
            before = self._latest
            if before is not None and self._is_latest(before):
                return False
            self._latest = self._read_latest(before)
            return before is None or self._latest.number != before.number

    def _forget(self) -> None:
        with self._reading:
            self._latest = None

    def _read_latest(self, known: Version | None) -> Version:
        """Read the latest version.

        The search starts at the known version or at the version of the hint, else with a listing. A version on the way
        can have a name that clean-up has freed (see `_is_kept`). The result therefore counts only if the previous
        version still exists, or if a listing shows no later version: the highest version never has such a name.

        Raises:
            StoreUnavailable: versions are removed faster than they can be read.
        """
        with StorageTime() as answered:
            number = known.number if known is not None and known.number else self._hinted()
            while number and self._exists(number + 1):
                number += 1
            number = number or self._listed()
            for attempt in range(_ATTEMPTS):
                try:
                    version = self._read(number, known)
                except ObjectNotFound:
                    number, known = self._listed(), None
                    continue
                except Damaged:
                    # Without an atomic create, a reader may see a partial object.
                    if self._objects.guarantees.atomic_create or attempt == _ATTEMPTS - 1:
                        raise
                    self._sleep(0.01)
                    continue
                if self._is_proven(version, known) or (highest := self._listed()) == number:
                    self._checked = number, answered.first
                    return version
                number = highest
        raise StoreUnavailable(f"{self._key}: its versions are removed faster than they can be read; try again")

    def _read(self, number: int, known: Version | None) -> Version:
        return self._versions.read(self._objects.get(self._name(number)), known) if number else empty_version()

    def _is_proven(self, version: Version, known: Version | None) -> bool:
        """Whether the version just read provably was never cleaned up."""
        if version.number == 0:  # A listing has just shown no version.
            return True
        if known is not None and version.number == known.number:
            return version.content == known.content
        if known is not None and version.number == known.number + 1:
            return known.number > 0 and self._is_kept(known)
        return version.number > 1 and self._exists(version.number - 1)

    def _hinted(self) -> int:
        """Return the version of the hint; 0 without a hint or such a version."""
        try:
            number = hinted_version(self._objects.get(f"{self._key}/{VERSIONS}/{HINT}"))
        except ObjectNotFound:
            return 0
        return number if number and self._exists(number) else 0

    def _listed(self) -> int:
        """Return the highest version in the directory; V2 names list it first."""
        names = (info.key.rpartition("/")[2] for info in self._objects.list(f"{self._key}/{VERSIONS}/"))
        if self._objects.guarantees.paged:
            first = next((name for name in map(ManifestName.parse, names) if name and not name.is_staged), None)
            if first is None or first.scheme is NamingScheme.V2:
                return first.version if first else 0
            names = (info.key.rpartition("/")[2] for info in self._objects.list(f"{self._key}/{VERSIONS}/"))
        scheme, versions = final_versions(names, f"{self._key}/{VERSIONS}")
        self._scheme = scheme or NamingScheme.V2
        return versions[-1] if versions else 0

    def _exists(self, number: int) -> bool:
        return self._objects.head(self._name(number)) is not None

    def _name(self, number: int) -> str:
        return f"{self._key}/{VERSIONS}/{_final_name(self._scheme, number)}"

    # -- committing ---------------------------------------------------------------------------------------------

    def _is_to_commit(self, request: _Request) -> bool:
        """Wait until another thread settles the request, or this thread is the leader."""
        with self._arrival:
            self._waiting.append(request)
            if not self._committing:
                self._committing = request.chosen = True
                return True
            if len(self._waiting) >= self._company:
                self._arrival.notify()
        try:
            request.woken.acquire()
        except BaseException:  # This thread ends, and no other may make its change later.
            self._withdraw(request)
            raise
        return request.outcome is None

    def _gathered(self) -> list[_Request]:
        """Return the requests of the next group commit.

        The threads of the previous group are likely to return at once, so the leader waits briefly for as many.
        """
        with self._arrival:
            self._arrival.wait_for(lambda: len(self._waiting) >= self._company, _GATHERING)
            requests, self._waiting = self._waiting, []
            self._company = len(requests)
            return requests

    def _withdraw(self, request: _Request) -> None:
        """Remove a request whose thread is done; if it was the leader, choose another."""
        with self._arrival:
            self._waiting = [other for other in self._waiting if other is not request]
        if request.chosen:
            self._end_commit()

    def _end_commit(self) -> None:
        """Make the first waiter the leader, if there is one."""
        with self._arrival:
            self._company += len(self._waiting)
            self._committing = bool(self._waiting)
            if self._waiting:
                self._waiting[0].chosen = True
                self._waiting[0].woken.release()

    def _commit(self, own: _Request, requests: list[_Request]) -> None:
        """Settle every request in one version."""
        try:
            self._decide_and_publish(requests)
        except Exception as error:
            for request in requests:
                request.outcome = request.outcome or error
        finally:
            others = [request for request in requests if request is not own]
            with self._arrival:  # If this thread ends, another leader settles the rest.
                self._waiting.extend(request for request in others if request.outcome is None)
            for request in others:
                if request.outcome is not None:
                    request.woken.release()

    def _decide_and_publish(self, requests: list[_Request]) -> None:
        """Decide on the latest known version and publish the changes.

        A change is a compare-and-set and needs no check. A refusal counts only if a check afterwards finds the same
        version. (A decision may read directories, which takes time.)
        """
        for attempt in range(_ATTEMPTS):
            if self._latest is None:
                self._refresh()
            base = self._latest or empty_version()
            view, errors, results = base.view, [], []
            for request in requests:
                error: Exception | None = None
                result = None
                try:
                    changes, result = request.decide(view)
                    view = view.after(changes) if changes else view
                except Exception as raised:  # whatever it is, the caller of this request gets it
                    error = raised
                errors.append(error)
                results.append(result)
            if (view is base.view or any(errors)) and self._refresh():
                continue
            if view is not base.view:
                published = self._publish(base, self._versions.prepare(base, view))
                if published is None:
                    self._refresh()
                    self._sleep(self._jitter() * min(_LONGEST_STEP_BACK, _STEP_BACK * 1.5**attempt))
                    continue
                base = published
            for request, error, result in zip(requests, errors, results, strict=True):
                request.outcome = error or (base.view, result)
            return
        raise ConcurrentModification(f"{self._key}: other processes changed the catalog {_ATTEMPTS} times; try again")

    def _publish(self, base: Version, prepared: Prepared) -> Version | None:
        """Publish the prepared version; None if another writer took its name.

        Raises:
            StoreUnavailable: the version may have been the latest, and has been cleaned up since.
        """
        number = prepared.version.number
        name = self._name(number)
        with StorageTime() as answered:
            created, certain = self._create(name, prepared.content)
        if created and certain and self._is_recent(base.number, answered):
            late = False
        elif created:
            late = self._is_late(base, number)
        else:
            late = not certain and (self._is_overtaken(base) if base.number else self._listed() > number)
        if late:
            if created:
                self._objects.delete(name)
            self._forget()
            if not certain:  # Later versions may need its files.
                raise self._held_up(number)
        if late or not created:
            self._versions.discard(prepared)
            return None
        with self._reading:
            self._latest, self._checked = prepared.version, (number, answered.first)
        self._look_after(number)
        return prepared.version

    def _create(self, name: str, content: bytes) -> tuple[bool, bool]:
        """Create an object.

        Returns:
            Whether the object has this content, and whether that is certain to be all that happened. After a lost
            reply, or if another process completed the commit, the version may also have been cleaned up since.
        """
        try:
            created = self._publish_object(name, content)
            return created, self._alone or not created
        except StoreUnavailable as unanswered:
            try:
                return self._publish_object(name, content) or self._objects.get(name) == content, False
            except ObjectNotFound:  # It was published and cleaned up.
                raise unanswered from None

    def _look_after(self, number: int) -> None:
        """Occasionally write the version hint and remove old versions."""
        if number % _HINT_EVERY == 0:
            with suppress(LancekeepError):
                self._objects.put(f"{self._key}/{VERSIONS}/{HINT}", json.dumps({"version": number}).encode())
        if number % _CLEAN_EVERY == 0 and abs(self._clock() - self._cleaned) >= _CLEAN_PAUSE:
            self._cleaned = self._clock()
            self._cleaner = self._cleaner or ThreadPoolExecutor(max_workers=1, thread_name_prefix="lancekeep-clean-up")
            with suppress(RuntimeError):  # the interpreter shuts down
                self._cleaner.submit(self.optimize if self._index_inline else self.clean_up)


@lru_cache(maxsize=64)
def _final_name(scheme: NamingScheme, number: int) -> str:
    return scheme.final_name(number)


def _locked() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


@attrs.define(eq=False)
class _Request:
    """A decision that waits for its commit.

    Attributes:
        decide: the decision.
        outcome: its result or the error to raise, once it is settled.
        chosen: whether its thread is the leader.
        woken: released once, when the request is settled or its thread becomes the leader.
    """

    decide: Decision[Any]
    outcome: tuple[CatalogView, Any] | Exception | None = None
    chosen: bool = False
    woken: Lock = attrs.field(factory=_locked)
