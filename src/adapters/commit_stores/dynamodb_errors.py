"""Errors of DynamoDB, translated to errors of Lancekeep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    WaiterError,
)

from lancekeep.domain.errors import AccessDenied, InvalidInput, LancekeepError, StoreUnavailable, Unsupported

_RIGHTS = "Check the credentials and the permissions that the guide to commit stores lists"
_MEANINGS: Mapping[str, tuple[type[LancekeepError], str]] = {
    "AccessDeniedException": (AccessDenied, _RIGHTS),
    "ExpiredTokenException": (AccessDenied, "Renew the credentials"),
    "IncompleteSignatureException": (AccessDenied, _RIGHTS),
    "InvalidSignatureException": (AccessDenied, _RIGHTS),
    "MissingAuthenticationTokenException": (AccessDenied, _RIGHTS),
    "UnrecognizedClientException": (AccessDenied, _RIGHTS),
    "UnknownOperationException": (
        Unsupported,
        "This server lacks the operation. Atomic changes of several tables need TransactWriteItems and "
        "TransactGetItems: use AWS, or commit one table at a time",
    ),
    "ValidationException": (InvalidInput, "Correct the table or the option that the server names"),
}
"""DynamoDB error codes of definite refusals, and advice. All other codes are `StoreUnavailable`."""


def understood(error: Exception, url: str, endpoint: str, schema_fault: Callable[[], str | None]) -> LancekeepError:
    """Translate an error of the driver.

    Args:
        error: the error.
        url: the URL of the commit store, for messages.
        endpoint: the address of the server, for messages.
        schema_fault: returns the fault of the table's keys, or None; called after a validation error.
    """
    if isinstance(error, ClientError):
        # Only the first line: a signature error continues with the signed request, including the session token.
        message = error.response.get("Error", {}).get("Message", "").partition("\n")[0]
        code = code_of(error)
        meaning, advice = _MEANINGS.get(code, (StoreUnavailable, ""))
        if error.response.get("ResponseMetadata", {}).get("RetryAttempts"):
            meaning = StoreUnavailable  # the previous attempt got no reply and may have succeeded
        if meaning is StoreUnavailable:
            return StoreUnavailable(f"{url}: {code}: {message}")
        fault = schema_fault() if code == "ValidationException" else None
        return meaning(f"{url}: {fault or f'{error.operation_name}: {code}: {message}. {advice}'}.")
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
        return AccessDenied(
            f"{url}: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role, or the "
            "commit store's options of these names"
        )
    if isinstance(error, WaiterError):
        return StoreUnavailable(f"{url}: the new table is not ready yet")
    return StoreUnavailable(f"{url}: {endpoint} did not answer: {error}")


def code_of(error: ClientError) -> str:
    """Return the server's code of an error."""
    return error.response.get("Error", {}).get("Code", "")


def reasons_of(error: ClientError) -> set[str]:
    """Return the reasons why a transaction was cancelled; most items have none."""
    found = error.response.get("CancellationReasons", [])
    reasons: list[dict[str, str]] = found  # type: ignore[assignment]  # the stubs have what every error has
    return {reason.get("Code", "None") for reason in reasons} - {"None"}
