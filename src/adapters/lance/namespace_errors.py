"""Translation of Lancekeep errors to those of the namespace interface."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from lance_namespace import errors as api_errors

from lancekeep.domain import errors
from lancekeep.domain.commit_token import CommitUnknown

P = ParamSpec("P")
R = TypeVar("R")

ERRORS: Mapping[type[errors.LancekeepError], type[api_errors.LanceNamespaceError]] = {
    errors.InvalidInput: api_errors.InvalidInputError,
    errors.SchemaMismatch: api_errors.TableSchemaValidationError,
    errors.NamespaceNotFound: api_errors.NamespaceNotFoundError,
    errors.TableNotFound: api_errors.TableNotFoundError,
    errors.TagNotFound: api_errors.TableTagNotFoundError,
    errors.BranchNotFound: api_errors.TableBranchNotFoundError,
    errors.VersionNotFound: api_errors.TableVersionNotFoundError,
    errors.ColumnNotFound: api_errors.TableColumnNotFoundError,
    errors.IndexNotFound: api_errors.TableIndexNotFoundError,
    errors.TransactionNotFound: api_errors.TransactionNotFoundError,
    errors.TagAlreadyExists: api_errors.TableTagAlreadyExistsError,
    errors.BranchAlreadyExists: api_errors.TableBranchAlreadyExistsError,
    errors.IndexAlreadyExists: api_errors.TableIndexAlreadyExistsError,
    errors.NamespaceAlreadyExists: api_errors.NamespaceAlreadyExistsError,
    errors.TableAlreadyExists: api_errors.TableAlreadyExistsError,
    errors.NamespaceNotEmpty: api_errors.NamespaceNotEmptyError,
    errors.VersionTaken: api_errors.ConcurrentModificationError,
    errors.ConcurrentModification: api_errors.ConcurrentModificationError,
    errors.AccessDenied: api_errors.PermissionDeniedError,
    errors.StoreUnavailable: api_errors.ServiceUnavailableError,
    CommitUnknown: api_errors.ServiceUnavailableError,
    errors.Unsupported: api_errors.UnsupportedOperationError,
    errors.Refused: api_errors.InvalidTableStateError,
    errors.Damaged: api_errors.InternalError,
    errors.LancekeepError: api_errors.InternalError,
}
"""The namespace error of each Lancekeep error; the nearest base class decides."""

_PREFIXES: Mapping[type[api_errors.LanceNamespaceError], str] = {
    api_errors.NamespaceNotFoundError: "Namespace not found",
    api_errors.NamespaceAlreadyExistsError: "Namespace already exists",
    api_errors.NamespaceNotEmptyError: "Namespace not empty",
    api_errors.TableNotFoundError: "Table not found",
    api_errors.TableAlreadyExistsError: "Table already exists",
}
"""The beginnings of native messages, by which lancedb identifies an error: it sees a Python error as text only."""


def translating(method: Callable[P, R]) -> Callable[P, R]:
    """Raise Lancekeep errors as namespace errors.

    The Lancekeep error is the ``__cause__``.
    """

    @functools.wraps(method)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except errors.LancekeepError as error:
            raise namespace_error(error) from error

    return translated


def namespace_error(error: errors.LancekeepError) -> api_errors.LanceNamespaceError:
    """Return the namespace error for a Lancekeep error."""
    kind = next(ERRORS[base] for base in type(error).__mro__ if base in ERRORS)
    prefix = _PREFIXES.get(kind)
    return kind(f"{prefix}: {error}" if prefix else str(error))
