"""The error mapping of the Redis adapter against real servers, and Sentinel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from losing_proxy import losing_proxy
from redis import Redis
from redis_servers import own_redis, poll, replicate

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    LancekeepError,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.domain.naming import NamingScheme, final_path
from lancekeep.domain.version_row import Claim, Reserved, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore

MEMORY = MemoryObjectStore()


def staged(version: int, base_uri: str) -> VersionRow:
    path = f"t.lance/_versions/{NamingScheme.V2.final_name(version)}-{uuid4()}"
    return VersionRow(base_uri, version, path, 7)


def reserve(store: ExternalCommitStore) -> None:
    assert store.reserve(staged(1, f"s3://bucket/{uuid4()}"), first=True) == Reserved()


def finalized(row: VersionRow) -> VersionRow:
    return VersionRow(row.base_uri, row.version, final_path(row.path), row.size)


@contextmanager
def acl_without_scripts(_: Path) -> Iterator[str]:
    with own_redis() as port, Redis(port=port) as admin:
        admin.execute_command("ACL", "SETUSER", "ada", "on", ">pw", "~*", "+@all", "-evalsha")
        yield f"redis://ada:pw@127.0.0.1:{port}"


@contextmanager
def acl_without_writes(_: Path) -> Iterator[str]:
    with own_redis() as port, Redis(port=port) as admin:
        admin.execute_command("ACL", "SETUSER", "ada", "on", ">pw", "~*", "+@all", "-zadd")
        yield f"redis://ada:pw@127.0.0.1:{port}"


@contextmanager
def wrong_password(_: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--requirepass", "right") as port:
        yield f"redis://:wrong@127.0.0.1:{port}"


@contextmanager
def replica(_: Path) -> Iterator[str]:
    with own_redis() as primary, own_redis("--port", "PORT", "--replicaof", "127.0.0.1", str(primary)) as port:
        replicate(primary)
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def cluster_node(directory: Path) -> Iterator[str]:
    """Yield a node that owns no slot of the test's keys."""
    settings = ("--port", "PORT", "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    (directory / "a").mkdir()
    (directory / "b").mkdir()
    with (
        own_redis(*settings, "--dir", str(directory / "a")) as first,
        own_redis(*settings, "--dir", str(directory / "b")) as second,
        Redis(port=first) as admin,
        Redis(port=second) as other,
    ):
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        admin.execute_command("CLUSTER", "MEET", "127.0.0.1", second)
        poll(lambda: b"cluster_state:ok" in other.execute_command("CLUSTER", "INFO"))
        yield f"redis://127.0.0.1:{second}"


@contextmanager
def database_of_cluster_node(directory: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--cluster-enabled", "yes", "--dir", str(directory)) as port:
        yield f"redis://127.0.0.1:{port}/1"


@contextmanager
def not_a_cluster(_: Path) -> Iterator[str]:
    with own_redis() as port:
        yield f"redis://127.0.0.1:{port}?cluster=true"


@contextmanager
def without_scripts(_: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--rename-command", "EVALSHA", "") as port:
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def few_databases(_: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--databases", "2") as port:
        yield f"redis://127.0.0.1:{port}/7"


@contextmanager
def full_memory(_: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--maxmemory", "1", "--maxmemory-policy", "noeviction") as port:
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def few_clients(_: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--maxclients", "1") as port, Redis(port=port) as only:
        only.ping()
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def too_few_replicas(_: Path) -> Iterator[str]:
    with own_redis("--port", "PORT", "--min-replicas-to-write", "1") as port:
        yield f"redis://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("server", "meaning", "advice"),
    [
        (acl_without_scripts, AccessDenied, "permission to run scripts"),
        (acl_without_writes, AccessDenied, "permission to run scripts"),
        (wrong_password, AccessDenied, "Check user and password"),
        (replica, Unsupported, "Connect to the primary"),
        (cluster_node, InvalidInput, "Add the option cluster=true"),
        (database_of_cluster_node, InvalidInput, "Add the option cluster=true"),
        (not_a_cluster, InvalidInput, "Leave out the option cluster=true"),
        (without_scripts, Unsupported, "needs scripts"),
        (few_databases, InvalidInput, "Choose a database"),
        (full_memory, StoreUnavailable, "maxmemory"),
        (few_clients, StoreUnavailable, "number of clients"),
        (too_few_replicas, StoreUnavailable, "good replicas"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_redis_errors_are_mapped(
    server: Callable[[Path], AbstractContextManager[str]],
    meaning: type[LancekeepError],
    advice: str,
    tmp_path: Path,
) -> None:
    with server(tmp_path) as url, closing(open_commit_store(url, {}, MEMORY)) as store:
        for _ in range(2):  # a pooled connection gives the same answer
            with pytest.raises(meaning, match=advice) as raised:
                reserve(store)
            assert type(raised.value) is meaning
            assert "pw" not in str(raised.value).split()


@pytest.mark.parametrize(("command", "arguments"), [("set", ("text",)), ("zadd", ({b"\xff": 1},))])
def test_keys_of_another_program_are_reported(command: str, arguments: tuple[object, ...]) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    with own_redis() as port, Redis(port=port) as other:
        getattr(other, command)(f"lancekeep:{{{base_uri}}}", *arguments)
        store = open_commit_store(f"redis://127.0.0.1:{port}", {}, MEMORY)
        with closing(store), pytest.raises(Damaged, match="written by another program"):
            store.latest(base_uri)


def test_refusal_of_a_repeated_call_stays_open() -> None:
    """The first attempt may have taken effect, so the refusal of the retry is ambiguous."""
    base_uri = f"s3://bucket/{uuid4()}"
    with (
        own_redis() as port,
        Redis(port=port) as admin,
        losing_proxy(f"127.0.0.1:{port}", b"EVALSHA") as proxy,
        closing(open_commit_store(f"redis://127.0.0.1:{proxy.port}", {}, MEMORY)) as store,
    ):
        reserve(store)
        proxy.losses = 1
        proxy.on_loss = lambda: admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
        with pytest.raises(StoreUnavailable, match="repeated call was refused"):
            store.reserve(staged(1, base_uri), first=True)
        assert admin.exists(f"lancekeep:{{{base_uri}}}")


# -- Sentinel -----------------------------------------------------------------------------------------------------


@contextmanager
def watched(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the URL of a primary and its replica behind one Sentinel, and the ports of the two."""
    with own_redis() as primary, own_redis("--port", "PORT", "--replicaof", "127.0.0.1", str(primary)) as other:
        replicate(primary)
        settings = directory / "sentinel.conf"
        settings.write_text(
            f"bind 127.0.0.1\nsentinel monitor rows 127.0.0.1 {primary} 1\n"
            "sentinel down-after-milliseconds rows 300\nsentinel failover-timeout rows 1000\n"
        )
        with own_redis(str(settings), "--sentinel", "--port", "PORT", ready="monitor master") as port:
            with Redis(port=port) as sentinel:
                poll(lambda: sentinel.sentinel_slaves("rows"))
            yield f"redis+sentinel://127.0.0.1:{port}/rows/1", primary, other


def test_sentinel_finds_the_new_primary_after_a_failover(tmp_path: Path) -> None:
    with (
        watched(tmp_path) as (url, primary, other),
        closing(open_commit_store(url, {}, MEMORY)) as store,
        Redis(port=other, db=1) as replica,
    ):
        base_uri = f"s3://bucket/{uuid4()}"
        first = staged(1, base_uri)
        assert store.reserve_all([Claim(first, first=True)]) == Reserved()
        assert store.finalize(finalized(first))
        replicate(primary)
        with Redis(port=primary) as admin:
            admin.shutdown(nosave=True)
        second = staged(2, base_uri)
        # The outage lasts until the Sentinel has promoted the replica.
        assert Retry(patience=60).call(partial(store.reserve, second, first=False)) == Reserved()
        assert [row.version for row in store.list(base_uri, after=None, limit=None, descending=False)] == [1, 2]
        assert replica.zcard(f"lancekeep:{{{base_uri}}}") == 2


def test_unknown_service_of_sentinel_is_named(tmp_path: Path) -> None:
    with watched(tmp_path) as (url, _, _):
        store = open_commit_store(url.replace("/rows/", "/wrong/"), {}, MEMORY)
        with closing(store), pytest.raises(StoreUnavailable, match="No master found for 'wrong'"):
            reserve(store)
