"""Descriptions of several tables by one request: over HTTP, from the client, and in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pyarrow as pa
import pytest
from lance_namespace import errors as api_errors
from rest_server import SETTINGS, Front, serving
from starlette.testclient import TestClient

import lancekeep
from lancekeep.entrypoints.rest.app import create_app

ROUTE = "/lancekeep/v1/table/batch-describe"
IDS = [["ns", "b"], ["ns", "missing"], ["ns", "a"], ["ns", "b"]]


@pytest.fixture
def namespace(tmp_path: Path) -> lancekeep.DirectoryNamespace:
    settings = {"root": str(tmp_path / "lake"), "storage.fsync": "false", "commit_store": f"file://{tmp_path}/commits"}
    found = lancekeep.DirectoryNamespace(**settings)
    found.catalog.create_namespace("ns")
    for name in "ab":
        found.catalog.write(f"ns.{name}", pa.table({name: [1, 2]}))
    return found


@pytest.fixture
def front(namespace: lancekeep.DirectoryNamespace) -> Iterator[Front]:
    with serving(namespace) as running:
        yield running


def ask(front: Front, **body: Any) -> httpx.Response:
    return httpx.post(f"{front.uri}{ROUTE}", json=body)


def described(namespace: Any, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = namespace.describe_tables(body)["results"]
    return found


def test_each_member_has_an_answer_or_an_error_in_the_order_of_the_request(front: Front) -> None:
    answer = ask(front, ids=IDS)
    results = answer.json()["results"]
    assert [each["id"] for each in results] == IDS
    assert [each.get("response", {}).get("table") for each in results] == ["b", None, "a", "b"]
    assert (results[1]["error"]["code"], results[1]["error"]["status"]) == (4, 404)
    assert front.asked == ["describe_table"] * 4  # each passes the wrappers of a single request


def test_fields_apply_to_every_member(front: Front) -> None:
    single = httpx.post(f"{front.uri}/v1/table/ns$a/describe?with_table_uri=true&load_detailed_metadata=true", json={})
    [both] = ask(front, ids=[["ns", "a"]], with_table_uri=True, load_detailed_metadata=True).json()["results"]
    assert both["response"] == single.json()
    assert both["response"]["stats"]["num_fragments"] == 1


def test_a_time_selects_the_version_of_every_member(front: Front, namespace: lancekeep.DirectoryNamespace) -> None:
    before = "2001-01-01T00:00:00Z"
    asked = httpx.post(f"{front.uri}{ROUTE}", json={"ids": IDS[:1]}, headers={"x-lancekeep-timestamp": before})
    assert asked.json()["results"][0]["error"]["code"] == 11
    [result] = described(namespace, ids=IDS[:1], context={"lancekeep.timestamp": before})
    assert result["error"]["code"] == 11


@pytest.mark.parametrize(
    "body", [{}, {"ids": []}, {"ids": [["ns", "a"]] * 101}, {"ids": ["ns$a"]}, {"ids": IDS, "x": 1}]
)
def test_a_batch_that_is_malformed_or_too_long_is_refused_whole(front: Front, body: dict[str, Any]) -> None:
    answer = ask(front, **body)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)
    assert not front.asked


def test_the_longest_batch_is_answered(front: Front) -> None:
    assert len(ask(front, ids=[["ns", "a"]] * 100).json()["results"]) == 100


def test_both_namespaces_describe_alike(front: Front, namespace: lancekeep.DirectoryNamespace) -> None:
    remote = lancekeep.RestNamespace(uri=front.uri)
    local = described(namespace, ids=IDS, vend_credentials=False)
    found = described(remote, ids=IDS, vend_credentials=False)
    for each in found:
        each["error"] = {name: each["error"][name] for name in ("code", "error")} if "error" in each else None
    assert [{"error": None, **each} for each in local] == found
    for side in (namespace, remote):
        with pytest.raises(api_errors.InvalidInputError, match="give 1 to 100"):
            described(side, ids=[])
    assert "DescribeTables" in namespace.list_operations()["operations"]


def test_headers_of_members_are_headers_of_the_answer(front: Front) -> None:
    key = "6f1f6d0e-58c1-4c5c-9b0e-3d5a1c9e2b7a"
    answer = httpx.post(f"{front.uri}{ROUTE}", json={"ids": IDS}, headers={"idempotency-key": key})
    assert answer.headers["idempotency-key"] == key
    assert "context" not in answer.text


def test_no_member_begins_after_the_deadline(
    namespace: lancekeep.DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, describe = Event(), namespace.describe_table

    def waiting(request: Any) -> Any:
        released.wait()
        return describe(request)

    monkeypatch.setattr(namespace, "describe_table", waiting)
    with serving(namespace) as front:
        late = httpx.post(f"{front.uri}{ROUTE}", json={"ids": IDS}, headers={"x-request-timeout": "0.05"})
        released.set()
    assert late.status_code == 504
    assert len(front.asked) <= 1  # none, if the time was over before the batch had a thread


class PanicException(BaseException):
    """Stands for a panic of the engine."""


@pytest.mark.parametrize("fault", [KeyError("secret"), PanicException("secret")])
def test_a_defect_concerns_its_member_alone(
    namespace: lancekeep.DirectoryNamespace,
    fault: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    describe = namespace.describe_table

    def faulty(request: Any) -> Any:
        if request.id == ["ns", "b"]:
            raise fault
        return describe(request)

    monkeypatch.setattr(namespace, "describe_table", faulty)
    with TestClient(create_app(namespace, SETTINGS)) as client:
        results = client.post(ROUTE, json={"ids": [["ns", "b"], ["ns", "a"]]}).json()["results"]
    assert (results[0]["error"]["code"], results[0]["error"]["status"]) == (18, 500)
    assert "secret" not in str(results)
    assert results[1]["response"]["table"] == "a"
    assert type(fault).__name__ in capfd.readouterr().err
