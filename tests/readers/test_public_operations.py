"""Every public operation that changes something is one of the machine, or says which test judges its rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Set
from pathlib import Path

import pytest
from readers.machine import Readers
from readers.operations import OPERATIONS
from readers.public import CATALOG, FUNCTIONS, JOBS, PROCEDURES, READING, READS, ROUTES, SERVICES

import lancekeep
from lancekeep import jobs
from lancekeep.adapters.rest import routes

TESTS = Path(__file__).parents[1]


def functions_of(owner: object) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def require_all(found: Set[str], changing: Mapping[str, str], reading: Set[str], owner: str) -> None:
    missing = found - changing.keys() - reading
    assert not missing, f"{owner} has {sorted(missing)}: give each a place in tests/readers/public.py"
    gone = (changing.keys() | reading) - found
    assert not gone, f"{owner} no longer has {sorted(gone)}"


def test_every_method_of_the_catalog_has_a_place() -> None:
    require_all(functions_of(lancekeep.Catalog) - SERVICES.keys(), CATALOG, READING["catalog"], "Catalog")


@pytest.mark.parametrize("service", SERVICES)
def test_every_method_of_a_service_has_a_place(service: str, tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        methods = {
            name
            for name in functions_of(type(getattr(catalog, service)))
            if inspect.isfunction(getattr(type(getattr(catalog, service)), name))
        }
    require_all(methods, SERVICES[service], READING[service], f"catalog.{service}")


def test_every_job_has_a_place() -> None:
    functions = {name for name in jobs.__all__ if inspect.isfunction(getattr(jobs, name))}
    require_all(functions, JOBS, READING["jobs"], "lancekeep.jobs")


def test_every_function_of_the_package_has_a_place() -> None:
    functions = {name for name in lancekeep.__all__ if inspect.isfunction(getattr(lancekeep, name))}
    require_all(functions, FUNCTIONS, READING["functions"], "lancekeep")


def test_every_route_has_a_place() -> None:
    found = {route.operation for route in routes.ALL}
    require_all(found, ROUTES, routes.READS, "the server")


def test_every_procedure_has_a_place() -> None:
    from lancekeep.entrypoints.spark.sql.procedures import PROCEDURES as FOUND  # imports Spark

    require_all(set(FOUND), PROCEDURES, frozenset(), "Spark SQL")


PLACES = (CATALOG, FUNCTIONS, JOBS, PROCEDURES, ROUTES, *SERVICES.values())


@pytest.mark.parametrize("place", sorted({place for places in PLACES for place in places.values()}))
def test_place_exists(place: str) -> None:
    """A place is an operation of the machine, or names the tests that judge the rows."""
    if place == READS or place in OPERATIONS or hasattr(Readers, place):
        return
    _, _, files = place.rpartition(": ")
    for file in files.split(", "):
        assert list(TESTS.rglob(file)), f"{place!r} names neither an operation nor a test file"
