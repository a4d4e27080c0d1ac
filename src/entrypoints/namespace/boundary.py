"""The boundary of the namespace interface.

Requests become models, and Lancekeep errors become namespace errors.

A caller passes a request model or a dict. Native code (pylance, lancedb) passes a subclass of dict that has
``model_dump`` and no attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ValidationError

from lancekeep.adapters.lance.callbacks import is_native, refused_to_native_code
from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.domain import errors

P = ParamSpec("P")
R = TypeVar("R")
Model = TypeVar("Model", bound=BaseModel)

TIMESTAMP = "lancekeep.timestamp"
"""The entry of a request's context that selects a version by time; as a header, ``x-lancekeep-timestamp``."""

_BY_TIME = frozenset(
    {
        *("describe_table", "describe_tables", "describe_table_version", "query_table", "query_stream"),
        *("count_table_rows", "explain_table_query_plan", "analyze_table_query_plan"),
    }
)
"""The operations that select a version by time."""


def operation(method: Callable[P, R]) -> Callable[P, R]:
    """Accept a model, a dict or a subclass of dict as the request.

    ``method`` annotates ``request`` with its model.
    Errors are translated as by `translating`.
    """
    model = _model_of(method)

    @translating
    @functools.wraps(method)
    def converted(self: Any, request: object = None, *args: Any, **kwargs: Any) -> R:
        found = request_of(model, request)
        if timestamp_of(found) is not None and method.__name__ not in _BY_TIME:
            raise errors.InvalidInput(
                f"{method.__name__} reads no version by time, and its context has one; ask describe_table_version for "
                "the version first. Nothing was changed"
            )
        return cast("Callable[..., R]", method)(self, found, *args, **kwargs)

    return cast(Callable[P, R], converted)


def timestamp_of(request: Any) -> str | None:
    """Return the time by which a request selects a version; None without one."""
    return context_value(request, TIMESTAMP)


def context_value(request: Any, entry: str) -> str | None:
    """Return an entry of the context of a request, which a header can give too.

    Raises:
        InvalidInput: The entry and the header differ.
    """
    context: Mapping[str, str] = getattr(request, "context", None) or {}
    given = {context[name] for name in (entry, f"header.x-{entry.replace('.', '-')}") if name in context}
    if len(given) > 1:
        raise errors.InvalidInput(f"the context has two different values of {entry!r}; give one of them")
    return next(iter(given), None)


def version_operation(method: Callable[P, R]) -> Callable[P, R]:
    """Act as `operation`; for native code a missing table is `Refused`."""
    model = _model_of(method)

    @translating
    @functools.wraps(method)
    def converted(self: Any, request: object = None) -> R:
        try:
            return cast("Callable[..., R]", method)(self, request_of(model, request))
        except errors.TableNotFound as error:
            if not is_native(request):
                raise
            raise refused_to_native_code(error) from error

    return cast(Callable[P, R], converted)


def native_operation(method: Callable[P, R]) -> Callable[P, R]:
    """Act as `operation` for callers, and let ``self.callbacks`` answer native code.

    Its method has the same name.
    """
    model, name = _model_of(method), method.__name__
    converted = cast(Callable[..., R], operation(method))
    refuse_malformed = translating(request_of)

    @functools.wraps(method)
    def routed(self: Any, request: object = None) -> R:
        if not is_native(request):
            return converted(self, request)
        try:
            return cast(R, getattr(self.callbacks, name)(request))
        except (AttributeError, LookupError, TypeError, ValueError):
            refuse_malformed(model, request)  # if the request is malformed, that is the error to raise
            raise

    return cast(Callable[P, R], routed)


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
    present = {name: value for name, value in fields.items() if value is not None}
    known = _fields_of(model)
    if not known.issuperset(present):
        unknown = next(name for name in present if name not in known)
        raise errors.InvalidInput(
            f"{model.__name__} has no field {unknown!r}; its fields are {', '.join(model.model_fields)}"
        )
    try:
        # Every operation passes here, and `model_validate` takes a microsecond more than the validator that it calls.
        return cast(Model, model.__pydantic_validator__.validate_python(present))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise errors.InvalidInput(
            f"{model.__name__}: the field {place!r} is malformed: {first['msg']}; found {_shown(first['input'])}"
        ) from error


@functools.cache
def _fields_of(model: type[BaseModel]) -> frozenset[str | None]:
    return frozenset((*model.model_fields, *(field.alias for field in model.model_fields.values())))


def _model_of(method: Callable[..., Any]) -> type[BaseModel]:
    return cast(type[BaseModel], get_type_hints(method)["request"])


def _shown(value: object) -> str:
    """Return a value for a message; text and containers may hold secrets."""
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
