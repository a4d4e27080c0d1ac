"""The object store contract for every adapter, and tests of single adapters."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import MagicMock
from urllib.parse import urlsplit
from uuid import uuid4

import attrs
import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session
from botocore.stub import Stubber
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.fsspec_store import FsspecObjectStore
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.adapters.object_stores.s3 import RACERS, S3ObjectStore
from lancekeep.adapters.object_stores.s3_client import s3_client
from lancekeep.application.pieces import copy_in_pieces, in_pieces
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import (
    AccessDenied,
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    NotFound,
    ObjectNotFound,
    StoreUnavailable,
    UnsafeStore,
    UnsafeStoreWarning,
)
from lancekeep.ports.object_store import PIECE, ObjectStore, Piece
from lancekeep.testing.concurrency import race_processes
from lancekeep.testing.object_pieces import Interrupted, broken_after
from lancekeep.testing.object_store import CopyingContract, CreatingContract, ObjectStoreContract, Probe, claim_each

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

SECRET = "hunter2-very-secret"


class Files:
    """A probe that uses the file system directly."""

    def __init__(self, directory: Path) -> None:
        self.home = f"{str(directory)[1:]}/"

    def read(self, key: str) -> bytes:
        return Path(f"/{key}").read_bytes()

    def write(self, key: str, content: bytes) -> None:
        Path(f"/{key}").parent.mkdir(parents=True, exist_ok=True)
        Path(f"/{key}").write_bytes(content)

    def remove(self, key: str) -> None:
        Path(f"/{key}").unlink()

    def stored(self) -> list[str]:
        return sorted(str(path)[1:] for path in Path(f"/{self.home}").rglob("*") if path.is_file())


class LinkingContract(ObjectStoreContract):
    """The contract of storage with symbolic links."""

    def test_links_to_directories_are_not_followed(
        self, store: ObjectStore, probe: Probe, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        (elsewhere / "empty").mkdir()
        (elsewhere / "secret").write_bytes(b"")
        probe.write(probe.home + "d/a", b"")
        os.symlink(elsewhere, f"/{probe.home}d/link")
        os.symlink(elsewhere / "gone", f"/{probe.home}d/dangling")
        assert list(store.directories(f"{probe.home}d/")) == []
        assert not [info.key for info in store.list(f"{probe.home}d/") if "/d/link" in info.key]
        for directory in ("d/link", "d"):
            store.prune(probe.home + directory)
        assert (elsewhere / "empty").is_dir()

    def test_passes_link_is_true_for_linked_directory(self, store: ObjectStore, probe: Probe) -> None:
        below = probe.home[:-1]
        probe.write(probe.home + "real/d/a", b"")
        os.symlink(f"/{probe.home}real", f"/{probe.home}link")
        os.symlink(f"/{probe.home}gone", f"/{probe.home}dangling")
        assert store.passes_link(probe.home + "link", below)
        assert store.passes_link(probe.home + "link/d", below)
        assert store.passes_link(probe.home + "link/d", "")
        assert store.passes_link(probe.home + "dangling", below)
        assert not store.passes_link(probe.home + "link/d", probe.home + "link")
        assert not store.passes_link(probe.home + "real/d", below)


class TestMemory(CopyingContract):
    @pytest.fixture
    def store(self) -> MemoryObjectStore:
        return MemoryObjectStore()

    @pytest.fixture
    def probe(self, store: MemoryObjectStore) -> Probe:
        class Dictionary:
            home = "lake/"
            _objects = store._objects

            def read(self, key: str) -> bytes:
                return self._objects[key]

            def write(self, key: str, content: bytes) -> None:
                self._objects[key] = content

            def remove(self, key: str) -> None:
                del self._objects[key]

            def stored(self) -> list[str]:
                return sorted(self._objects)

        return Dictionary()


# -- local ------------------------------------------------------------------------------------------------------


class TestLocal(CopyingContract, LinkingContract):
    @pytest.fixture(params=[True, False], ids=["fsync", "no-fsync"])
    def store(self, request: pytest.FixtureRequest) -> LocalObjectStore:
        return LocalObjectStore(request.param)

    @pytest.fixture
    def probe(self, tmp_path: Path) -> Probe:
        return Files(tmp_path)

    def test_durable_follows_fsync(self) -> None:
        assert LocalObjectStore().guarantees.durable
        assert not LocalObjectStore(fsync=False).guarantees.durable

    @pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV])
    def test_file_system_without_hard_links_is_refused(
        self, store: LocalObjectStore, probe: Probe, monkeypatch: pytest.MonkeyPatch, refusal: int
    ) -> None:
        probe.write(probe.home + "source", b"s")
        monkeypatch.setattr(os, "link", failing(refusal))
        calls: list[Callable[[], bool]] = [
            lambda: store.put_if_absent(probe.home + "target", b"t"),
            lambda: store.copy_if_absent(probe.home + "source", probe.home + "target"),
        ]
        for call in calls:
            with pytest.raises(UnsafeStore, match="hard link") as caught:
                call()
            assert probe.home[:-1] in str(caught.value)
        assert probe.stored() == [probe.home + "source"]

    @pytest.mark.parametrize(
        ("number", "error"),
        [
            (errno.EACCES, AccessDenied),
            (errno.EROFS, AccessDenied),
            (errno.ENOSPC, StoreUnavailable),
            (errno.EIO, StoreUnavailable),
            (errno.ETIMEDOUT, StoreUnavailable),
            (errno.ESTALE, StoreUnavailable),
            (errno.ENAMETOOLONG, InvalidInput),
        ],
    )
    @pytest.mark.parametrize("call", ["open", "write", "rename", "link", "mkdir", "create"])
    def test_system_errors_are_translated(
        self,
        store: LocalObjectStore,
        probe: Probe,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        number: int,
        error: type[LancekeepError],
    ) -> None:
        calls: dict[str, Callable[[], object]] = {
            "link": lambda: store.put_if_absent(probe.home + "target", b"x"),
            "mkdir": lambda: store.put_if_absent(probe.home + "target/a", b""),
            "create": lambda: store.put_if_absent(probe.home + "target", b""),
        }
        monkeypatch.setattr(os, "open" if call == "create" else call, failing(number))
        with pytest.raises(error, match="target"):
            calls.get(call, lambda: store.put(probe.home + "target", b"x"))()
        monkeypatch.undo()
        assert probe.stored() == []

    def test_unreadable_directory_is_access_denied(
        self, store: LocalObjectStore, probe: Probe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for call, act in (
            ("stat", lambda: store.head(probe.home + "a")),
            ("scandir", lambda: list(store.list(probe.home))),
            ("unlink", lambda: store.delete(probe.home + "a")),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(os, call, failing(errno.EACCES))
                with pytest.raises(AccessDenied):
                    act()

    def test_file_in_place_of_directory_is_refused(self, store: LocalObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "a", b"a")
        for write in (store.put, store.put_if_absent):
            with pytest.raises(InvalidInput, match="a"):
                write(probe.home + "a/b", b"")
        with pytest.raises(InvalidInput):
            store.copy_if_absent(probe.home + "a", probe.home + "a/b")

    @pytest.mark.parametrize("step", ["write", "fsync", "link", "rename"])
    def test_crash_before_naming_leaves_no_visible_object(
        self, probe: Probe, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        store = LocalObjectStore()
        with monkeypatch.context() as patch:
            patch.setattr(os, step, crash)
            patch.setattr(os, "unlink", crash)  # a crashed process removes nothing
            with pytest.raises(Crash):
                (store.put if step == "rename" else store.put_if_absent)(probe.home + "target", b"content")
        assert [Path(key).name[:5] for key in probe.stored()] == [".tmp-"]
        assert store.head(probe.home + "target") is None
        assert list(store.list(probe.home)) == []
        assert store.put_if_absent(probe.home + "target", b"the next") is True
        [left] = store.unfinished(probe.home)
        store.delete(left.key)
        assert [Path(key).name for key in probe.stored()] == ["target"]
        assert store.get(probe.home + "target") == b"the next"

    def test_content_then_name_are_synced_before_acknowledgement(
        self, probe: Probe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, home = LocalObjectStore(), probe.home
        probe.write(home + "staged", b"s")
        events = spy_on_the_disk(monkeypatch)

        store.put_if_absent(home + "new/dir/a", b"a")
        assert events == [
            ("fsync", f"/{home}"[:-1]),
            ("fsync", f"/{home}new"),
            ("fsync", "temporary"),
            ("link", f"/{home}new/dir/a"),
            ("fsync", f"/{home}new/dir"),
        ]
        events.clear()
        store.put_if_absent(home + "new/dir/a", b"a")  # the loser relies on the object, so it must be durable
        assert events == [("fsync", "temporary"), ("fsync", f"/{home}new/dir")]
        events.clear()
        store.put(home + "b", b"b")
        assert events == [("fsync", "temporary"), ("rename", f"/{home}b"), ("fsync", f"/{home}"[:-1])]
        events.clear()
        for _ in range(2):
            store.copy_if_absent(home + "staged", home + "final")
        assert events == [
            ("fsync", f"/{home}staged"),
            ("link", f"/{home}final"),
            ("fsync", f"/{home}"[:-1]),
            ("fsync", os.path.dirname(f"/{home}"[:-1])),
            ("fsync", f"/{home}staged"),
            ("fsync", f"/{home}"[:-1]),
            ("fsync", os.path.dirname(f"/{home}"[:-1])),
        ]

    def test_empty_object_and_directory_are_synced(self, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
        store, home = LocalObjectStore(), probe.home
        events = spy_on_the_disk(monkeypatch)
        for created in (True, False):  # the loser relies on the object
            assert store.put_if_absent(home + "new/a", b"") is created
            assert sorted(events) == [
                ("fsync", f"/{home}"[:-1]),
                ("fsync", f"/{home}new"),
                ("fsync", f"/{home}new/a"),
            ]
            events.clear()

    def test_nothing_is_synced_without_fsync(self, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
        events = spy_on_the_disk(monkeypatch)
        store = LocalObjectStore(fsync=False)
        store.put_if_absent(probe.home + "d/a", b"a")
        store.put_if_absent(probe.home + "e/a", b"")
        store.copy_if_absent(probe.home + "d/a", probe.home + "b")
        assert [event for event, _ in events] == ["link", "link"]

    @pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV])
    def test_copy_without_hard_links_copies_bytes(
        self, store: LocalObjectStore, probe: Probe, monkeypatch: pytest.MonkeyPatch, refusal: int
    ) -> None:
        probe.write(probe.home + "source", b"content")
        monkeypatch.setattr(os, "link", failing(refusal))
        for target in ("new/target", "source"):
            store.copy(probe.home + "source", probe.home + target)
            assert probe.read(probe.home + target) == b"content"
        assert probe.stored() == [probe.home + "new/target", probe.home + "source"]

    def test_failed_copy_leaves_no_file(self, store: LocalObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "source", b"")
        probe.write(probe.home + "directory/a", b"")
        with pytest.raises(InvalidInput):
            store.copy(probe.home + "source", probe.home + "directory")
        assert probe.stored() == [probe.home + "directory/a", probe.home + "source"]

    @pytest.mark.parametrize(
        ("write", "content"),
        [
            ("put", b"content"),
            ("put_if_absent", b"content"),
            ("put_if_absent", b""),
            ("copy", b"content"),
            ("copy_if_absent", b"content"),
        ],
    )
    def test_prune_between_any_two_steps_fails_no_write(
        self, store: LocalObjectStore, probe: Probe, monkeypatch: pytest.MonkeyPatch, write: str, content: bytes
    ) -> None:
        source, key = probe.home + "source", probe.home + "d/e/a"
        probe.write(source, content)
        calls = [0]
        for step in range(2 if write == "put" else 3):
            with monkeypatch.context() as patch:
                for name in ("open", "link", "mkdir"):
                    patch.setattr(os, name, pruning_first(name, step, lambda: store.prune(probe.home + "d"), calls))
                if write.startswith("copy"):
                    getattr(store, write)(source, key)
                else:
                    getattr(store, write)(key, content)
            assert probe.read(key) == content
            store.delete(key)
            store.prune(probe.home + "d")
        assert calls[0] > 1

    @pytest.mark.parametrize(("call", "content"), [("link", b"content"), ("close", b"")])
    def test_concurrent_delete_of_directory_fails_no_write(
        self, probe: Probe, monkeypatch: pytest.MonkeyPatch, call: str, content: bytes
    ) -> None:
        store, original = LocalObjectStore(), getattr(os, call)
        paths = [f"/{probe.home}d/a"]

        def delete_at_once(*arguments: Any) -> None:
            original(*arguments)
            if paths:
                if call == "link":
                    os.unlink(arguments[0])
                store.delete(paths.pop()[1:])
                store.prune(probe.home + "d")

        monkeypatch.setattr(os, call, delete_at_once)
        assert store.put_if_absent(probe.home + "d/a", content) is True
        assert probe.stored() == []

    def test_copy_uses_hard_link(self, store: LocalObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "staged", b"s")
        store.copy_if_absent(probe.home + "staged", probe.home + "final")
        assert os.path.samefile(f"/{probe.home}staged", f"/{probe.home}final")

    def test_listing_opens_directories_lazily(
        self, store: LocalObjectStore, probe: Probe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a/1", "a/2", "b/1", "c/1"):
            probe.write(probe.home + name, b"")
        opened = []
        scandir = os.scandir

        def spy(path: str) -> object:
            opened.append(path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", spy)
        listing = store.list(probe.home)
        assert [next(listing).key, next(listing).key] == [probe.home + "a/1", probe.home + "a/2"]
        assert opened == [f"/{probe.home}", f"/{probe.home}a/"]

    def test_non_unicode_name_is_listed_and_read(self, store: LocalObjectStore, probe: Probe) -> None:
        Path(os.fsdecode(f"/{probe.home}".encode() + b"\xff")).write_bytes(b"x")
        (info,) = store.list(probe.home)
        assert store.get(info.key) == b"x"
        with pytest.raises(InvalidInput):
            store.put(probe.home + "\ud800", b"")

    @pytest.mark.slow
    def test_one_of_racing_processes_wins_each_key(self, store: LocalObjectStore, probe: Probe) -> None:
        keys = [f"{probe.home}new/{number}" for number in range(50)]
        won = race_processes(4, partial(claim_each, store, keys))
        for number, key in enumerate(keys):
            (winner,) = [me for me, answers in enumerate(won) if answers[number]]
            assert probe.read(key) == b"%d" % winner
        assert len(probe.stored()) == 50


class Crash(BaseException):
    """The process has died."""


def crash(*_: object, **__: object) -> NoReturn:
    raise Crash


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*args: object, **_: object) -> NoReturn:
        path = args[-1] if args and isinstance(args[-1], str) else None
        raise OSError(number, os.strerror(number), path)

    return fail


def pruning_first(name: str, times: int, prune: Callable[[], None], calls: list[int]) -> Callable[..., Any]:
    """Return a system function that prunes before its first calls."""
    original, left = getattr(os, name), [times]

    def act(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            calls[0] += 1
            prune()
        return original(*args, **kwargs)

    return act


def spy_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record syncs and names in order from now on."""
    events: list[tuple[str, str]] = []
    fsync, link, rename = os.fsync, os.link, os.rename

    def spy_fsync(file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        events.append(("fsync", "temporary" if "/.tmp-" in path else path))
        fsync(file)

    def spy_link(source: str, target: str) -> None:
        link(source, target)
        events.append(("link", target))

    def spy_rename(source: str, target: str) -> None:
        rename(source, target)
        events.append(("rename", target))

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "link", spy_link)
    monkeypatch.setattr(os, "rename", spy_rename)
    return events


# -- S3 ---------------------------------------------------------------------------------------------------------


class Bucket:
    """A probe that uses its own client of the bucket."""

    home = "lake/"

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = f"objects-{uuid4()}"
        self.client: S3Client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_bucket(Bucket=self.name)

    def read(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def stored(self) -> list[str]:
        return sorted(found["Key"] for found in self.client.list_objects_v2(Bucket=self.name).get("Contents", ()))

    def uploads(self) -> int:
        return len(self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", ()))


class Server:
    """Intercepts requests: answers instead of the server, or loses its replies."""

    def __init__(self, client: S3Client) -> None:
        self.requests: list[str] = []
        self._ignored: tuple[str, ...] = ()
        self._script: dict[str, list[Callable[[AWSPreparedRequest], AWSResponse]]] = {}
        intercept: Callable[..., Any] = self._intercept
        client.meta.events.register("before-send.s3.*", intercept)

    def answers(self, operation: str, *answers: tuple[int, str]) -> None:
        """Answer the next requests of an operation with a status and a code, without effect."""
        self._script.setdefault(operation, []).extend(_error(*answer) for answer in answers)

    def loses_the_reply(self, operation: str) -> None:
        """Lose the reply of the next request of an operation, after its effect."""
        self._script.setdefault(operation, []).append(_lost)

    def ignores_conditions(self) -> None:
        """Let creates overwrite, as on a server without ``If-None-Match``."""
        self.ignores("If-None-Match")

    def ignores(self, *headers: str) -> None:
        """Ignore headers of requests."""
        self._ignored = headers

    def _intercept(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse | None:
        operation = event_name.rpartition(".")[2]
        self.requests.append(operation)
        for header in self._ignored:
            if header in request.headers:
                del request.headers[header]
        planned = self._script.get(operation)
        return planned.pop(0)(request) if planned else None


def _error(status: int, code: str) -> Callable[[AWSPreparedRequest], AWSResponse]:
    body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode() if code else b""

    def answer(request: AWSPreparedRequest) -> AWSResponse:
        response = AWSResponse(request.url, status, HTTPHeaders(), None)
        response._content = body  # type: ignore[attr-defined] # what reading the raw reply would set
        return response

    return answer


def _lost(request: AWSPreparedRequest) -> AWSResponse:
    URLLib3Session().send(request)
    raise ConnectionClosedError(endpoint_url=request.url)


def connect(bucket: Bucket, **options: Any) -> tuple[S3ObjectStore, Server]:
    credentials = {"access_key_id": "test", "secret_access_key": SECRET, "region": "us-east-1"}
    client = s3_client(bucket.name, {"endpoint": bucket.endpoint, "allow_http": "true", **credentials})
    return S3ObjectStore(bucket.name, client, **options), Server(client)


class S3Contract(CreatingContract):
    @pytest.fixture
    def store(self, probe: Bucket) -> S3ObjectStore:
        return connect(probe)[0]


class TestS3(S3Contract):
    @pytest.fixture
    def probe(self, moto_endpoint: str) -> Bucket:
        return Bucket(moto_endpoint)

    def test_prove_probes_server_once_if_requested(self, probe: Bucket) -> None:
        unasked, server = connect(probe)
        unasked.prove()
        assert server.requests == []
        store, server = connect(probe, probe_below="lake")
        store.prove()
        assert server.requests.count("PutObject") == 2 + 2 * RACERS
        assert probe.stored() == []
        again, server = connect(probe, probe_below="lake")
        again.prove()
        assert server.requests == []

    def test_prove_refuses_a_server_that_ignores_the_condition(self, probe: Bucket) -> None:
        store, server = connect(probe, probe_below="lake")
        server.ignores_conditions()
        with pytest.raises(UnsafeStore, match="certify"):
            store.prove()
        assert probe.stored() == []

    def test_prove_of_an_unsafe_store_warns_once(self, probe: Bucket) -> None:
        store, server = connect(probe, probe_below="lake", unsafe=True)
        server.ignores_conditions()
        with pytest.warns(UnsafeStoreWarning):
            store.prove()
        sent = len(server.requests)
        store.prove()
        assert len(server.requests) == sent

    def test_412_means_taken_key(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.answers("PutObject", (412, "PreconditionFailed"))
        assert store.put_if_absent("a", b"") is False
        assert server.requests == ["PutObject"]

    def test_409_is_retried(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.answers("PutObject", (409, "ConditionalRequestConflict"), (409, "ConditionalRequestConflict"))
        assert store.put_if_absent("a", b"mine") is True
        assert probe.read("a") == b"mine"
        assert server.requests == ["PutObject", "HeadObject", "PutObject", "HeadObject", "PutObject"]

    def test_409_with_existing_object_means_taken_key(self, probe: Bucket) -> None:
        store, server = connect(probe)
        probe.write("a", b"theirs")
        server.answers("PutObject", (409, "ConditionalRequestConflict"))
        assert store.put_if_absent("a", b"mine") is False
        assert probe.read("a") == b"theirs"

    def test_repeated_409_is_unavailable(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.answers("PutObject", *[(409, "ConditionalRequestConflict")] * 9)
        with pytest.raises(StoreUnavailable, match="409"):
            store.put_if_absent("a", b"mine")
        assert server.requests.count("PutObject") == 5

    def test_lost_reply_raises_fault_instead_of_conflict(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.loses_the_reply("PutObject")
        with pytest.raises(StoreUnavailable):
            store.put_if_absent("a", b"mine")
        assert server.requests == ["PutObject"]
        assert store.put_if_absent("a", b"mine") is False
        assert store.get("a") == b"mine"

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            ((500, "InternalError"), StoreUnavailable),
            ((502, ""), StoreUnavailable),
            ((503, "SlowDown"), StoreUnavailable),
            ((429, "TooManyRequests"), StoreUnavailable),
            ((400, "RequestTimeout"), StoreUnavailable),
            ((403, "AccessDenied"), AccessDenied),
            ((403, "SignatureDoesNotMatch"), AccessDenied),
            ((400, "ExpiredToken"), AccessDenied),
            ((404, "NoSuchBucket"), NotFound),
            ((400, "AuthorizationHeaderMalformed"), InvalidInput),
            ((400, "KeyTooLongError"), InvalidInput),
        ],
    )
    def test_refusals_are_translated_and_hide_secrets(
        self, probe: Bucket, answer: tuple[int, str], error: type[LancekeepError]
    ) -> None:
        store, server = connect(probe)
        calls: dict[str, Callable[[], object]] = {
            "GetObject": lambda: store.get("d/a"),
            "PutObject": lambda: store.put("d/a", b""),
            "DeleteObject": lambda: store.delete("d/a"),
            "ListObjectsV2": lambda: list(store.list("d/a")),
        }
        for operation, call in calls.items():
            server.answers(operation, answer)
            with pytest.raises(error) as caught:
                call()
            assert not isinstance(caught.value, ObjectNotFound)
            assert "d/a" in str(caught.value)
            assert urlsplit(probe.endpoint).netloc in str(caught.value)
            assert SECRET not in f"{caught.value} {caught.value!r} {store!r}"
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert server.requests == list(calls), "the SDK must not retry"

    @pytest.mark.parametrize(("status", "error"), [(403, AccessDenied), (503, StoreUnavailable)])
    def test_head_distinguishes_refusal_from_absence(
        self, probe: Bucket, status: int, error: type[LancekeepError]
    ) -> None:
        store, server = connect(probe)
        server.answers("HeadObject", (status, ""))
        with pytest.raises(error):
            store.head("a")

    def test_server_without_conditional_put_is_unsafe(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.answers("PutObject", (501, "NotImplemented"))
        with pytest.raises(UnsafeStore, match="If-None-Match"):
            store.put_if_absent("a", b"")

    def test_missing_bucket_is_not_found(self, probe: Bucket) -> None:
        store = S3ObjectStore("no-such-bucket", connect(probe)[0]._client)
        for call in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: list(store.list(""))):
            with pytest.raises(NotFound, match="no bucket 'no-such-bucket'"):
                call()

    def test_unreachable_endpoint_is_unavailable(self) -> None:
        options = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "secret_access_key": SECRET}
        store, key = open_object_store("s3://bucket/lake", {**options, "access_key_id": "test"})
        for call in (lambda: store.head(key), lambda: store.put_if_absent(key, b""), lambda: list(store.list(key))):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9 ") as caught:
                call()
            assert SECRET not in str(caught.value)

    def test_timeouts_are_bounded(self, probe: Bucket) -> None:
        config: Any = connect(probe)[0]._client.meta.config
        assert config.connect_timeout == 3
        assert config.retries["total_max_attempts"] == 1

    def test_missing_credentials_are_access_denied(self, probe: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        client = s3_client(probe.name, {"endpoint": probe.endpoint, "allow_http": "true"})
        with pytest.raises(AccessDenied, match="no credentials"):
            S3ObjectStore(probe.name, client).get("a")

    def test_listing_requests_pages_lazily(self, probe: Bucket) -> None:
        store, server = connect(probe)
        pages = [
            {"Contents": [_found("a"), _found("b")], "IsTruncated": True, "NextContinuationToken": "more"},
            {"Contents": [_found("c")], "IsTruncated": False},
        ]
        with Stubber(store._client) as stub:
            for page in pages:
                stub.add_response("list_objects_v2", page)
            listing = store.list("")
            assert [next(listing).key, next(listing).key] == ["a", "b"]
            with pytest.raises(AssertionError, match="responses remaining"):
                stub.assert_no_pending_responses()
            assert next(listing).key == "c"
            stub.assert_no_pending_responses()
        assert server.requests == []

    # -- in parts: moto, as S3, takes no part below 5 MiB but the last

    @pytest.fixture
    def parts(self, probe: Bucket) -> tuple[S3ObjectStore, Server]:
        return connect(probe, multipart_limit=6 * 2**20, part_size=5 * 2**20)

    @pytest.fixture
    def large(self) -> bytes:
        return os.urandom(1024) * (11 * 1024)

    def test_large_content_is_created_once(
        self, probe: Bucket, parts: tuple[S3ObjectStore, Server], large: bytes
    ) -> None:
        store, server = parts
        assert store.put_if_absent("a", large) is True
        assert probe.read("a") == large
        assert server.requests.count("UploadPart") == 3
        assert "PutObject" not in server.requests
        assert store.put_if_absent("a", large[::-1]) is False
        assert probe.read("a") == large
        store.put("a", large[::-1])
        assert probe.read("a") == large[::-1]
        assert probe.uploads() == 0

    def test_409_of_multipart_upload_is_retried(
        self, probe: Bucket, parts: tuple[S3ObjectStore, Server], large: bytes
    ) -> None:
        store, server = parts
        server.answers("CompleteMultipartUpload", (409, "ConditionalRequestConflict"))
        assert store.put_if_absent("a", large) is True
        assert probe.read("a") == large
        assert probe.uploads() == 0

    @pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
    def test_failed_upload_is_aborted(self, probe: Bucket, large: bytes, operation: str) -> None:
        store, server = connect(probe, multipart_limit=6 * 2**20, part_size=5 * 2**20, retry=Retry(patience=0))
        server.answers(operation, (503, "SlowDown"))
        with pytest.raises(StoreUnavailable, match="SlowDown"):
            store.put_if_absent("a", large)
        assert probe.uploads() == 0
        assert probe.stored() == []

    def test_failed_abort_keeps_original_error(self, parts: tuple[S3ObjectStore, Server], large: bytes) -> None:
        store, server = parts
        server.answers("UploadPart", (403, "AccessDenied"))
        server.answers("AbortMultipartUpload", (503, "SlowDown"))
        with pytest.raises(AccessDenied):
            store.put("a", large)

    def test_completion_with_lost_reply_keeps_object(
        self, probe: Bucket, parts: tuple[S3ObjectStore, Server], large: bytes
    ) -> None:
        store, server = parts
        server.loses_the_reply("CompleteMultipartUpload")
        with pytest.raises(StoreUnavailable):
            store.put_if_absent("a", large)
        assert probe.read("a") == large
        assert store.put_if_absent("a", large) is False

    # -- in pieces

    def test_object_of_one_piece_is_copied_by_two_requests(self, probe: Bucket) -> None:
        store, server = connect(probe)
        for size in (1, PIECE):
            probe.write("a", bytes(size))
            copy_in_pieces(store, "a", store, "b", Retry())
            assert len(probe.read("b")) == size
        assert server.requests == ["GetObject", "PutObject"] * 2

    def test_single_piece_is_sent_again(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.answers("UploadPart", (503, "SlowDown"))
        server.loses_the_reply("UploadPart")
        server.answers("UploadPart", (500, "InternalError"))
        content = os.urandom(1024) * 1024
        pieces = [content * 16, content[:5]]
        store.put_pieces("a", PIECE + 5, pieces)
        assert probe.read("a") == b"".join(pieces)
        assert server.requests == ["CreateMultipartUpload", *["UploadPart"] * 5, "CompleteMultipartUpload"]

    @pytest.mark.parametrize(
        ("operation", "answer", "error"),
        [
            ("CreateMultipartUpload", (503, "SlowDown"), StoreUnavailable),
            ("UploadPart", (503, "SlowDown"), StoreUnavailable),
            ("UploadPart", (403, "AccessDenied"), AccessDenied),
            ("UploadPart", (404, "NoSuchUpload"), StoreUnavailable),
            ("CompleteMultipartUpload", (500, "InternalError"), StoreUnavailable),
            ("CompleteMultipartUpload", (412, "PreconditionFailed"), InvalidInput),
        ],
    )
    def test_failed_write_in_pieces_leaves_nothing(
        self, probe: Bucket, operation: str, answer: tuple[int, str], error: type[LancekeepError]
    ) -> None:
        store, server = connect(probe, retry=Retry(patience=0))
        probe.write("a", b"kept")
        server.answers(operation, answer)
        with pytest.raises(error, match=answer[1]):
            store.put_pieces("a", PIECE + 1, iter([bytes(PIECE), b"x"]))
        assert (probe.read("a"), probe.uploads()) == (b"kept", 0)

    def test_failing_or_changed_source_leaves_no_upload(self, probe: Bucket) -> None:
        store, _ = connect(probe)
        with pytest.raises(Interrupted):
            store.put_pieces("a", 3 * PIECE, broken_after(2))
        probe.write("source", bytes(PIECE + 1))
        size, pieces = in_pieces(store, "source", Retry())
        probe.write("source", b"x" * (PIECE + 1))
        with pytest.raises(ConcurrentModification):
            store.put_pieces("a", size, pieces)
        assert (probe.stored(), probe.uploads()) == (["source"], 0)

    @pytest.mark.parametrize("content", [b"9876543210", b"0"])
    def test_changed_object_is_noticed_without_conditions(self, probe: Bucket, content: bytes) -> None:
        store, server = connect(probe)
        probe.write("a", b"0123456789")
        first = store.piece("a", 0, 4)
        server.ignores("If-Match")
        probe.write("a", content)
        with pytest.raises(ConcurrentModification):
            store.piece("a", 4, 4, first.stamp)

    def test_server_without_ranges_is_refused(self, probe: Bucket) -> None:
        store, server = connect(probe)
        server.ignores("Range")
        probe.write("a", b"0123456789")
        assert store.piece("a", 0, 10).content == b"0123456789"
        for start, most in ((0, 4), (4, 4), (4, 99)):
            with pytest.raises(UnsafeStore, match="ignores ranges"):
                store.piece("a", start, most)

    def test_range_that_begins_elsewhere_is_refused(self, probe: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        store, _ = connect(probe)
        probe.write("a", b"0123456789")
        read = store._client.get_object
        monkeypatch.setattr(store._client, "get_object", lambda **given: read(**{**given, "Range": "bytes=4-7"}))
        for start in (0, 3):
            with pytest.raises(UnsafeStore, match="ignores ranges"):
                store.piece("a", start, 4)

    def test_lost_reply_of_a_completion_is_repeated_by_the_caller(self, probe: Bucket) -> None:
        store, server = connect(probe)
        probe.write("source", bytes(PIECE + 1))
        server.loses_the_reply("CompleteMultipartUpload")
        assert copy_in_pieces(store, "source", store, "a", Retry()) == PIECE + 1
        assert (len(probe.read("a")), probe.uploads()) == (PIECE + 1, 0)

    def test_short_answer_is_read_again(self, probe: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        store, _ = connect(probe)
        probe.write("source", bytes(PIECE) + b"end")
        whole = store.piece
        cuts = [True]

        def cut(key: str, start: int, most: int, stamp: str | None = None) -> Piece:
            piece = whole(key, start, most, stamp)
            return attrs.evolve(piece, content=piece.content[:-1]) if start and cuts and cuts.pop() else piece

        monkeypatch.setattr(store, "piece", cut)
        copy_in_pieces(store, "source", store, "a", Retry())
        assert probe.read("a") == bytes(PIECE) + b"end"
        assert probe.uploads() == 0

    def test_copy_without_etags_of_parts_passes_through_the_process(
        self, probe: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _ = connect(probe)
        other = Bucket(probe.endpoint)

        def fail(*_: object) -> NoReturn:
            raise KeyError("ETag")

        monkeypatch.setattr(store._client, "copy", fail)
        probe.write("a", bytes(PIECE + 1))
        other.write("a", b"other")
        store.copy("a", "b")
        store.duplicate(other.name, "a", "c")
        assert (probe.read("b"), probe.read("c")) == (bytes(PIECE + 1), b"other")


class TestS3InAContainer(S3Contract):
    @pytest.fixture
    def probe(self, moto_container_endpoint: str) -> Bucket:
        return Bucket(moto_container_endpoint)


def _found(key: str) -> dict[str, object]:
    return {"Key": key, "Size": 1, "ETag": '"e"', "LastModified": datetime.now(UTC)}


# -- fsspec -----------------------------------------------------------------------------------------------------


class TestFsspecMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[FsspecObjectStore]:
        yield FsspecObjectStore(MemoryFileSystem(), "memory://")
        MemoryFileSystem().rm("/", recursive=True)

    @pytest.fixture
    def probe(self) -> Probe:
        class Tree:
            home = "lake/"
            _filesystem = MemoryFileSystem()

            def read(self, key: str) -> bytes:
                content: bytes = self._filesystem.cat_file(f"/{key}")
                return content

            def write(self, key: str, content: bytes) -> None:
                self._filesystem.pipe_file(f"/{key}", content)

            def remove(self, key: str) -> None:
                self._filesystem.rm_file(f"/{key}")

            def stored(self) -> list[str]:
                return sorted(path[1:] for path in self._filesystem.find("/"))

        return Tree()


class TestFsspecFiles(LinkingContract):
    @pytest.fixture
    def store(self) -> FsspecObjectStore:
        return FsspecObjectStore(LocalFileSystem(), "file:///")

    @pytest.fixture
    def probe(self, tmp_path: Path) -> Probe:
        return Files(tmp_path)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (RuntimeError(SECRET), StoreUnavailable),
        (OSError(errno.EIO, SECRET), StoreUnavailable),
        (TimeoutError(SECRET), StoreUnavailable),
        (PermissionError(SECRET), AccessDenied),
        (NotImplementedError(SECRET), UnsafeStore),
    ],
)
def test_fsspec_errors_are_translated(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[LancekeepError]
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise raised

    filesystem = MemoryFileSystem(skip_instance_cache=True)
    for method in ("cat_file", "pipe_file", "info", "ls", "rm_file"):
        monkeypatch.setattr(filesystem, method, fail)
    store = FsspecObjectStore(filesystem, "memory://")
    calls: list[Callable[[], object]] = [
        lambda: store.get("d/a"),
        lambda: store.put("d/a", b""),
        lambda: store.head("d/a"),
        lambda: list(store.list("d/a")),
        lambda: store.delete("d/a"),
    ]
    for call in calls:
        with pytest.raises(error, match="d/") as caught:
            call()
        assert SECRET not in str(caught.value)


def test_listing_in_memory_that_meets_a_removed_object_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = MemoryFileSystem(skip_instance_cache=True)
    filesystem.pipe_file("/listed/a", b"")
    listed, removed = filesystem.ls, [KeyError("/listed/b")] * 2

    def ls(*arguments: Any, **named: Any) -> Any:
        if removed:
            raise removed.pop()
        return listed(*arguments, **named)

    monkeypatch.setattr(filesystem, "ls", ls)
    store = FsspecObjectStore(filesystem, "memory://")
    assert [info.key for info in store.list("listed/")] == ["listed/a"]
    filesystem.rm("/listed", recursive=True)


def test_listing_of_a_directory_bucket_begins_after_a_key() -> None:
    """A directory bucket refuses ``StartAfter``, and lists in no order."""
    client: Any = MagicMock()
    client.meta.endpoint_url = "https://s3express-eun1-az1.eu-north-1.amazonaws.com"
    pages = client.get_paginator.return_value.paginate
    pages.return_value = [{"Contents": [{"Key": key, "Size": 0} for key in ("t/c", "t/a", "t/b")]}]
    store = S3ObjectStore("lake--eun1-az1--x-s3", client)
    assert [info.key for info in store.list("t/", after="t/a")] == ["t/c", "t/b"]
    assert pages.call_args.kwargs.keys() == {"Bucket", "Prefix"}
