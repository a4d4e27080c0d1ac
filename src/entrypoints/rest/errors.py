"""Errors as HTTP responses (specification: "Error Handling").

Every error of the server has the same body: ``code`` and ``error`` of the specification, and ``type``, ``title``,
``status``, ``detail`` and ``instance`` as in its examples. ``instance`` is the id of the request, which the logs hold.
An unknown commit is always 503, with the token that resolves it in ``context.resolve_token``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from lance_namespace import errors as api_errors
from lance_namespace.errors import ErrorCode

from lancekeep.adapters.lance.namespace_errors import namespace_error
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import CursorExpired, LancekeepError, causes

RESOLVE_TOKEN = "resolve_token"
"""The entry of ``context`` that holds the token of an unknown commit."""

STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.NAMESPACE_NOT_FOUND: 404,
    ErrorCode.NAMESPACE_ALREADY_EXISTS: 409,
    ErrorCode.NAMESPACE_NOT_EMPTY: 409,
    ErrorCode.TABLE_NOT_FOUND: 404,
    ErrorCode.TABLE_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_INDEX_NOT_FOUND: 404,
    ErrorCode.TABLE_INDEX_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_TAG_NOT_FOUND: 404,
    ErrorCode.TABLE_TAG_ALREADY_EXISTS: 409,
    ErrorCode.TRANSACTION_NOT_FOUND: 404,
    ErrorCode.TABLE_VERSION_NOT_FOUND: 404,
    ErrorCode.TABLE_COLUMN_NOT_FOUND: 404,
    ErrorCode.INVALID_INPUT: 400,
    ErrorCode.CONCURRENT_MODIFICATION: 409,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.SERVICE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL: 500,
    ErrorCode.INVALID_TABLE_STATE: 409,
    ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: 400,
    ErrorCode.THROTTLING: 429,
    ErrorCode.TABLE_BRANCH_NOT_FOUND: 404,
    ErrorCode.TABLE_BRANCH_ALREADY_EXISTS: 409,
}
"""The status of each error code. An operation may document another status for `ErrorCode.UNSUPPORTED`."""

_RETRY_AFTER = {429: "1", 503: "1"}
_UNEXPECTED = "The server failed to carry out the request; its log has the cause under the id in 'instance'."


class HttpError(Exception):
    """A request that the server refuses before an operation sees it.

    Attributes:
        status: The HTTP status.
        code: The error code of the body.
        headers: Headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_INPUT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


@attrs.frozen
class Problem:
    """An error as the client sees it.

    Attributes:
        status: The HTTP status.
        code: The error code.
        message: What failed, what was expected and what to do.
        context: Further entries, such as the token of an unknown commit.
        headers: Headers of the response.
        expected: False for a defect of the server, which the log describes.
    """

    status: int
    code: ErrorCode
    message: str
    context: Mapping[str, str] = attrs.field(factory=dict)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    expected: bool = True

    @staticmethod
    def of(error: BaseException, unsupported: int = 501) -> Problem:
        """Return an exception as a problem.

        Args:
            error: Any exception. The message of an unexpected one stays in the log, because it may hold a path or a
                secret.
            unsupported: The status of an unsupported operation.
        """
        unknown = next((each for each in causes(error) if isinstance(each, CommitUnknown)), None)
        if unknown is not None:
            token = {RESOLVE_TOKEN: str(unknown.token)}
            return Problem(503, ErrorCode.SERVICE_UNAVAILABLE, str(unknown), token, {"retry-after": "1"})
        if isinstance(error, HttpError):
            return Problem(error.status, error.code, str(error), headers=error.headers)
        expired = next((each for each in causes(error) if isinstance(each, CursorExpired)), None)
        if expired is not None:
            return Problem(410, ErrorCode.TABLE_VERSION_NOT_FOUND, str(expired))
        if isinstance(error, NotImplementedError):
            error = api_errors.UnsupportedOperationError(str(error) or "The namespace does not support the operation.")
        if isinstance(error, LancekeepError):
            error = namespace_error(error)
        if not isinstance(error, api_errors.LanceNamespaceError):
            return Problem(500, ErrorCode.INTERNAL, _UNEXPECTED, expected=False)
        code = ErrorCode(error.code)
        status = unsupported if code is ErrorCode.UNSUPPORTED else STATUS[code]
        retry = {"retry-after": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}
        return Problem(status, code, str(error), headers=retry)

    def without(self, places: Iterable[str]) -> Problem:
        """Return the problem without the names of some places in its message."""
        message = self.message
        for place in places:
            message = message.replace(place, "")
        return attrs.evolve(self, message=message)

    @property
    def title(self) -> str:
        """The kind of the error in words."""
        return self.code.name.lower().replace("_", " ").capitalize()

    def body(self, request_id: str | None = None) -> dict[str, object]:
        """Return the JSON object of the response.

        Args:
            request_id: The id of the request; None for a member of a batch.
        """
        name = self.code.name.lower()
        body: dict[str, object] = {
            "error": self.message,
            "code": int(self.code),
            "type": f"/errors/{name.replace('_', '-')}",
            "title": self.title,
            "status": self.status,
            "detail": self.message,
        }
        if request_id is not None:
            body["instance"] = request_id
        if self.context:
            body["context"] = dict(self.context)
        return body
