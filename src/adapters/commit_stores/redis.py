"""Commit store in Redis: one sorted set per history.

Sentinel and cluster are supported. Each step is one script. The key is ``lancekeep:{base_uri}``, with braces and
per cent signs percent-encoded, so that the hash tag is the whole base URI and a history stays in one slot. The score of
a member is its version; the member is ``version NUL state NUL size NUL path NUL committer``, where the state is F for a
final row, S for a staged row and M for the fence of a history that moved away. NUL occurs in no path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from typing import Any, ClassVar
from urllib.parse import unquote

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterCrossSlotError,
    ConnectionError,  # noqa: A004 - the driver's name for it, used in this module only
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from lancekeep.adapters.commit_stores.boundary import boundary
from lancekeep.adapters.commit_stores.claims import answer, answer_all, latest_agreed, may_finalize
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    LancekeepError,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.domain.version_row import BatchReservation, Blocked, Claim, NotReady, Reservation, Reserved, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees, require_atomic
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

DEFAULT_PORT = 6379
SENTINEL = "redis+sentinel"
SENTINEL_PORT = 26379
BATCH = 500
"""Rows per script call: a script blocks the server while it runs."""
MOST_TOGETHER = 1000
"""Histories per reserving script, for the same reason."""
_Members = Sequence[Sequence[Any]]
"""Members, each with its score."""
_DRIVER_ERRORS = (RedisError, RedisClusterException, UnicodeDecodeError)

_RIGHTS = "Check user and password, and the user's permission to run scripts (EVALSHA, SCRIPT LOAD)"
_PRIMARY = (
    "This server is a read-only replica. Connect to the primary, or use redis+sentinel://HOST:PORT,…/SERVICE, which "
    "finds the primary"
)
_CLUSTER = "This server is a node of a Redis cluster. Add the option cluster=true"
_FOREIGN = "A key below 'lancekeep:' was written by another program. Give Lancekeep a database of its own"

_MEANINGS: tuple[tuple[tuple[type[Exception], ...], str, type[LancekeepError], str], ...] = (
    ((AuthenticationError, AuthorizationError, NoPermissionError), "", AccessDenied, _RIGHTS),
    ((ResponseError,), "user executing the script can't", AccessDenied, _RIGHTS),
    ((ReadOnlyError,), "", Unsupported, _PRIMARY),
    ((ResponseError,), "READONLY", Unsupported, _PRIMARY),
    ((AskError, ClusterCrossSlotError), "", InvalidInput, _CLUSTER),
    ((ResponseError,), "not allowed in cluster mode", InvalidInput, _CLUSTER),
    ((RedisClusterException,), "Cluster mode is not enabled", InvalidInput, "Leave out the option cluster=true"),
    ((ResponseError,), "unknown command", Unsupported, "Lancekeep needs scripts (EVALSHA) and sorted sets"),
    ((ResponseError,), "DB index is out of range", InvalidInput, "Choose a database that the server has, such as /0"),
    ((ResponseError,), "WRONGTYPE", Damaged, _FOREIGN),
    ((UnicodeDecodeError,), "", Damaged, _FOREIGN),
)
"""The driver's error, a part of its text, the resulting error and the advice. The first match decides; all other
errors are `StoreUnavailable`."""

_RESERVE = """
local obstacles = {}
for i, key in ipairs(KEYS) do
    local version, predecessor = ARGV[3 * i - 2], ARGV[3 * i]
    local held = redis.call('ZRANGEBYSCORE', key, version, version)[1]
    local latest, score = unpack(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES'))
    local may_claim
    if predecessor == '' then
        may_claim = not latest
    else
        may_claim = latest and string.sub(latest, 1, #predecessor) == predecessor
    end
    if held then
        table.insert(obstacles, {i, 1, held, version})
    elseif not may_claim then
        table.insert(obstacles, {i, 2, latest, score})
    end
end
if #obstacles == 0 then
    for i, key in ipairs(KEYS) do
        redis.call('ZADD', key, ARGV[3 * i - 2], ARGV[3 * i - 1])
    end
end
return obstacles
"""
_LATEST = """
local latest = {}
for i, key in ipairs(KEYS) do
    latest[i] = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
end
return latest
"""
_FINALIZE = """
local held = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], ARGV[1])[1]
if not held then return 0 end
local version, size, path, committer = string.match(held, '^(%d+)%zS%z(%d+)%z([^%z]*)%z(.*)$')
if version then
    redis.call('ZREM', KEYS[1], held)
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2] .. committer)
end
return 1
"""
_RECORD = """
for i = 1, #ARGV, 2 do
    if redis.call('ZCOUNT', KEYS[1], ARGV[i], ARGV[i]) == 0 then
        redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1])
    end
end
"""
_DELETE = """
local count = 0
for i = 1, #ARGV do
    count = count + redis.call('ZREMRANGEBYSCORE', KEYS[1], ARGV[i], ARGV[i])
end
return count
"""
_DELETE_HISTORY = """
local count = redis.call('ZCARD', KEYS[1])
redis.call('UNLINK', KEYS[1])
return count
"""


class _Retry(Retry):
    """Repeat a call whose pooled connection is broken.

    The first attempt may have succeeded, so a refusal of the second is reported as a lost connection.
    """

    def call_with_retry(self, do: Callable[[], Any], fail: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        broken = False

        def note(*failure: Any) -> Any:
            nonlocal broken
            broken = True
            return fail(*failure)

        try:
            return super().call_with_retry(do, note, *args, **kwargs)
        except ResponseError as error:
            if not broken:
                raise
            raise ConnectionError(f"the connection broke, and the repeated call was refused: {error}") from error


class RedisCommitStore:
    """Keep version rows in Redis, for many machines. The first call connects.

    `CommitStoreGuarantees.remembers` is False, because settings that a client cannot read decide whether Redis keeps
    acknowledged rows (docs/commit-stores.md).

    Args:
        url: The canonical URL.
        address: The arguments of ``redis.Redis`` for the server.
        cluster: Whether the server is a node of a Redis cluster.
        sentinels: The addresses of the Sentinels that know the primary of ``service``.
        service: The service that the Sentinels monitor.
        sentinel_login: Credentials for the Sentinels.
    """

    options: ClassVar[frozenset[str]] = frozenset(
        (
            "username",
            "password",
            "cluster",
            "sentinel_username",
            "sentinel_password",
            "ssl_ca_certs",
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_check_hostname",
        )
    )

    def __init__(
        self,
        url: str,
        address: dict[str, Any],
        *,
        cluster: bool = False,
        sentinels: Sequence[tuple[str, int]] = (),
        service: str = "",
        sentinel_login: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.guarantees = CommitStoreGuarantees(
            remembers=False, shared=True, atomic_rows=1 if cluster else MOST_TOGETHER
        )
        self._cluster = cluster
        self._sentinels, self._service, self._sentinel_login = list(sentinels), service, dict(sentinel_login or {})
        self._address = {
            "decode_responses": True,
            "socket_connect_timeout": 3.0,
            "socket_timeout": 5.0,
            # A pooled connection may be broken. Scripts are idempotent; further retries are up to the caller.
            "retry": _Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
            **address,
        }

    @staticmethod
    def _canonical(url: StoreUrl) -> str:
        """Return the URL without secrets, with the Sentinels sorted."""
        service, database = _place(url)
        hosts = ",".join(sorted(_shown(host, port) for host, port in _hosts(url)))
        return f"{url.parts.scheme}://{hosts}{service and '/'}{service}/{database}"

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> RedisCommitStore:
        (service, database), hosts = _place(url), _hosts(url)
        cluster = url.boolean("cluster", False)
        if cluster and service:
            url.refuse("Sentinel does not monitor a Redis cluster; omit cluster=true, or name a node by redis://")
        if cluster and database:
            url.refuse("a Redis cluster has database 0 only")
        address: dict[str, Any] = {} if service else {"host": hosts[0][0], "port": hosts[0][1]}
        if not cluster:
            address["db"] = database
        login = {
            name: url.options[f"sentinel_{name}"]
            for name in ("username", "password")
            if f"sentinel_{name}" in url.options
        }
        if login and not service:
            url.refuse(f"the option sentinel_{min(login)} is for Sentinel; write {SENTINEL}://")
        for name, in_url in (("username", url.parts.username), ("password", url.parts.password)):
            if in_url and name in url.options:
                url.refuse(f"the {name} is set twice; set it once")
            value = unquote(in_url) if in_url else url.options.get(name)
            if value is not None:
                address[name] = value
        tls = {name: value for name, value in url.options.items() if name.startswith("ssl_")}
        if tls and url.parts.scheme != "rediss":
            url.refuse(f"the option {min(tls)} is for TLS, and this URL is not; write rediss://")
        if url.parts.scheme == "rediss":
            address |= {"ssl": True, **tls, "ssl_check_hostname": url.boolean("ssl_check_hostname", True)}
        return cls(
            cls._canonical(url),
            address,
            cluster=cluster,
            sentinels=hosts if service else (),
            service=service,
            sentinel_login=login,
        )

    def __repr__(self) -> str:
        return f"RedisCommitStore({self.url!r})"

    @boundary(*_DRIVER_ERRORS)
    def get(self, base_uri: str, version: int) -> VersionRow | None:
        members = self._server.client.zrangebyscore(_key(base_uri), version, version, withscores=True)
        return self._row(base_uri, members)

    @boundary(*_DRIVER_ERRORS)
    def latest(self, base_uri: str) -> VersionRow | None:
        return self._row(base_uri, self._server.client.zrevrange(_key(base_uri), 0, 0, withscores=True))

    @boundary(*_DRIVER_ERRORS)
    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        key, count = _key(base_uri), -1 if limit is None else limit
        if descending:
            start = "+inf" if after is None else f"({after}"
            members = self._server.client.zrevrangebyscore(key, start, "-inf", 0, count, withscores=True)
        else:
            start = "-inf" if after is None else f"({after}"
            members = self._server.client.zrangebyscore(key, start, "+inf", 0, count, withscores=True)
        return [self._parse(base_uri, member, score) for member, score in members]

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        told = self.reserve_all([Claim(row, first)])
        return told.obstacles[row.base_uri] if isinstance(told, Blocked) else told

    @boundary(*_DRIVER_ERRORS)
    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        require_atomic(self, len(claims))
        keys = [_key(claim.row.base_uri) for claim in claims]
        obstacles = self._server.reserve(keys, [part for claim in claims for part in _parts(claim)])
        answers: list[Reservation | None] = [None] * len(claims)
        for number, kind, *members in obstacles:
            row = claims[number - 1].row
            found = self._row(row.base_uri, [members] if members else [])
            answers[number - 1] = NotReady(found) if kind == 2 or found is None else answer(row, found)
        return answer_all(claims, answers) or Reserved()

    @boundary(*_DRIVER_ERRORS)
    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        if self._cluster:  # each history may be on another server, and no transaction spans several
            return latest_agreed(self, base_uris)
        found = self._server.latest([_key(base_uri) for base_uri in base_uris], []) if base_uris else []
        return [
            self._row(base_uri, [members] if members else [])
            for base_uri, members in zip(base_uris, found, strict=True)
        ]

    @boundary(*_DRIVER_ERRORS)
    def finalize(self, row: VersionRow) -> bool:
        without_committer = f"{row.version}\0F\0{row.size}\0{row.path}\0"
        return bool(self._server.finalize([_key(row.base_uri)], [row.version, without_committer]))

    @boundary(*_DRIVER_ERRORS)
    def record(self, rows: Iterable[VersionRow]) -> None:
        for base_uri, group in groupby(rows, lambda row: row.base_uri):
            while batch := [part for row in islice(group, BATCH) for part in (row.version, _member(row))]:
                self._server.record([_key(base_uri)], batch)

    @boundary(*_DRIVER_ERRORS)
    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        if versions is None:
            return int(self._server.delete_history([_key(base_uri)]))
        count, rest = 0, iter(sorted(set(versions)))
        while batch := list(islice(rest, BATCH)):
            count += int(self._server.delete([_key(base_uri)], batch))
        return count

    def close(self) -> None:
        """Close every connection; a later call connects again."""
        server = self.__dict__.pop("_server", None)
        if server is not None:
            server.client.close()

    @cached_property
    def _server(self) -> _Server:
        if self._cluster:
            return _Server(RedisCluster(**self._address))
        if self._service:
            # If a Sentinel does not answer, enough time must remain for the next Sentinel.
            patience = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0, "retry": Retry(NoBackoff(), 0)}
            connect: Callable[..., Any] = Sentinel  # redis-py has no types for it
            sentinel = connect(self._sentinels, sentinel_kwargs={**patience, **self._sentinel_login})
            return _Server(sentinel.master_for(self._service, **self._address))
        return _Server(Redis(**self._address))

    def _row(self, base_uri: str, members: _Members) -> VersionRow | None:
        return self._parse(base_uri, *members[0]) if members else None

    def _parse(self, base_uri: str, member: str, score: float | str) -> VersionRow:
        """Parse a member; the scripts rely on its score and state, so they must match its content."""
        try:
            version, _, size, path, committer = member.split("\0", 4)
            row = VersionRow(base_uri, int(version), path, int(size), committer)
            if row.version != float(score) or _member(row) != member:
                raise ValueError("score or state differ")
        except ValueError as error:
            raise Damaged(
                f"{self.url}: the key {_key(base_uri)!r} holds {member!r} with the score {score}, which is not a row. "
                "Another program writes there; give Lancekeep a database of its own."
            ) from error
        return row

    def understood(self, error: Exception) -> LancekeepError:
        if isinstance(error, ReadOnlyError) and "_server" in self.__dict__ and not self._cluster:
            self._server.client.connection_pool.disconnect()  # after a failover, the name may resolve to another server
        text = "" if isinstance(error, UnicodeDecodeError) else f" {error}."
        for kinds, part, meaning, advice in _MEANINGS:
            if isinstance(error, kinds) and part in str(error) and not (self._cluster and advice is _CLUSTER):
                return meaning(f"{self.url}:{text} {advice}.")
        return StoreUnavailable(f"{self.url}: {error}")


class _Server:
    """A client and its scripts, which redis-py loads again if the server has lost them."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.reserve = client.register_script(_RESERVE)
        self.latest = client.register_script(_LATEST)
        self.finalize = client.register_script(_FINALIZE)
        self.record = client.register_script(_RECORD)
        self.delete = client.register_script(_DELETE)
        self.delete_history = client.register_script(_DELETE_HISTORY)


def _hosts(url: StoreUrl) -> list[tuple[str, int]]:
    """Return host and port of the server, or of each Sentinel."""
    if url.parts.scheme == SENTINEL:
        return url.hosts(SENTINEL_PORT)
    hosts = url.hosts(DEFAULT_PORT)
    if len(hosts) > 1:
        url.refuse(f"expected one host. Several are for Sentinel: {SENTINEL}://HOST:PORT,HOST:PORT/SERVICE")
    return hosts


def _place(url: StoreUrl) -> tuple[str, int]:
    """Return the service that Sentinel monitors, or an empty name, and the database number."""
    is_sentinel = url.parts.scheme == SENTINEL
    service, _, path = url.parts.path.strip("/").partition("/") if is_sentinel else ("", "", url.parts.path)
    database = path.strip("/") or "0"
    named = bool(url.parts.netloc.rpartition("@")[2]) and (bool(service) or not is_sentinel)
    if not named or not re.fullmatch("[0-9]{1,9}", database):
        place = "HOST[:PORT],HOST[:PORT]/SERVICE" if is_sentinel else "HOST[:PORT]"
        url.refuse(f"expected {url.parts.scheme}://{place}[/DATABASE] with a number as the database")
    return service, int(database)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _key(base_uri: str) -> str:
    escaped = base_uri.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return f"lancekeep:{{{escaped}}}"


def _parts(claim: Claim) -> tuple[int, str, str]:
    """Return version, member, and the required prefix of the predecessor's member; empty for none."""
    row = claim.row
    return row.version, _member(row), "" if claim.first else f"{row.version - 1}\0F\0"


def _member(row: VersionRow) -> str:
    state = "F" if row.is_final else "S" if may_finalize(row) else "M"
    return f"{row.version}\0{state}\0{row.size}\0{row.path}\0{row.committer}"
