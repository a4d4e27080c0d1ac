"""The errors of a server as Lancekeep errors.

Lance namespace specification, "Error Handling".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancekeep.domain import errors
from lancekeep.domain.commit_token import CommitToken, CommitUnknown

RETRIED = (429, 502, 503, 504)
"""The statuses after which the same request may succeed."""

_BY_CODE: Mapping[int, type[errors.LancekeepError]] = {
    0: errors.Unsupported,
    1: errors.NamespaceNotFound,
    2: errors.NamespaceAlreadyExists,
    3: errors.NamespaceNotEmpty,
    4: errors.TableNotFound,
    5: errors.TableAlreadyExists,
    6: errors.IndexNotFound,
    7: errors.IndexAlreadyExists,
    8: errors.TagNotFound,
    9: errors.TagAlreadyExists,
    10: errors.TransactionNotFound,
    11: errors.VersionNotFound,
    12: errors.ColumnNotFound,
    13: errors.InvalidInput,
    14: errors.ConcurrentModification,
    15: errors.AccessDenied,
    16: errors.AccessDenied,
    17: errors.StoreUnavailable,
    18: errors.Damaged,
    19: errors.Refused,
    20: errors.SchemaMismatch,
    21: errors.StoreUnavailable,
    22: errors.BranchNotFound,
    23: errors.BranchAlreadyExists,
}
"""The error of each error code of the specification."""

_BY_STATUS: Mapping[int, type[errors.LancekeepError]] = {
    400: errors.InvalidInput,
    401: errors.AccessDenied,
    403: errors.AccessDenied,
    404: errors.NotFound,
    405: errors.Unsupported,
    406: errors.Unsupported,
    409: errors.Refused,
    411: errors.InvalidInput,
    413: errors.InvalidInput,
    415: errors.InvalidInput,
    429: errors.StoreUnavailable,
    431: errors.InvalidInput,
    501: errors.Unsupported,
}
"""The error of each status, for responses without an error code."""

_SHOWN = 2000
_CODE = "_server_code"


def code_of(error: errors.LancekeepError) -> int | None:
    """Return the error code that the server gave, or None."""
    return getattr(error, _CODE, None)


def error_of(status: int, body: Any, what: str) -> errors.LancekeepError:
    """Return the error that a response describes.

    Args:
        status: The HTTP status.
        body: The decoded JSON body; anything else if the response has no JSON.
        what: The operation and the server, for the message.
    """
    fields = body if isinstance(body, dict) else {}
    code, text = fields.get("code"), fields.get("error") or fields.get("detail")
    message = f"{what}: {text[:_SHOWN] if isinstance(text, str) and text else f'the server answered {status}'}"
    token = _token(fields)
    if token is not None:
        return CommitUnknown(message, token)
    if isinstance(code, int) and not isinstance(code, bool) and code in _BY_CODE and status != 429:
        kind = errors.CursorExpired if status == 410 else _BY_CODE[code]
        if status in RETRIED and not issubclass(kind, errors.StoreUnavailable):
            kind = errors.StoreUnavailable  # a gateway's status says more than the body that it passes on
        error = kind(message)
        setattr(error, _CODE, code)
        return error
    if 300 <= status < 400:
        return errors.InvalidInput(
            f"{what}: the server redirects the request. Redirects are not followed, so that credentials reach no other "
            "server; set the uri to the server's own address"
        )
    return _BY_STATUS.get(status, errors.StoreUnavailable if status >= 500 else errors.Refused)(message)


def _token(fields: Mapping[str, Any]) -> CommitToken | None:
    context = fields.get("context")
    text = context.get("resolve_token") if isinstance(context, dict) else None
    try:
        return CommitToken.parse(text) if isinstance(text, str) else None
    except errors.InvalidInput:
        return None
