"""Commit store in a DynamoDB table, with the items of ``s3+ddb://``.

========== ===== ========= ==========================================================================
attribute  type  key       meaning
========== ===== ========= ==========================================================================
base_uri   S     HASH      the dataset root; in a table that is shared with native writers,
                           without scheme and bucket
version    N     RANGE     the version
path       S               key of the manifest, staged or final
size       N               bytes of the manifest
committer  S               the writer that reserved the version
========== ===== ========= ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlencode, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lancekeep.adapters.commit_stores.boundary import boundary
from lancekeep.adapters.commit_stores.claims import ATTEMPTS, answer, answer_all
from lancekeep.adapters.commit_stores.dynamodb_errors import code_of, reasons_of, understood
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, Refused, StoreUnavailable
from lancekeep.domain.version_row import (
    BatchReservation,
    Claim,
    NotReady,
    Reservation,
    Reserved,
    VersionRow,
    may_claim,
)
from lancekeep.ports.commit_store import CommitStoreGuarantees, require_atomic
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import (
        AttributeValueTypeDef,
        KeySchemaElementTypeDef,
        TransactGetItemTypeDef,
        TransactWriteItemTypeDef,
        WriteRequestUnionTypeDef,
    )

    Item = Mapping[str, AttributeValueTypeDef]
    _Requests = Sequence[WriteRequestUnionTypeDef]

READ_TIMEOUT = 4
"""Seconds until a silent server counts as unavailable."""

BATCH = 25
"""Items per BatchWriteItem, and per TransactGetItems on every server."""
MOST_TOGETHER = 100
"""Items per TransactWriteItems."""
_KEY_SCHEMA: tuple[KeySchemaElementTypeDef, ...] = (
    {"AttributeName": "base_uri", "KeyType": "HASH"},
    {"AttributeName": "version", "KeyType": "RANGE"},
)
OWNER = "lancekeep:bucket"
"""The ``base_uri`` of the item that names the bucket of a shared table. No native key has this name."""
_OWNER_KEY: Item = {"base_uri": {"S": OWNER}, "version": {"N": "0"}}
_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ABOVE_ALL = 2**63 - 1


class DynamoDBCommitStore:
    """Keep version rows in DynamoDB, for many machines, durable and consistent.

    The first row creates the table, billed on demand; a missing table reads as empty.

    Args:
        url: The canonical URL.
        table: The name of the table.
        client: The boto3 client.
        shared_with_native: Native ``s3+ddb://`` writers use the same table. They omit scheme and bucket in
            ``base_uri``, so the rows of two buckets would collide. An item (`OWNER`) written before the first row names
            the bucket, and other buckets are refused.
    """

    options: ClassVar[frozenset[str]] = frozenset(("region", "endpoint_url", "shared_with_native", *_CREDENTIALS))
    guarantees = CommitStoreGuarantees(remembers=True, shared=True, atomic_rows=MOST_TOGETHER)

    def __init__(self, url: str, table: str, client: DynamoDBClient, *, shared_with_native: bool = False) -> None:
        self.url = url
        self._table = table
        self._client = client
        # Loaded here: threads whose first errors come together would load the classes twice, and not recognize them.
        self._errors = client.exceptions
        self._shared_with_native = shared_with_native
        self._owner: str | None = None

    @staticmethod
    def _canonical(url: StoreUrl) -> str:
        """Return the URL without secrets and tuning."""
        table, query = _table(url), {"region": _region(url)}
        if "endpoint_url" in url.options:
            query["endpoint_url"] = _endpoint(url)
        if url.boolean("shared_with_native", False):
            query["shared_with_native"] = "true"
        return f"dynamodb://{table}?{urlencode(query, safe=':/')}"

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> DynamoDBCommitStore:
        canonical = cls._canonical(url)
        credentials = {name: url.options[name] for name in _CREDENTIALS if name in url.options}
        if len(credentials.keys() & set(_CREDENTIALS[:2])) == 1 or credentials.keys() == {"aws_session_token"}:
            url.refuse(f"{_CREDENTIALS[0]} and {_CREDENTIALS[1]} must be set together")
        try:
            client = boto3.session.Session().client(
                "dynamodb",
                region_name=_region(url),
                endpoint_url=url.options.get("endpoint_url"),
                aws_access_key_id=credentials.get("aws_access_key_id"),
                aws_secret_access_key=credentials.get("aws_secret_access_key"),
                aws_session_token=credentials.get("aws_session_token"),
                config=Config(  # type: ignore[call-arg] # the stubs lack ignore_configured_endpoint_urls
                    connect_timeout=2,
                    read_timeout=READ_TIMEOUT,
                    retries={"total_max_attempts": 2, "mode": "standard"},
                    max_pool_connections=64,
                    ignore_configured_endpoint_urls=True,  # the URL alone determines the location of the rows
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise InvalidInput(f"{canonical}: {error}") from error
        return cls(canonical, _table(url), client, shared_with_native=url.boolean("shared_with_native", False))

    def __repr__(self) -> str:
        return f"DynamoDBCommitStore({self.url!r})"

    @boundary(ClientError, BotoCoreError)
    def get(self, base_uri: str, version: int) -> VersionRow | None:
        return self._get(base_uri, version)

    @boundary(ClientError, BotoCoreError)
    def latest(self, base_uri: str) -> VersionRow | None:
        return self._latest(base_uri)

    @boundary(ClientError, BotoCoreError)
    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        return list(islice(self._query(base_uri, after, limit, descending), limit))

    @boundary(ClientError, BotoCoreError)
    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        told = self._answer(Claim(row, first))
        if told is not None:
            return told
        held = self._put(row)
        return Reserved() if held is None else answer(row, held)

    @boundary(ClientError, BotoCoreError)
    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        require_atomic(self, len(claims))
        for _ in range(ATTEMPTS):
            told = answer_all(claims, map(self._answer, claims))
            if told is not None:
                return told
            if self._put_all([claim.row for claim in claims]):
                return Reserved()
        raise self._contested(len(claims))

    @boundary(ClientError, BotoCoreError)
    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        """Read the latest rows, and check in one transaction that no next version exists.

        Sequential reads alone may see a part of a transaction in progress.
        """
        for _ in range(ATTEMPTS):
            rows = [self._latest(base_uri) for base_uri in base_uris]
            following = [
                self._key(base_uri, 1 if row is None else row.version + 1)
                for base_uri, row in zip(base_uris, rows, strict=True)
            ]
            if len(rows) < 2 or self._absent(following):
                return rows
        raise self._contested(len(base_uris))

    @boundary(ClientError, BotoCoreError)
    def finalize(self, row: VersionRow) -> bool:
        try:
            self._client.update_item(
                TableName=self._table,
                Key=self._key(row.base_uri, row.version),
                UpdateExpression="SET #path = :path, #size = :size",
                ConditionExpression="attribute_exists(version) AND contains(#path, :staged)",
                ExpressionAttributeNames={"#path": "path", "#size": "size"},
                ExpressionAttributeValues={
                    ":path": {"S": row.path},
                    ":size": {"N": str(row.size)},
                    ":staged": {"S": ".manifest-"},
                },
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ClientError as error:
            match code_of(error):
                case "ConditionalCheckFailedException":
                    return self._held(error, row) is not None
                case "ResourceNotFoundException":
                    return False
            raise
        return True

    @boundary(ClientError, BotoCoreError)
    def record(self, rows: Iterable[VersionRow]) -> None:
        for row in rows:
            self._put(row)

    @boundary(ClientError, BotoCoreError)
    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        wanted = None if versions is None else set(versions)
        if wanted is not None and not wanted:
            return 0
        after, last = (None, None) if wanted is None else (min(wanted) - 1, max(wanted))
        doomed: list[int] = []
        for row in self._query(base_uri, after, None, False):
            if last is not None and row.version > last:
                break
            if wanted is None or row.version in wanted:
                doomed.append(row.version)
        keys = iter(doomed)  # the newest last: if interrupted, the latest version is still the latest
        while batch := list(islice(keys, BATCH)):
            self._delete([{"DeleteRequest": {"Key": self._key(base_uri, version)}} for version in batch])
        return len(doomed)

    def close(self) -> None:
        """Close every connection; a later call connects again."""
        self._client.close()

    def _key(self, base_uri: str, version: int) -> Item:
        return {"base_uri": {"S": self._partition(base_uri)}, "version": {"N": str(version)}}

    def _partition(self, base_uri: str) -> str:
        if not self._shared_with_native:
            return base_uri
        if not base_uri.startswith("s3://"):
            raise InvalidInput(f"{self.url}: native writers share tables on s3:// only; found {base_uri}")
        bucket, _, path = base_uri.removeprefix("s3://").partition("/")
        if self._owner is None:
            self._owner = self._found_owner()
        if self._owner not in (None, bucket):
            raise Refused(
                f"{self.url}: this DynamoDB table holds the rows of s3://{self._owner}, where {base_uri} would have "
                "the same keys as another table. Give each bucket a DynamoDB table of its own. Nothing was written."
            )
        return path

    def _found_owner(self) -> str | None:
        """Return the bucket that a shared table belongs to, or None before the first row."""
        try:
            reply = self._client.get_item(TableName=self._table, Key=_OWNER_KEY, ConsistentRead=True)
        except self._errors.ResourceNotFoundException:
            return None
        return reply["Item"]["path"]["S"] if "Item" in reply else None

    def _claim_table(self, base_uri: str) -> None:
        """Record the bucket of a shared table before its first row; create the table if it is missing."""
        self._partition(base_uri)
        if not self._shared_with_native or self._owner is not None:
            return
        bucket = base_uri.removeprefix("s3://").partition("/")[0]
        item: Item = {**_OWNER_KEY, "path": {"S": bucket}, "size": {"N": "0"}}
        while True:
            try:
                self._client.put_item(
                    TableName=self._table, Item=item, ConditionExpression="attribute_not_exists(version)"
                )
            except self._errors.ResourceNotFoundException:
                self._create_table()
                continue
            except self._errors.ConditionalCheckFailedException:
                pass
            break
        self._partition(base_uri)

    def _get(self, base_uri: str, version: int) -> VersionRow | None:
        try:
            reply = self._client.get_item(TableName=self._table, Key=self._key(base_uri, version), ConsistentRead=True)
        except self._errors.ResourceNotFoundException:
            return None
        return self._row(base_uri, reply["Item"]) if "Item" in reply else None

    def _latest(self, base_uri: str) -> VersionRow | None:
        return next(self._query(base_uri, None, 1, True), None)

    def _answer(self, claim: Claim) -> Reservation | None:
        """Answer a claim by the current rows; None grants it."""
        row, latest = claim.row, self._latest(claim.row.base_uri)
        if may_claim(row, latest, first=claim.first):
            return None
        if latest is None or latest.version < row.version:
            return NotReady(latest)
        held = latest if latest.version == row.version else self._get(row.base_uri, row.version)
        return NotReady(latest) if held is None else answer(row, held)

    def _absent(self, keys: Sequence[Item]) -> bool:
        """Return whether all items are absent, outside any transaction in progress.

        The batches are read one after the other: an item that is absent later was absent before.
        """
        for start in range(0, len(keys), BATCH):
            gets: list[TransactGetItemTypeDef] = [
                {"Get": {"TableName": self._table, "Key": key}} for key in keys[start : start + BATCH]
            ]
            try:
                replies = self._client.transact_get_items(TransactItems=gets)["Responses"]
            except self._errors.ResourceNotFoundException:
                return True
            except self._errors.TransactionCanceledException as error:
                if reasons_of(error) <= {"TransactionConflict"}:
                    return False
                raise
            if any("Item" in reply for reply in replies):
                return False
        return True

    def _query(self, base_uri: str, after: int | None, limit: int | None, descending: bool) -> Iterator[VersionRow]:
        """Yield rows in order, page by page; ``limit`` is the page size."""
        comparison, start = ("<", _ABOVE_ALL) if descending else (">", -1)
        pages = self._client.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression=f"base_uri = :base_uri AND version {comparison} :after",
            ExpressionAttributeValues={
                ":base_uri": {"S": self._partition(base_uri)},
                ":after": {"N": str(start if after is None else after)},
            },
            ScanIndexForward=not descending,
            ConsistentRead=True,
            PaginationConfig={} if limit is None else {"PageSize": max(limit, 1)},
        )
        try:
            for page in pages:
                for item in page["Items"]:
                    yield self._row(base_uri, item)
        except self._errors.ResourceNotFoundException:
            return  # the first row creates the table

    def _put(self, row: VersionRow) -> VersionRow | None:
        """Enter a row if its version has none, and return the conflicting row otherwise; create a missing table.

        If the driver repeats a call after a lost reply, it finds its own row, which the caller recognizes by the path.
        """
        while True:
            self._claim_table(row.base_uri)
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item=self._item(row),
                    ConditionExpression="attribute_not_exists(version)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except ClientError as error:
                match code_of(error):
                    case "ResourceNotFoundException":
                        self._create_table()
                        continue
                    case "ConditionalCheckFailedException":
                        held = self._held(error, row)
                        if held is not None:
                            return held
                        continue  # it has been deleted since
                raise
            return None

    def _put_all(self, rows: Sequence[VersionRow]) -> bool:
        """Enter all rows, or return False and write nothing if a version has a row.

        The driver sends a token by which the server recognizes a repeated call.
        """
        for row in rows:
            self._claim_table(row.base_uri)
        puts: list[TransactWriteItemTypeDef] = [
            {
                "Put": {
                    "TableName": self._table,
                    "Item": self._item(row),
                    "ConditionExpression": "attribute_not_exists(version)",
                }
            }
            for row in rows
        ]
        try:
            self._client.transact_write_items(TransactItems=puts)
        except self._errors.ResourceNotFoundException:
            self._create_table()
            return False
        except self._errors.TransactionCanceledException as error:
            if reasons_of(error) <= {"ConditionalCheckFailed", "TransactionConflict"}:
                return False
            raise
        return True

    def _item(self, row: VersionRow) -> Item:
        return {
            **self._key(row.base_uri, row.version),
            "path": {"S": row.path},
            "size": {"N": str(row.size)},
            "committer": {"S": row.committer},
        }

    def _contested(self, count: int) -> StoreUnavailable:
        return StoreUnavailable(f"{self.url}: other writers kept committing to these {count} tables; try again")

    def _held(self, error: ClientError, row: VersionRow) -> VersionRow | None:
        """Return the row that failed a condition; older servers do not send it, so it is read again."""
        item: Item | None = error.response.get("Item")  # type: ignore[assignment] # not in the general error's type
        return self._row(row.base_uri, item) if item else self._get(row.base_uri, row.version)

    def _row(self, base_uri: str, item: Item) -> VersionRow:
        try:
            committer = item.get("committer", {}).get("S", "")
            return VersionRow(base_uri, int(item["version"]["N"]), item["path"]["S"], int(item["size"]["N"]), committer)
        except (KeyError, ValueError) as error:
            fault = f"lacks the attribute {error}" if isinstance(error, KeyError) else f"has no whole number: {error}"
            raise Damaged(
                f"{self.url}: an item of {base_uri} {fault}; expected base_uri, version, path and size, as native "
                "s3+ddb:// writers use them. Delete the item."
            ) from error

    def _create_table(self) -> None:
        """Create the table and wait until it is usable; another process may create it concurrently."""
        self._owner = None
        with suppress(self._errors.ResourceInUseException):
            self._client.create_table(
                TableName=self._table,
                KeySchema=_KEY_SCHEMA,
                AttributeDefinitions=[
                    {"AttributeName": "base_uri", "AttributeType": "S"},
                    {"AttributeName": "version", "AttributeType": "N"},
                ],
                BillingMode="PAY_PER_REQUEST",
            )
        self._client.get_waiter("table_exists").wait(
            TableName=self._table, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )

    def _delete(self, requests: _Requests) -> None:
        for _ in range(10):
            reply = self._client.batch_write_item(RequestItems={self._table: requests})
            if not (rest := reply.get("UnprocessedItems", {}).get(self._table)):
                return
            requests = rest
        raise StoreUnavailable(f"{self.url}: the table is throttled; {len(requests)} rows remain. Try again")

    def understood(self, error: Exception) -> LancekeepError:
        return understood(error, self.url, self._client.meta.endpoint_url, self._schema_fault)

    def _schema_fault(self) -> str | None:
        """Return the fault of the table's keys, if they caused a validation error."""
        try:
            keys = self._client.describe_table(TableName=self._table)["Table"]["KeySchema"]
        except (ClientError, BotoCoreError):
            return None
        found = ", ".join(f"{key['KeyType']} {key['AttributeName']}" for key in keys)
        if found == "HASH base_uri, RANGE version":
            return None
        return f"the table has the key {found}; expected HASH base_uri (S), RANGE version (N). Use another table."


def _table(url: StoreUrl) -> str:
    name = url.name_only()
    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", name):
        url.refuse("the name of a DynamoDB table has 3 to 255 letters, digits, '_', '-' or '.'")
    return name


def _region(url: StoreUrl) -> str:
    region = url.options.get("region") or boto3.session.Session().region_name
    if not region:
        url.refuse("the region is missing: add ?region=…, or set AWS_DEFAULT_REGION")
    return region


def _endpoint(url: StoreUrl) -> str:
    try:
        parts = urlsplit(url.options["endpoint_url"])
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        parts, port = urlsplit(""), 0
    if not parts.hostname or parts.username or parts.password or parts.query:
        url.refuse("the option endpoint_url must be http[s]://HOST[:PORT], without user and password")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"
