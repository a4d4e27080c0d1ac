"""Requests that describe several tables.

Each member of the batch is a call of its own to the wrappers of operations. So it has the permissions, the credentials
and the errors of a single request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import lance_namespace as api
from lance_namespace.errors import ErrorCode

from lancekeep.adapters.lance.panics import is_panic
from lancekeep.adapters.rest.routes import ROUTES
from lancekeep.entrypoints.namespace.extensions import each_described
from lancekeep.entrypoints.rest.errors import HttpError, Problem
from lancekeep.entrypoints.rest.requests import Call, Failure
from lancekeep.entrypoints.rest.responses import fields_of, headers_of

_BATCH: Final = "describe_tables"
_SINGLE: Final = next(route for route in ROUTES if route.operation == "describe_table")


@attrs.frozen
class Batches:
    """Performs a batch as one call for each of its members.

    It is the outermost wrapper. A member that fails leaves its error in the answer, and in ``Call.progress``.

    Attributes:
        places: The names of places that errors must not contain.
    """

    places: tuple[str, ...]

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        if call.operation != _BATCH:
            return proceed(call)
        request: Any = call.request
        headers: dict[str, str] = {}

        def described(single: api.DescribeTableRequest) -> dict[str, Any]:
            if call.progress.over:
                raise HttpError(504, "The caller no longer waits for the batch.", ErrorCode.SERVICE_UNAVAILABLE)
            try:
                fields = fields_of(proceed(attrs.evolve(call, route=_SINGLE, request=single)))
                headers.update(headers_of(fields))
                return {"response": fields}
            except BaseException as error:  # a panic of native code is no Exception
                if not isinstance(error, Exception) and not is_panic(error):
                    raise
                problem = Problem.of(error, _SINGLE.unsupported).without(self.places)
                call.progress.failures.append(Failure(tuple(single.id or ()), error, problem))
                return {"error": problem.body()}

        answer = each_described(request, described)
        context = {f"header.{name}": value for name, value in headers.items()}
        return {**answer, "context": context} if context else answer
