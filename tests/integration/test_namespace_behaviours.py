"""The behaviours of namespaces: ours has them in every mode, native's departures are the page, and faults are found."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance_namespace as api
import pytest
from hive_places import contents, empty

import lancekeep
from lancekeep.testing.behaviours import BEHAVIOURS, Behaviour, Capability, Contents, Open, Outcome, run_all
from lancekeep.testing.suite import NamespaceBehaviours
from servers import HIVE_JARS

DOCS = Path(__file__).parents[2] / "docs"
ABSENT_IN_V1 = {
    Capability.NAMESPACES,
    Capability.PROPERTIES,
    Capability.LOCATIONS,
    Capability.RENAME,
    Capability.TRANSACTIONS,
}
_OF_NAMESPACES = {
    *("doors/namespaces", "races/create-namespace", "races/drop-and-declare"),
    *(f"namespaces/{name}" for name in ("create-overwrite", "create-taken", "drop", "mode-spelling")),
    *("namespaces/properties", "namespaces/properties-none"),
}
IN_ROOT = {
    *_OF_NAMESPACES,
    *("namespaces/drop-skip", "namespaces/mode-unknown", "root/exists", "root/not-dropped"),
    *("register/nothing", "register/outside"),
    *(f"tables/{name}" for name in ("create-garbage", "create-orphan", "declare-orphan", "declare-root")),
    "tables/mode-unknown",
    *(
        f"namespaces/missing-{operation}"
        for operation in ("describe-namespace", "drop-namespace", "list-namespaces", "list-tables", "namespace-exists")
    ),
}
"""Behaviours of the root that need no table in it, and no namespace in another one."""
NOT_IN_DATABASE = {
    *_OF_NAMESPACES,
    *("batches/declare", "pages/namespaces", "pages/root-level", "pages/tables", "rename/namespace"),
    *("names/of-another-kind", "names/one-for-both"),
    *("namespaces/create", "namespaces/create-exist-ok", "namespaces/create-orphan"),
    *("namespaces/drop-cascade", "namespaces/drop-restrict"),
    *(
        f"names/{name}{of}"
        for name in ("dots", "hash", "percent", "plus", "question-mark", "quotes", "space", "suffix", "unicode")
        for of in ("", "-of-namespace")
    ),
}
"""Behaviours in a database that need a namespace in it, another name, or an atomic change of several entries."""
OF_ENTRIES = (
    *("all-", "batches/", "doors/", "namespaces/", "names/", "pages/", "races/", "register/", "rename/", "root/"),
    "tables/",
)
V1 = tuple(set(Capability) - ABSENT_IN_V1)


def opening(directory: Path, **properties: str) -> Open:
    given = {"root": str(directory / "lake"), "storage.fsync": "false", **properties}
    return partial(lancekeep.DirectoryNamespace, **given)


class Ours(NamespaceBehaviours):
    properties: dict[str, str]

    @pytest.fixture
    def namespace_factory(self, tmp_path: Path) -> Open:
        return opening(tmp_path, **self.properties)

    @pytest.fixture
    def namespace_contents(self, tmp_path: Path) -> Contents:
        return lambda: sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))


class TestV1(Ours):
    properties = {"manifest_enabled": "false"}  # noqa: RUF012 - nothing changes it
    capabilities = V1


class TestCompatible(Ours):
    properties = {}  # noqa: RUF012 - nothing changes it


class TestV2(Ours):
    properties = {"dir_listing_enabled": "false"}  # noqa: RUF012 - nothing changes it


class TestManaged(Ours):
    """Every version through a commit store."""

    properties = {"commit_store": "conditional-put://"}  # noqa: RUF012 - nothing changes it


class TestPostgres(Ours):
    """Entries and version rows in a database."""

    @pytest.fixture
    def namespace_factory(self, tmp_path: Path, postgres_url: str) -> Open:
        given = {"uri": f"{postgres_url}?catalog={uuid4()}", "root": str(tmp_path / "lake"), "storage.fsync": "false"}
        return partial(lancekeep.PostgresNamespace, **given)


def is_held(behaviour: Behaviour) -> bool:
    """Return whether a Hive Metastore can hold what a behaviour needs; it refuses the others as unsupported.

    Tables are in databases, databases are not nested, names have word characters in lower case, and a change of several
    entries is not atomic.
    """
    name = behaviour.id.removesuffix("@child")
    return name not in NOT_IN_DATABASE if behaviour.below else name in IN_ROOT


WITH_PROPERTIES = {"namespaces/create-overwrite", "namespaces/properties"}
"""Behaviours of namespaces with properties: a catalog of Hive has a description and a location only."""


def is_held_in_catalogs(behaviour: Behaviour) -> bool:
    """Return whether catalogs of Hive 3 can hold what a behaviour needs, which tests a catalog or a database."""
    return is_held(behaviour) or behaviour.id.removesuffix("@child") in _OF_NAMESPACES - {"races/drop-and-declare"}


class TestHive(Ours):
    """Entries in a Hive Metastore. `make soak` runs every behaviour."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Take every tenth behaviour of entries; those of rows are the same in every home."""
        of_entries = [each for each in BEHAVIOURS if each.id.startswith(OF_ENTRIES)]
        chosen = list(BEHAVIOURS) if "LANCEKEEP_ALL_CLIENTS" in os.environ else of_entries[1::10]
        metafunc.parametrize("behaviour", chosen, ids=[each.id for each in chosen])

    @pytest.fixture
    def namespace_factory(self, tmp_path: Path, hive_url: str, behaviour: Behaviour) -> Open:
        if not behaviour.below:
            empty(hive_url)
        given = {"uri": hive_url, "root": str(tmp_path / "lake"), "storage.fsync": "false"}
        return partial(lancekeep.HiveNamespace, **given)

    @pytest.fixture
    def namespace_contents(self, hive_url: str) -> Contents:
        return lambda: contents(hive_url)

    def test_behaviour(
        self, behaviour: Behaviour, namespace_factory: Open, namespace_contents: Contents | None
    ) -> None:
        if behaviour.below:  # a database that no other test has
            behaviour = attrs.evolve(behaviour, below=(f"parent_{uuid4().hex[:8]}",))
        result = behaviour.run(namespace_factory, namespace_contents)
        expected = Outcome.PASSED if is_held(behaviour) else Outcome.NOT_OFFERED
        assert result.outcome is expected, f"{result}\nspecified is: {behaviour.sentence}"


if HIVE_JARS:  # `make hive`

    class TestHiveCatalogs(TestHive):
        """Catalogs of Hive 3 or newer. Namespaces are catalogs, or databases of a new one; tables are in databases."""

        def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
            chosen = [each for each in BEHAVIOURS if each.id.startswith(OF_ENTRIES) and is_held_in_catalogs(each)]
            metafunc.parametrize("behaviour", chosen, ids=[each.id for each in chosen])

        @pytest.fixture
        def namespace_factory(self, tmp_path: Path, hive_url: str, behaviour: Behaviour) -> Open:
            if not behaviour.below:
                empty(hive_url)
            given = {"uri": hive_url, "root": str(tmp_path / "lake"), "storage.fsync": "false", "impl": "hive3"}
            return partial(lancekeep.HiveNamespace, **given)

        def test_behaviour(
            self, behaviour: Behaviour, namespace_factory: Open, namespace_contents: Contents | None
        ) -> None:
            if behaviour.below:
                parent = f"parent_{uuid4().hex[:8]}"
                in_catalog = behaviour.id.removesuffix("@child") in _OF_NAMESPACES
                behaviour = attrs.evolve(behaviour, below=(parent,) if in_catalog else ("hive", parent))
            result = behaviour.run(namespace_factory, namespace_contents)
            has_place = behaviour.below or behaviour.id not in WITH_PROPERTIES
            expected = Outcome.PASSED if has_place else Outcome.NOT_OFFERED
            assert result.outcome is expected, f"{result}\nspecified is: {behaviour.sentence}"


@pytest.mark.slow
def test_page_of_departures_matches_the_native_namespace() -> None:
    generator = runpy.run_path(str(DOCS / "namespace_departures.py"))
    page = (DOCS / "namespace-departures.md").read_text()
    assert page == generator["page"](), "run: python docs/namespace_departures.py"


def test_ids_are_unique_and_every_behaviour_has_a_sentence() -> None:
    ids = [behaviour.id for behaviour in BEHAVIOURS]
    assert len(ids) == len(set(ids))
    assert all(len(behaviour.sentence) > 10 for behaviour in BEHAVIOURS)


# -- the behaviours find faults ----------------------------------------------------------------------------------


def behaviour(name: str) -> Behaviour:
    return next(each for each in BEHAVIOURS if each.id == name)


class _Faulty(lancekeep.DirectoryNamespace):
    """Ours, with one operation that does something else: ``faults`` has it under its name."""

    faults: dict[str, Callable[..., Any]]

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        faults = object.__getattribute__(self, "__class__").faults
        return partial(faults[name], found) if name in faults else found


def _without_tokens(operation: Callable[..., Any], request: api.ListTablesRequest) -> Any:
    return operation(request).model_copy(update={"page_token": None})


def _always(operation: Callable[..., Any], *request: Any) -> Any:
    try:
        return operation(*request)
    except Exception:
        return None


def _forgets_the_mode(operation: Callable[..., Any], request: Any, *data: Any) -> Any:
    return operation(request.model_copy(update={"mode": None, "behavior": None}), *data)


def _keeps_the_data(operation: Any, request: Any) -> Any:
    return operation.__self__.deregister_table(api.DeregisterTableRequest(id=request.id))


def _raises_an_error_of_its_own(operation: Callable[..., Any], request: Any) -> Any:
    raise lancekeep.TableNotFound("not one of the interface's errors")


def _unsupported(operation: Callable[..., Any], request: Any) -> Any:
    raise NotImplementedError


FAULTS = {
    "pages/tables": ("list_tables", _without_tokens, Outcome.FAILED),
    "tables/missing-table-exists": ("table_exists", _always, Outcome.FAILED),
    "tables/declare-taken": ("declare_table", _always, Outcome.FAILED),
    "races/declare": ("declare_table", _always, Outcome.FAILED),
    "tables/create-exist-ok": ("create_table", _forgets_the_mode, Outcome.FAILED),
    "namespaces/drop-cascade": ("drop_namespace", _forgets_the_mode, Outcome.FAILED),
    "tables/drop": ("drop_table", _keeps_the_data, Outcome.FAILED),
    "tables/missing-describe-table": ("describe_table", _raises_an_error_of_its_own, Outcome.FAILED),
    "rename/name": ("rename_table", _unsupported, Outcome.NOT_OFFERED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_namespace_fails_its_behaviour(tmp_path: Path, name: str) -> None:
    operation, fault, outcome = FAULTS[name]
    kind = type("Faulty", (_Faulty,), {"faults": {operation: fault}})
    result = behaviour(name).run(partial(kind, root=str(tmp_path / "lake")))
    assert result.outcome is outcome, result


def test_reading_that_writes_is_found(tmp_path: Path) -> None:
    open_ = opening(tmp_path)
    looks = iter(range(100))
    assert behaviour("doors/reads-write-nothing").run(open_, lambda: next(looks)).outcome is Outcome.FAILED


# -- as users run it ---------------------------------------------------------------------------------------------


RUNS = """
import sys, pytest
for options in {runs!r}:
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--pyargs", "lancekeep.testing", *options])
    print("#", int(status), flush=True)
"""


def test_suite_runs_by_options_alone(tmp_path: Path) -> None:
    """One process runs all, which imports pylance once."""
    v1 = ["--lance-namespace", "lancekeep.DirectoryNamespace", "--lance-namespace-property", "manifest_enabled=false"]
    runs = [
        [*v1, "--lance-namespace-without=namespaces,properties,locations", "-k", "deregister"],
        [*v1, "--lance-namespace-without=namespaces", "-k", "rename and name"],
        [],
        ["--lance-namespace", "dir", "--lance-namespace-without", "nospaces"],
    ]
    command = [sys.executable, "-c", RUNS.format(runs=runs)]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    passed, failed, unnamed, misspelt, rest = re.split(r"^# (?=\d)", done.stdout, flags=re.MULTILINE)
    statuses = [int(each[0]) for each in (failed, unnamed, misspelt, rest)]
    assert statuses[:2] == [0, 1], done.stdout
    assert " passed" in passed
    assert "rename/name: not offered: `rename_table`: UnsupportedOperationError" in failed
    assert "specified is: RenameTable: Rename table `id` to a new name." in failed
    for refused, message in ((unnamed, "name the namespace to try"), (misspelt, "is not a valid Capability")):
        assert "1 error in" in refused
        assert message in refused


def test_the_deprecated_module_has_the_same_names() -> None:
    sys.modules.pop("lancekeep.testing.kit", None)
    with pytest.warns(DeprecationWarning, match="lancekeep.testing.behaviours"):
        kit = importlib.import_module("lancekeep.testing.kit")
    assert kit.Capability is Capability
    assert kit.run_all is run_all
