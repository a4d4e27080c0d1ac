"""The audit log: who asked for what, and what the server decided.

One JSON object per line is appended to a file. An answer is sent after its line is written, so no caller has an answer
without a line. Lines hold neither credentials nor rows.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final

from lance_namespace.errors import ErrorCode

from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.domain.identifiers import LONGEST
from lancekeep.entrypoints.permitted import Hidden
from lancekeep.entrypoints.rest.errors import HttpError, Problem
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.security.permissions import needs

ALLOWED, REFUSED, UNAUTHENTICATED, INVALID = "allowed", "refused", "unauthenticated", "invalid"
DECISIONS = (ALLOWED, REFUSED, UNAUTHENTICATED, INVALID)
"""The decisions about a request: invalid requests are answered before a permission is looked up."""

_LOG = logging.getLogger(__name__)

CATALOG: Final = "catalog"
"""The entry of the state of a request with the name of its catalog, if this catalog is not open."""

MOST_CHANGED: Final = 4000
"""The most characters about a change of keys or of the policy: a grant may name thousands of principals."""

_QUOTING: Final = frozenset(
    (
        ErrorCode.INVALID_INPUT,
        ErrorCode.INVALID_TABLE_STATE,
        ErrorCode.TABLE_COLUMN_NOT_FOUND,
        ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR,
        ErrorCode.UNSUPPORTED,
    )
)
"""The errors whose messages may quote a filter, a value or a location of the request."""


class AuditLog:
    """Appends lines to a file, each by one write.

    Several processes may share the file. A file that was moved away, for example by logrotate, is created again. If a
    line cannot be written, the server goes on, the log reports it once, and ``problem`` holds the reason until a line
    can be written. A line after an incomplete one begins with a line break. No write waits for the reader of a pipe.

    Args:
        path: The file.
        catalog: The name of the catalog in each line, if the server serves several.

    Raises:
        InvalidInput: The file cannot be opened.
    """

    def __init__(self, path: Path, catalog: str | None = None) -> None:
        self.path = path
        self._named = {} if catalog is None else {CATALOG: catalog}
        self.problem: str | None = None
        self._lock = Lock()
        try:
            self._file = self._open()
        except OSError as error:
            raise InvalidInput(f"cannot write the audit log {path}: {error.strerror}") from error

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """Append a line with the time, the event and its fields."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **self._named, **fields}
        line = json.dumps(entry).encode() + b"\n"  # ASCII: names can hold what a terminal obeys
        with self._lock:
            try:
                self._follow()
                self._append(line)
            except OSError as error:
                if self.problem is None:
                    _LOG.error("The audit log %s cannot be written: %s", self.path, error.strerror)
                self.problem = error.strerror or type(error).__name__
            else:
                self.problem = None

    def check(self) -> None:
        """Try to write again after a failure.

        Raises:
            StoreUnavailable: The file still cannot be written.
        """
        if self.problem is not None:
            self.write("resumed", {})
        if self.problem is not None:
            raise StoreUnavailable(f"the audit log {self.path} cannot be written: {self.problem}")

    def reloaded(self, file: Path, problem: str | None) -> None:
        """Record that a file of keys or grants was read again."""
        self.write(
            "reload", {"file": str(file), "outcome": "read" if problem is None else "refused", "reason": problem}
        )

    def _open(self) -> int:
        try:
            whole = stat.S_ISREG(os.stat(self.path).st_mode)
        except FileNotFoundError:
            whole = True
        access = os.O_RDWR if whole else os.O_WRONLY | os.O_NONBLOCK
        return os.open(self.path, access | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # of a full disk, by any process
            line = b"\n" + line
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow(self) -> None:
        """Open the file again if its name belongs to no file, or to another file."""
        opened = os.fstat(self._file)
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            old, self._file = self._file, self._open()
            os.close(old)


def described(state: Mapping[str, Any], status: int, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return who asked for what, and what was decided, as fields of a line."""
    principal, call = state.get("principal"), state.get("call")
    closed = {CATALOG: state[CATALOG]} if CATALOG in state else {}
    return {
        **closed,
        "principal": None if principal is None else principal.name,
        "address": (scope.get("client") or (None,))[0],
        "operation": operation_of(state),
        "object": _shown(state.get("named") if call is None else call.object_id),
        "decision": _decision(state, status),
    }


def outcome(state: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Return what came of a request, and which other objects it concerned."""
    error, call = state.get("error"), state.get("call")
    found: dict[str, Any] = {"status": status}
    rights = [] if call is None else _rights(call)
    if rights:
        found["rights"] = rights
    if error is not None:
        found["reason"] = reason_of(error, state["problem"])
    others = () if call is None else sorted(_objects(call) - {call.object_id, ()})
    if others:
        found["others"] = [_shown(names) for names in others]
    if call is not None and call.progress.restricted:
        found["restricted"] = sorted(call.progress.restricted)
    if call is not None and call.progress.changed:
        found["changed"] = call.progress.changed[:MOST_CHANGED]
    if call is not None and call.progress.failures:
        found["failures"] = [
            {
                "object": _shown(each.object_id),
                "status": each.problem.status,
                "reason": reason_of(each.error, each.problem),
            }
            for each in list(call.progress.failures)
        ]
    answer = state.get("answer")
    for name in ("version", "transaction_id"):
        value = getattr(answer, name, None)
        if isinstance(value, int | str):
            found[name] = value
    return found


def _shown(names: Sequence[str] | None) -> list[str] | None:
    """Return names without what is longer than the names of any object, as a request may name megabytes."""
    return None if names is None else [name[: LONGEST + 1] for name in names[: LONGEST + 1]]


def operation_of(state: Mapping[str, Any]) -> str:
    """Return the name of a request's operation."""
    route = state.get("route")
    return str(route.operation_id if route else state.get("operation", "unknown"))


def reason_of(error: BaseException, problem: Problem) -> str:
    """Return why a request failed, quoting nothing of it except for names."""
    if isinstance(error.__cause__, Hidden):
        return str(error.__cause__)
    if not problem.expected:
        return type(error).__name__
    of_server = isinstance(error, HttpError) and problem.status != 400
    return problem.title if problem.code in _QUOTING and not of_server else problem.message


def _objects(call: Call) -> set[tuple[str, ...]]:
    with suppress(InvalidInput):
        return {need.object_id.names for need in needs(call.operation, call.request)}
    return set()


def _rights(call: Call) -> list[str]:
    """Return the rights that a request needs, in the order of the checks."""
    with suppress(InvalidInput):
        return list(dict.fromkeys(need.right.value for need in needs(call.operation, call.request)))
    return []


def _decision(state: Mapping[str, Any], status: int) -> str:
    error, call = state.get("error"), state.get("call")
    if status == 401:
        return UNAUTHENTICATED
    members = [] if call is None else [(each.problem.status, each.error) for each in list(call.progress.failures)]
    if any(_is_refusal(*each) for each in [(status, error), *members]):
        return REFUSED
    if call is None:
        return INVALID if isinstance(error, HttpError | InvalidInput) else ALLOWED
    return INVALID if isinstance(error, InvalidInput) and not _has_needs(call) else ALLOWED


def _is_refusal(status: int, error: BaseException | None) -> bool:
    return status == 403 or isinstance(getattr(error, "__cause__", None), Hidden)


def _has_needs(call: Call) -> bool:
    """Return whether a role could be looked up."""
    try:
        return bool(needs(call.operation, call.request))
    except InvalidInput:
        return False
