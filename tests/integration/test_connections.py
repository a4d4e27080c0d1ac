"""The connections of catalogs and servers: whether they are closed, and what waits for them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from integration.test_two_servers import insert, serve, uri_of
from s3_front import Answer, Asked, s3_front

import lancekeep
from lancekeep.adapters.object_stores import s3_client
from lancekeep.application.catalog import directory_of


@pytest.fixture
def without_collections() -> Iterator[None]:
    """A client of boto3 is part of reference cycles, so a collection of garbage would close it, too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sockets() -> int:
    found = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sum(target.startswith("socket:") for target in found)


@pytest.mark.usefixtures("without_collections")
def test_closed_catalog_keeps_no_connection(moto_endpoint: str) -> None:
    root, options = f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint)
    catalog = lancekeep.connect(root, commit_store="conditional-put://", storage_options=options)
    catalog.create_namespace("a")
    catalog.close()
    before = sockets()
    for _ in range(5):
        with lancekeep.connect(root, commit_store="conditional-put://", storage_options=options) as catalog:
            assert catalog.list_namespaces() == ["a"]
    assert sockets() == before
    assert catalog.list_namespaces() == ["a"]  # a closed catalog connects again
    catalog.close()
    assert sockets() == before


def test_directories_of_one_bucket_share_a_client(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Any] = []
    make = s3_client.s3_client

    def counting(*arguments: Any) -> Any:
        clients.append(make(*arguments))
        return clients[-1]

    monkeypatch.setattr(s3_client, "s3_client", counting)
    own, other = bucket(moto_endpoint), bucket(moto_endpoint)
    with lancekeep.connect(f"s3://{own}/lake", storage_options=s3_options(moto_endpoint)) as catalog:
        found = [directory_of(catalog).places.outside(f"s3://{name}/{n}") for name in (own, other) for n in range(3)]
    assert len(clients) == 2
    assert [each.key for each in found] == ["0", "1", "2"] * 2
    assert [each.objects.root_uri for each in found] == [f"s3://{own}/"] * 3 + [f"s3://{other}/"] * 3


def test_slow_store_does_not_delay_the_event_loop(moto_endpoint: str) -> None:
    root, options = f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint)
    with lancekeep.connect(root, commit_store="conditional-put://", storage_options=options) as catalog:
        catalog.write("t", pa.table({"number": pa.array([1], pa.int64())}))
    is_slow, arrived, continues = threading.Event(), threading.Event(), threading.Event()

    def answer(asked: Asked) -> Answer:
        if is_slow.is_set():
            arrived.set()
            continues.wait()
        return asked.forward()

    with s3_front(moto_endpoint, answer) as front, serve(root, s3_options(front)) as server:
        uri = uri_of(server)
        is_slow.set()
        with ThreadPoolExecutor(2) as pool, httpx.Client(base_url=uri, timeout=60) as client:
            described = pool.submit(client.post, "/v1/table/t/describe", json={})
            inserted = pool.submit(insert, uri, 2)
            try:
                assert arrived.wait(60)
                for _ in range(5):
                    assert httpx.get(f"{uri}/healthz", timeout=60).status_code == 200
                assert not described.done()
                assert not inserted.done()
            finally:
                continues.set()
            assert described.result().status_code == 200
            inserted.result()
