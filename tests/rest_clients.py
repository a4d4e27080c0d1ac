"""The generated client as a `lance_namespace.LanceNamespace`."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from typing import Any, cast

import lance_namespace as api
from lance_namespace.errors import InternalError, from_error_code
from lance_namespace_urllib3_client import api as client_api
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from lance_namespace_urllib3_client.exceptions import ApiException


class GeneratedNamespace(api.LanceNamespace):
    """Sends each operation by the generated client, with the fields where the client has them."""

    def __init__(self, uri: str) -> None:
        connection = ApiClient(Configuration(host=uri))
        self._methods: dict[str, Any] = {}
        for module in pkgutil.iter_modules(client_api.__path__):
            for _, kind in inspect.getmembers(importlib.import_module(f"{client_api.__name__}.{module.name}")):
                if inspect.isclass(kind) and kind.__name__.endswith("Api"):
                    found: Any = cast(Any, kind)(connection)
                    self._methods |= {name: getattr(found, name) for name in vars(kind) if name[0] != "_"}

    def namespace_id(self) -> str:
        return "the generated client"


def _sent(name: str) -> Any:
    def send(self: GeneratedNamespace, request: Any, *data: bytes) -> Any:
        method = self._methods[name]
        arguments: dict[str, Any] = {}
        for parameter in inspect.signature(method).parameters:
            if parameter == "id":
                arguments["id"] = "$".join(request.id or []) or "$"
            elif parameter == "body":
                arguments["body"] = data[0]
            elif parameter == "request_body":
                arguments["request_body"] = request.metadata
            elif parameter.endswith("_request"):
                arguments[parameter] = request
            elif not parameter.startswith("_") and getattr(request, parameter, None) is not None:
                value = getattr(request, parameter)
                arguments[parameter] = json.dumps(value) if isinstance(value, dict) else value
        try:
            answer = method(**arguments)
        except ApiException as error:
            body = json.loads(error.body or "{}")
            if "code" not in body:
                raise InternalError(f"an error without a code: {error}") from error
            raise from_error_code(body["code"], body["error"]) from error
        wrapped = {"count_table_rows": "count", "update_table_schema_metadata": "metadata", "query_table": "data"}
        if name in wrapped:
            model = getattr(api, "".join(map(str.capitalize, name.split("_"))) + "Response")
            return model(**{wrapped[name]: bytes(answer) if name == "query_table" else answer})
        return answer

    return send


for _name, _ in inspect.getmembers(api.LanceNamespace, inspect.isfunction):
    if _name[0] != "_" and _name not in ("namespace_id", "create_empty_table"):
        setattr(GeneratedNamespace, _name, _sent(_name))
