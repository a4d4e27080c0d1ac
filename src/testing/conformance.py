"""Judge a server by the behaviours and by the OpenAPI document.

The judge works in namespaces that it creates and removes, beside whatever the catalog holds.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

import attrs
from lance_namespace import errors

from lancekeep.adapters.rest.server import RestServer
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.domain.errors import AccessDenied, InvalidInput, LancekeepError, NotFound, StoreUnavailable
from lancekeep.entrypoints.namespace.rest import RestNamespace
from lancekeep.testing.answers import NAME, Answers, answer_ids
from lancekeep.testing.behaviours import (
    BEHAVIOURS,
    Behaviour,
    Bench,
    Departure,
    Door,
    NotOffered,
    Open,
    Outcome,
    Storage,
    Verdict,
)
from lancekeep.testing.document import operations
from lancekeep.testing.exchanges import ABSENT, FRESH
from lancekeep.testing.protocol import Protocol, check_ids

PREFIX = "lancekeep_conformance_"
OF_A_WHOLE_CATALOG = {"root/exists", "root/not-dropped", "tables/declare-root", "all-tables/list", "all-tables/nested"}
"""Behaviours that no namespace below the root can show, and that are not tried where others work."""

JUDGED: Sequence[Behaviour] = tuple(each for each in BEHAVIOURS if not each.below and each.id not in OF_A_WHOLE_CATALOG)
"""The behaviours that a judge tries."""


@attrs.frozen
class Conformance:
    """The verdicts of a judge.

    Attributes:
        verdicts: one for each behaviour, in the order of `JUDGED`, and for each check of an operation, by operation.
        left: namespaces of the judge that could not be removed.
        beyond: the fields of answers that the OpenAPI document does not have.
    """

    verdicts: Sequence[Verdict]
    left: Sequence[str] = ()
    beyond: Sequence[str] = ()

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """The number of checks by outcome."""
        found = Counter(each.result.outcome for each in self.verdicts)
        return {outcome: found[outcome] for outcome in Outcome}

    def junit(self) -> str:
        """Return the verdicts in the XML form of JUnit."""
        counts = self.counts
        suite = ET.Element(
            "testsuite",
            name="lancekeep conformance",
            tests=str(len(self.verdicts)),
            failures=str(counts[Outcome.FAILED]),
            errors="0",
            skipped=str(counts[Outcome.NOT_OFFERED]),
        )
        for each in self.verdicts:
            name = each.id.partition("/")[2]
            case = ET.SubElement(suite, "testcase", classname=each.area, name=name)
            if each.result.outcome is Outcome.FAILED:
                ET.SubElement(case, "failure", message=each.result.answer).text = each.sentence
            elif each.result.outcome is Outcome.NOT_OFFERED:
                ET.SubElement(case, "skipped", message=each.result.answer)
        ET.indent(suite)
        return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def judge(
    open_: Open,
    *,
    within: Sequence[str] = (),
    storage: Storage | None = None,
    server: RestSettings | None = None,
    answers: Answers | None = None,
    only: str = "",
    progress: Callable[[int, int, str], None] | None = None,
) -> Conformance:
    """Try the behaviours and the operations in namespaces of their own.

    The namespaces are removed afterwards.

    Args:
        open_: opens the catalog; each call opens another instance.
        within: an existing namespace in which to work. Default: the root.
        storage: what is known of the storage.
        server: how to reach the server, to check its answers. Default: only the behaviours are tried.
        answers: judges the answers of the server to the catalogs that ``open_`` opens. Its checks are made if all
            behaviours are tried, or if ``only`` names them.
        only: a part of the ids of the checks to make. Default: all.
        progress: is called with the number of checks made, of all, and the id of the last.

    Raises:
        InvalidInput: No check has ``only`` in its id; or the tables of the catalog cannot be created, or cannot be
            read from here, so that the behaviours would say nothing.
        NotFound: The namespace ``within`` does not exist.
        AccessDenied: The catalog refuses to create a namespace or a table.
        StoreUnavailable: The catalog does not answer.
    """
    chosen = [each for each in JUDGED if only in each.id]
    exchanges = [] if server is None else [each for each in check_ids() if only in each]
    judged = [] if answers is None or (only and NAME not in only) else [each for each in answer_ids() if only in each]
    tried = JUDGED if judged else chosen
    if not chosen and not exchanges and not judged:
        raise InvalidInput(f"no check has {only!r} in its id; the first is {JUDGED[0].id!r}")
    run = f"{PREFIX}{uuid4().hex[:8]}"
    door, verdicts, left, beyond = Door(open_()), list[Verdict](), list[str](), set[str]()

    def add(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if progress is not None:
            progress(len(verdicts), len(chosen) + len(exchanges) + len(judged), verdict.id)

    def clean(place: tuple[str, ...]) -> None:
        remove(door, place)
        if door.has_namespace(place):
            left.append(".".join(place))

    first = (*within, f"{run}_0")
    if within and not door.has_namespace(within):
        raise NotFound(f"the server has no namespace {'.'.join(within)}; name one that exists, to work in it")
    try:
        _require_readable(open_, first, storage or Storage())
    except StoreUnavailable:  # it would not answer to the removal either
        raise
    except BaseException:
        clean(first)
        raise
    clean(first)
    for number, behaviour in enumerate(tried, 1):
        if answers is not None:
            answers.begin(behaviour.id)
        place = (*within, f"{run}_{number}")
        try:
            result = attrs.evolve(behaviour, below=place).run(open_, storage=storage)
        finally:
            clean(place)
        if behaviour in chosen:
            add(Verdict(behaviour.id, behaviour.sentence, result))
    if answers is not None:
        for verdict in answers.verdicts():
            if verdict.id in judged:
                add(verdict)
        beyond |= answers.beyond
    if server is not None and exchanges:
        place = (*within, f"{run}_operations")
        protocol = Protocol(server, place)
        try:
            door.attempt("create_namespace", id=list(place))
            for verdict in protocol.verdicts(exchanges):
                add(verdict)
        finally:
            protocol.close()
            with suppress(Exception):  # a server may have created the table of an absent namespace, which none lists
                door.attempt("drop_table", id=[*place, ABSENT, FRESH])
            clean(place)
        beyond |= protocol.beyond
    order = {name: number for number, name in enumerate(operations())}  # behaviours are before operations
    verdicts.sort(key=lambda verdict: order.get(verdict.area, -1))
    return Conformance(verdicts, left, sorted(beyond))


def judge_server(
    properties: Mapping[str, str],
    *,
    within: Sequence[str] = (),
    storage: Storage | None = None,
    only: str = "",
    progress: Callable[[int, int, str], None] | None = None,
) -> Conformance:
    """Judge a server by the behaviours, and each of its answers by the document.

    Args:
        properties: the properties of a `RestNamespace` that reaches the server.
        within: as of `judge`.
        storage: as of `judge`.
        only: as of `judge`.
        progress: as of `judge`.

    Raises:
        InvalidInput, NotFound, AccessDenied, StoreUnavailable: As by `judge`.
    """
    settings, answers = RestSettings.of(properties), Answers()
    return judge(
        lambda: _Observed(settings, answers, properties),
        within=within,
        storage=storage,
        server=settings,
        answers=answers,
        only=only,
        progress=progress,
    )


class _Observed(RestNamespace):
    """A client whose answers are judged. Copies in other processes are plain clients."""

    def __init__(self, settings: RestSettings, answers: Answers, properties: Mapping[str, str]) -> None:
        super().__init__(**properties)
        self.server = RestServer(settings, observe=answers.take)


def _require_readable(open_: Open, place: tuple[str, ...], storage: Storage) -> None:
    """Create a table and read it.

    Raises:
        InvalidInput, AccessDenied, StoreUnavailable: That is not possible.
    """
    step = "create a namespace and a table"
    try:
        bench = Bench.prepared(open_, None, place, storage)
        bench.create("readable")
        step = "read the table at the location that the catalog answers; give the options of its storage"
        bench.rows("readable")
    except (Departure, NotOffered) as error:
        cause = error.__cause__
        kind = next((kind for of, kind in _CAUSES if isinstance(cause, of)), InvalidInput)
        raise kind(f"the catalog cannot be judged: {cause or error}. The judge has to {step}") from error


_CAUSES: Sequence[tuple[type[Exception] | tuple[type[Exception], ...], type[LancekeepError]]] = (
    ((errors.PermissionDeniedError, errors.UnauthenticatedError), AccessDenied),
    (errors.ServiceUnavailableError, StoreUnavailable),
)
"""The errors of a server that have a meaning of their own, and what they become."""


def remove(door: Door, place: tuple[str, ...]) -> None:
    """Remove a namespace and all below it, as far as the server permits.

    Where dropping it does not cascade, its objects are removed one by one.
    """
    with suppress(Exception):
        door.attempt("drop_namespace", id=list(place), behavior="Cascade")
        return
    with suppress(Exception):
        for name in door.names("list_tables", id=list(place)):
            for operation in ("drop_table", "deregister_table"):
                with suppress(Exception):
                    door.attempt(operation, id=[*place, name])
                    break
    with suppress(Exception):
        for name in door.names("list_namespaces", id=list(place)):
            remove(door, (*place, name))
    with suppress(Exception):
        door.attempt("drop_namespace", id=list(place))
