"""The table of routes is that of the specification, as the generated client has it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import lance_namespace as api
import lance_namespace_urllib3_client.api as client_api
import pytest
from lance_namespace.errors import ErrorCode

from lancekeep.adapters.rest.routes import EXTENSIONS, GET_ROUTES, LEGACY_ROUTES, READS, ROUTES, Body, Route, Router
from lancekeep.entrypoints.rest.errors import STATUS


def generated() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each operation of the generated client with what it sends."""
    for module in pkgutil.iter_modules(client_api.__path__):
        for _, kind in inspect.getmembers(importlib.import_module(f"{client_api.__name__}.{module.name}")):
            if inspect.isclass(kind) and kind.__name__.endswith("Api"):
                for name, method in vars(kind).items():
                    if found := re.fullmatch("_(.+)_serialize", name):
                        yield found[1], sent(inspect.getsource(method), inspect.getsource(getattr(kind, found[1])))


def sent(serialize: str, call: str) -> dict[str, Any]:
    def first(pattern: str, text: str = serialize) -> str:
        found = re.search(pattern, text)
        return found[1] if found else ""

    body = Body.NONE
    if first("_body_params = (_fp)"):
        body = Body.ARROW
    elif first("_body_params = (request_body)"):
        body = Body.METADATA
    elif first("_body_params = (.+)"):
        body = Body.JSON
    returned = first(r"'2\d\d': \"(\w+)", call)
    answer = {"Dict": Body.METADATA, "bytearray": Body.ARROW}.get(returned, Body.JSON if returned else Body.NONE)
    return {
        "method": first("method='(.+?)'"),
        "path": first("resource_path='(.+?)'"),
        "query": set(re.findall(r"_query_params.append\(\('(\w+)'", serialize)) - {"delimiter"},
        "body": body,
        "answer": answer,
        "status": int(first(r"'(2\d\d)'", call)),
    }


GENERATED = dict(generated())


def test_every_operation_of_the_interface_has_a_route() -> None:
    methods = {name for name, _ in inspect.getmembers(api.LanceNamespace, inspect.isfunction) if name[0] != "_"}
    assert methods - {"namespace_id", "create_empty_table"} == {route.operation for route in ROUTES}
    assert GENERATED.keys() == {route.operation for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_a_route_is_what_the_generated_client_sends(route: Route) -> None:
    ours = {
        "method": route.method,
        "path": route.path,
        "query": set(route.query),
        "body": route.body,
        "answer": route.answer,
        "status": route.status,
    }
    assert ours == GENERATED[route.operation]


@pytest.mark.parametrize("route", [*ROUTES, *LEGACY_ROUTES], ids=lambda route: route.path)
def test_the_router_finds_each_route(route: Route) -> None:
    segments = [segment.replace("{", "a/").replace("}", "") for segment in route.path.split("/")[1:]]
    match = Router((*ROUTES, *LEGACY_ROUTES)).find(segments)
    assert match is not None
    assert match.routes[route.method] is route
    assert set(match.parameters) == set(re.findall("{(.+?)}", route.path))
    assert set(match.parameters).issubset(route.kinds)


def test_a_literal_segment_has_precedence_over_an_id() -> None:
    router = Router(ROUTES)
    assert router.find(["v1", "table", "version", "batch-create"]).routes["POST"].operation == (  # type: ignore[union-attr]
        "batch_create_table_versions"
    )
    assert router.find(["v1", "table", "version", "describe"]).parameters == {"id": "version"}  # type: ignore[union-attr]
    assert router.find(["v1", "table", "a", "b", "c"]) is None


def test_every_query_parameter_is_a_field_of_the_request() -> None:
    for route in ROUTES:
        assert set(route.query).issubset(route.kinds), route.operation


def test_every_error_code_has_a_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert all(400 <= status < 600 for status in STATUS.values())


def test_reads_are_named() -> None:
    changes = {route.operation for route in ROUTES} - READS
    assert {"create_table", "drop_table", "alter_transaction", "restore_table", "batch_commit_tables"} <= changes
    assert {"query_table", "table_exists", "describe_table", "list_all_tables", "get_table_tag_version"} <= READS
    assert len(READS) == 28


def test_a_route_with_the_method_has_precedence_over_a_literal_segment() -> None:
    router = Router((*EXTENSIONS, *GET_ROUTES))
    path = ["lancekeep", "v1", "table", "batch-describe"]
    for method, operation, parameters in (
        ("POST", "describe_tables", {}),
        ("GET", "describe_table", {"id": "batch-describe"}),
    ):
        match = router.find(path, method)
        assert match is not None
        assert (match.routes[method].operation, match.parameters) == (operation, parameters)
    refused = router.find(path, "DELETE")
    assert refused is not None
    assert set(refused.routes) == {"GET", "POST"}
