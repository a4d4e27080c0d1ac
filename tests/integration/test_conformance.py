"""`lancekeep conformance` judges servers of any make, and leaves them as they were."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lance.namespace import DirectoryNamespace as NativeNamespace
from rest_server import serving

import lancekeep
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.entrypoints.cli import lancekeep as program
from lancekeep.testing.answers import answer_ids
from lancekeep.testing.behaviours import BEHAVIOURS, Outcome
from lancekeep.testing.conformance import JUDGED, OF_A_WHOLE_CATALOG, PREFIX, judge
from lancekeep.testing.protocol import check_ids


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A catalog with a table of others."""
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://")
    catalog.create_namespace("ns")
    catalog.write("ns.t", pa.table({"id": [1, 2]}))
    return catalog.root_uri


@pytest.fixture
def namespace(root: str) -> api.LanceNamespace:
    return lancekeep.DirectoryNamespace(**{"root": root, "storage.fsync": "false", "commit_store": "remembered"})


@pytest.fixture
def uri(namespace: api.LanceNamespace) -> Iterator[str]:
    with serving(namespace) as front:
        yield front.uri


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["conformance", *arguments], obj=lancekeep)


def entries(root: str) -> dict[str, list[str]]:
    """The namespaces of the root, and the tables of each."""
    catalog = lancekeep.connect(root, commit_store="remembered")
    return {name: list(catalog.list_tables(name)) for name in catalog.list_namespaces()}


@pytest.mark.parametrize("only", ["", "s/create"])
def test_our_server_conforms(uri: str, root: str, tmp_path: Path, only: str) -> None:
    done = run(uri, "--only", only, "--junit", str(tmp_path / "junit.xml"))
    names = (*(each.id for each in JUDGED), *check_ids(), *(() if only else answer_ids()))
    count = str(sum(only in name for name in names))
    assert done.exit_code == 0, done.output
    assert "The server conforms: no check failed." in done.stdout
    assert re.search(rf"^│ all +│ {count} +│ 0 +│ 0 +│$", done.stdout, re.MULTILINE)
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (count, "0", "0")
    areas = [case.get("classname") for case in suite.findall("testcase")]
    assert len(areas) == int(count)
    assert len(set(areas)) == len([*groupby(areas)])  # the checks of an operation follow each other
    assert entries(root) == {"ns": ["t"]}


def test_departures_of_the_native_namespace_are_failures(tmp_path: Path) -> None:
    """It drops no namespace with its tables at once, so the judge empties each first."""
    native = NativeNamespace(root=str(tmp_path / "native"))
    with serving(native) as front:
        done = run(front.uri, "--only", "namespaces/", "--json", "--junit", str(tmp_path / "junit.xml"))
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    by_name = {each["check"]: each for each in found["checks"]}
    assert by_name["namespaces/create-exist-ok"] == {
        "check": "namespaces/create-exist-ok",
        "outcome": "failed",
        "answer": "`create_namespace`: NamespaceAlreadyExistsError",
        "specification": "CreateNamespaceRequest.mode: ExistOk: the operation succeeds and the existing namespace is "
        "kept.",
    }
    assert by_name["namespaces/create"]["outcome"] == "passed"
    assert found["counts"]["failed"] == sum(each["outcome"] == "failed" for each in found["checks"]) > 3
    assert found["left"] == []
    assert len(ET.parse(tmp_path / "junit.xml").getroot().findall(".//failure")) == found["counts"]["failed"]
    assert native.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == []


def test_a_server_that_keeps_dropped_tables_says_so(root: str, uri: str) -> None:
    lancekeep.connect(root, commit_store="remembered").alter_namespace("", {"lancekeep.undrop": "7d"})
    refused = run(uri, "--only", "tables/drop")
    assert refused.exit_code == 1
    assert "tables/drop\n    the server: the rows are there still\n" in refused.stdout
    assert run(uri, "--only", "tables/drop", "--keeps-dropped").exit_code == 0


def test_judge_works_within_a_namespace(uri: str, root: str) -> None:
    done = run(uri, "--within", "ns", "--only", "tables/declare", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"] == {"passed": 4, "failed": 0, "not offered": 0}
    assert entries(root) == {"ns": ["t"]}


def test_every_behaviour_is_judged_or_is_of_a_whole_catalog() -> None:
    everywhere = {each.id for each in BEHAVIOURS if not each.below}
    assert {each.id for each in JUDGED} == everywhere - OF_A_WHOLE_CATALOG
    assert everywhere >= OF_A_WHOLE_CATALOG


def test_what_is_no_server_or_does_not_answer_is_an_error(root: str, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_REST__RETRY_SECONDS", "0.1")
    for arguments, code, text in (
        ([root], 2, "is no server.\nGive its URL, such as http://127.0.0.1:2333"),
        (["http://127.0.0.1:9"], 3, "cannot be judged"),
        ([uri, "--only", "nonsense"], 2, "no check has 'nonsense' in its id"),
        ([uri, "--within", "absent"], 3, "the server has no namespace absent.\nName one that exists"),
    ):
        done = run(*arguments)
        assert (done.exit_code, text in done.stderr) == (code, True), done.output
    assert entries(root) == {"ns": ["t"]}


class Elsewhere:
    """A catalog that answers a location which the judge cannot read."""

    def __init__(self, namespace: api.LanceNamespace) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)

    def describe_table(self, request: Any) -> Any:
        described = self._namespace.describe_table(request)
        return described.model_copy(update={"location": "/of/another/machine"})


def test_tables_that_cannot_be_read_are_not_failures_of_the_server(namespace: api.LanceNamespace, root: str) -> None:
    elsewhere: Any = Elsewhere(namespace)
    with pytest.raises(InvalidInput, match="read the table at the location"):
        judge(lambda: elsewhere)
    assert entries(root) == {"ns": ["t"]}


class Stopping:
    """A catalog whose judge is stopped, or that stops answering, in the middle of the second behaviour."""

    def __init__(self, namespace: api.LanceNamespace, error: BaseException) -> None:
        self._namespace, self._error, self._created = namespace, error, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)

    def create_table(self, *given: Any) -> Any:
        self._created += 1
        if self._created == 3:
            raise self._error
        return self._namespace.create_table(*given)


def test_stopped_judge_removes_its_namespaces(namespace: api.LanceNamespace, root: str) -> None:
    stopping: Any = Stopping(namespace, KeyboardInterrupt())
    with suppress(KeyboardInterrupt):
        judge(lambda: stopping, only="tables/create")
    assert entries(root) == {"ns": ["t"]}


class Keeping:
    """A catalog that drops no namespace."""

    def __init__(self, namespace: api.LanceNamespace) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)

    def drop_namespace(self, request: Any) -> Any:
        raise api.errors.InternalError("no")


def test_namespaces_that_cannot_be_removed_are_named(namespace: api.LanceNamespace, root: str) -> None:
    keeping: Any = Keeping(namespace)
    found = judge(lambda: keeping, only="tables/create-empty")
    assert [verdict.result.outcome for verdict in found.verdicts] == [Outcome.PASSED]
    left = [name for name in entries(root) if name.startswith(PREFIX)]
    assert sorted(found.left) == sorted(left)
    assert len(left) == 2
    assert all(entries(root)[name] == [] for name in left)


def test_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be judged"):
        judge(lambda: lancekeep.RestNamespace(uri="http://127.0.0.1:9", retry_seconds="0.1"), only="tables/create")
