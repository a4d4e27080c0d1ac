"""Stores that break one guarantee each, which `certify` and `connect` must detect."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Condition, Thread
from typing import Any

import attrs

from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.version_row import BatchReservation, Blocked, Claim, NotReady, Reserved, Taken

Overrides = Mapping[str, Callable[..., Any]]

_MEETING = Condition()


class Honest(MemoryObjectStore):
    """One client of a storage in memory; ``storage`` is another client of the same."""

    def __init__(self, storage: Honest | None = None) -> None:
        super().__init__()
        self.seen: dict[Any, Any] = {}
        self.entered: dict[str, int] = {}
        if storage is not None:
            for name in ("_objects", "_modified", "_lock", "entered"):
                setattr(self, name, getattr(storage, name))


def clients_of(overrides: Overrides, storage: Honest | None = None) -> Callable[[], Honest]:
    """Opens clients of one storage, with some methods replaced by false answers."""
    lying = type("Lying", (Honest,), dict(overrides))
    shared = storage or Honest()
    return lambda: lying(shared)


def connections_of(overrides: Overrides, name: str) -> Callable[[object], MemoryCommitStore]:
    """Opens connections to one commit store, with some methods replaced by false answers."""
    lying = type("LyingRows", (MemoryCommitStore,), {"seen": None, **overrides})

    def connect(_: object) -> MemoryCommitStore:
        rows: MemoryCommitStore = lying(name)
        rows.seen = {}  # type: ignore[attr-defined] # what this connection has looked at
        return rows

    return connect


# -- object stores -------------------------------------------------------------------------------------------------


def _ignores_the_condition(store: Honest, key: str, content: bytes) -> bool:
    store.put(key, content)
    return True


def _refuses_and_overwrites(store: Honest, key: str, content: bytes) -> bool:
    free = store.head(key) is None
    store.put(key, content)
    return free


def _meeting(store: Honest, key: str, racing: bool) -> bool:
    """Return whether the key is free. In a race, the first client waits for a second one to check."""
    with _MEETING:
        free = store.head(key) is None
        store.entered[key] = store.entered.get(key, 0) + 1
        _MEETING.notify_all()
        if free and racing:
            _MEETING.wait_for(lambda: store.entered[key] > 1)
        return free


def _checks_then_writes(store: Honest, key: str, content: bytes) -> bool:
    free = _meeting(store, key, "/race-" in key)
    if free:
        store.put(key, content)
    return free


def _checks_then_writes_slowly(store: Honest, key: str, content: bytes) -> bool:
    free = _meeting(store, key, "in-flight" in key)
    if free:
        store.put(key, content)
    return free


def _ignores_the_condition_in_parts(store: Honest) -> Honest:
    return clients_of({"put_if_absent": _ignores_the_condition}, store)()


def _copies_over(store: Honest, source: str, target: str) -> bool:
    store.put(target, store.get(source))
    return True


def _checks_then_copies(store: Honest, source: str, target: str) -> bool:
    free = _meeting(store, target, "copy-race" in target)
    if free:
        store.put(target, store.get(source))
    return free


def _remembers_what_was_not_there(store: Honest, key: str) -> Any:
    if store.seen.setdefault(key, MemoryObjectStore.head(store, key)) is None:
        return None
    return MemoryObjectStore.head(store, key)


def _reads_from_a_cache(store: Honest, key: str) -> bytes:
    content: bytes = store.seen.setdefault(key, MemoryObjectStore.get(store, key))
    return content


def _reads_what_was_deleted(store: Honest, key: str) -> bytes:
    try:
        return MemoryObjectStore.get(store, key)
    except ObjectNotFound:
        if "/deleted" in key:
            return b"content"
        raise


def _lists_from_a_cache(store: Honest, prefix: str, *, after: str = "") -> Iterator[Any]:
    cached = store.seen.setdefault(prefix, list(MemoryObjectStore.list(store, prefix)))
    return iter(cached)


def _lists_what_was_deleted(store: Honest, prefix: str, *, after: str = "") -> Iterator[Any]:
    listed = {info.key: info for info in MemoryObjectStore.list(store, prefix)}
    store.seen[prefix] = {**store.seen.get(prefix, {}), **listed}
    return iter(store.seen[prefix].values())


def _lists_backwards(store: Honest, prefix: str, *, after: str = "") -> Iterator[Any]:
    return reversed(list(MemoryObjectStore.list(store, prefix)))


def _cuts_off(store: Honest, key: str, content: bytes) -> None:
    MemoryObjectStore.put(store, key, content[: 5 * 2**20])


def _takes_per_cent_signs_for_escapes(store: Honest, key: str, content: bytes) -> None:
    MemoryObjectStore.put(store, key.replace("%25", "%"), content)


def _copies_nothing_over_something(store: Honest, source: str, target: str) -> None:
    store.put_if_absent(target, store.get(source))


def _lists_directories_by_name(store: Honest, prefix: str) -> Iterator[str]:
    return iter(sorted(MemoryObjectStore.directories(store, prefix)))


def _deletes_nothing(store: Honest, key: str) -> None:
    pass


OBJECT_LIES: Mapping[str, tuple[str, Overrides]] = {
    "a condition that is ignored": ("create_only_put", {"put_if_absent": _ignores_the_condition}),
    "a refusal that overwrites": ("create_only_put", {"put_if_absent": _refuses_and_overwrites}),
    "a check and then a write": ("create_only_put_race", {"put_if_absent": _checks_then_writes}),
    "a slow write behind its check": ("create_in_flight", {"put_if_absent": _checks_then_writes_slowly}),
    "a condition ignored in parts": ("create_only_multipart", {"in_parts": _ignores_the_condition_in_parts}),
    "a condition ignored by copies": ("create_only_copy", {"copy_if_absent": _copies_over}),
    "a check and then a copy": ("create_only_copy_race", {"copy_if_absent": _checks_then_copies}),
    "absence from a cache": ("read_after_write", {"head": _remembers_what_was_not_there}),
    "content from a cache": ("overwrite_visible", {"get": _reads_from_a_cache}),
    "a deleted object that is read": ("read_after_delete", {"get": _reads_what_was_deleted}),
    "a listing from a cache": ("list_after_write", {"list": _lists_from_a_cache}),
    "a listing backwards": ("list_after_write", {"list": _lists_backwards}),
    "a deleted object that is listed": ("list_after_delete", {"list": _lists_what_was_deleted}),
    "large content cut off": ("large_value", {"put": _cuts_off}),
    "a key that is another": ("unusual_keys", {"put": _takes_per_cent_signs_for_escapes}),
    "a copy that copies nothing": ("copy", {"copy": _copies_nothing_over_something}),
    "directories out of order": ("directories", {"directories": _lists_directories_by_name}),
    "a delete that deletes nothing": ("clean_up", {"delete": _deletes_nothing}),
}
"""By name: the check that has to fail, and the methods that lie."""


# -- commit stores -------------------------------------------------------------------------------------------------


def _gives_to_everybody(rows: Any, row: Any, *, first: bool) -> Any:
    MemoryCommitStore.reserve(rows, row, first=first)
    return Reserved()


def _does_not_know_its_own(rows: Any, row: Any, *, first: bool) -> Any:
    held = rows.get(row.base_uri, row.version)
    return Taken(held) if held else MemoryCommitStore.reserve(rows, row, first=first)


def _leaves_gaps(rows: Any, row: Any, *, first: bool) -> Any:
    answer = MemoryCommitStore.reserve(rows, row, first=first)
    return Reserved() if isinstance(answer, NotReady) else answer


def _finalizes_what_is_not_there(rows: Any, row: Any) -> bool:
    if not MemoryCommitStore.finalize(rows, row):
        MemoryCommitStore.record(rows, [row])
    return True


def _sees_its_own_rows_only(rows: Any, base_uri: str, version: int) -> Any:
    return rows.seen.setdefault((base_uri, version), MemoryCommitStore.get(rows, base_uri, version))


def _latest_by_name(rows: Any, base_uri: str) -> Any:
    listed = MemoryCommitStore.list(rows, base_uri, after=None, limit=None, descending=False)
    return max(listed, key=lambda row: str(row.version), default=None)


def _lists_by_name(rows: Any, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> Any:
    listed = MemoryCommitStore.list(rows, base_uri, after=after, limit=limit, descending=descending)
    return sorted(listed, key=lambda row: str(row.version))


def _counts_and_keeps(rows: Any, base_uri: str, versions: Any = None) -> int:
    return 0 if versions is None else len(list(versions))


def _forgets_when_closed(rows: Any) -> None:
    for base_uri in list(rows._histories.rows):
        if "reconnect" in base_uri:
            rows._histories.rows.pop(base_uri)


def _reserves_what_is_free(rows: MemoryCommitStore, claims: Sequence[Claim]) -> BatchReservation:
    told = [rows.reserve(claim.row, first=claim.first) for claim in claims]
    obstacles = {
        claim.row.base_uri: answer
        for claim, answer in zip(claims, told, strict=True)
        if not isinstance(answer, Reserved)
    }
    return Blocked(obstacles) if obstacles else Reserved()


ROW_LIES: Mapping[str, tuple[str, Overrides]] = {
    "a version for everybody": ("reserve_race", {"reserve": _gives_to_everybody}),
    "own success as a conflict": ("reserve_repeated", {"reserve": _does_not_know_its_own}),
    "parts of a batch": ("reserve_all_race", {"reserve_all": _reserves_what_is_free}),
    "gaps": ("no_gap", {"reserve": _leaves_gaps}),
    "rows made by finalizing": ("finalize_existing_only", {"finalize": _finalizes_what_is_not_there}),
    "rows from a cache": ("read_your_writes", {"get": _sees_its_own_rows_only}),
    "9 after 10": ("latest", {"latest": _latest_by_name}),
    "a list out of order": ("list_order", {"list": _lists_by_name}),
    "rows that stay": ("delete", {"delete": _counts_and_keeps}),
    "rows that go with the connection": ("survives_reconnect", {"close": _forgets_when_closed}),
}


# -- servers -------------------------------------------------------------------------------------------------------


@attrs.define
class Relay:
    """A TCP relay to ``target`` that can replace bytes of requests and drop connections."""

    target: tuple[str, int]
    replace: Callable[[bytes], bytes] = bytes
    requests: list[bytes] = attrs.field(factory=list)
    _open: list[socket.socket] = attrs.field(factory=list)
    _listener: socket.socket = attrs.field(factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Close every connection and accept no new one."""
        for connection in (self._listener, *self._open):
            with suppress(OSError):  # shutdown wakes who waits, which close() alone would leave sleeping
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with suppress(OSError, ValueError), client, socket.create_connection(self.target) as server:
            self._open += client, server
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 20)
                    if not data:
                        return
                    if ready is client:
                        self.requests.append(data)
                        server.sendall(self.replace(data))
                    else:
                        client.sendall(data)


@contextmanager
def relay(address: str, replace: Callable[[bytes], bytes] = bytes) -> Iterator[Relay]:
    """Relay to ``address``; ``replace`` changes each request."""
    host, _, port = address.rpartition(":")
    relay = Relay((host, int(port)), replace)
    Thread(target=relay.serve, daemon=True).start()
    try:
        yield relay
    finally:
        relay.cut()


@contextmanager
def ignoring_conditions(endpoint: str, method: bytes = b"") -> Iterator[str]:
    """Yield the URL of an S3 server that ignores If-None-Match for one method or all."""

    def without_condition(request: bytes) -> bytes:
        return request.replace(b"If-None-Match:", b"X-If-None-Match:") if request.startswith(method) else request

    with relay(endpoint.removeprefix("http://"), without_condition) as server:
        yield f"http://127.0.0.1:{server.port}"
