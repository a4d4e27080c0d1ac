"""Judge the answers of a server by the OpenAPI document, operation by operation.

Each operation gets a well-formed request, and malformed ones that are derived from the document: without a required
field, with a value of a wrong type, with a body that cannot be read, and for an object that does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import attrs
from lance_namespace.errors import ErrorCode

from lancekeep.adapters.rest.connection import Connection, NotSent, Reply
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.testing.behaviours import Outcome, Result, Verdict
from lancekeep.testing.document import (
    JSON,
    Finding,
    Operation,
    Schema,
    at,
    error_code,
    is_unsupported,
    operations,
    value_of,
)
from lancekeep.testing.exchanges import ABSENT, FRESH, INDEX, NO_TRANSACTION, WELL_FORMED, Answers, At, Request

_ABSENT: Mapping[str, ErrorCode] = {
    "namespace": ErrorCode.NAMESPACE_NOT_FOUND,
    "table": ErrorCode.TABLE_NOT_FOUND,
    "materialized_view": ErrorCode.TABLE_NOT_FOUND,
    "transaction": ErrorCode.TRANSACTION_NOT_FOUND,
}
"""The error code if the object of an operation does not exist, by its kind."""
_GENERAL = ("id", "identity", "context")
"""The fields of every request."""


@attrs.frozen
class _Trial:
    """A malformed request, and the answer that the document has for it.

    Attributes:
        id: the name of the check.
        names: the identifier of its object.
        body: the body.
        query: the query parameters.
        specified: what the document says.
        status: the status of the answer.
        code: the error code of the answer.
    """

    id: str
    names: Sequence[str]
    body: Any
    query: Mapping[str, str]
    specified: str
    status: int = 400
    code: ErrorCode = ErrorCode.INVALID_INPUT


def check_ids() -> list[str]:
    """Return the names of all checks, operation by operation."""
    names: dict[str, list[str]] = {}
    for request in WELL_FORMED:
        trials = _trials(request, lambda *names: list(names), {})
        names.setdefault(request.operation, []).extend((request.id, *(trial.id for trial in trials)))
    return [name for each in names.values() for name in each]


class Protocol:
    """The exchanges with one server, in one namespace.

    Args:
        settings: how to reach the server.
        place: the names of the namespace, which exists and is empty.

    Attributes:
        beyond: the fields of answers that the document does not have.
    """

    def __init__(self, settings: RestSettings, place: Sequence[str]) -> None:
        self._connection = Connection(settings)
        self._delimiter = settings.delimiter
        self._retry = Retry(patience=settings.retry_seconds, first=0.05, cap=2.0, retried=(_Busy, NotSent))
        self._place = place
        self._answers: dict[str, Any] = {}
        self._offered: set[str] = set()
        self.beyond: set[str] = set()

    def verdicts(self, wanted: Collection[str]) -> Iterator[Verdict]:
        """Send the well-formed requests, then the malformed ones; yield verdicts.

        Args:
            wanted: the names of the checks. Well-formed requests are sent all the same, since others need them.
        """
        for request in WELL_FORMED:
            operation = operations()[request.operation]
            result, specified = self._well_formed(request, operation)
            if request.id in wanted:
                yield Verdict(request.id, specified or operation.sentence(operation.success), result)
        for request in WELL_FORMED:
            operation = operations()[request.operation]
            for trial in _trials(request, self._at, self._answers):
                if trial.id in wanted:
                    result, specified = self._malformed(trial, request, operation)
                    yield Verdict(trial.id, specified or trial.specified, result)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._connection.close()

    def _at(self, *names: str) -> list[str]:
        return [*self._place, *names]

    def _well_formed(self, request: Request, operation: Operation) -> tuple[Result, str]:
        missing = self._missing(request)
        if missing:
            return Result(Outcome.NOT_OFFERED, f"needs {missing}"), ""
        try:
            names = _object(request, self._at, self._answers)
            reply = self._send(operation, names, request.query, request.fields(self._at, self._answers))
        except StoreUnavailable as error:
            return Result(Outcome.FAILED, str(error)), ""
        if is_unsupported(reply.status, reply.content):
            return Result(Outcome.NOT_OFFERED, _described(reply)), ""
        self._offered.add(operation.id)
        found = self._findings(operation, reply)
        if not found and reply.status not in (operation.success, *request.others):
            found = [Finding(_described(reply), "")]
        if not found:
            self._answers[request.id] = value_of(reply.content)
        return _result(found)

    def _malformed(self, trial: _Trial, request: Request, operation: Operation) -> tuple[Result, str]:
        missing = self._missing(request)
        if missing or operation.id not in self._offered:
            return Result(Outcome.NOT_OFFERED, f"needs {missing}" if missing else "the operation is not offered"), ""
        try:
            reply = self._send(operation, trial.names, trial.query, trial.body)
        except StoreUnavailable as error:
            return Result(Outcome.FAILED, str(error)), ""
        found = self._findings(operation, reply)
        if not found and reply.status != trial.status:
            found = [Finding(_described(reply), "")]
        elif not found and reply.media_type == JSON and error_code(reply.status, reply.content) != trial.code:
            found = [Finding(_described(reply), f"{operation.id}: ErrorResponse.code {_code_name(trial.code)}")]
        return _result(found)

    def _missing(self, request: Request) -> str:
        """Return what a request needs and the server did not answer; empty if nothing is missing."""
        if _is_of_transaction(request) and not _transaction(request, self._answers):
            return f"the `transaction_id` of {request.names[-1]}"
        return next((each for each in request.needs if each not in self._answers), "")

    def _findings(self, operation: Operation, reply: Reply) -> list[Finding]:
        self.beyond.update(operation.beyond(reply.status, reply.content))
        return operation.findings(reply.status, reply.media_type, reply.content)

    def _send(self, operation: Operation, names: Sequence[str], query: Mapping[str, str], body: Any) -> Reply:
        """Send a request; send it again while the server asks to wait.

        Raises:
            StoreUnavailable: There is no complete response.
        """
        path = operation.path.replace("{index_name}", INDEX)
        path = path.replace("{id}", quote(self._delimiter.join(names), safe=""))
        headers = {"content-type": operation.media_type} if operation.media_type else {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        parameters = query if self._delimiter == "$" else {**query, "delimiter": self._delimiter}

        def send() -> Reply:
            reply = self._connection.send(operation.method, path, parameters, headers, content)
            if reply.status in (429, 503):
                raise _Busy(reply)
            return reply

        try:
            return self._retry.call(send)
        except _Busy as busy:
            return busy.reply


class _Busy(StoreUnavailable):
    """The server asks to wait."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"the server answers {reply.status}")
        self.reply = reply


def _result(found: Sequence[Finding]) -> tuple[Result, str]:
    """Return a result, and what the document says about the first departure."""
    if not found:
        return Result(Outcome.PASSED), ""
    return Result(Outcome.FAILED, "; ".join(each.answer for each in found)), found[0].specified


def _object(request: Request, at: At, answers: Answers) -> list[str]:
    """Return the identifier of the object of a request."""
    if _is_of_transaction(request):
        return at(*request.names[:-1], _transaction(request, answers) or NO_TRANSACTION)
    return at(*request.names)


def _is_of_transaction(request: Request) -> bool:
    """Return whether the object is a transaction. Its last name is then the request that has made it."""
    return request.operation.endswith("Transaction")


def _transaction(request: Request, answers: Answers) -> Any:
    answer = answers.get(request.names[-1])
    return answer.get("transaction_id") if isinstance(answer, dict) else None


def _trials(request: Request, at: At, answers: Answers) -> Iterator[_Trial]:
    """Yield the malformed requests of an operation."""
    if not request.is_first:
        return
    operation = operations()[request.operation]
    names = at(FRESH) if request.creates else _object(request, at, answers)
    query, body = request.query, request.fields(at, _Imagined(answers))

    def trial(name: str, specified: str, given: Any = body, parameters: Mapping[str, str] = query) -> _Trial:
        return _Trial(f"{operation.id}/{name}", names, given, parameters, specified)

    for name, parameter in operation.parameters.items():
        if parameter.get("required"):
            rest = {each: value for each, value in query.items() if each != name}
            yield trial(f"missing-{name}", f"{operation.pointer}/parameters: {name} is required", parameters=rest)
    typed = [name for name, each in operation.parameters.items() if _type(each["schema"]) in ("integer", "boolean")]
    if typed and operation.media_type != JSON:
        kind = _type(operation.parameters[typed[0]]["schema"])
        specified = f"{operation.pointer}/parameters: {typed[0]} is of type {kind}"
        yield trial(f"wrong-type-{typed[0]}", specified, parameters={**query, typed[0]: "wrong"})
    if operation.media_type:
        yield trial("unreadable", operation.sentence(400), b"{")
    if operation.media_type == JSON:
        for name, specified, given in _wrong_fields(operation, body):
            yield trial(name, specified, given)
    if "404" in operation.statuses:
        yield _of_absent(request, operation, at, body)


def _wrong_fields(operation: Operation, body: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield bodies without a required field, or with a value of a wrong type; and what the document says."""
    pointer, schema = at(operation.body)
    required, properties = schema.get("required", ()), schema.get("properties", {})
    for name in required:
        yield f"missing-{name}", f"{pointer}/required", {each: body[each] for each in body if each != name}
    optional = [name for name in properties if name not in _GENERAL]
    for name in required or optional[:1] or (["id"] if properties else list(body)):
        where = f"{pointer}/properties/{name}" if properties else f"{pointer}/additionalProperties"
        kind = _type(at(where)[1])
        yield f"wrong-type-{name}", f"{where}/type: {kind}", {**body, name: 7 if kind == "string" else "wrong"}


def _of_absent(request: Request, operation: Operation, at: At, body: Any) -> _Trial:
    """Return the request for an object that does not exist; if it creates the object, in an absent namespace."""
    kind = operation.path.split("/")[2]
    code, names, given = _ABSENT[kind], at(ABSENT), body
    if request.creates:
        code, names = ErrorCode.NAMESPACE_NOT_FOUND, at(ABSENT, FRESH)
    elif kind == "transaction":
        names = at("t", NO_TRANSACTION)
    elif request.absent is not None:
        given = request.absent(at)
    specified = f"{operation.sentence(404)} ErrorResponse.code {_code_name(code)}"
    return _Trial(f"{operation.id}/unknown-object", names, given, request.query, specified, 404, code)


class _Imagined(dict[str, Any]):
    """Answers, of which a missing one has a location: malformed requests need no true one."""

    def __missing__(self, name: str) -> Mapping[str, str]:
        return {"location": FRESH}


def _type(schema: Schema) -> str:
    """Return the type in a schema, or in the schema that it refers to."""
    schema = at(schema["$ref"])[1] if "$ref" in schema else schema
    found = schema.get("type", "object")
    return str(found if isinstance(found, str) else found[0])


def _described(reply: Reply) -> str:
    code = error_code(reply.status, reply.content)
    return f"status {reply.status}" + ("" if code is None else f" with code {code!r:.20}")


def _code_name(code: ErrorCode) -> str:
    return f"{int(code)} ({''.join(word.capitalize() for word in code.name.split('_'))})"
