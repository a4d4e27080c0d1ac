"""Behaviours of names, and of tables that are declared, created and described."""

from __future__ import annotations

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, ROWS, Bench, claim, directory
from lancekeep.testing.behaviours.registry import (
    DECLARED,
    LOCATIONS,
    NAMESPACES,
    OPERATION_404,
    PROPERTIES,
    REGISTER,
    UNIQUE,
    VERSIONS,
    Behaviours,
)

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

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
        claim(bench.is_gone(created), "`drop_table` leaves the rows")
        claim(bench.rows("other") == [4], "`drop_table` takes another table's rows")

    @behaviour(f"names/{_kind}-of-namespace", "Concepts: The name of an object is a string that uniquely identifies "
               "the object within the parent namespace it belongs to.", NAMESPACES)  # fmt: skip
    def _any_name_of_namespace(bench: Bench, name: str = _name) -> None:
        bench.one.ask("create_namespace", id=bench.at(name))
        bench.one.ask("create_table", id=bench.at(name, "t"), data=ROWS)
        claim(bench.namespaces() == [name], "`list_namespaces` does not show the name")
        claim(bench.rows(name, "t") == [1, 2, 3], "other rows at the location")


# -- declaring and creating tables -------------------------------------------------------------------------------

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


# -- describing tables --------------------------------------------------------------------------------------------

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
    claim(bench.rows_at(uri) == [1, 2, 3], "other rows at the URI")


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
