"""Judge the answers that behaviours get by the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Final

import attrs

from lancekeep.adapters.rest.connection import Reply
from lancekeep.adapters.rest.routes import Route
from lancekeep.testing.behaviours import Outcome, Result, Verdict
from lancekeep.testing.document import Finding, Operation, is_unsupported, operations

NAME: Final = "in-behaviours"
"""The name of the check of each operation."""
UNUSED: Final = frozenset({"ListAllTables"})
"""The operations that behaviours request only of a whole catalog, which a judge does not try."""
_SHOWN: Final = 3
"""How many departures of an operation a verdict names."""
_BUSY: Final = (429, 503)
"""The statuses by which a server asks to wait; the client then sends the request again."""


def answer_ids() -> list[str]:
    """Return the names of the checks, one for each operation that behaviours request."""
    return [f"{name}/{NAME}" for name in operations() if name not in UNUSED]


@attrs.define
class _Seen:
    """The answers of one operation.

    Attributes:
        answers: the number of answers that were judged.
        departing: the number of those that depart.
        findings: the different departures, each with the behaviour that saw it first.
        refusal: the first answer by which the server said that it does not offer the operation.
    """

    answers: int = 0
    departing: int = 0
    findings: dict[Finding, str] = attrs.field(factory=dict)
    refusal: str = ""


class Answers:
    """Judges each answer by the document: its status, its content type and its body.

    Threads may share an instance.

    Attributes:
        beyond: the fields of answers that the document does not have.
    """

    def __init__(self) -> None:
        self._behaviour = ""
        self.beyond: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        self._lock = Lock()

    def begin(self, behaviour: str) -> None:
        """Name the behaviour that is tried from now on."""
        self._behaviour = behaviour

    def take(self, route: Route, reply: Reply) -> None:
        """Judge an answer.

        Operations that the document does not have, and answers that ask to wait, are left out.
        """
        operation = operations().get(route.operation_id)
        if operation is None or reply.status in _BUSY:
            return
        if is_unsupported(reply.status, reply.content):
            with self._lock:
                seen = self._of(operation)
                seen.refusal = seen.refusal or f"status {reply.status}"
            return
        found = operation.findings(reply.status, reply.media_type, reply.content)
        beyond = operation.beyond(reply.status, reply.content)
        with self._lock:
            seen = self._of(operation)
            seen.answers += 1
            seen.departing += bool(found)
            for each in found:
                seen.findings.setdefault(each, self._behaviour)
            self.beyond.update(beyond)

    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdict about each operation."""
        for name in answer_ids():
            operation = operations()[name.partition("/")[0]]
            seen = self._seen.get(operation.id, _Seen())
            specified = f"{operation.pointer}/responses"
            if seen.findings:
                first = next(iter(seen.findings))
                yield Verdict(name, first.specified, Result(Outcome.FAILED, _described(seen)))
            elif seen.answers:
                yield Verdict(name, specified, Result(Outcome.PASSED))
            else:
                answer = seen.refusal or "no behaviour got an answer"
                yield Verdict(name, specified, Result(Outcome.NOT_OFFERED, answer))

    def _of(self, operation: Operation) -> _Seen:
        return self._seen.setdefault(operation.id, _Seen())


def _described(seen: _Seen) -> str:
    """Return how many answers depart, and the first departures."""
    found: Sequence[tuple[Finding, str]] = [*seen.findings.items()][:_SHOWN]
    first = "; ".join(f"{finding.answer} ({behaviour})" for finding, behaviour in found)
    more = len(seen.findings) - len(found)
    return f"{seen.departing} of {seen.answers} answers: {first}" + (f"; and {more} other departures" if more else "")
