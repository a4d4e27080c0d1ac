"""Behaviours of namespaces."""

from __future__ import annotations

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import ROWS, Bench, claim
from lancekeep.testing.behaviours.registry import (
    NAMESPACES,
    OPERATION_404,
    PROPERTIES,
    TAKEN,
    UNIQUE,
    Behaviours,
)

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

CREATE_MODE = "CreateNamespaceRequest.mode: Create: the operation fails with 409."
LIST_NAMESPACES = "ListNamespaces: List all child namespace names of the parent namespace `id`."


@behaviour(
    "root/exists", "Concepts: The root namespace is assumed to always exist and is ready to be connected to by a tool.",
    below_too=False,
)  # fmt: skip
def _root_exists(bench: Bench) -> None:
    bench.one.ask("namespace_exists", id=[])
    bench.one.ask("describe_namespace", id=[])
    claim(bench.tables() == [], "`list_tables` of an empty place is not empty")


@behaviour(
    "root/not-dropped",
    "Concepts: The lifecycle management (e.g. creation, deletion) of the root namespace is out of scope.",
    below_too=False,
)
def _root_not_dropped(bench: Bench) -> None:
    refusals = errors.InvalidInputError, errors.InvalidTableStateError, errors.UnsupportedOperationError
    bench.one.refused("drop_namespace", *refusals, id=[])
    bench.one.refused("create_namespace", *refusals, errors.NamespaceAlreadyExistsError, id=[])
    bench.one.ask("namespace_exists", id=[])


@behaviour("namespaces/create", LIST_NAMESPACES, NAMESPACES)
def _create_namespace(bench: Bench) -> None:
    for name in ("n", "m"):
        bench.one.ask("create_namespace", id=bench.at(name))
    bench.one.ask("create_namespace", id=bench.at("n", "deep"))
    claim(bench.namespaces() == ["m", "n"], "not exactly the children are listed")
    claim(bench.other.names("list_namespaces", id=bench.at("n")) == ["deep"], "not exactly the children are listed")
    bench.other.ask("namespace_exists", id=bench.at("n", "deep"))


@behaviour("namespaces/create-taken", CREATE_MODE, NAMESPACES)
def _create_namespace_taken(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.other.refused("create_namespace", errors.NamespaceAlreadyExistsError, id=bench.at("n"))
    bench.other.refused("create_namespace", errors.NamespaceAlreadyExistsError, id=bench.at("n"), mode="Create")


@behaviour(
    "namespaces/create-exist-ok",
    "CreateNamespaceRequest.mode: ExistOk: the operation succeeds and the existing namespace is kept.",
    NAMESPACES,
)
def _create_namespace_exist_ok(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"), mode="ExistOk")
    bench.one.ask("create_namespace", id=bench.at("n", "kept"))
    bench.other.ask("create_namespace", id=bench.at("n"), mode="ExistOk")
    claim(bench.one.names("list_namespaces", id=bench.at("n")) == ["kept"], "the existing namespace is not kept")


@behaviour(
    "namespaces/create-overwrite",
    "CreateNamespaceRequest.mode: Overwrite: the existing namespace is dropped and a new empty namespace with this "
    "name is created.",
    NAMESPACES,
    PROPERTIES,
)
def _create_namespace_overwrite(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"), properties={"old": "1"})
    bench.other.ask("create_namespace", id=bench.at("n"), mode="Overwrite", properties={"new": "2"})
    found = bench.one.ask("describe_namespace", id=bench.at("n")).properties
    claim((found or {}).items() >= {"new": "2"}.items() and "old" not in found, "the properties are not the new ones")


@behaviour(
    "namespaces/mode-spelling",
    "CreateNamespaceRequest.mode: Case insensitive, supports both PascalCase and snake_case.",
    NAMESPACES,
)
def _namespace_mode_spelling(bench: Bench) -> None:
    for mode in ("ExistOk", "exist_ok", "EXIST_OK", "existok"):
        bench.one.ask("create_namespace", id=bench.at("n"), mode=mode)


@behaviour("namespaces/mode-unknown", "CreateNamespaceRequest.mode: Valid values are: Create, ExistOk, Overwrite.",
           NAMESPACES)  # fmt: skip
def _namespace_mode_unknown(bench: Bench) -> None:
    bench.one.refused("create_namespace", errors.InvalidInputError, id=bench.at("n"), mode="Perhaps")
    claim(bench.namespaces() == [], "it is created all the same")


@behaviour(
    "namespaces/create-orphan",
    "Concepts, CreateNamespace: Create a new namespace under a parent namespace, or root namespace if parent namespace "
    "is not specified.",
    NAMESPACES,
)
def _create_namespace_orphan(bench: Bench) -> None:
    bench.one.refused("create_namespace", errors.NamespaceNotFoundError, id=bench.at("missing", "n"))


for _operation in ("namespace_exists", "describe_namespace", "list_namespaces", "list_tables", "drop_namespace"):

    @behaviour(f"namespaces/missing-{_operation.replace('_', '-')}", OPERATION_404, NAMESPACES)
    def _missing_namespace(bench: Bench, operation: str = _operation) -> None:
        bench.one.refused(operation, errors.NamespaceNotFoundError, id=bench.at("missing"))


@behaviour(
    "namespaces/properties",
    "DescribeNamespaceResponse.properties: Properties stored on the namespace, if supported by the server.",
    NAMESPACES,
    PROPERTIES,
)
def _namespace_properties(bench: Bench) -> None:
    given = {"owner": "Zoë 🦆", "empty": "", 'quo"te': "line\nbreak"}
    bench.one.ask("create_namespace", id=bench.at("n"), properties=given)
    found = bench.other.ask("describe_namespace", id=bench.at("n")).properties or {}
    claim(found.items() >= given.items(), "not what was given")


@behaviour(
    "namespaces/properties-none",
    "DescribeNamespaceResponse.properties: If namespace properties are supported, but none are set, it should return "
    "an empty object.",
    NAMESPACES,
    PROPERTIES,
)
def _namespace_properties_none(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    found = bench.other.ask("describe_namespace", id=bench.at("n")).properties
    claim(found is not None, "`describe_namespace` returns null")


@behaviour(
    "namespaces/drop", "DropNamespace: Drop namespace `id` from its parent namespace.", NAMESPACES
)  # fmt: skip
def _drop_namespace(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.one.ask("drop_namespace", id=bench.at("n"))
    bench.other.refused("namespace_exists", errors.NamespaceNotFoundError, id=bench.at("n"))
    claim(bench.namespaces() == [], "it is listed still")
    bench.other.ask("create_namespace", id=bench.at("n"))


@behaviour(
    "namespaces/drop-skip",
    "DropNamespaceRequest.mode: Skip: the server must return 204 indicating the drop operation has succeeded.",
    NAMESPACES,
)
def _drop_namespace_skip(bench: Bench) -> None:
    bench.one.ask("drop_namespace", id=bench.at("missing"), mode="Skip")


@behaviour(
    "namespaces/drop-restrict",
    "DropNamespaceRequest.behavior: Restrict (default): the namespace should not contain any table or child namespace "
    "when drop is initiated.",
    NAMESPACES,
)
def _drop_namespace_restrict(bench: Bench) -> None:
    for name in ("n", "m"):
        bench.one.ask("create_namespace", id=bench.at(name))
    bench.one.ask("create_namespace", id=bench.at("n", "child"))
    bench.one.ask("declare_table", id=bench.at("m", "t"))
    for name in ("n", "m"):
        bench.other.refused("drop_namespace", errors.NamespaceNotEmptyError, id=bench.at(name))
        bench.other.refused("drop_namespace", errors.NamespaceNotEmptyError, id=bench.at(name), behavior="Restrict")
        bench.one.ask("namespace_exists", id=bench.at(name))


@behaviour(
    "namespaces/drop-cascade",
    "DropNamespaceRequest.behavior: Cascade: all tables and child namespaces in the namespace are dropped before the "
    "namespace is dropped.",
    NAMESPACES,
)
def _drop_namespace_cascade(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.one.ask("create_namespace", id=bench.at("n", "child"))
    location = bench.one.ask("create_table", id=bench.at("n", "child", "t"), data=ROWS).location
    bench.one.ask("drop_namespace", id=bench.at("n"), behavior="Cascade")
    bench.other.refused("namespace_exists", errors.NamespaceNotFoundError, id=bench.at("n"))
    missing = (errors.NamespaceNotFoundError, errors.TableNotFoundError)
    bench.other.refused("table_exists", *missing, id=bench.at("n", "child", "t"))
    claim(bench.is_gone(location), "the rows of a table are there still")


@behaviour("names/one-for-both", UNIQUE, NAMESPACES)
def _one_name_for_both(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.other.refused("create_namespace", *TAKEN, id=bench.at("t"))
    bench.other.refused("declare_table", *TAKEN, id=bench.at("n"))
    bench.other.refused("create_table", *TAKEN, id=bench.at("n"), data=ROWS)


@behaviour("names/of-another-kind", OPERATION_404, NAMESPACES)
def _of_another_kind(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.one.ask("declare_table", id=bench.at("t"))
    for operation in ("table_exists", "describe_table", "drop_table"):
        bench.other.refused(operation, errors.TableNotFoundError, id=bench.at("n"))
    for operation in ("namespace_exists", "describe_namespace", "drop_namespace"):
        bench.other.refused(operation, errors.NamespaceNotFoundError, id=bench.at("t"))
