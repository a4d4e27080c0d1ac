"""Object store in a bucket of S3 or of a compatible server."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict
from urllib.parse import urlsplit
from uuid import uuid4

import attrs
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    TokenRetrievalError,
)

from lancekeep.adapters.object_stores.keys import check_directory, check_key, check_prefix
from lancekeep.application.concurrency import race
from lancekeep.application.pieces import in_pieces
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
from lancekeep.ports.object_store import (
    PIECE,
    ObjectInfo,
    ObjectStoreGuarantees,
    Piece,
    StorageTime,
    Tail,
)

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_ATTEMPTS = 5
RACERS = 8
"""Concurrent clients in the probe."""
_PROBE_RACES = 2
_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError)
_EXPIRED = frozenset(("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"))
_LATER = frozenset(("RequestTimeout", "SlowDown", "NoSuchUpload"))
_ELSEWHERE = frozenset(("PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"))
_SMALLEST_PART = 5 * 2**20
_AWS = (".amazonaws.com", ".amazonaws.com.cn")
_WAYS_OUT = (
    "Use a server that keeps the condition (`lancekeep certify` measures it); or a commit store that never forgets "
    "(sqlite:///… on one machine, dynamodb://TABLE for many) with the storage option conditional_put=disabled; or "
    "unsafe=True where there is never more than one writer"
)

_proven: set[tuple[str, str]] = set()
"""Servers and buckets that have passed the probe in this process."""
_proving = Lock()


class _Condition(TypedDict, total=False):
    IfNoneMatch: Literal["*"]


class _Unchanged(TypedDict, total=False):
    IfMatch: str


class _Start(TypedDict, total=False):
    StartAfter: str


_DIRECTORY_BUCKET = "--x-s3"
_WHERE_NONE_IS: _Condition = {"IfNoneMatch": "*"}


class S3ObjectStore:
    """Keep objects in one bucket; `put_if_absent` uses ``If-None-Match: *``.

    `copy_if_absent` is refused: CopyObject accepts the condition, but several servers ignore it and overwrite.

    Args:
        bucket: The name of the bucket.
        client: A client that does not retry, as `s3_client` creates it. After a lost reply, a retry in the SDK would
            get 412 because of its own success, and `put_if_absent` would report a conflict to the winner. The caller
            therefore sees every fault, retries, and compares the content.
        conditional: Whether the server has the condition. If False, nothing relies on it.
        multipart_limit: Larger content is written in parts. S3 accepts at most 5 GiB at once.
        part_size: The size of a part. S3 accepts 10,000 parts of at least 5 MiB.
        probe_below: The directory in which `prove` tries the condition before the first `put_if_absent`. AWS is known
            to respect the condition and not probed; some other servers accept and ignore it.
        unsafe: Warn after a failed probe instead of raising.
        retry: Retries single parts of an upload and of a copy. Without it, an error of one request would repeat a large
            object from its beginning.
    """

    guarantees = ObjectStoreGuarantees(atomic_create=True, atomic_copy=False, durable=True, paged=True)

    def __init__(
        self,
        bucket: str,
        client: S3Client,
        *,
        conditional: bool = True,
        multipart_limit: int = 5 * 2**30,
        part_size: int = 64 * 2**20,
        probe_below: str | None = None,
        unsafe: bool = False,
        retry: Retry | None = None,
    ) -> None:
        if not conditional:
            self.guarantees = attrs.evolve(self.guarantees, atomic_create=False)
        self.root_uri = f"s3://{bucket}/"
        self._bucket = bucket
        self._client = client
        self._multipart_limit = multipart_limit
        self._part_size = part_size
        needs_probe = conditional and not (urlsplit(client.meta.endpoint_url).hostname or "").endswith(_AWS)
        self._probe_below = probe_below if needs_probe else None
        self._unsafe = unsafe
        self._retry = retry or Retry()
        client.meta.events.register("after-call.s3", _record_time, unique_id="lancekeep-storage-time")

    def prove(self) -> None:
        """Try the condition on a new object, once per process, server and bucket.

        Does nothing on AWS, and without ``probe_below``.

        Raises:
            UnsafeStore: the server ignores the condition. With ``unsafe`` this is a warning, given once.
        """
        place = self._client.meta.endpoint_url, self._bucket
        if self._probe_below is None or place in _proven:
            return
        with _proving:
            if place in _proven:
                return
            try:
                self._try_condition(f"{self._probe_below}/.lancekeep-probe-{uuid4()}".lstrip("/"))
            except UnsafeStore as error:
                if not self._unsafe:
                    raise
                self._probe_below = None
                warnings.warn(str(error), UnsafeStoreWarning, stacklevel=2)
            else:
                _proven.add(place)

    def _try_condition(self, key: str) -> None:
        """Create an object twice in sequence, and then by concurrent clients."""
        try:
            replies = [self._put_if_absent(key, b"first"), self._put_if_absent(key, b"second")]
        finally:
            self.delete(key)
        if replies != [True, False]:
            found = " and then ".join("created it" if created else "refused" for created in replies)
            raise self._without_condition(
                f"{self._server} was asked twice to create one object only where there is none (If-None-Match): "
                f"expected that it creates the object and then refuses, found that it {found}"
            )
        for _ in range(_PROBE_RACES):  # the first race opens the connections, so the second race is closer
            winners = self._race(key)
            if winners > 1:
                raise self._without_condition(
                    f"{RACERS} clients asked {self._server} at once to create one object only where there is none "
                    f"(If-None-Match), and {winners} succeeded: the server checks first and then writes"
                )

    def _race(self, key: str) -> int:
        """Return the number of concurrent clients that report to have created one object."""

        def create(me: int) -> bool:
            try:
                return self._put_if_absent(key, b"%d" % me)
            except StoreUnavailable:  # an overloaded server proves nothing
                return False

        try:
            return sum(race(RACERS, create))
        finally:
            self.delete(key)

    def _without_condition(self, seen: str) -> UnsafeStore:
        return UnsafeStore(
            f"{self.root_uri}: {seen}. Two writers could both win a version, and one would overwrite the other. "
            f"Nothing was committed. {_WAYS_OUT}"
        )

    def in_parts(self) -> Self:
        """Return the same store with the smallest limits for writes in parts."""
        return type(self)(
            self._bucket,
            self._client,
            conditional=self.guarantees.atomic_create,
            multipart_limit=_SMALLEST_PART,
            part_size=_SMALLEST_PART,
        )

    def __repr__(self) -> str:
        return f"S3ObjectStore({self._bucket!r} at {self._server})"

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._boundary(key):
            return self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()

    def tail(self, key: str, most: int) -> Tail | None:
        check_key(key)
        with self._boundary(key):
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes=-{most}")
            except ClientError as error:
                if _status(error) == 404:
                    return None
                if _status(error) == 416:  # an empty object has no last bytes
                    return Tail(b"", 0)
                raise
            content = found["Body"].read()
        return Tail(content, int(found.get("ContentRange", "").rpartition("/")[2] or len(content)))

    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        """Return a range of an object; its ETag is the stamp."""
        check_key(key)
        unchanged: _Unchanged = {"IfMatch": stamp} if stamp else {}
        with self._boundary(key):
            try:
                found = self._client.get_object(
                    Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + most - 1}", **unchanged
                )
            except ClientError as error:
                if _status(error) == 412 or (_status(error) == 416 and stamp is not None):
                    raise self._changed(key) from error
                if _status(error) == 416:  # an empty object has no ranges
                    return Piece(b"", 0, "")
                raise
            place = found.get("ContentRange", "")
            if found["ContentLength"] > most or not (place or "bytes 0-").startswith(f"bytes {start}-"):
                found["Body"].close()
                raise UnsafeStore(f"{self.root_uri}{key}: not read, since {self._server} ignores ranges")
            content = found["Body"].read()
        piece = Piece(content, int(place.rpartition("/")[2] or len(content)), found.get("ETag", ""))
        if stamp not in (None, piece.stamp):  # the server ignores the condition
            raise self._changed(key)
        return piece

    def _changed(self, key: str) -> ConcurrentModification:
        return ConcurrentModification(f"{self.root_uri}{key} was replaced while it was read")

    def put(self, key: str, content: bytes) -> None:
        check_key(key)
        with self._boundary(key):
            self._write(key, content, {})

    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        if size <= PIECE:
            self.put(key, b"".join(pieces))
            return
        check_key(key)
        with self._boundary(key):
            self._upload(key, pieces, {})

    def put_if_absent(self, key: str, content: bytes) -> bool:
        check_key(key)
        if not self.guarantees.atomic_create:
            raise UnsafeStore(
                f"{self.root_uri}{key}: not created, since the storage option conditional_put is disabled. The commit "
                "store alone decides which writer commits"
            )
        self.prove()
        return self._put_if_absent(key, content)

    def _put_if_absent(self, key: str, content: bytes) -> bool:
        for _ in range(_ATTEMPTS):
            with self._boundary(key):
                try:
                    self._write(key, content, _WHERE_NONE_IS)
                except ClientError as error:
                    if _status(error) == 412:
                        return False
                    if _status(error) != 409:
                        raise
                else:
                    return True
            # 409: a concurrent request on this key, which may have created or removed the object.
            if self.head(key) is not None:
                return False
        raise StoreUnavailable(f"{self.root_uri}{key}: {self._server} answered 409 (conflict) {_ATTEMPTS} times")

    def copy_if_absent(self, source: str, target: str) -> bool:
        raise UnsafeStore(
            f"{self.root_uri}{target}: not copied, since some S3 servers ignore the condition of CopyObject and "
            "overwrite; read the source and use put_if_absent"
        )

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's metadata; a missing bucket looks like a missing object."""
        check_key(key)
        with self._boundary(key):
            try:
                found = self._client.head_object(Bucket=self._bucket, Key=key)
            except ClientError as error:
                if _status(error) == 404:
                    return None
                raise
        return ObjectInfo(key, found["ContentLength"], found.get("ETag"), found.get("LastModified"))

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._pages(prefix, after)

    def delete(self, key: str) -> None:
        check_key(key)
        with self._boundary(key):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def directories(self, prefix: str) -> Iterator[str]:
        check_directory(prefix)
        return self._directories(prefix)

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return nothing: a lifecycle rule of the bucket removes interrupted uploads."""
        check_directory(prefix)
        return iter(())

    def copy(self, source: str, target: str) -> None:
        check_key(source)
        check_key(target)
        if source == target:  # S3 refuses a copy to itself
            with self._boundary(source):
                self._client.head_object(Bucket=self._bucket, Key=source)
            return
        self.duplicate(self._bucket, source, target)

    def duplicate(self, bucket: str, source: str, target: str) -> None:
        """Copy an object of another bucket of the same server, which copies the bytes.

        Raises:
            ObjectNotFound: ``source`` does not exist.
        """
        check_key(source)
        check_key(target)
        with self._boundary(source):
            try:
                self._client.copy({"Bucket": bucket, "Key": source}, self._bucket, target)
            except KeyError:  # some servers do not return the ETag of a copied part
                self.put_pieces(target, *in_pieces(S3ObjectStore(bucket, self._client), source, self._retry))

    def prune(self, directory: str) -> None:
        """Do nothing: directories do not exist."""

    def close(self) -> None:
        """Close the connections of the client."""
        self._client.close()

    def passes_link(self, directory: str, below: str) -> bool:
        return False

    def _directories(self, prefix: str) -> Iterator[str]:
        paginator = self._client.get_paginator("list_objects_v2")
        with self._boundary(prefix):
            for page in paginator.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/"):
                for found in page.get("CommonPrefixes", ()):
                    yield found["Prefix"][len(prefix) : -1]

    def _pages(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        begun: _Start = {"StartAfter": after} if after and not self._bucket.endswith(_DIRECTORY_BUCKET) else {}
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **begun)
        with self._boundary(prefix):
            for page in pages:
                for found in page.get("Contents", ()):
                    if found["Key"] <= after:  # a directory bucket, whose listings cannot begin after a key
                        continue
                    yield ObjectInfo(found["Key"], found["Size"], found.get("ETag"), found.get("LastModified"))

    def _write(self, key: str, content: bytes, condition: _Condition) -> None:
        if len(content) <= self._multipart_limit:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content, **condition)
            return
        starts = range(0, len(content), self._part_size)
        self._upload(key, (content[start : start + self._part_size] for start in starts), condition)

    def _upload(self, key: str, parts: Iterable[bytes], condition: _Condition) -> None:
        upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"]
        try:
            self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload,
                MultipartUpload={
                    "Parts": [
                        {
                            "PartNumber": number,
                            "ETag": self._retry.call(partial(self._write_part, key, upload, number, part)),
                        }
                        for number, part in enumerate(parts, 1)
                    ]
                },
                **condition,
            )
        except BaseException:
            # Parts cost money until they are aborted. If the upload was completed, the abort changes nothing.
            with suppress(ClientError, BotoCoreError):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
            raise

    def _write_part(self, key: str, upload: str, number: int, part: bytes) -> str:
        with self._boundary(key):
            return self._client.upload_part(
                Bucket=self._bucket, Key=key, UploadId=upload, PartNumber=number, Body=part
            )["ETag"]

    @property
    def _server(self) -> str:
        """Return host and port of the endpoint's URL, without secrets."""
        url = urlsplit(self._client.meta.endpoint_url)
        return f"{url.hostname}:{url.port or (80 if url.scheme == 'http' else 443)}"

    @contextmanager
    def _boundary(self, key: str) -> Iterator[None]:
        """Translate errors of the SDK without their texts, which a server may fill with anything."""
        try:
            yield
        except ClientError as error:
            raise self._answered(self._explained(error, key), f"{self.root_uri}{key}") from error
        except _CREDENTIALS as error:
            raise AccessDenied(
                f"{self.root_uri}{key}: no credentials for {self._server} ({type(error).__name__}). Set "
                "access_key_id and secret_access_key in the storage options, or any source that boto3 knows"
            ) from error
        except (ParamValidationError, UnicodeError) as error:
            raise InvalidInput(f"{self.root_uri}{key!r}: not a bucket and key that S3 knows") from error
        except BotoCoreError as error:
            raise StoreUnavailable(
                f"{self.root_uri}{key}: no answer from {self._server} ({type(error).__name__})"
            ) from error

    def _explained(self, error: ClientError, key: str) -> ClientError:
        """Return the error with the server's code. A HEAD has no body, so a GET requests the code."""
        if not _code(error).isdigit() or _status(error) >= 500:
            return error
        try:
            self._client.get_object(Bucket=self._bucket, Key=key)["Body"].close()
        except ClientError as explained:
            return error if _status(explained) == 404 else explained
        except BotoCoreError:
            return error
        return error

    def _answered(self, error: ClientError, uri: str) -> LancekeepError:
        """Translate a refusal of the server."""
        status, code = _status(error), _code(error)
        answer = f"{uri}: {self._server} answered {status} {code}"
        if status in (401, 403) or code in _EXPIRED:
            return AccessDenied(
                f"{answer}. The credentials need s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and "
                "ListBucket here (without the last, S3 answers 403 for an object that does not exist), and must not be "
                "expired"
            )
        if code == "NoSuchBucket":
            return NotFound(f"{uri}: {self._server} has no bucket {self._bucket!r}; create it, or correct its name")
        if (status >= 500 and status != 501) or status in (408, 409, 429) or code in _LATER:
            return StoreUnavailable(answer)
        if status == 404:
            return ObjectNotFound(f"{uri}: no such object on {self._server}")
        if status == 501:
            return UnsafeStore(
                f"{answer}: this server cannot create an object only where there is none (If-None-Match). {_WAYS_OUT}"
            )
        if code in _ELSEWHERE or status in (301, 307):
            return InvalidInput(f"{answer}. The bucket is in another region: set region in the storage options")
        return InvalidInput(answer)


def _record_time(parsed: Mapping[str, Any], **_: Any) -> None:
    """Record the server's time, which every answer contains."""
    if StorageTime.is_recorded():
        with suppress(LookupError, TypeError, ValueError):
            answered = parsedate_to_datetime(parsed["ResponseMetadata"]["HTTPHeaders"]["date"])
            if answered.tzinfo is not None:
                StorageTime.record(answered)


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
