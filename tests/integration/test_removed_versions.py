"""Versions that a clean-up of native code has removed are neither listed nor described."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateTableTagRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    ListTableVersionsRequest,
    TableExistsRequest,
)
from lance_namespace.errors import TableVersionNotFoundError

import lancekeep
from lancekeep.application.catalog import services_of

KINDS = ("sqlite", "files", "conditional-put", "storage-managed")


@pytest.fixture(params=KINDS)
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A namespace with a table of seven versions, of which a native clean-up has removed 1, 2, 4 and 5."""
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db", "files": f"file://{tmp_path}/commits?fsync=false"}
    url = urls.get(request.param, "conditional-put://" if request.param == "conditional-put" else None)
    properties = {"root": str(tmp_path / "lake"), **({} if url is None else {"commit_store": url})}
    catalog = lancekeep.connect(properties["root"], commit_store=url)
    catalog.write("t", pa.table({"a": [1]}))
    for value in range(2, 8):
        catalog.write("t", pa.table({"a": [value]}), "append")
    native = lance.dataset(services_of(catalog).uri(catalog.find_table("t")))
    native.tags.create("kept", 3)
    native.tags.create("also", 6)
    native.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    return lancekeep.DirectoryNamespace(**properties)


def listed(namespace: Any, **asked: Any) -> list[int]:
    """Return the versions of all pages."""
    found: list[int] = []
    token = None
    while True:
        answer = namespace.list_table_versions(ListTableVersionsRequest(id=["t"], page_token=token, **asked))
        found += [version.version for version in answer.versions]
        token = answer.page_token
        if token is None:
            return found


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
@pytest.mark.parametrize("descending", [None, True, False])
def test_listing_shows_what_history_shows(namespace: Any, limit: int | None, descending: bool | None) -> None:
    expected = [entry.version for entry in namespace.catalog.versions.history("t")]
    assert expected == [7, 6, 3]
    found = listed(namespace, limit=limit, descending=descending)
    assert found == (sorted(expected) if descending is False else expected)


def test_native_code_lists_what_history_shows(namespace: Any) -> None:
    dataset = namespace.catalog.open("t")
    assert [version["version"] for version in dataset.versions()] == [3, 6, 7]
    assert dataset.version == 7


@pytest.mark.parametrize("version", [1, 2, 4, 5])
def test_removed_version_is_not_found(namespace: Any, version: int) -> None:
    requests: list[Callable[[], object]] = [
        lambda: namespace.describe_table(DescribeTableRequest(id=["t"], version=version)),
        lambda: namespace.describe_table_version(DescribeTableVersionRequest(id=["t"], version=version)),
        lambda: namespace.table_exists(TableExistsRequest(id=["t"], version=version)),
        lambda: namespace.create_table_tag(CreateTableTagRequest(id=["t"], tag="x", version=version)),
    ]
    for request in requests:
        with pytest.raises(TableVersionNotFoundError):
            request()


def test_remaining_versions_and_the_latest_are_described(namespace: Any) -> None:
    for version in (3, 6, 7):
        assert namespace.describe_table(DescribeTableRequest(id=["t"], version=version)).version == version
        described = namespace.describe_table_version(DescribeTableVersionRequest(id=["t"], version=version))
        assert described.version.version == version
        namespace.table_exists(TableExistsRequest(id=["t"], version=version))
    assert namespace.describe_table_version(DescribeTableVersionRequest(id=["t"])).version.version == 7
    assert [version.version for version in first(namespace)] == [7]


def first(namespace: Any) -> Any:
    return namespace.list_table_versions(ListTableVersionsRequest(id=["t"], limit=1, descending=True)).versions


def test_removed_version_is_neither_cloned_nor_inspected(namespace: Any) -> None:
    acts: list[Callable[[], object]] = [
        lambda: namespace.catalog.clone("t", "c", version=2),
        lambda: namespace.catalog.inspect("t", 2),
        lambda: namespace.catalog.open("t", 2),
    ]
    for act in acts:
        with pytest.raises(lancekeep.VersionNotFound):
            act()
    assert namespace.catalog.list_tables() == ["t"]


@pytest.mark.parametrize(("older_than", "files"), [(5, 3), (2, 0), (timedelta(0), 7)])
def test_files_are_tiered_by_the_versions_that_exist(
    namespace: Any, tmp_path: Path, older_than: timedelta | int, files: int
) -> None:
    assert namespace.catalog.upkeep.move_fragments("t", older_than, str(tmp_path / "cold")).files == files
