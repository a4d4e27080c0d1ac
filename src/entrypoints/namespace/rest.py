"""``lancekeep.RestNamespace``: the namespace interface over any server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lance_namespace as api
from lance_namespace.errors import LanceNamespaceError, from_error_code
from pydantic import BaseModel

from lancekeep.adapters.lance.callbacks import is_native, refused_to_native_code, show_refusal
from lancekeep.adapters.lance.namespace_errors import namespace_error, translating
from lancekeep.adapters.rest.catalog import commit_key
from lancekeep.adapters.rest.errors import code_of
from lancekeep.adapters.rest.routes import EXTENSIONS, ROUTES, Route
from lancekeep.adapters.rest.server import RestServer
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.domain.errors import LancekeepError, TableNotFound
from lancekeep.entrypoints.namespace.boundary import request_of
from lancekeep.ports.catalog_server import CatalogServer


class RestNamespace(api.LanceNamespace):
    """The operations of a server. Requests are models, dicts or subclasses of dict.

    Properties are as in `RestSettings`, as text: ``uri``, ``header.*``, ``api_key``, ``token``, ``tls.*``,
    ``delimiter`` and timeouts, also with the prefix ``rest.``. It pickles as its properties, credentials included.

    Raises:
        lance_namespace.errors.InvalidInputError: A property is unknown or cannot be honoured.
    """

    @translating
    def __init__(self, **properties: str) -> None:
        self._properties = {name.removeprefix("rest."): value for name, value in properties.items()}
        self.server: CatalogServer = RestServer(RestSettings.of(self._properties))

    def namespace_id(self) -> str:
        return f"lancekeep {self.server.uri}"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (self._properties,)

    def _perform(self, route: Route, request: object, data: bytes | None) -> Any:
        """Perform an operation.

        Native code gets a dict. A missing table is then `Refused`, because native code takes TableNotFoundError as an
        invitation to scan the directory of a dropped table.
        """
        native = is_native(request)
        try:
            fields = request_of(route.model, {} if request is None else request).model_dump(
                by_alias=True, exclude_none=True, mode="json"
            )
            key = commit_key(fields["manifest_path"]) if route.operation == "create_table_version" else None
            found = self.server.call(route.operation, fields, data=data, key=key)
        except TableNotFound as error:
            raised = refused_to_native_code(error) if native and "version" in route.operation else error
            raise namespace_error(raised) from raised
        except LancekeepError as error:
            if native:
                show_refusal(error)
            raise _error(error) from error
        return found if native else _response(route, found)


def _restore(properties: Mapping[str, str]) -> RestNamespace:
    return RestNamespace(**properties)


def _error(error: LancekeepError) -> LanceNamespaceError:
    """Return the namespace error with the code of the server.

    The specification has more codes than Lancekeep has classes of errors.
    """
    raised, code = namespace_error(error), code_of(error)
    return raised if code is None or code == int(raised.code) else from_error_code(code, str(error))


def _response(route: Route, found: Mapping[str, Any]) -> Any:
    """Return the fields of a response as the interface has it.

    That is a model, the text of a plan, or of an extension a dict.
    """
    for plain in ("plan", "analysis"):
        if plain in found and route.operation.endswith("query_plan"):
            return found[plain]
    if route in EXTENSIONS:
        return {name: value for name, value in found.items() if name != "context"}
    name = _RESPONSES.get(route.operation, route.operation_id)
    model: type[BaseModel] = getattr(api, f"{name}Response")
    known = {name for each, field in model.model_fields.items() for name in (each, field.alias)}
    return model.model_validate({name: value for name, value in found.items() if name in known})


_RESPONSES = {"list_all_tables": "ListTables"}


def _operation(route: Route) -> Callable[..., Any]:
    def perform(self: RestNamespace, request: object = None, request_data: bytes | None = None) -> Any:
        return self._perform(route, request, request_data)

    perform.__name__ = perform.__qualname__ = route.operation
    perform.__doc__ = f"Perform {route.operation_id}."
    return perform


for _route in (*ROUTES, *EXTENSIONS):
    setattr(RestNamespace, _route.operation, _operation(_route))
