"""Identifiers, locations, roots, URLs, names of manifests and tokens: all that is text."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from fuzz.foreign import DEEP, FUZZ, JSON, SLOW, mutated, read, read_api, texts
from hypothesis import example, given
from hypothesis import strategies as st

import lancekeep
from lancekeep import Damaged, InvalidInput, ObjectId
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.naming import U64_MAX, ManifestName, final_path, final_versions
from lancekeep.domain.table import confined, v1_table

PATHS = "/\\.$%~ \0:@#?*\n"
ANYTHING = st.one_of(
    st.none(), st.integers(), st.floats(), st.binary(), st.lists(st.none() | st.text() | st.integers())
)


@FUZZ
@given(st.one_of(texts("$./"), st.lists(texts("$./"), max_size=5), ANYTHING), st.sampled_from((".", "$", "", "ab")))
@example("a$$b", "$")
@example(["\ud800"], ".")
@example(5, ".")
def test_identifiers_as_callers_give_them(identifier: Any, delimiter: str) -> None:
    found = read(lambda: ObjectId.of(identifier, delimiter), InvalidInput)
    if found is not None:
        assert ObjectId.of(found.names) == ObjectId.from_key(found.key) == found
        assert len(found.key.encode()) <= 246


@FUZZ
@given(texts("$."))
@example("$")
@example("a$$b")
def test_object_ids_as_a_manifest_table_holds_them(key: str) -> None:
    found = read(lambda: ObjectId.from_key(key))
    assert found is not None
    assert found.key == key


@FUZZ
@given(texts(PATHS))
@example("../x")
@example("a/../../x")
@example("//x")
@example("a/\ud800")
def test_locations_never_leave_the_root(location: str) -> None:
    found = read(lambda: confined(location), InvalidInput)
    if found is not None:
        assert not os.path.isabs(found)
        assert os.path.normpath(os.path.join("/lake", found)).startswith("/lake/")
        assert confined(found) == found
    table = read(lambda: v1_table(location))
    if table is not None:
        assert f"{table.key}.lance" == location


SCHEMES = st.sampled_from(("", "file://", "memory://", "s3://", "gs://", "://", "x://", "FILE:///", "abfss://"))


@FUZZ
@given(SCHEMES, texts(PATHS + "[]"), st.dictionaries(st.sampled_from(("fsync", "region", "x")), st.text() | st.none()))
@example("", "\ud800", {})
@example("s3://", "[", {})
@example("s3://", "b\ud800/x", {})
@example("file:///", "%00", {})
def test_roots(scheme: str, rest: str, options: dict[str, Any]) -> None:
    read(lambda: open_object_store(scheme + rest, options), InvalidInput, lancekeep.Unsupported)


STORES = st.sampled_from(
    ("memory", "file", "sqlite", "redis", "rediss", "postgresql", "dynamodb", "conditional-put", "x", "", "REDIS")
)


@FUZZ
@given(
    STORES,
    st.sampled_from(("://", ":///", "://h/", "://u:p@h:1/", ":")),
    texts(PATHS + "[]&="),
    st.dictionaries(st.sampled_from(("fsync", "timeout", "region", "cluster", "synchronous")), st.text()),
)
@example("redis", "://h/", "9" * 5000, {})
@example("redis", "://h/", "²", {})
@example("redis", "://", "[::1", {})
@example("file", ":///", "\ud800", {})
@example("sqlite", ":///", "a\ud800", {})
@example("sqlite", ":///", "a%ff", {})
@example("dynamodb", "://", "tab?region=\n&endpoint_url=http://[", {})
@example("memory", "://", "\ud800", {})
@example("postgresql", "://h/", "a%00", {})
@example("postgresql", "://h/", "a?service=b", {})
def test_urls_of_commit_stores(scheme: str, separator: str, rest: str, options: dict[str, str]) -> None:
    url = f"{scheme}{separator}{rest}"
    store = read(lambda: open_commit_store(url, options, MemoryObjectStore()), InvalidInput)
    if store is not None:
        assert open_commit_store(store.url, {}, MemoryObjectStore()).url == store.url


DIGITS = st.text(st.sampled_from("0123456789٣²९"), max_size=25)
MANIFEST_NAMES = st.one_of(
    texts("0123456789.-manifest"),
    st.tuples(DIGITS, st.sampled_from((".manifest", ".manifest-", ".manifest-x-1", "")), st.text(max_size=3)).map(
        "".join
    ),
)


@FUZZ
@given(MANIFEST_NAMES)
@example("٣.manifest")
@example("99999999999999999999.manifest")
@example("7.manifest\n")
def test_names_of_manifests(name: str) -> None:
    found = read(lambda: ManifestName.parse(name))
    if found is not None:
        assert name.isascii()
        assert 0 <= found.version <= U64_MAX
        if not found.is_staged:
            assert final_path(name) == name


@FUZZ
@given(st.lists(MANIFEST_NAMES, max_size=6))
def test_directories_of_versions(names: list[str]) -> None:
    found = read(lambda: final_versions(names, "x/_versions"), Damaged)
    if found is not None:
        assert found[1] == sorted(found[1])


@FUZZ
@given(st.one_of(texts('{}[]":,'), JSON.map(json.dumps)))
@example(DEEP)
@example("{}")
@example('{"root": 1, "version": 2, "path": 3, "size": 4}')
def test_commit_tokens(text: str) -> None:
    token = read(lambda: CommitToken.parse(text), InvalidInput)
    assert token is None or CommitToken.parse(str(token)) == token


# -- what comes through the interface ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["v1", "managed"])
def namespace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = tmp_path_factory.mktemp("fuzz")
    properties = {
        "v1": {"manifest_enabled": "false"},
        "managed": {"commit_store": f"sqlite://{directory}/commits.db"},
    }[request.param]
    opened = lancekeep.DirectoryNamespace(root=str(directory / "lake"), **properties, **{"storage.fsync": "false"})
    opened.catalog.write("t", pa.table({"a": [1]}))
    return opened


TOKENS = st.one_of(texts("0123456789$²٣"), st.integers().map(str), st.just("9" * 5000), st.none())


@SLOW
@given(TOKENS, st.one_of(st.none(), st.integers(-(2**70), 2**70)))
@example("²", None)
@example("9" * 19, 1)
@example(None, 2**63)
def test_page_tokens_and_limits(namespace: Any, token: str | None, limit: int | None) -> None:
    page: dict[str, Any] = {"page_token": token, "limit": limit}
    calls = (
        lambda: namespace.list_tables(api.ListTablesRequest(id=[], **page)),
        lambda: namespace.list_namespaces(api.ListNamespacesRequest(id=[], **page)),
        lambda: namespace.list_all_tables(api.ListTablesRequest(**page)),
        lambda: namespace.list_table_versions(api.ListTableVersionsRequest(id=["t"], **page)),
        lambda: namespace.list_table_versions({"id": ["t"], **page}),
    )
    for call in calls:
        read_api(call)


@SLOW
@given(st.integers(-(2**70), 2**70))
@example(2**64)
@example(-1)
def test_versions_that_callers_ask_for(namespace: Any, version: int) -> None:
    read_api(lambda: namespace.describe_table_version({"id": ["t"], "version": version}))
    read_api(lambda: namespace.describe_table({"id": ["t"], "version": version}))
    read_api(lambda: namespace.describe_table({"id": ["t"], "version": version, "load_detailed_metadata": True}))


@SLOW
@given(st.lists(texts(PATHS), max_size=3), texts(PATHS), st.dictionaries(texts('"'), texts('"'), max_size=2))
def test_requests_of_callers(namespace: Any, names: list[str], text: str, properties: dict[str, str]) -> None:
    read_api(lambda: namespace.describe_table(api.DescribeTableRequest(id=names, tag=text)))
    read_api(lambda: namespace.describe_table(api.DescribeTableRequest(id=["t"], branch=text)))
    read_api(lambda: namespace.register_table(api.RegisterTableRequest(id=["r"], location=text, properties=properties)))
    read_api(lambda: namespace.create_table(api.CreateTableRequest(id=["c"]), text.encode(errors="replace")))
    read_api(
        lambda: namespace.create_table_version(
            {
                "id": ["t"],
                "version": 2,
                "manifest_path": text,
                "manifest_size": 1,
                "branch": names[0] if names else None,
            }
        )
    )


@cache
def stream() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for _ in range(3):
            writer.write_table(table)
    return bytes(sink.getvalue())


@SLOW
@given(st.one_of(mutated(stream()), st.integers(0, len(stream())).map(lambda length: stream()[:length])))
@example(stream()[:-40])
def test_streams_of_arrow_data(namespace: Any, content: bytes) -> None:
    def create() -> None:
        namespace.create_table(api.CreateTableRequest(id=["s"], mode="overwrite"), content)
        namespace.drop_table(api.DropTableRequest(id=["s"]))

    read_api(create)
