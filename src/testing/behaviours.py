"""The behaviours, each with the sentence of the specification that it stands for.

Sentences are those of the directory namespace specification (V2, "V2"), the namespace specification ("concepts") and
the schemas of the OpenAPI document, where they are named by the schema or operation. Of an error the class counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from lance_namespace import errors

from lancekeep.testing.kit import (
    OTHERS,
    ROWS,
    Behaviour,
    Bench,
    Capability,
    Departure,
    claim,
    directory,
    rows_at,
)

NAMESPACES, PROPERTIES, LOCATIONS, REGISTER, RENAME, VERSIONS = Capability

CREATORS = 4
"""How many race for one name."""
CHILD = ("parent",)

_TAKEN_BY_ANY = errors.TableAlreadyExistsError, errors.NamespaceAlreadyExistsError
_LOSER = *_TAKEN_BY_ANY, errors.ConcurrentModificationError
_behaviours: list[Behaviour] = []

Check = Callable[[Bench], None]


def behaviour(name: str, sentence: str, *needs: Capability, below_too: bool = True) -> Callable[[Check], Check]:
    """Enter a check, for the root and, where ``below_too``, for a namespace below it, as ``{name}@child``."""

    def enter(check: Check) -> Check:
        _behaviours.append(Behaviour(name, sentence, frozenset(needs), check))
        if below_too:
            _behaviours.append(Behaviour(f"{name}@child", sentence, frozenset((*needs, NAMESPACES)), check, CHILD))
        return check

    return enter


# -- namespaces --------------------------------------------------------------------------------------------------

CREATE_MODE = "CreateNamespaceRequest.mode: Create: the operation fails with 409."
LIST_NAMESPACES = "ListNamespaces: List all child namespace names of the parent namespace `id`."
UNIQUE = "Concepts: The name of any object must be unique among all other objects that share the same parent namespace."
OPERATION_404 = "Operations on a namespace or table `id` answer 404 where there is none."


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
    claim(bench.other.names("list_namespaces", id=bench.at()) == ["m", "n"], "not exactly the children are listed")
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
    claim(bench.other.names("list_namespaces", id=bench.at()) == [], "it is created all the same")


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
    claim(bench.other.names("list_namespaces", id=bench.at()) == [], "it is listed still")
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
    bench.other.refused("table_exists", errors.TableNotFoundError, id=bench.at("n", "child", "t"))
    claim(_is_gone(location), "the rows of a table are there still")


@behaviour("names/one-for-both", UNIQUE, NAMESPACES)
def _one_name_for_both(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.other.refused("create_namespace", *_TAKEN_BY_ANY, id=bench.at("t"))
    bench.other.refused("declare_table", *_TAKEN_BY_ANY, id=bench.at("n"))
    bench.other.refused("create_table", *_TAKEN_BY_ANY, id=bench.at("n"), data=ROWS)


@behaviour("names/of-another-kind", OPERATION_404, NAMESPACES)
def _of_another_kind(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.one.ask("declare_table", id=bench.at("t"))
    for operation in ("table_exists", "describe_table", "drop_table"):
        bench.other.refused(operation, errors.TableNotFoundError, id=bench.at("n"))
    for operation in ("namespace_exists", "describe_namespace", "drop_namespace"):
        bench.other.refused(operation, errors.NamespaceNotFoundError, id=bench.at("t"))


# -- names -------------------------------------------------------------------------------------------------------

NAMES = {
    "space": "a b",
    "dots": "a.b..c",
    "unicode": "Zoë 中文 🦆",
    "percent": "per%cent %20",
    "hash": "ha#sh",
    "question-mark": "que?ry=1&x",
    "plus": "a+b;c:d",
    "quotes": "'a' \"b\"",
    "suffix": "t.lance",
}

for _kind, _name in NAMES.items():

    @behaviour(f"names/{_kind}", "Concepts: The name of an object is a string that uniquely identifies the object "
               "within the parent namespace it belongs to.")  # fmt: skip
    def _any_name(bench: Bench, name: str = _name) -> None:
        created = bench.create(name).location
        bench.create("other", OTHERS)
        claim(bench.tables() == sorted((name, "other")), "`list_tables` does not show the name")
        claim(bench.rows(name) == [1, 2, 3], "other rows at the location")
        written = bench.tables(include_declared=False)
        claim(written == sorted((name, "other")), "`list_tables` without declared tables does not show the name")
        bench.one.ask("drop_table", id=bench.at(name))
        claim(bench.tables() == ["other"], "`drop_table` leaves the name")
        claim(_is_gone(created), "`drop_table` leaves the rows")
        claim(bench.rows("other") == [4], "`drop_table` takes another table's rows")

    @behaviour(f"names/{_kind}-of-namespace", "Concepts: The name of an object is a string that uniquely identifies "
               "the object within the parent namespace it belongs to.", NAMESPACES)  # fmt: skip
    def _any_name_of_namespace(bench: Bench, name: str = _name) -> None:
        bench.one.ask("create_namespace", id=bench.at(name))
        bench.one.ask("create_table", id=bench.at(name, "t"), data=ROWS)
        claim(bench.other.names("list_namespaces", id=bench.at()) == [name], "`list_namespaces` does not show the name")
        claim(bench.rows(name, "t") == [1, 2, 3], "other rows at the location")


# -- declaring and creating tables -------------------------------------------------------------------------------

DECLARED = (
    "ListTablesRequest.include_declared: When true (default), includes tables that have been declared in the "
    "namespace but not yet created on storage. When false, only tables with storage components are returned."
)
TABLE_MODE = "CreateTableRequest.mode: Create: the operation fails with 409."
EXISTENCE = (
    "TableExists: a table exists if it has Lance data versions, or a `.lance-reserved` file exists in the table "
    "directory."
)


@behaviour("tables/declare", DECLARED)
def _declare(bench: Bench) -> None:
    claim(bench.one.ask("declare_table", id=bench.at("d")).location, "`declare_table` names no location")
    bench.create("t")
    claim(bench.tables() == ["d", "t"], "`list_tables` does not show it")
    claim(bench.tables(include_declared=True) == ["d", "t"], "`list_tables` does not show it when asked to")
    claim(bench.tables(include_declared=False) == ["t"], "`list_tables` without declared tables shows others")
    bench.other.ask("table_exists", id=bench.at("d"))


@behaviour("tables/check-declared", "DescribeTableRequest.check_declared: When true, the response should populate "
           "`is_only_declared`.")  # fmt: skip
def _check_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("d"))
    bench.create("t")
    for name, only in (("d", True), ("t", False)):
        described = bench.other.ask("describe_table", id=bench.at(name), check_declared=True)
        claim(described.is_only_declared is only, f"`is_only_declared` is {described.is_only_declared}, not {only}")


@behaviour(
    "tables/unchecked",
    "DescribeTableRequest.check_declared: When false, the implementation should return null for `is_only_declared`.",
)
def _not_checked(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("d"))
    described = bench.other.ask("describe_table", id=bench.at("d"))
    claim(described.is_only_declared is None, f"`is_only_declared` is {described.is_only_declared}")


@behaviour("tables/declare-taken", UNIQUE)
def _declare_taken(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("d"))
    bench.create("t")
    for name in ("d", "t"):
        bench.other.refused("declare_table", errors.TableAlreadyExistsError, id=bench.at(name))
    claim(bench.rows("t") == [1, 2, 3], "the rows of the table are gone")


@behaviour("tables/declare-root", "Concepts: The root namespace itself has no name or identifier.", below_too=False)
def _declare_root(bench: Bench) -> None:
    bench.one.refused("declare_table", errors.InvalidInputError, id=[])


ORPHAN = "DeclareTable, CreateTable: 404 where the parent namespace does not exist."


@behaviour("tables/declare-orphan", ORPHAN, NAMESPACES)
def _declare_orphan(bench: Bench) -> None:
    bench.one.refused("declare_table", errors.NamespaceNotFoundError, id=bench.at("missing", "t"))


@behaviour("tables/create-orphan", ORPHAN, NAMESPACES)
def _create_orphan(bench: Bench) -> None:
    bench.one.refused("create_table", errors.NamespaceNotFoundError, id=bench.at("missing", "t"), data=ROWS)


@behaviour("tables/declare-location", "DeclareTableRequest.location: Optional storage location for the table.",
           LOCATIONS)  # fmt: skip
def _declare_location(bench: Bench) -> None:
    declared = bench.one.ask("declare_table", id=bench.at("d"), location="chosen").location
    claim(directory(declared) == "chosen", "it is declared elsewhere")
    claim(bench.other.ask("describe_table", id=bench.at("d")).location == declared, "it is described elsewhere")


@behaviour("tables/create", "CreateTable: Create table `id` in the namespace with the given data in Arrow IPC stream.")
def _create(bench: Bench) -> None:
    created = bench.create("t")
    claim(created.version == 1, f"`create_table` answers version {created.version}")
    described = bench.other.ask("describe_table", id=bench.at("t"))
    claim(described.location == created.location, "`create_table` and `describe_table` disagree about the location")
    claim(bench.rows("t") == [1, 2, 3], "other rows at the location")
    bench.other.ask("table_exists", id=bench.at("t"))


@behaviour("tables/create-empty", "CreateTable: If the stream is empty, the API creates a new empty table.")
def _create_empty(bench: Bench) -> None:
    bench.create("t", ROWS.slice(0, 0))
    claim(bench.rows("t") == [], "there are rows")


@behaviour("tables/create-garbage", "CreateTable: The schema of the Arrow IPC stream is used as the table schema.")
def _create_garbage(bench: Bench) -> None:
    bench.one.refused("create_table", errors.InvalidInputError, id=bench.at("t"), data=b"no Arrow IPC stream")
    claim(bench.tables() == [], "a table is left behind")


@behaviour("tables/create-taken", TABLE_MODE)
def _create_taken(bench: Bench) -> None:
    bench.create("t")
    for mode in (None, "Create", "create"):
        refused = errors.TableAlreadyExistsError
        bench.other.refused("create_table", refused, id=bench.at("t"), data=OTHERS, mode=mode)
    claim(bench.rows("t") == [1, 2, 3], "the rows are changed all the same")


@behaviour("tables/create-declared", EXISTENCE)
def _create_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.other.refused("create_table", errors.TableAlreadyExistsError, id=bench.at("t"), data=ROWS)


@behaviour("tables/write-declared", "DescribeTableResponse.location: Table storage location.")
def _write_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.create("t", mode="Overwrite")
    claim(bench.rows("t") == [1, 2, 3], "other rows at the location")
    claim(bench.tables(include_declared=False) == ["t"], "it counts as declared still")


@behaviour("tables/create-exist-ok", "CreateTableRequest.mode: ExistOk: the operation succeeds and the existing table "
           "is kept.")  # fmt: skip
def _create_exist_ok(bench: Bench) -> None:
    bench.create("t", mode="ExistOk")
    bench.create("t", OTHERS, mode="ExistOk")
    claim(bench.rows("t") == [1, 2, 3], "the existing table is not kept")


@behaviour("tables/create-overwrite", "CreateTableRequest.mode: Overwrite: the existing table is dropped and a new "
           "table with this name is created.")  # fmt: skip
def _create_overwrite(bench: Bench) -> None:
    bench.create("t")
    bench.create("t", OTHERS, mode="Overwrite")
    claim(bench.rows("t") == [4], "the rows are not the new ones")
    claim(bench.tables() == ["t"], "`list_tables` does not show it once")


@behaviour("tables/mode-spelling", "CreateTableRequest.mode: Case insensitive, supports both PascalCase and "
           "snake_case.")  # fmt: skip
def _table_mode_spelling(bench: Bench) -> None:
    for mode in ("ExistOk", "exist_ok", "EXIST_OK", "existok"):
        bench.create("t", mode=mode)


@behaviour("tables/mode-unknown", "CreateTableRequest.mode: Valid values are: Create, ExistOk, Overwrite.")
def _table_mode_unknown(bench: Bench) -> None:
    bench.one.refused("create_table", errors.InvalidInputError, id=bench.at("t"), data=ROWS, mode="Perhaps")
    claim(bench.tables() == [], "it is created all the same")


@behaviour("tables/properties", "DescribeTableResponse.properties: Properties stored on the table, if supported by the "
           "server.", PROPERTIES)  # fmt: skip
def _table_properties(bench: Bench) -> None:
    given = {"owner": "Zoë 🦆", "empty": "", 'quo"te': "line\nbreak"}
    bench.one.ask("declare_table", id=bench.at("d"), properties=given)
    bench.create("t", properties=given)
    for name in ("d", "t"):
        found = bench.other.ask("describe_table", id=bench.at(name)).properties or {}
        claim(found.items() >= given.items(), "not what was given")


@behaviour("tables/properties-none", "DescribeTableResponse.properties: If table properties are supported, but none "
           "are set, it should return an empty object.", PROPERTIES)  # fmt: skip
def _table_properties_none(bench: Bench) -> None:
    bench.create("t")
    claim(bench.other.ask("describe_table", id=bench.at("t")).properties is not None, "`describe_table` returns null")


# -- looking at tables -------------------------------------------------------------------------------------------

for _operation in ("table_exists", "describe_table", "drop_table", "deregister_table"):

    @behaviour(
        f"tables/missing-{_operation.replace('_', '-')}",
        OPERATION_404,
        *([REGISTER] if _operation == "deregister_table" else []),
    )
    def _missing_table(bench: Bench, operation: str = _operation) -> None:
        bench.create("t")
        bench.one.refused(operation, errors.TableNotFoundError, id=bench.at("missing"))


DETAILED = (
    "DescribeTableRequest.load_detailed_metadata: When true, the response must include all detailed metadata such as "
    "`version`, `schema`, and `stats` which require reading the dataset."
)


@behaviour("tables/describe-detailed", DETAILED)
def _describe_detailed(bench: Bench) -> None:
    bench.create("t")
    described = bench.other.ask("describe_table", id=bench.at("t"), load_detailed_metadata=True)
    claim(described.version == 1, f"`version` is {described.version}")
    claim((described.table, described.namespace) == ("t", bench.at()), "`table` and `namespace` are not the table's")
    claim(described.var_schema is not None, "`schema` is null")
    claim([field.name for field in described.var_schema.fields] == ["a"], "`schema` is not the table's")
    claim(described.stats is not None, "`stats` is null")


@behaviour("tables/describe-uri", "DescribeTableResponse.table_uri: this field must be a complete and valid URI.")
def _describe_uri(bench: Bench) -> None:
    bench.create("t")
    uri = bench.other.ask("describe_table", id=bench.at("t"), with_table_uri=True).table_uri
    claim(uri, "`table_uri` is null")
    claim("://" in uri, "`table_uri` is a path")
    claim(rows_at(uri) == [1, 2, 3], "other rows at the URI")


@behaviour("tables/version", "DescribeTableRequest.version: Version of the table to describe.")
def _describe_version(bench: Bench) -> None:
    bench.create("t")
    bench.create("t", OTHERS, mode="Overwrite")
    for version in (1, 2):
        described = bench.other.ask("describe_table", id=bench.at("t"), version=version, load_detailed_metadata=True)
        claim(described.version == version, "another version is described")


@behaviour("tables/version-missing", "DescribeTable, TableExists: 404 where the version does not exist.")
def _version_missing(bench: Bench) -> None:
    bench.create("t")
    for operation in ("describe_table", "table_exists"):
        bench.other.ask(operation, id=bench.at("t"), version=1)
        bench.other.refused(operation, errors.TableVersionNotFoundError, id=bench.at("t"), version=7)


@behaviour("tables/tag-and-version", "DescribeTableRequest.tag: Cannot be used together with `version` or `branch`.")
def _tag_and_version(bench: Bench) -> None:
    bench.create("t")
    bench.other.refused("describe_table", errors.InvalidInputError, id=bench.at("t"), version=1, tag="x")


LIST_VERSIONS = "ListTableVersions: List all versions (commits) of table `id` with their metadata."


@behaviour("versions/list", LIST_VERSIONS, VERSIONS)
def _list_versions(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("create_table", id=bench.at("t"), data=OTHERS, mode="Overwrite")
    listed = bench.other.ask("list_table_versions", id=bench.at("t"), descending=True).versions
    claim([version.version for version in listed] == [2, 1], "not every version, or not from latest to oldest")
    latest = bench.other.ask("list_table_versions", id=bench.at("t"), descending=True, limit=1)
    claim([version.version for version in latest.versions] == [2], "with a limit of 1 not the latest")
    claim(latest.page_token, "with a limit of 1 there is no page token")


@behaviour("versions/describe", "DescribeTableVersion: Returns the manifest path and metadata for the specified "
           "version.", VERSIONS)  # fmt: skip
def _describe_table_version(bench: Bench) -> None:
    bench.create("t")
    described = bench.other.ask("describe_table_version", id=bench.at("t"), version=1).version
    claim(described.version == 1 and described.manifest_path, "no manifest path")


@behaviour("versions/missing", OPERATION_404, VERSIONS)
def _versions_missing(bench: Bench) -> None:
    bench.create("t")
    absent = errors.TableVersionNotFoundError
    bench.other.refused("list_table_versions", errors.TableNotFoundError, id=bench.at("missing"))
    bench.other.refused("describe_table_version", absent, id=bench.at("t"), version=7)


# -- how tables go -----------------------------------------------------------------------------------------------


@behaviour("tables/drop", "DropTable: Drop table `id` and delete its data.")
def _drop(bench: Bench) -> None:
    location = bench.create("t").location
    bench.other.ask("drop_table", id=bench.at("t"))
    claim(bench.tables() == [], "`list_tables` shows it still")
    bench.one.refused("table_exists", errors.TableNotFoundError, id=bench.at("t"))
    claim(_is_gone(location), "the rows are there still")


@behaviour("tables/drop-declared", "DropTable: Drop table `id` and delete its data.")
def _drop_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.other.ask("drop_table", id=bench.at("t"))
    bench.one.refused("table_exists", errors.TableNotFoundError, id=bench.at("t"))
    bench.one.ask("declare_table", id=bench.at("t"))


@behaviour(
    "tables/drop-and-create",
    "V2: High entropy prevents issues when a table is created, deleted, and recreated with the same name in quick "
    "succession.",
)
def _drop_and_create(bench: Bench) -> None:
    for _ in range(3):
        bench.create("t")
        bench.other.ask("drop_table", id=bench.at("t"))
        claim(bench.create("t", OTHERS).version == 1, "the new table has the old one's versions")
        claim(bench.rows("t") == [4], "other rows at the location")
        bench.other.ask("drop_table", id=bench.at("t"))


DEREGISTER = "DeregisterTableRequest: The table content remains available in the storage."


@behaviour("register/deregister", DEREGISTER, REGISTER)
def _deregister(bench: Bench) -> None:
    location = bench.deregistered("t")
    for operation in ("table_exists", "describe_table", "drop_table"):
        bench.other.refused(operation, errors.TableNotFoundError, id=bench.at("t"))
    claim(bench.tables() == [], "`list_tables` shows it still")
    claim(rows_at(location) == [1, 2, 3], "the rows are gone")


@behaviour("register/name-is-free", DEREGISTER, REGISTER, LOCATIONS)
def _name_is_free(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.create("t", OTHERS)
    claim(bench.rows("t") == [4], "other rows at the location")
    claim(bench.tables() == ["t"], "`list_tables` does not show it once")
    claim(bench.one.ask("describe_table", id=bench.at("t")).location == location or rows_at(location) == [1, 2, 3],
          "the rows of the deregistered table are gone")  # fmt: skip


REGISTER_TABLE = "RegisterTable: Register an existing table at a given storage location as `id`."


@behaviour("register/again", REGISTER_TABLE, REGISTER)
def _register_again(bench: Bench) -> None:
    location = bench.deregistered("t")
    registered = bench.one.ask("register_table", id=bench.at("t"), location=directory(location))
    claim(directory(registered.location) == directory(location), "it is registered elsewhere")
    claim(bench.rows("t") == [1, 2, 3], "other rows at the location")
    claim(bench.tables() == ["t"], "`list_tables` does not show it")


@behaviour("register/answered-location", REGISTER_TABLE, REGISTER)
def _register_answered_location(bench: Bench) -> None:
    bench.one.ask("register_table", id=bench.at("t"), location=bench.deregistered("t"))
    claim(bench.rows("t") == [1, 2, 3], "other rows at the location")


@behaviour("register/as-another", REGISTER_TABLE, REGISTER, LOCATIONS)
def _register_as_another(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.one.ask("register_table", id=bench.at("u"), location=directory(location))
    claim(bench.rows("u") == [1, 2, 3], "other rows at the location")
    claim(bench.tables() == ["u"], "`list_tables` does not show exactly the new name")


@behaviour("register/taken", "RegisterTableRequest.mode: Create (default): the operation fails with 409.", REGISTER,
           LOCATIONS)  # fmt: skip
def _register_taken(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.create("u", OTHERS)
    taken = errors.TableAlreadyExistsError
    bench.other.refused("register_table", taken, id=bench.at("u"), location=directory(location))
    claim(bench.rows("u") == [4], "it is registered all the same")


@behaviour("register/overwrite", "RegisterTableRequest.mode: Overwrite: the existing table registration is replaced "
           "with the new registration.", REGISTER, LOCATIONS)  # fmt: skip
def _register_overwrite(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.create("u", OTHERS)
    bench.other.ask("register_table", id=bench.at("u"), location=directory(location), mode="Overwrite")
    claim(bench.rows("u") == [1, 2, 3], "the existing registration stays")


@behaviour("register/nothing", REGISTER_TABLE, REGISTER, LOCATIONS)
def _register_nothing(bench: Bench) -> None:
    refusals = errors.TableNotFoundError, errors.InvalidInputError
    bench.one.refused("register_table", *refusals, id=bench.at("t"), location="nothing-is-here")


@behaviour("register/of-another", "Concepts: The identifier of an object uniquely identifies the object.", REGISTER,
           LOCATIONS)  # fmt: skip
def _register_of_another(bench: Bench) -> None:
    location = directory(bench.create("t").location)
    refusals = errors.InvalidInputError, errors.TableAlreadyExistsError, errors.InvalidTableStateError
    bench.other.refused("register_table", *refusals, id=bench.at("u"), location=location)


@behaviour("register/outside", "V2, location: Relative path to the table directory within the root.", REGISTER,
           LOCATIONS)  # fmt: skip
def _register_outside(bench: Bench) -> None:
    for location in ("../outside", "a/../../outside", "/outside"):
        bench.one.refused("register_table", errors.InvalidInputError, id=bench.at("t"), location=location)


@behaviour("rename/name", "RenameTable: Rename table `id` to a new name.", RENAME)
def _rename(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("rename_table", id=bench.at("t"), new_table_name="u")
    claim(bench.tables() == ["u"], "`list_tables` does not show exactly the new name")
    claim(bench.rows("u") == [1, 2, 3], "other rows at the location")
    bench.other.refused("table_exists", errors.TableNotFoundError, id=bench.at("t"))
    bench.create("t", OTHERS)
    claim(bench.rows("u") == [1, 2, 3], "the old name's new table has taken the rows")


@behaviour("rename/namespace", "RenameTableRequest.new_namespace_id: New namespace identifier to move the table to "
           "(optional, if not specified the table stays in the same namespace).", RENAME, NAMESPACES)  # fmt: skip
def _rename_elsewhere(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.create("t")
    bench.one.ask("rename_table", id=bench.at("t"), new_table_name="u", new_namespace_id=bench.at("n"))
    claim(bench.tables() == [], "`list_tables` shows it still")
    claim(bench.rows("n", "u") == [1, 2, 3], "other rows at the location")


@behaviour("rename/refused", "RenameTable: 404 and 409.", RENAME, NAMESPACES)
def _rename_refused(bench: Bench) -> None:
    bench.create("t")
    bench.create("u", OTHERS)
    rename = "rename_table"
    bench.one.refused(rename, errors.TableNotFoundError, id=bench.at("missing"), new_table_name="x")
    bench.one.refused(rename, errors.TableAlreadyExistsError, id=bench.at("t"), new_table_name="u")
    nowhere = bench.at("missing")
    bench.one.refused(
        rename, errors.NamespaceNotFoundError, id=bench.at("t"), new_table_name="x", new_namespace_id=nowhere
    )
    claim((bench.rows("t"), bench.rows("u")) == ([1, 2, 3], [4]), "the tables are not what they were")


# -- pages -------------------------------------------------------------------------------------------------------

PAGES = (
    "PageToken: if there are more items than the page limit specified in the request, the implementation must return "
    "a page token in the response."
)
SOME = ["a", "a-b", "b", "ä", "z", "🦆", "Z"]


@behaviour("pages/tables", PAGES)
def _pages_of_tables(bench: Bench) -> None:
    for name in SOME:
        bench.one.ask("declare_table", id=bench.at(name))
    for limit in range(1, len(SOME) + 2):
        found = list(chain.from_iterable(bench.other.pages("list_tables", limit, id=bench.at())))
        claim(sorted(found) == sorted(SOME), "the pages together are not the list")


@behaviour("pages/namespaces", PAGES, NAMESPACES)
def _pages_of_namespaces(bench: Bench) -> None:
    for name in SOME:
        bench.one.ask("create_namespace", id=bench.at(name))
    for limit in range(1, len(SOME) + 2):
        found = list(chain.from_iterable(bench.other.pages("list_namespaces", limit, id=bench.at())))
        claim(sorted(found) == sorted(SOME), "the pages together are not the list")


@behaviour("pages/written", DECLARED)
def _pages_of_written_tables(bench: Bench) -> None:
    for name in ("a", "c", "e"):
        bench.one.ask("declare_table", id=bench.at(name))
    for name in ("b", "d", "f"):
        bench.create(name)
    for limit in (1, 2, 3):
        pages = bench.other.pages("list_tables", limit, id=bench.at(), include_declared=False)
        claim(sorted(chain.from_iterable(pages)) == ["b", "d", "f"], "the pages together are not the list")


@behaviour("pages/changes-between", PAGES)
def _pages_beside_changes(bench: Bench) -> None:
    names = [f"t{number}" for number in range(1, 6)]
    for name in names:
        bench.one.ask("declare_table", id=bench.at(name))
    found = []
    for number, page in enumerate(bench.other.pages("list_tables", 1, id=bench.at())):
        found += page
        if number < 3:
            bench.one.ask("declare_table", id=bench.at(f"t{number}0"))
    claim(set(names) <= set(found), "what was there all the time is left out")
    claim(len(found) == len(set(found)), "something is listed twice")


@behaviour("pages/limit-0", "PageLimit: An inclusive upper bound of the number of results that a caller will receive.")
def _limit_of_nothing(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    try:
        page = bench.other.attempt("list_tables", id=bench.at(), limit=0)
    except errors.InvalidInputError:
        return
    except Exception as error:
        raise Departure(f"`list_tables`: {type(error).__name__}") from error
    claim(not page.tables, "more than the limit")
    claim(page.page_token, "an empty page without a token, as if nothing were there")


@behaviour("pages/root-level", "ListTables: List all child table names of the parent namespace `id`.", NAMESPACES)
def _only_children(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.create("t")
    bench.one.ask("declare_table", id=bench.at("n", "below"))
    claim(bench.tables() == ["t"], "not exactly the child tables are listed")
    claim(bench.other.names("list_tables", id=bench.at("n")) == ["below"], "not exactly the child tables are listed")


@behaviour("all-tables/list", "ListAllTables: List all tables across all namespaces.", below_too=False)
def _all_tables(bench: Bench) -> None:
    for name in ("b", "a"):
        bench.create(name)
    claim(bench.other.names("list_all_tables") == ["a", "b"], "not every table")


@behaviour(
    "all-tables/nested",
    "ListTablesResponse.tables: This should recursively list all the tables in all child namespaces. Each string in "
    "the list is the full identifier in string form.",
    NAMESPACES,
    below_too=False,
)
def _all_tables_nested(bench: Bench) -> None:
    for names in (["n"], ["n", "m"]):
        bench.one.ask("create_namespace", id=names)
    for names in (["t"], ["n", "t"], ["n", "m", "t"]):
        bench.one.ask("create_table", id=names, data=ROWS)
    expected = sorted(("t", "n$t", "n$m$t"))
    claim(bench.other.names("list_all_tables") == expected, "not every table by its full identifier")
    for limit in (1, 2, 3, 4):
        found = list(chain.from_iterable(bench.other.pages("list_all_tables", limit)))
        claim(sorted(found) == expected, "the pages together are not the list")


# -- two doors, and races ----------------------------------------------------------------------------------------

FRESH = "V2: Table discovery queries the manifest table. V1: discovers tables by scanning the directory."
ATOMIC = (
    "V2, Manifest Table Commits: it must atomically check if the table already exists such entry, as well as if any "
    "concurrent operation writes the same entry, and fail the operation accordingly if such conflict exists."
)


@behaviour("doors/tables", FRESH)
def _fresh_tables(bench: Bench) -> None:
    claim(bench.tables() == [], "`list_tables` of an empty place is not empty")
    bench.create("t")
    claim(bench.tables() == ["t"], "a table that was created is not listed")
    bench.other.ask("table_exists", id=bench.at("t"))
    bench.other.ask("drop_table", id=bench.at("t"))
    bench.one.refused("describe_table", errors.TableNotFoundError, id=bench.at("t"))
    bench.create("t", OTHERS)
    claim(bench.rows("t") == [4], "a table that was dropped and created is described as it was before")


@behaviour("doors/namespaces", FRESH, NAMESPACES)
def _fresh_namespaces(bench: Bench) -> None:
    claim(bench.other.names("list_namespaces", id=bench.at()) == [], "`list_namespaces` of an empty place is not empty")
    bench.one.ask("create_namespace", id=bench.at("n"))
    claim(bench.other.names("list_namespaces", id=bench.at()) == ["n"], "a namespace that was created is not listed")
    bench.other.ask("drop_namespace", id=bench.at("n"))
    bench.one.refused("describe_namespace", errors.NamespaceNotFoundError, id=bench.at("n"))


@behaviour("doors/reads-write-nothing", "TableExists: Check if table `id` exists.")
def _reads_write_nothing(bench: Bench) -> None:
    if bench.contents is None:
        return  # the place cannot be looked at
    for filled in (False, True):
        if filled:
            bench.create("t")
        before = bench.contents()
        for operation in ("list_tables", "describe_namespace", "namespace_exists"):
            bench.other.ask(operation, id=bench.at())
        bench.other.ask("list_all_tables")
        bench.other.refused("describe_table", errors.TableNotFoundError, id=bench.at("missing"))
        if filled:
            bench.other.ask("table_exists", id=bench.at("t"))
            bench.other.ask("describe_table", id=bench.at("t"), check_declared=True, load_detailed_metadata=True)
        claim(bench.contents() == before, "looking has changed what is stored")


@behaviour("races/declare", ATOMIC)
def _race_to_declare(bench: Bench) -> None:
    for number in range(3):
        _one_winner(bench, *[("declare_table", {"id": bench.at(f"t{number}")})] * CREATORS)
    claim(bench.tables() == ["t0", "t1", "t2"], "`list_tables` does not show each once")


@behaviour("races/create", ATOMIC)
def _race_to_create(bench: Bench) -> None:
    for number in range(3):
        _one_winner(bench, *[("create_table", {"id": bench.at(f"t{number}"), "data": ROWS})] * CREATORS)
        claim(bench.rows(f"t{number}") == [1, 2, 3], "the rows of more than one creator, or of none")


@behaviour("races/create-namespace", ATOMIC, NAMESPACES)
def _race_to_create_namespaces(bench: Bench) -> None:
    for number in range(3):
        _one_winner(bench, *[("create_namespace", {"id": bench.at(f"n{number}")})] * CREATORS)
    claim(bench.other.names("list_namespaces", id=bench.at()) == ["n0", "n1", "n2"], "each is not listed once")


@behaviour("races/different-names", ATOMIC)
def _race_for_different_names(bench: Bench) -> None:
    names = [f"t{number}" for number in range(CREATORS)]
    answers = bench.race(*(("declare_table", {"id": bench.at(name)}) for name in names))
    lost = [answer for answer in answers if isinstance(answer, Exception)]
    claim(not lost, "one who wants a name of its own is refused")
    claim(bench.tables() == names, "not every table is listed")


@behaviour("races/drop-and-declare", UNIQUE, NAMESPACES)
def _race_of_drop_and_declare(bench: Bench) -> None:
    for number in range(3):
        name = f"n{number}"
        bench.one.ask("create_namespace", id=bench.at(name))
        bench.race(
            ("drop_namespace", {"id": bench.at(name)}),
            ("declare_table", {"id": bench.at(name, "t")}),
        )
        exists = name in bench.other.names("list_namespaces", id=bench.at())
        if not exists:
            bench.one.ask("create_namespace", id=bench.at(name))
            found = bench.other.names("list_tables", id=bench.at(name))
            claim(found == [], "a table has outlived its namespace")


def _one_winner(bench: Bench, *calls: tuple[str, Any]) -> None:
    answers = bench.race(*calls)
    lost = [answer for answer in answers if isinstance(answer, Exception)]
    operation = calls[0][0]
    strange = sorted({type(error).__name__ for error in lost if not isinstance(error, _LOSER)})
    claim(not strange, f"losers of `{operation}` are told {', '.join(strange)}")
    claim(len(answers) - len(lost) == 1, f"not exactly one `{operation}` wins")


def _is_gone(location: str) -> bool:
    try:
        rows_at(location)
    except Departure:
        return True
    return False


BEHAVIOURS: Sequence[Behaviour] = tuple(_behaviours)
