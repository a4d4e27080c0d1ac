"""Measuring whether an object store and a commit store keep what their adapters claim of them.

`ObjectStoreGuarantees` and `CommitStoreGuarantees` are claims about a kind of store; a server that takes a condition
and ignores it makes them false. Each check here does what a commit does, through the ports, and judges by what is
stored afterwards and never by an answer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from threading import Barrier
from typing import Protocol, TypeVar, runtime_checkable
from uuid import uuid4

import attrs

from lancekeep.domain.errors import LancekeepError, ObjectNotFound, StoreUnavailable, Unsupported
from lancekeep.domain.naming import NamingScheme, final_path
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, Reserved, Taken, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")
R = TypeVar("R")

DIRECTORY = ".lancekeep-certify-"
"""What the name of the directory below the root begins with in which everything is written."""

CONTENDERS = 8
ROUNDS = 5
IN_FLIGHT = 2**20
"""Bytes that make the writes of one race overlap."""
TOGETHER = 3
"""Histories of which one version each is reserved together."""
LARGE = 8 * 2**20
UNUSUAL_NAMES = ("with space", "50%25", "a#b", "a?b=c&d", "a+b", "straße", "e\u0301", "日本", "😀", "[x]{y}~", "'\"$*")


class Result(Enum):
    """What a check found. UNSUPPORTED: the adapter does not claim it, and nothing rests on it."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


@attrs.frozen
class Check:
    """One property of one store, measured.

    subject: ``object store``, ``commit store`` or ``both``. evidence: what was seen, and where the check failed, what
    the store must not be used for.
    """

    subject: str
    name: str
    result: Result
    evidence: str


@attrs.frozen
class Certificate:
    """What was measured of a root and a commit store. root, commit_store: without secrets."""

    root: str
    commit_store: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.result is Result.FAILED)

    @property
    def safe(self) -> bool:
        """Whether commits to this root through this commit store can be trusted, as far as measuring shows it."""
        return not self.failed


Progress = Callable[[int, int, str], None]
"""Told before each check: how many are done, of how many, and the name of the one that begins."""


@runtime_checkable
class WritesInParts(Protocol):
    """An object store that writes large content in parts."""

    def in_parts(self) -> ObjectStore:
        """The same store, which writes whatever is larger than its smallest part in parts."""


class _Broken(Exception):
    """The store does not keep what its adapter claims; the text says what was seen."""


class _Unsupported(Exception):
    """The adapter does not claim it."""


@attrs.frozen
class _Client:
    """A connection of its own to both stores; ``rows`` is None where no commit store can work on this storage."""

    objects: ObjectStore
    rows: ExternalCommitStore | None


@attrs.frozen
class _Planned:
    subject: str
    name: str
    measure: Callable[[], str]
    not_for: str

    def run(self) -> Check:
        """Raises `StoreUnavailable`: a store that does not answer has shown nothing."""
        try:
            return Check(self.subject, self.name, Result.PASSED, self.measure())
        except _Unsupported as unsupported:
            return Check(self.subject, self.name, Result.UNSUPPORTED, str(unsupported))
        except StoreUnavailable:
            raise
        except (_Broken, LancekeepError) as broken:
            return Check(self.subject, self.name, Result.FAILED, f"{broken}. {self.not_for}")


def measure(
    open_objects: Callable[[], ObjectStore],
    open_rows: Callable[[ObjectStore], ExternalCommitStore] | None,
    root_key: str,
    progress: Progress,
) -> Certificate:
    """Run every check; each call of ``open_objects`` and ``open_rows`` makes a connection of its own.

    Everything is written below ``{root}/.lancekeep-certify-<uuid>/``, under as many histories of the commit store, and
    removed at the end, also where a check fails or the run is interrupted.

    Raises:
        StoreUnavailable, AccessDenied, NotFound: a store could not be reached, or stopped answering.
    """
    with _clients(open_objects, open_rows) as clients:
        first = clients[0]
        directory = f"{root_key}/{DIRECTORY}{uuid4()}".lstrip("/")
        objects = _ObjectStoreChecks([client.objects for client in clients], directory)
        plan = objects.plan()
        rows = None
        next(first.objects.list(f"{directory}/"), None)  # whoever cannot be reached is told before anything is written
        if first.rows is not None and open_rows is not None:
            rows = _CommitStoreChecks(clients, directory, lambda: open_rows(open_objects()))
            first.rows.latest(first.objects.root_uri + directory)
            plan += rows.plan()
        checks = []
        with _cleaned(lambda: _clean_up(first, directory, objects, rows)):
            for number, planned in enumerate(plan):
                progress(number, len(plan) + 1, planned.name)
                checks.append(planned.run())
            progress(len(plan), len(plan) + 1, "clean_up")
        cleaning = _Planned("both", "clean_up", lambda: _nothing_left(first, directory, rows), _LITTER)
        together = _Planned("both", "combination", lambda: _together(first), _COMBINATION)
        checks += [cleaning.run(), together.run()]
        url = "" if first.rows is None else first.rows.url
        return Certificate(first.objects.root_uri + root_key, url, tuple(checks))


@contextmanager
def _clients(
    open_objects: Callable[[], ObjectStore], open_rows: Callable[[ObjectStore], ExternalCommitStore] | None
) -> Iterator[list[_Client]]:
    clients: list[_Client] = []
    try:
        for _ in range(CONTENDERS):
            objects = open_objects()
            clients.append(_Client(objects, None if open_rows is None else open_rows(objects)))
        yield clients
    finally:
        for client in clients:
            if client.rows is not None:
                client.rows.close()


@contextmanager
def _cleaned(clean_up: Callable[[], None]) -> Iterator[None]:
    """Clean up behind the block; where that fails after another error, the other is told, with a note of this one."""
    try:
        yield
    except BaseException as first:
        try:
            clean_up()
        except LancekeepError as second:
            first.add_note(f"What certify wrote could not be removed: {second}")
        raise
    clean_up()


def _clean_up(client: _Client, directory: str, objects: _ObjectStoreChecks, rows: _CommitStoreChecks | None) -> None:
    """By the keys that were used, too: the listing is one of the things that may lie."""
    used = set(objects.used)
    if rows is not None and client.rows is not None:
        used |= rows.used
        for base_uri in rows.histories:
            client.rows.delete(base_uri)
    for key in used.union(info.key for info in client.objects.list(f"{directory}/")):
        client.objects.delete(key)
    client.objects.prune(directory)


def _nothing_left(client: _Client, directory: str, rows: _CommitStoreChecks | None) -> str:
    left = [info.key for info in client.objects.list(f"{directory}/")]
    if rows is not None and client.rows is not None:
        left += [base_uri for base_uri in rows.histories if client.rows.latest(base_uri) is not None]
    if left:
        raise _Broken(f"{len(left)} of what was written is still there, first {left[0]!r}")
    return "everything that was written is removed"


def _together(client: _Client) -> str:
    """The static rule that `connect` refuses by: something has to keep the first of two writers."""
    creates = client.objects.guarantees.atomic_create
    if client.rows is None:
        raise _Broken(f"{client.objects.root_uri} has no create-only write, and there is no commit store to decide")
    if client.rows.guarantees.remembers:
        return "the commit store never forgets who won a version" + (
            ", and the final manifest is written create-only" if creates else ""
        )
    if creates:
        return "the commit store may forget a row; the create-only write of the final manifest keeps the first content"
    raise _Broken(f"{client.objects.root_uri} has no create-only write, and {client.rows.url} may forget a row")


_OVERWRITES = (
    "Do not commit to this storage: two writers could both be told that a version is theirs, and the second overwrites "
    "the first"
)
_STALE = (
    "Do not keep tables on this storage: a writer or reader that misses what was acknowledged works on an old state"
)
_UNREADABLE = "Do not keep tables on this storage: it does not give back what it was given"
_UNLISTED = "Do not keep a catalog here that has to be looked through: V1 directories, fsck and clean-up rest on it"
_TWO_WINNERS = "Do not use this commit store: two writers could both win a version"
_LOST_HISTORY = "Do not use this commit store: versions that were acknowledged are missed, or given away again"
_PARTS = "Do not use transactions over several tables with this commit store: a part of one could be committed"
_LITTER = "Remove it by hand, and do not count on drops and clean-up here"
_COMBINATION = (
    "Do not use these two together: an acknowledged commit could be lost. A commit store that never forgets "
    "(sqlite:// on one machine, dynamodb://) makes this storage safe"
)


class _ObjectStoreChecks:
    def __init__(self, clients: Sequence[ObjectStore], directory: str) -> None:
        self.used: set[str] = set()
        self._clients = clients
        self._store, self._other = clients[0], clients[1]
        self._directory = directory

    def plan(self) -> list[_Planned]:
        return [
            _Planned("object store", name, measure, not_for)
            for name, measure, not_for in (
                ("create_only_put", self._create_only_put, _OVERWRITES),
                ("create_only_put_race", self._create_only_put_race, _OVERWRITES),
                ("create_in_flight", self._create_in_flight, _OVERWRITES),
                ("create_only_multipart", self._create_only_multipart, _OVERWRITES),
                ("create_only_copy", self._create_only_copy, _OVERWRITES),
                ("create_only_copy_race", self._create_only_copy_race, _OVERWRITES),
                ("read_after_write", self._read_after_write, _STALE),
                ("overwrite_visible", self._overwrite_visible, _STALE),
                ("read_after_delete", self._read_after_delete, _STALE),
                ("list_after_write", self._list_after_write, _STALE),
                ("list_after_delete", self._list_after_delete, _STALE),
                ("large_value", self._large_value, _UNREADABLE),
                ("unusual_keys", self._unusual_keys, _UNREADABLE),
                ("copy", self._copy, _UNREADABLE),
                ("etag_on_copy", self._etag_on_copy, _UNREADABLE),
                ("directories", self._directories, _UNLISTED),
                ("modified", self._modified, _UNLISTED),
            )
        ]

    def _key(self, name: str) -> str:
        key = f"{self._prefix}{name}"
        self.used.add(key)
        return key

    @property
    def _prefix(self) -> str:
        return f"{self._directory}/objects/"

    # -- one writer only

    def _create_only_put(self) -> str:
        self._require_create()
        key = self._key("create")
        self._refuses_a_second(self._store, key, b"first", b"second")
        self._store.delete(key)
        if not self._store.put_if_absent(key, b"third"):
            raise _Broken("a key that was deleted could not be created again")
        return "a second create was refused, the content was kept, and a deleted key can be created again"

    def _create_only_put_race(self) -> str:
        self._require_create()
        for number in range(ROUNDS):
            contents = [b"%d" % contender for contender in range(CONTENDERS)]
            silent = self._race_to_create(self._key(f"race-{number}"), self._clients, contents)
        return f"{_raced(CONTENDERS, ROUNDS)}: one won each time, and its content is what is stored{silent}"

    def _create_in_flight(self) -> str:
        """What a server may answer with 409: a create while others on the same key are under way."""
        self._require_create()
        contents = [bytes([contender]) * IN_FLIGHT for contender in range(CONTENDERS)]
        silent = self._race_to_create(self._key("in-flight"), self._clients, contents)
        return f"{CONTENDERS} overlapping writes of {_shown(IN_FLIGHT)} to one key: one won, the rest were told{silent}"

    def _create_only_multipart(self) -> str:
        self._require_create()
        stores = [store.in_parts() for store in self._clients[:2] if isinstance(store, WritesInParts)]
        if not stores:
            raise _Unsupported("this adapter writes no object in parts")
        key, contents = self._key("parts"), [bytes([contender]) * LARGE for contender in range(3)]
        self._refuses_a_second(stores[0], key, contents[0], contents[1])
        self._race_to_create(self._key("parts-race"), stores, contents[1:])
        return f"a second create of {_shown(LARGE)} in parts was refused, and of two at once one won"

    def _create_only_copy(self) -> str:
        self._require_copy()
        first, second, key = self._key("copy-1"), self._key("copy-2"), self._key("copied")
        self._store.put(first, b"first")
        self._store.put(second, b"second")
        told = self._store.copy_if_absent(first, key), self._store.copy_if_absent(second, key)
        if told != (True, False) or self._other.get(key) != b"first":
            raise _Broken(f"two copies to one key were answered {told}, and {self._other.get(key)!r} is stored")
        return "a second copy to the key was refused, and the content was kept"

    def _create_only_copy_race(self) -> str:
        self._require_copy()
        contents = [b"%d" % contender for contender in range(CONTENDERS)]
        sources = [self._key(f"source-{contender}") for contender in range(CONTENDERS)]
        for source, content in zip(sources, contents, strict=True):
            self._store.put(source, content)
        for number in range(ROUNDS):
            silent = self._race_to_copy(sources, self._key(f"copy-race-{number}"), contents)
        return f"{_raced(CONTENDERS, ROUNDS)}: one won each time, and its content is what is stored{silent}"

    def _refuses_a_second(self, store: ObjectStore, key: str, first: bytes, second: bytes) -> None:
        if not store.put_if_absent(key, first):
            raise _Broken("the first create of a free key was refused")
        told, stored = store.put_if_absent(key, second), self._other.get(key)
        if stored != first:
            raise _Broken(f"a second create {'was acknowledged' if told else 'was refused'} and replaced the content")
        if told:
            raise _Broken("a second create of the same key was acknowledged, though its content is not what is stored")

    def _race_to_create(self, key: str, stores: Sequence[ObjectStore], contents: Sequence[bytes]) -> str:
        told = _race(stores, lambda store, me: store.put_if_absent(key, contents[me]))
        return _judge(told, contents, self._store.get(key))

    def _race_to_copy(self, sources: Sequence[str], key: str, contents: Sequence[bytes]) -> str:
        told = _race(self._clients, lambda store, me: store.copy_if_absent(sources[me], key))
        return _judge(told, contents, self._store.get(key))

    def _require_create(self) -> None:
        if not self._store.guarantees.atomic_create:
            raise _Unsupported("this adapter claims no create-only write; the commit store alone has to decide")

    def _require_copy(self) -> None:
        if not self._store.guarantees.atomic_copy:
            raise _Unsupported("this adapter makes no create-only copy; the final manifest is written create-only")

    # -- what was acknowledged is seen, by a second client

    def _read_after_write(self) -> str:
        for number in range(ROUNDS):
            key, content = self._key(f"read-{number}"), b"%d" % number
            if self._other.head(key) is not None:
                raise _Broken(f"{key!r} was there before it was written")
            self._store.put(key, content)
            info = _found(self._other.head(key), key)
            if self._other.get(key) != content or info.size != len(content):
                raise _Broken("a second client did not read what was just written")
        return "a second client, which had just seen nothing there, read what was written"

    def _overwrite_visible(self) -> str:
        key = self._key("overwritten")
        for content in (b"first, and longer", b"second", b""):
            self._store.put(key, content)
            if self._other.get(key) != content or _found(self._other.head(key), key).size != len(content):
                raise _Broken("a second client read an old content after an overwrite")
        return "a second client read the new content and size after each overwrite"

    def _read_after_delete(self) -> str:
        key = self._key("deleted")
        self._store.put(key, b"content")
        self._store.delete(key)
        if self._other.head(key) is not None:
            raise _Broken("a second client found an object that was deleted")
        try:
            self._other.get(key)
        except ObjectNotFound:
            self._store.delete(key)
            return "a second client found nothing, and deleting again did no harm"
        raise _Broken("a second client read an object that was deleted")

    def _list_after_write(self) -> str:
        keys = [self._key(f"listed/{name}") for name in ("a/b", "a-b", "ab", "a.b", "b/c/d")]
        for number, key in enumerate(keys):
            self._store.put(key, b"content")
            self._require_listed(f"{self._prefix}listed/", keys[: number + 1])
        return "a second client listed every object as soon as it was written, in the byte order of the keys"

    def _list_after_delete(self) -> str:
        keys = [self._key(f"unlisted/{number}") for number in range(5)]
        for key in keys:
            self._store.put(key, b"content")
        while keys:
            self._store.delete(keys.pop())
            self._require_listed(f"{self._prefix}unlisted/", keys)
        return "a second client no longer listed any object that was deleted"

    def _require_listed(self, prefix: str, keys: Sequence[str]) -> None:
        listed = [info.key for info in self._other.list(prefix)]
        expected = sorted(keys, key=str.encode)
        if listed != expected:
            raise _Broken(f"a second client listed {listed}, where {expected} was written")

    # -- what is given is given back

    def _large_value(self) -> str:
        key, content = self._key("large"), bytes(range(256)) * (LARGE // 256)
        self._store.put(key, content)
        if self._other.get(key) != content or _found(self._other.head(key), key).size != LARGE:
            raise _Broken(f"{_shown(LARGE)} came back changed")
        return f"{_shown(LARGE)} came back as they were written"

    def _unusual_keys(self) -> str:
        keys = [self._key(f"unusual/{name}") for name in UNUSUAL_NAMES]
        for key in keys:
            self._store.put(key, key.encode())
        self._require_listed(f"{self._prefix}unusual/", keys)
        for key in keys:
            if self._other.get(key) != key.encode():
                raise _Broken(f"{key!r} came back with the content of another key")
        return f"{len(keys)} keys with spaces, per cent signs, quotes and other scripts were written, listed and read"

    def _copy(self) -> str:
        source, target = self._key("original"), self._key("duplicate")
        self._store.put(target, b"replaced by the copy")
        self._store.put(source, b"content")
        self._store.copy(source, target)
        if (self._other.get(source), self._other.get(target)) != (b"content", b"content"):
            raise _Broken("a copy is not what was copied")
        return "a copy replaced what was there, and the original stayed"

    def _etag_on_copy(self) -> str:
        source, target = self._key("etag"), self._key("etag-copied")
        self._store.put(source, b"content")
        self._store.copy(source, target)
        before, after = _found(self._store.head(source), source).etag, _found(self._store.head(target), target).etag
        if before is None or after is None:
            raise _Unsupported("this adapter tells no ETag; nothing rests on one")
        return f"a copy {'keeps' if before == after else 'changes'} the ETag; nothing here rests on it"

    def _directories(self) -> str:
        for name in ("a/x", "a-b/x", "b/c/x", "file"):
            self._store.put(self._key(f"directories/{name}"), b"")
        found = list(self._other.directories(f"{self._prefix}directories/"))
        if found != ["a-b", "a", "b"]:
            raise _Broken(f"the directories a-b, a and b were listed as {found}")
        return "the directories below a prefix were listed, in order"

    def _modified(self) -> str:
        key = self._key("modified")
        self._store.put(key, b"")
        modified = _found(self._store.head(key), key).modified
        if modified is None:
            raise _Unsupported("this storage keeps no time; fsck removes here only with grace=0")
        ahead = (modified - datetime.now(UTC)).total_seconds()
        return f"objects have a time; the clock of the storage and this one differ by {abs(ahead):.0f} s"


class _CommitStoreChecks:
    def __init__(self, clients: Sequence[_Client], directory: str, reopen: Callable[[], ExternalCommitStore]) -> None:
        self.histories: list[str] = []
        self.used: set[str] = set()
        self._objects = clients[0].objects
        self._connections = [client.rows for client in clients if client.rows is not None]
        self._rows, self._other = self._connections[:2]
        self._reopen = reopen
        self._directory = f"{directory}/histories"

    def plan(self) -> list[_Planned]:
        return [
            _Planned("commit store", name, measure, not_for)
            for name, measure, not_for in (
                ("reserve_race", self._reserve_race, _TWO_WINNERS),
                ("reserve_repeated", self._reserve_repeated, _TWO_WINNERS),
                ("reserve_all_race", self._reserve_all_race, _PARTS),
                ("no_gap", self._no_gap, _LOST_HISTORY),
                ("finalize_existing_only", self._finalize_existing_only, _LOST_HISTORY),
                ("read_your_writes", self._read_your_writes, _LOST_HISTORY),
                ("latest", self._latest, _LOST_HISTORY),
                ("list_order", self._list_order, _LOST_HISTORY),
                ("delete", self._delete, _LOST_HISTORY),
                ("survives_reconnect", self._survives_reconnect, _LOST_HISTORY),
                ("remembers", self._remembers, _LOST_HISTORY),
            )
        ]

    def _reserve_race(self) -> str:
        for number in range(ROUNDS):
            history = self._history(f"race-{number}")
            claims = [self._staged(history, 1) for _ in self._connections]
            told = self._race_to_reserve(claims)
            winners = [claim for claim, answer in zip(claims, told, strict=True) if isinstance(answer, Reserved)]
            silent = [claim for claim, answer in zip(claims, told, strict=True) if isinstance(answer, StoreUnavailable)]
            if len(winners) > 1 or not (winners or silent):
                raise _Broken(f"{len(winners)} of {CONTENDERS} writers were told that one version is theirs")
            if not any(self._holds(claim) for claim in winners or silent):
                raise _Broken("the row is not that of the writer who was told that the version is theirs")
            named = [answer.row.path for answer in told if isinstance(answer, Taken)]
            if len(set(named)) > 1:
                raise _Broken(f"the losers were told of {len(set(named))} winners")
        return f"{_raced(CONTENDERS, ROUNDS)} for one version: one won each time, and each loser was told who"

    def _race_to_reserve(self, claims: Sequence[VersionRow]) -> list[Reservation | StoreUnavailable]:
        return _race(self._connections, lambda rows, me: rows.reserve(claims[me], first=True))

    def _reserve_repeated(self) -> str:
        history = self._history("repeated")
        mine, theirs = self._staged(history, 1), self._staged(history, 1)
        for answer in (self._rows.reserve(mine, first=True), self._other.reserve(mine, first=True)):
            if not isinstance(answer, Reserved):
                raise _Broken(f"a writer who asked again was told {_answer(answer)} about its own version")
        answer = self._other.reserve(theirs, first=True)
        if isinstance(answer, Reserved) or not self._holds(mine):
            raise _Broken("a version was given to a second writer")
        return "asking again is answered as before, through another connection too; another writer is refused"

    def _reserve_all_race(self) -> str:
        """Race for versions of several histories; each writer must get all of them, or none."""
        if self._rows.guarantees.atomic_rows < TOGETHER:
            raise _Unsupported("it reserves one version at a time, and transactions over several tables are refused")
        for number in range(ROUNDS):
            histories = [self._history(f"together-{number}-{part}") for part in range(TOGETHER)]
            batches = [[self._staged(history, 1) for history in histories] for _ in self._connections]
            try:
                told = self._race_to_reserve_all(batches)
            except Unsupported as error:
                raise _Unsupported(f"{error} Transactions over several tables are refused") from error
            winners = [batch for batch, answer in zip(batches, told, strict=True) if isinstance(answer, Reserved)]
            silent = [
                batch for batch, answer in zip(batches, told, strict=True) if isinstance(answer, StoreUnavailable)
            ]
            if len(winners) > 1 or not (winners or silent):
                raise _Broken(f"{len(winners)} of {CONTENDERS} writers were told that the same versions are theirs")
            if not any(all(self._holds(row) for row in batch) for batch in winners or silent):
                raise _Broken("of versions that were reserved together, a part is another writer's, or missing")
            self._partial_batch_is_refused(histories[0], self._history(f"together-{number}-free"))
        return f"{_raced(CONTENDERS, ROUNDS)} for {TOGETHER} versions together: one got all of them, the others none"

    def _partial_batch_is_refused(self, taken: str, free: str) -> None:
        rows = [self._staged(free, 1), self._staged(taken, 1)]
        if isinstance(self._other.reserve_all([Claim(row, first=True) for row in rows]), Reserved):
            raise _Broken("versions were given away together though one of them was taken")
        if self._other.get(free, 1) is not None:
            raise _Broken("versions were refused together, and one of them was reserved all the same")

    def _race_to_reserve_all(
        self, batches: Sequence[Sequence[VersionRow]]
    ) -> list[BatchReservation | StoreUnavailable]:
        claims = [[Claim(row, first=True) for row in batch] for batch in batches]
        return _race(self._connections, lambda rows, me: rows.reserve_all(claims[me]))

    def _no_gap(self) -> str:
        history = self._history("gap")
        first, second, third = (self._staged(history, version) for version in (1, 2, 3))
        self._reserve(first, first=True)
        held = self._rows.get(history, 1)
        refused = [(third, False), (second, True)]
        if held is not None and not held.is_final:
            refused.append((second, False))
        for row, begins in refused:
            if isinstance(self._other.reserve(row, first=begins), Reserved):
                raise _Broken(f"version {row.version} was given away though its predecessor is not the final latest")
        self._finalize(first)
        self._reserve(second, first=False)
        return "no version was given away before its predecessor was the latest, and final"

    def _finalize_existing_only(self) -> str:
        history = self._history("finalize")
        absent = self._staged(history, 7)
        if self._rows.finalize(attrs.evolve(absent, path=final_path(absent.path))) or self._other.get(history, 7):
            raise _Broken("a version without a row was finalized")
        row = self._staged(history, 1)
        self._reserve(row, first=True)
        for _ in range(2):
            final = self._finalize(row)
        found = self._other.get(history, 1)
        if found is None or found.path != final.path or found.size != final.size:
            raise _Broken(f"a finalized row reads {found}")
        return "an existing row moved to its final path, again and again to the same, and a missing one was not made"

    def _read_your_writes(self) -> str:
        history = self._history("read")
        if self._other.get(history, 1) is not None or self._other.latest(history) is not None:
            raise _Broken("a new history has rows")
        row = self._staged(history, 1)
        self._reserve(row, first=True)
        latest = self._other.latest(history)
        if not self._holds(row) or latest is None or latest.version != 1:
            raise _Broken("a second connection did not see a row that was acknowledged")
        return "a second connection, which had just seen nothing, saw the row that was acknowledged"

    def _latest(self) -> str:
        history = self._history("latest")
        for version in range(1, 13):
            row = self._staged(history, version)
            self._reserve(row, first=version == 1)
            final = self._finalize(row)
            latest = self._other.latest(history)
            if latest is None or (latest.version, latest.path) != (version, final.path):
                raise _Broken(
                    f"after version {version} was finalized a second connection found {latest} to be the latest"
                )
        return "a second connection found each of 12 versions to be the latest, and final, once it was"

    def _list_order(self) -> str:
        history = self._recorded("list", 12)
        for after, limit, descending, expected in (
            (None, None, False, list(range(1, 13))),
            (None, None, True, list(range(12, 0, -1))),
            (9, 2, False, [10, 11]),
            (10, 3, True, [9, 8, 7]),
            (12, None, False, []),
        ):
            rows = self._other.list(history, after=after, limit=limit, descending=descending)
            if [row.version for row in rows] != expected:
                raise _Broken(f"versions {expected} were listed as {[row.version for row in rows]}")
        return "12 versions were listed in order, both ways, and in pages"

    def _delete(self) -> str:
        history = self._recorded("delete", 3)
        count = self._rows.delete(history, [1, 2])
        for version in (1, 2):
            self._objects.delete(self._final_key(history, version))
        left = [row.version for row in self._other.list(history, after=None, limit=None, descending=False)]
        if count != 2 or left != [3] or self._other.get(history, 1) is not None:
            raise _Broken(f"of versions 1 to 3, {count} were deleted where two should be, and {left} are left")
        again = self._staged(history, 1)
        if isinstance(self._rows.reserve(again, first=True), Reserved):
            raise _Broken("a version that was deleted was given away again below a later one")
        return "deleted rows are gone for a second connection, and their versions are not given away again"

    def _survives_reconnect(self) -> str:
        history = self._history("reconnect")
        rows = self._reopen()
        row = self._staged(history, 1)
        try:
            rows.reserve(row, first=True)
        finally:
            rows.close()
        rows = self._reopen()
        try:
            found = rows.get(history, 1)
        finally:
            rows.close()
        if found is None:
            raise _Broken("a row was gone after its connection was closed")
        return "a row outlived the connection that wrote it"

    def _remembers(self) -> str:
        if not self._rows.guarantees.remembers:
            raise _Unsupported(
                "it may forget a row in a failover or power loss: the create-only write has to hold then"
            )
        return "declared by the adapter; a failover or power loss cannot be measured from a client"

    # -- rows and the manifests that they are about

    def _history(self, name: str) -> str:
        base_uri = f"{self._objects.root_uri}{self._directory}/{name}.lance"
        self.histories.append(base_uri)
        return base_uri

    def _final_key(self, history: str, version: int) -> str:
        key = history.removeprefix(self._objects.root_uri)
        return f"{key}/_versions/{NamingScheme.V2.final_name(version)}"

    def _staged(self, history: str, version: int) -> VersionRow:
        """A row for a new staged manifest, which is there: some commit stores read it."""
        unique = str(uuid4())
        path = f"{self._final_key(history, version)}-{unique}"
        self.used |= {path, final_path(path)}
        self._objects.put(path, unique.encode())
        return VersionRow(history, version, path, len(unique), "certify")

    def _reserve(self, row: VersionRow, *, first: bool) -> None:
        answer = self._rows.reserve(row, first=first)
        if not isinstance(answer, Reserved):
            raise _Broken(f"the only writer of version {row.version} was told {_answer(answer)}")

    def _finalize(self, row: VersionRow) -> VersionRow:
        final = attrs.evolve(row, path=final_path(row.path))
        self._objects.put(final.path, self._objects.get(row.path))
        if not self._rows.finalize(final):
            raise _Broken(f"version {row.version} could not be finalized: its row was not found")
        return final

    def _recorded(self, name: str, versions: int) -> str:
        history = self._history(name)
        rows = [attrs.evolve(row, path=final_path(row.path)) for row in self._each_staged(history, versions)]
        self._rows.record(rows)
        return history

    def _each_staged(self, history: str, versions: int) -> Iterator[VersionRow]:
        for version in range(1, versions + 1):
            row = self._staged(history, version)
            self._objects.put(final_path(row.path), self._objects.get(row.path))
            yield row

    def _holds(self, row: VersionRow) -> bool:
        """Whether the version's row is this one, staged, or final with its bytes."""
        held = self._other.get(row.base_uri, row.version)
        if held is None or held.path == row.path:
            return held is not None
        return held.path == final_path(row.path) and self._objects.get(held.path) == self._objects.get(row.path)


def _race(clients: Sequence[T], act: Callable[[T, int], R]) -> list[R | StoreUnavailable]:
    """What each client was told, all let go at once; who got no answer stands for itself."""
    barrier = Barrier(len(clients))

    def contend(me: int) -> R | StoreUnavailable:
        barrier.wait()
        try:
            return act(clients[me], me)
        except StoreUnavailable as error:
            return error

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(contend, range(len(clients))))


def _judge(told: Sequence[bool | StoreUnavailable], contents: Sequence[bytes], stored: bytes) -> str:
    """One winner, whose content is stored; also how many got no answer, for the evidence."""
    winners = [content for content, answer in zip(contents, told, strict=True) if answer is True]
    silent = [content for content, answer in zip(contents, told, strict=True) if isinstance(answer, StoreUnavailable)]
    if len(winners) > 1 or not (winners or silent):
        raise _Broken(f"{len(winners)} of {len(told)} writers were told that they created the object")
    if stored not in (winners or silent):
        raise _Broken("what is stored is not the content of the writer who was told that it created the object")
    return f" ({len(silent)} got no answer)" if silent else ""


def _found(info: ObjectInfo | None, key: str) -> ObjectInfo:
    if info is None:
        raise _Broken(f"{key!r} was written, and was not found")
    return info


def _answer(reservation: Reservation) -> str:
    return type(reservation).__name__


def _raced(contenders: int, rounds: int) -> str:
    return f"{contenders} writers raced {rounds} times"


def _shown(size: int) -> str:
    return f"{size // 2**20} MiB"
