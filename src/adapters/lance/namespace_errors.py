"""Translation of Lancekeep errors to errors of the namespace interface.

`lance_namespace` is imported for the first error only: its import takes longer than the imports of pyarrow and pylance.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lancekeep.domain import errors
from lancekeep.domain.commit_token import CommitUnknown

if TYPE_CHECKING:
    from lance_namespace.errors import LanceNamespaceError

_MODULE = "lance_namespace.errors"

P = ParamSpec("P")
R = TypeVar("R")

ERRORS: Mapping[type[errors.LancekeepError], str] = {
    errors.InvalidInput: "InvalidInputError",
    errors.SchemaMismatch: "TableSchemaValidationError",
    errors.NamespaceNotFound: "NamespaceNotFoundError",
    errors.TableNotFound: "TableNotFoundError",
    errors.TagNotFound: "TableTagNotFoundError",
    errors.BranchNotFound: "TableBranchNotFoundError",
    errors.VersionNotFound: "TableVersionNotFoundError",
    errors.ColumnNotFound: "TableColumnNotFoundError",
    errors.IndexNotFound: "TableIndexNotFoundError",
    errors.TransactionNotFound: "TransactionNotFoundError",
    errors.TagAlreadyExists: "TableTagAlreadyExistsError",
    errors.BranchAlreadyExists: "TableBranchAlreadyExistsError",
    errors.IndexAlreadyExists: "TableIndexAlreadyExistsError",
    errors.NamespaceAlreadyExists: "NamespaceAlreadyExistsError",
    errors.TableAlreadyExists: "TableAlreadyExistsError",
    errors.NamespaceNotEmpty: "NamespaceNotEmptyError",
    errors.VersionTaken: "ConcurrentModificationError",
    errors.ConcurrentModification: "ConcurrentModificationError",
    errors.AccessDenied: "PermissionDeniedError",
    errors.StoreUnavailable: "ServiceUnavailableError",
    CommitUnknown: "ServiceUnavailableError",
    errors.Unsupported: "UnsupportedOperationError",
    errors.Refused: "InvalidTableStateError",
    errors.Damaged: "InternalError",
    errors.LancekeepError: "InternalError",
}
"""The name of the namespace error of each Lancekeep error; the nearest base class decides."""

_PREFIXES: Mapping[str, str] = {
    "NamespaceNotFoundError": "Namespace not found",
    "NamespaceAlreadyExistsError": "Namespace already exists",
    "NamespaceNotEmptyError": "Namespace not empty",
    "TableNotFoundError": "Table not found",
    "TableAlreadyExistsError": "Table already exists",
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


def namespace_error(error: errors.LancekeepError) -> LanceNamespaceError:
    """Return the namespace error for a Lancekeep error."""
    name = next(ERRORS[base] for base in type(error).__mro__ if base in ERRORS)
    kind: type[LanceNamespaceError] = getattr(import_module(_MODULE), name)
    prefix = _PREFIXES.get(name)
    return kind(f"{prefix}: {error}" if prefix else str(error))


def is_namespace_error(error: Exception, name: str = "LanceNamespaceError") -> bool:
    """Return whether an error is of a class of `lance_namespace.errors`."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(error, getattr(module, name))
