"""Planted credentials are looked for in everything that Lancekeep shows, stores and raises."""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import boto3
import pyarrow as pa
import pytest
import redis
from deployments import bucket, s3_options
from lance_namespace import DescribeTableRequest

import lancekeep

KEY, PASSWORD = f"planted-key-{uuid4().hex}", f"planted-password-{uuid4().hex}"
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def lake(moto_endpoint: str) -> tuple[str, dict[str, str]]:
    return f"s3://{bucket(moto_endpoint)}/lake", {**s3_options(moto_endpoint), "aws_secret_access_key": KEY}


@pytest.fixture
def commits(redis_url: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A Redis user with a password of its own."""
    user = f"ada-{uuid4().hex[:8]}"
    with redis.from_url(redis_url) as server:
        server.acl_setuser(user, enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], commands=["+@all"])
        yield redis_url, {"username": user, "password": PASSWORD}
        server.acl_deluser(user)


def refusals(catalog: lancekeep.Catalog, other: str) -> Iterator[BaseException]:
    """What a catalog raises for common mistakes, with its causes."""
    mistakes = (
        lambda: catalog.open("missing"),
        lambda: catalog.write("t", ROWS),
        lambda: catalog.register_table("x", "nowhere"),
        lambda: catalog.register_table("x", "../outside"),
        lambda: catalog.open("t", version=99),
        lambda: catalog.resolve("nonsense"),
        lambda: catalog.upkeep.change_commit_store("redis://nowhere.invalid:1/0"),
        lambda: lancekeep.connect(catalog.root_uri, storage_options=catalog.storage_options, commit_store=other),
    )
    for mistake in mistakes:
        with pytest.raises(lancekeep.LancekeepError) as raised:
            mistake()
        error: BaseException | None = raised.value
        while error is not None:
            yield error
            error = error.__cause__ or error.__context__


def test_credentials_appear_in_no_repr_message_log_or_stored_byte(
    lake: tuple[str, dict[str, str]],
    commits: tuple[str, dict[str, str]],
    moto_endpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (root, storage), (store, user) = lake, commits
    catalog = lancekeep.connect(root, storage_options=storage, commit_store=store, commit_store_options=user)
    with caplog.at_level(logging.INFO), catalog:
        catalog.write("t", ROWS)
        plan = catalog.begin_write("t", ROWS.schema, "append")
        with catalog.transaction() as transaction:
            transaction.write("t", ROWS, "append")
        held = (plan, transaction, catalog.snapshot(), catalog.open("t"), catalog.describe_table("t"))
        partitioned = catalog.partitions.create(ROWS.schema, [lancekeep.PartitionBy.identity("id")])
        partitioned.write(ROWS)
        namespace = lancekeep.DirectoryNamespace(
            root=root,
            commit_store=store,
            **{f"storage.{name}": value for name, value in storage.items()},
            **{f"commit_store.{name}": value for name, value in user.items()},
        )
        shown = [repr(each) for each in (*held, partitioned, partitioned.begin_write(), partitioned.scan(), namespace)]
        ours = [each for each in gc.get_objects() if str(type(each).__module__).startswith("lancekeep.")]
        assert len(ours) > 100
        shown += [repr(each) for each in ours]
        shown += [f"{error!s} {error!r}" for error in refusals(catalog, f"sqlite://{tmp_path}/other.db")]
        shown += [repr(catalog.upkeep.fsck(deep=True)), repr(catalog.upkeep.cleanup(timedelta(days=1)))]
        request = DescribeTableRequest(id=["t"])
        shown += [str(namespace.describe_table(request)), *catalog.describe_namespace("").properties.values()]
    shown += [record.getMessage() for record in caplog.records]
    client = boto3.client("s3", endpoint_url=moto_endpoint)
    name = root.split("/")[2]
    for key in (each["Key"] for each in client.list_objects_v2(Bucket=name)["Contents"]):
        shown += [key, client.get_object(Bucket=name, Key=key)["Body"].read().decode("latin-1")]
    for secret in (KEY, PASSWORD):
        assert [text[:200] for text in shown if secret in text] == []


def test_only_what_workers_need_pickles_with_credentials(
    lake: tuple[str, dict[str, str]], commits: tuple[str, dict[str, str]]
) -> None:
    (root, storage), (store, user) = lake, commits
    with lancekeep.connect(root, storage_options=storage, commit_store=store, commit_store_options=user) as catalog:
        catalog.write("t", ROWS)
        plan = pickle.dumps(catalog.begin_write("t", ROWS.schema, "append"))
        assert KEY.encode() in plan
        assert PASSWORD.encode() not in plan
        for public in (catalog.describe_table("t"), catalog.versions.history("t"), catalog.upkeep.fsck(deep=True)):
            assert KEY.encode() not in pickle.dumps(public)
