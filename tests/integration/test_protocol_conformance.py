"""The answers of a server are judged by the OpenAPI document: each fault of a wrong server is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import lance_namespace as api
import pytest
from click.testing import CliRunner
from lance.namespace import RestAdapter
from lance_namespace_urllib3_client import models
from rest_server import SETTINGS, running
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import lancekeep
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.entrypoints.cli import lancekeep as program
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.testing.answers import NAME
from lancekeep.testing.behaviours import Door, Outcome, Result, Verdict
from lancekeep.testing.conformance import JUDGED, judge_server, remove
from lancekeep.testing.document import Finding, operations
from lancekeep.testing.exchanges import WELL_FORMED
from lancekeep.testing.protocol import Protocol, check_ids

Answer = tuple[int, str, bytes]
"""Status, media type and body of an answer."""
Fault = Callable[[Answer], Answer]
"""What a wrong server does with an answer."""


class Wrong:
    """The operations of a server that spoils answers, by the end of the path."""

    faults: dict[str, Fault] = {}  # noqa: RUF012 # the tests set it

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = next((fault for path, fault in self.faults.items() if scope["path"].endswith(path)), None)
        if fault is None:
            await self._app(scope, receive, send)
            return
        parts: list[Message] = []

        async def keep(message: Message) -> None:
            parts.append(message)

        await self._app(scope, receive, keep)
        headers = dict(parts[0]["headers"])
        answer = (
            parts[0]["status"],
            headers.get(b"content-type", b"").decode(),
            b"".join(part.get("body", b"") for part in parts[1:]),
        )
        status, media_type, body = fault(answer)
        given = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("protocol") / "lake"
    namespace = lancekeep.DirectoryNamespace(**{"root": str(root), "storage.fsync": "false"})
    with running(create_app(namespace, SETTINGS, middleware=[Middleware(Wrong)])) as found:
        yield found


def judged(uri: str, place: str, *wanted: str) -> dict[str, Verdict]:
    client = lancekeep.RestNamespace(uri=uri)
    client.create_namespace(api.CreateNamespaceRequest(id=[place]))
    protocol = Protocol(RestSettings(uri=uri, retry_seconds=0.5), [place])
    try:
        return {verdict.id: verdict for verdict in protocol.verdicts(wanted or check_ids())}
    finally:
        protocol.close()
        remove(Door(client), (place,))


def body(**fields: Any) -> Fault:
    """Replace fields of the body; None removes a field."""

    def spoil(answer: Answer) -> Answer:
        status, media_type, content = answer
        changed = {name: value for name, value in {**json.loads(content), **fields}.items() if value is not None}
        return status, media_type, json.dumps(changed).encode()

    return spoil


def failing(fault: Fault) -> Fault:
    """Spoil only refusals."""
    return lambda answer: fault(answer) if answer[0] >= 400 else answer


def succeeding(fault: Fault) -> Fault:
    """Spoil only successes."""
    return lambda answer: fault(answer) if answer[0] < 400 else answer


FAULTS: dict[str, tuple[Fault, dict[str, Finding]]] = {
    "$child/describe": (
        succeeding(lambda answer: (201, *answer[1:])),
        {"DescribeNamespace/well-formed": Finding("status 201", "~1describe/post/responses has 200, 400")},
    ),
    "$t/stats": (
        succeeding(body(num_rows=None)),
        {"GetTableStats/well-formed": Finding("`num_rows`: Field required", "GetTableStatsResponse/properties/num_r")},
    ),
    "$t/count_rows": (
        succeeding(lambda answer: (200, answer[1], b'"many"')),
        {"CountTableRows/well-formed": Finding("the body: Input should be a valid integer", "CountTableRowsResponse")},
    ),
    "$t/explain_plan": (
        succeeding(lambda answer: (200, "text/plain", answer[2])),
        {
            "ExplainTableQueryPlan/well-formed": Finding(
                "a body of text/plain", "ExplainTableQueryPlanResponse/content has application/json"
            )
        },
    ),
    "$t/exists": (
        succeeding(lambda answer: (200, "application/json", b"true")),
        {"TableExists/well-formed": Finding("status 200 with a body", "Success, no content")},
    ),
    "$t/query": (
        succeeding(lambda answer: (200, answer[1], b"rows")),
        {"QueryTable/well-formed": Finding("no Arrow IPC file", "Query results in Arrow IPC file format")},
    ),
    "$t/tags/list": (
        succeeding(body(tags={"first": {"version": "1"}})),
        {"ListTableTags/well-formed": Finding("`tags.first.version`: Input", "TagContents/properties/version")},
    ),
    "$t/tags/create": (
        failing(lambda answer: (422, *answer[1:])),
        {
            f"CreateTableTag/{name}": Finding("status 422", "~1tags~1create/post/responses has 200, 400, 401, 403, 404")
            for name in ("unreadable", "missing-tag", "missing-version", "wrong-type-tag", "wrong-type-version")
        },
    ),
    "$absent/tags/create": (
        body(code=1),
        {"CreateTableTag/unknown-object": Finding("status 404 with code 1", "ErrorResponse.code 4 (TableNotFound)")},
    ),
    "/v1/table/wrong$absent/drop": (
        lambda answer: (404, "application/json", b'{"error": "no"}'),
        {"DropTable/unknown-object": Finding("`code`: Field required", "ErrorResponse/properties/code")},
    ),
    "$t/restore": (
        failing(lambda answer: (200, "application/json", b"{}")),
        {
            f"RestoreTable/{name}": Finding("status 200", sentence)
            for name, sentence in {
                "unreadable": "RestoreTable 400: Indicates a bad request error.",
                "missing-version": "#/components/schemas/RestoreTableRequest/required",
                "wrong-type-version": "RestoreTableRequest/properties/version/type: integer",
            }.items()
        },
    ),
    "$t/version/describe": (
        succeeding(body(version=None)),
        {"DescribeTableVersion/well-formed": Finding("`version`: Field required", "DescribeTableVersionResponse")},
    ),
    "$t/branches/list": (
        succeeding(lambda answer: (200, answer[1], b"{")),
        {"ListTableBranches/well-formed": Finding("the body is no JSON", "ListTableBranchesResponse")},
    ),
    "$t/tags/update": (failing(lambda answer: (answer[0], "text/plain", b"no")), {}),  # the document permits it
    "$absent/tags/update": (lambda answer: (404, "application/json", b'{"code": 4}'), {}),
    "$spare/deregister": (
        succeeding(lambda answer: (200, answer[1], json.dumps({**json.loads(answer[2]), "id": None}).encode())),
        {"DeregisterTable/well-formed": Finding("`id`: null", "DeregisterTableResponse/properties/id")},
    ),
}
"""Ends of paths, what the wrong server does there, and what is found: parts of the answer and of the document."""


def test_answers_of_our_server_are_as_documented(uri: str) -> None:
    Wrong.faults = {}
    found = judged(uri, "ours")
    assert [*found] == sorted(found, key=[*found].index)
    assert found.keys() == set(check_ids())
    assert {each.result.outcome for each in found.values()} == {Outcome.PASSED}, found


def test_each_fault_of_a_wrong_server_is_found(uri: str) -> None:
    Wrong.faults = {path: fault for path, (fault, _) in FAULTS.items()}
    expected = {name: finding for _, findings in FAULTS.values() for name, finding in findings.items()}
    found = judged(uri, "wrong")
    failed = {name: each for name, each in found.items() if each.result.outcome is Outcome.FAILED}
    assert {name: each.result.answer for name, each in failed.items() if name not in expected} == {}
    assert failed.keys() == expected.keys()
    for name, finding in expected.items():
        assert finding.answer in failed[name].result.answer
        assert finding.specified in failed[name].sentence


def test_operations_that_are_not_offered_are_no_departures(uri: str) -> None:
    def unknown(_: Answer) -> Answer:
        return 404, "", b""

    def unsupported(_: Answer) -> Answer:
        return 501, "application/json", b'{"code": 0}'

    Wrong.faults = {"/stats": unknown, "/tags/create": unsupported, "/backfill_column": lambda _: (405, "", b"")}
    names = [name for name in check_ids() if name.startswith(("GetTableStats", "CreateTableTag", "AlterTableBackfill"))]
    names.append("GetTableTagVersion/well-formed")
    found = judged(uri, "less", *names)
    assert {each.result.outcome for each in found.values()} == {Outcome.NOT_OFFERED}
    assert found.keys() == set(names)
    assert found["GetTableTagVersion/well-formed"].result.answer == "needs CreateTableTag/well-formed"


def test_a_busy_server_is_asked_again(uri: str) -> None:
    busy = [429, 503]

    def pausing(answer: Answer) -> Answer:
        return (busy.pop(), "application/json", b'{"code": 21}') if busy else answer

    Wrong.faults = {"$t/stats": pausing}
    assert judged(uri, "busy", "GetTableStats/well-formed")["GetTableStats/well-formed"].result.outcome == "passed"
    assert not busy


def test_command_reports_departures_and_further_fields(uri: str) -> None:
    Wrong.faults = {"$t/stats": succeeding(body(num_rows="3", speed=1))}
    done = CliRunner().invoke(program, ["conformance", uri, "--only", "GetTableStats/"], obj=lancekeep)
    assert done.exit_code == 1, done.output
    assert (
        "GetTableStats/well-formed\n"
        "    the server: `num_rows`: Input should be a valid integer\n"
        "    specified:  #/components/schemas/GetTableStatsResponse/properties/num_rows\n"
    ) in done.stdout
    assert "Not in the OpenAPI document: #/components/schemas/GetTableStatsResponse/properties/speed\n" in done.stdout
    assert "1 checks failed." in done.stdout
    assert lancekeep.connect(uri).list_namespaces() == []


def in_behaviours(uri: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Verdict], list[str]]:
    """Return the verdicts about the answers that the behaviours of tags get, by operation, and further fields."""
    few = [each for each in JUDGED if each.id.startswith("tags/")]
    monkeypatch.setattr("lancekeep.testing.conformance.JUDGED", few)
    found = judge_server({"uri": uri, "retry_seconds": "0.5"}, only=f"/{NAME}")
    assert {each.id.partition("/")[2] for each in found.verdicts} == {NAME}
    assert found.left == []
    return {each.area: each for each in found.verdicts}, [*found.beyond]


def test_answers_to_behaviours_are_judged_by_operation(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Wrong.faults = {}
    found, beyond = in_behaviours(uri, monkeypatch)
    assert [*found] == [name for name in operations() if name in found]
    outcomes = {name: each.result.outcome for name, each in found.items()}
    assert {"CreateTableTag", "ListTableTags"} <= {name for name, each in outcomes.items() if each is Outcome.PASSED}
    assert {*outcomes.values()} == {Outcome.PASSED, Outcome.NOT_OFFERED}
    assert found["CreateTableIndex"].result.answer == "no behaviour got an answer"
    assert {each.rpartition("/")[2] for each in beyond} == {"type", "title", "status"}  # of problem details


def test_departures_in_behaviours_are_found(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [429, 503]

    def pausing(answer: Answer) -> Answer:
        return (busy.pop(), "application/json", b"{}") if busy else answer

    Wrong.faults = {
        "/tags/list": succeeding(body(tags={"first": {"version": "1"}}, more=1)),
        "/tags/version": failing(lambda answer: (418, *answer[1:])),
        "/tags/update": lambda _: (501, "application/json", b'{"code": 0}'),
        "/create": pausing,
    }
    found, beyond = in_behaviours(uri, monkeypatch)
    failed = {name: each for name, each in found.items() if each.result.outcome is Outcome.FAILED}
    assert failed.keys() == {"ListTableTags", "GetTableTagVersion"}
    listed = failed["ListTableTags"]
    wrong = r"`tags.first.version`: [\w ]+ \(tags/[\w-]+\); `tags.first.manifestSize`: Field required \(tags/[\w-]+\)"
    assert re.fullmatch(rf"2 of 3 answers: {wrong}", listed.result.answer)
    assert listed.sentence == "#/components/schemas/TagContents/properties/version"
    assert re.match(r"\d+ of \d+ answers: status 418 \(tags/", failed["GetTableTagVersion"].result.answer)
    assert "~1tags~1version/post/responses has 200" in failed["GetTableTagVersion"].sentence
    assert found["UpdateTableTag"].result == Result(Outcome.NOT_OFFERED, "status 501")
    assert "#/components/schemas/ListTableTagsResponse/properties/more" in beyond
    assert not busy  # the client asked again, and these answers depart from nothing


def test_conflicts_of_the_page_on_errors_may_be_409() -> None:
    """Of some operations the document has no such status, and the page lists conflicts."""

    def found(operation: str, code: int) -> list[str]:
        content = json.dumps({"code": code, "error": "taken"}).encode()
        return [each.answer for each in operations()[operation].findings(409, "application/json", content)]

    assert found("CreateTableIndex", 7) == found("CreateTableTag", 9) == []
    assert found("CreateTableIndex", 5) == found("ListTables", 14) == ["status 409"]
    [wrong] = operations()["CreateTableIndex"].findings(409, "application/json", b'{"code": 7, "error": 1}')
    assert wrong.specified == "#/components/schemas/ErrorResponse/properties/error"


def test_every_operation_has_requests_that_fit_the_document() -> None:
    assert {request.operation for request in WELL_FORMED} == operations().keys()
    named = [name.partition("/")[0] for name in check_ids()]
    alone = {name for name in named if named.count(name) == 1}
    assert not alone  # each has a malformed request, too
    for request in WELL_FORMED:
        operation = operations()[request.operation]
        assert request.query.keys() <= operation.parameters.keys()
        fields = request.fields(lambda *names: list(names), {"DeregisterTable/well-formed": {"location": "a/t"}})
        name = operation.body.rpartition("/")[2]
        if isinstance(fields, bytes) or not operation.body.startswith("#/components/schemas/"):
            continue
        assert fields is not None
        model = getattr(models, name)
        assert fields.keys() <= {field.alias or key for key, field in model.model_fields.items()}
        model.model_validate(fields)


def test_native_server_departs_where_the_page_says(tmp_path: Any) -> None:
    """An operation that the native namespace has not is answered 500, and absent namespaces are no errors."""
    with RestAdapter("dir", {"root": str(tmp_path / "native")}, port=0) as native:
        uri = f"http://127.0.0.1:{native.port}"
        found = judged(uri, "native")
        done = CliRunner().invoke(program, ["conformance", uri, "--only", "CreateTable/", "--json"], obj=lancekeep)
    counts = [sum(each.result.outcome is outcome for each in found.values()) for outcome in Outcome]
    assert found["RenameTable/well-formed"].result.answer == "status 500 with code 18"
    assert found["ListTables/unknown-object"].result.answer == "status 200"
    assert counts[0] > 200
    assert json.loads(done.stdout)["left"] == []  # although the server creates a table in an absent namespace
    assert 10 < counts[1] < 30
