"""Versions by time, through Python, the namespace and a server, judged by pylance's list of versions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import lance
import lance.namespace
import lance_namespace as api
import pyarrow as pa
import pytest
from faults import Faulty
from lance_namespace import errors as api_errors
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector
from rest_server import serving
from version_times import nanos_of, set_times

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

START = datetime(2026, 3, 29, 0, 59, 59, 123_457, tzinfo=UTC)  # clocks in Europe skip an hour after it
MICROSECOND = timedelta(microseconds=1)
VERSIONS = 6


def moment(version: int) -> datetime:
    """Return the time of a version; versions 3 and 4 have the same."""
    return START + timedelta(seconds=3 if version == 4 else version)


def table_of(catalog: lancekeep.Catalog) -> Path:
    return Path(catalog.describe_table("t").uri.removeprefix("file://"))


@pytest.fixture(params=["storage-managed", "conditional-put"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    store = None if request.param == "storage-managed" else "conditional-put://"
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        for number in range(VERSIONS):
            catalog.write("t", pa.table({"a": [number]}), "append" if number else "create")
        catalog.branches.create("t", "side", None, 5)
        catalog.open("t", branch="side").insert(pa.table({"a": [100]}))
        uri = table_of(catalog)
        set_times(uri, {version: nanos_of(moment(version)) for version in range(1, VERSIONS + 1)})
        set_times(uri / "tree" / "side", {version: nanos_of(moment(version + 1)) for version in (5, 6)})
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        yield catalog


def scanned(catalog: lancekeep.Catalog, when: datetime) -> int | None:
    """Return the newest version that pylance lists up to a time."""
    listed: list[Any] = lance.dataset(str(table_of(catalog))).versions()
    return max((each["version"] for each in listed if each["timestamp"].astimezone(UTC) <= when), default=None)


def test_open_is_exact_at_the_boundary(catalog: lancekeep.Catalog) -> None:
    for version in range(1, VERSIONS + 1):
        for when in (moment(version) - MICROSECOND, moment(version), moment(version) + MICROSECOND):
            expected = scanned(catalog, when)
            if expected is None:
                with pytest.raises(lancekeep.VersionNotFound, match=r"nearest that exist are version 1 of 2026-03-29"):
                    catalog.open("t", timestamp=when)
                continue
            zone = timezone(timedelta(hours=-9, minutes=-30))
            assert catalog.open("t", timestamp=when.astimezone(zone)).count_rows() == expected
            assert catalog.versions.at("t", when.isoformat()) == expected
            assert catalog.versions.describe("t", timestamp=when).version == expected
    assert catalog.open("t", timestamp=moment(3)).version == 4  # of equal times, the later version
    assert catalog.open("t", timestamp=datetime.max.replace(tzinfo=UTC)).version == VERSIONS
    for entry in catalog.versions.history("t"):
        assert catalog.open("t", timestamp=entry.timestamp).version == max(entry.version, 4 * (entry.version == 3))


def test_branch_has_times_of_its_own(catalog: lancekeep.Catalog) -> None:
    assert catalog.open("t", branch="side", timestamp=moment(7)).count_rows() == 6
    first = catalog.open("t", branch="side", timestamp=moment(7) - MICROSECOND)
    assert (first.version, first.count_rows()) == (5, 5)
    with pytest.raises(lancekeep.VersionNotFound, match="the branch side of t has no version that was the latest"):
        catalog.open("t", branch="side", timestamp=moment(1))
    with pytest.raises(lancekeep.BranchNotFound):
        catalog.open("t", branch="other", timestamp=moment(7))
    before = catalog.versions.restore("t", branch="side", timestamp=moment(6)).version
    assert catalog.open("t", before, branch="side").count_rows() == 5


def test_restore_goes_back_to_a_time(catalog: lancekeep.Catalog) -> None:
    change = catalog.versions.restore("t", timestamp=moment(2))
    assert change.version == VERSIONS + 1
    assert lance.dataset(str(table_of(catalog))).to_table()["a"].to_pylist() == [0, 1]
    with pytest.raises(lancekeep.InvalidInput, match="needs a version or a timestamp"):
        catalog.versions.restore("t")
    with pytest.raises(lancekeep.VersionNotFound, match=r"has no version 99; .*history lists"):
        catalog.versions.restore("t", 99)


@pytest.mark.parametrize("given", [{"version": 1}, {"tag": "v1"}])
def test_time_stands_alone(catalog: lancekeep.Catalog, given: dict[str, Any]) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="pass no version or tag with it"):
        catalog.open("t", timestamp=moment(1), **given)


def test_removed_versions_are_reported(catalog: lancekeep.Catalog) -> None:
    catalog.tags.create("t", "kept", 2)
    parts = directory_of(catalog)
    parts.versions.delete_versions(parts.places.dataset_root(catalog.find_table("t")), [1, 3])
    assert catalog.open("t", timestamp=moment(2)).version == 2
    with pytest.raises(lancekeep.VersionNotFound, match=r"were removed.*version 2 of .* and version 4 of"):
        catalog.open("t", timestamp=moment(2) + MICROSECOND)
    with pytest.raises(lancekeep.VersionNotFound, match=r"left is later. .* are version 2 of"):
        catalog.open("t", timestamp=moment(1))
    assert catalog.open("t", timestamp=moment(4)).version == 4


def test_many_versions_take_few_reads(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db") as catalog:
        for number in range(128):
            catalog.write("t", pa.table({"a": [number]}), "append" if number else "create")
        times = {entry.version: entry.timestamp for entry in catalog.versions.history("t")}
        commits = directory_of(catalog).commits
        objects = Faulty(commits.objects)
        commits.objects = objects
        for version in (1, 64, 100):
            objects.calls.clear()
            assert catalog.versions.at("t", times[version]) == version
            assert objects.counts["get"] <= 7 + 8 + 1
            assert objects.counts["list"] == 0


def test_server_selects_a_version_by_the_context_of_a_request(catalog: lancekeep.Catalog) -> None:
    namespace: Any = CatalogNamespace(catalog)
    with serving(namespace) as front, lancekeep.connect(front.uri) as client:
        assert client.open("t", timestamp=moment(2)).count_rows() == 2
        assert client.open("t", branch="side", timestamp=moment(7)).count_rows() == 6
        assert client.versions.at("t", moment(3)) == 4
        with pytest.raises(lancekeep.VersionNotFound, match="version 1 of"):
            client.open("t", timestamp=moment(1) - MICROSECOND)
        remote: Any = lance.namespace.RestNamespace(uri=front.uri)
        for asked in (namespace, remote):
            context = {"header.x-lancekeep-timestamp": moment(2).isoformat()}
            query: Any = api.QueryTableRequest.model_construct(
                id=["t"], k=0, vector=QueryTableRequestVector(single_vector=[]), context=context
            )
            assert pa.ipc.open_file(as_bytes(asked.query_table(query))).read_all()["a"].to_pylist() == [0, 1]
            described = asked.describe_table(api.DescribeTableRequest(id=["t"], context=context))
            assert described.version == 2
            assert asked.describe_table_version({"id": ["t"], "context": context})["version"]["version"] == 2
            counted = asked.count_table_rows(api.CountTableRowsRequest(id=["t"], context=context))
            assert getattr(counted, "count", counted) == 2
            with pytest.raises(api_errors.InvalidInputError, match="give no version or tag with it"):
                asked.describe_table(api.DescribeTableRequest(id=["t"], version=1, context=context))
            with pytest.raises(api_errors.InvalidInputError, match="reads no version by time"):
                asked.restore_table(api.RestoreTableRequest(id=["t"], version=1, context=context))
        own = {"lancekeep.timestamp": moment(5).isoformat()}
        assert namespace.count_table_rows(api.CountTableRowsRequest(id=["t"], context=own)).count == 5
        with pytest.raises(api_errors.InvalidInputError, match=r"two different values of 'lancekeep\.timestamp'"):
            namespace.count_table_rows(api.CountTableRowsRequest(id=["t"], context={**own, **context}))
        client.versions.restore("t", timestamp=moment(2))
        assert lance.dataset(str(table_of(catalog))).to_table()["a"].to_pylist() == [0, 1]


def as_bytes(answer: Any) -> bytes:
    return bytes(getattr(answer, "data", answer))
