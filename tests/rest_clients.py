"""The generated client and lancedb's connection, each as a `lance_namespace.LanceNamespace`."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from typing import Any, cast

import lance_namespace as api
import lancedb
import pyarrow as pa
from lance.namespace import RestNamespace
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


class LanceDBNamespace(api.LanceNamespace):
    """Performs what lancedb's connection and tables offer; pylance's client describes tables."""

    def __init__(self, uri: str) -> None:
        self._db: Any = lancedb.connect_namespace("rest", {"uri": uri})
        described: Any = RestNamespace(uri=uri)
        # The method of lancedb 0.40 for namespace_exists raises AttributeError.
        for name in ("describe_table", "table_exists", "declare_table", "namespace_exists"):
            setattr(self, name, getattr(described, name))

    def namespace_id(self) -> str:
        return "lancedb"

    def create_namespace(self, request: Any) -> Any:
        return self._db.create_namespace(request.id, mode=request.mode, properties=request.properties)

    def describe_namespace(self, request: Any) -> Any:
        return self._db.describe_namespace(request.id)

    def drop_namespace(self, request: Any) -> Any:
        return self._db.drop_namespace(request.id, mode=request.mode, behavior=request.behavior)

    def list_namespaces(self, request: Any) -> Any:
        return self._db.list_namespaces(request.id, page_token=request.page_token, limit=request.limit)

    def list_tables(self, request: Any) -> Any:
        return self._db.list_tables(request.id, page_token=request.page_token, limit=request.limit)

    def create_table(self, request: Any, data: bytes) -> Any:
        mode = (request.mode or "create").lower()
        table = self._db.create_table(
            request.id[-1],
            pa.ipc.open_stream(data).read_all(),
            mode="create" if mode.startswith("exist") else mode,
            exist_ok=mode.startswith("exist"),
            namespace_path=request.id[:-1],
        )
        location = self.describe_table(api.DescribeTableRequest(id=request.id)).location
        return api.CreateTableResponse(location=location, version=table.version)

    def drop_table(self, request: Any) -> Any:
        self._db.drop_table(request.id[-1], namespace_path=request.id[:-1])

    def rename_table(self, request: Any) -> Any:
        parent = request.id[:-1]
        target = parent if request.new_namespace_id is None else request.new_namespace_id
        self._db.rename_table(request.id[-1], request.new_table_name, parent, target)

    def _table(self, request: Any) -> Any:
        return self._db.open_table(request.id[-1], namespace_path=request.id[:-1])

    def insert_into_table(self, request: Any, data: bytes) -> Any:
        return self._table(request).add(pa.ipc.open_stream(data).read_all(), mode=(request.mode or "append").lower())

    def merge_insert_into_table(self, request: Any, data: bytes) -> Any:
        merge = self._table(request).merge_insert(request.on)
        if request.when_matched_update_all:
            merge = merge.when_matched_update_all(where=request.when_matched_update_all_filt)
        if request.when_not_matched_insert_all:
            merge = merge.when_not_matched_insert_all()
        return merge.execute(pa.ipc.open_stream(data).read_all())

    def update_table(self, request: Any) -> Any:
        updated = self._table(request).update(where=request.predicate, values_sql=dict(request.updates))
        return api.UpdateTableResponse(updated_rows=updated.rows_updated, version=updated.version)

    def delete_from_table(self, request: Any) -> Any:
        return self._table(request).delete(request.predicate)

    def restore_table(self, request: Any) -> Any:
        self._table(request).restore(request.version)

    def count_table_rows(self, request: Any) -> Any:
        return api.CountTableRowsResponse(count=self._table(request).count_rows(request.predicate))

    def query_table(self, request: Any) -> Any:
        rows = self._table(request).to_arrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return api.QueryTableResponse(data=sink.getvalue().to_pybytes())

    def create_table_tag(self, request: Any) -> Any:
        self._table(request).tags.create(request.tag, request.version)

    def update_table_tag(self, request: Any) -> Any:
        self._table(request).tags.update(request.tag, request.version)

    def delete_table_tag(self, request: Any) -> Any:
        self._table(request).tags.delete(request.tag)

    def get_table_tag_version(self, request: Any) -> Any:
        return api.GetTableTagVersionResponse(version=self._table(request).tags.get_version(request.tag))
