"""The boundary of the namespace interface: requests become models, and Lancekeep errors become namespace errors.

A caller passes a request model or a dict. Native code (pylance, lancedb) passes a subclass of dict that has
``model_dump`` and no attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast, get_type_hints

from lance_namespace import errors as api_errors
from pydantic import BaseModel, ValidationError

from lancekeep.domain import errors
from lancekeep.domain.commit_token import CommitUnknown

P = ParamSpec("P")
R = TypeVar("R")
Model = TypeVar("Model", bound=BaseModel)

ERRORS: Mapping[type[errors.LancekeepError], type[api_errors.LanceNamespaceError]] = {
    errors.InvalidInput: api_errors.InvalidInputError,
    errors.NamespaceNotFound: api_errors.NamespaceNotFoundError,
    errors.TableNotFound: api_errors.TableNotFoundError,
    errors.TagNotFound: api_errors.TableTagNotFoundError,
    errors.BranchNotFound: api_errors.TableBranchNotFoundError,
    errors.VersionNotFound: api_errors.TableVersionNotFoundError,
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
"""The beginnings of native messages. lancedb sees an error of a Python class as text and recognises it by these."""


def translating(method: Callable[P, R]) -> Callable[P, R]:
    """Raise Lancekeep errors as namespace errors, with the Lancekeep error as ``__cause__``."""

    @functools.wraps(method)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except errors.LancekeepError as error:
            raise _namespace_error(error) from error

    return translated


def operation(method: Callable[P, R]) -> Callable[P, R]:
    """Accept a request model, a dict or a subclass of dict where ``method`` annotates ``request`` with its model.

    Errors are translated as by `translating`.
    """
    return _operation(method, of_version=False)


def version_operation(method: Callable[P, R]) -> Callable[P, R]:
    """Act as `operation`, for the version operations, which native code calls while it has a table open.

    ``method`` receives the keyword argument ``native``: whether native code called. For native callers a missing table
    is `Refused`: native code treats TableNotFoundError as an invitation to scan the directory of a dropped table.
    """
    return _operation(method, of_version=True)


def callback(method: Callable[P, R]) -> Callable[P, R]:
    """Act as `version_operation`, for the operations that native code calls in every commit.

    A native request reaches ``method`` without validation, and ``method`` answers it with a dict.
    """
    return _operation(method, of_version=True, trusts_native=True)


def request_of(model: type[Model], given: object) -> Model:
    """Return a request as its model. Raises `InvalidInput` if it is malformed."""
    if isinstance(given, BaseModel):
        fields: Mapping[str, Any] = vars(given)  # a model that `model_construct` made was never validated
    elif isinstance(given, Mapping):
        fields = given
    else:
        raise errors.InvalidInput(
            f"the request is of type {type(given).__name__}; expected a {model.__name__} or a dict with its fields"
        )
    known = _fields_of(model)
    if not known.issuperset(fields):
        unknown = [name for name, value in fields.items() if name not in known and value is not None]
        if unknown:
            raise errors.InvalidInput(
                f"{model.__name__} has no field {unknown[0]!r}; its fields are {', '.join(model.model_fields)}"
            )
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise errors.InvalidInput(
            f"{model.__name__}: the field {place!r} is malformed: {first['msg']}; found {_shown(first['input'])}"
        ) from error


@functools.cache
def _fields_of(model: type[BaseModel]) -> frozenset[str | None]:
    return frozenset((*model.model_fields, *(field.alias for field in model.model_fields.values())))


class NativeRequest:
    """A request of native code, which fills in the fields of a model from typed values.

    A commit makes several of these requests, and to validate them takes longer than to answer.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        return self._fields.get(name)


def _operation(method: Callable[P, R], *, of_version: bool, trusts_native: bool = False) -> Callable[P, R]:
    model = cast(type[BaseModel], get_type_hints(method)["request"])
    act = cast(Callable[..., R], method)

    @translating
    @functools.wraps(method)
    def converted(self: Any, request: object = None, *args: Any, **kwargs: Any) -> Any:
        if not of_version:
            return act(self, request_of(model, request), *args, **kwargs)
        if not (isinstance(request, dict) and hasattr(request, "model_dump")):
            return act(self, request_of(model, request), *args, native=False, **kwargs)
        try:
            known = NativeRequest(request) if trusts_native else request_of(model, request)
            return act(self, known, *args, native=True, **kwargs)
        except errors.TableNotFound as error:
            raise errors.Refused(
                f"the table was dropped or renamed since it was opened; open it again: {error}"
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError):
            request_of(model, request)  # if the request is malformed, that is the error to raise
            raise

    return cast(Callable[P, R], converted)


def _namespace_error(error: errors.LancekeepError) -> api_errors.LanceNamespaceError:
    kind = next(ERRORS[base] for base in type(error).__mro__ if base in ERRORS)
    prefix = _PREFIXES.get(kind)
    return kind(f"{prefix}: {error}" if prefix else str(error))


def _shown(value: object) -> str:
    """Return a value for a message; text and containers may hold secrets."""
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
