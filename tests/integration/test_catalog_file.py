"""``lancekeep export-catalog`` and ``lancekeep apply``: a catalog as a reviewed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rest_server import serving

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"about": "key"}),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("time", pa.timestamp("ns", "Europe/Paris")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("kind", pa.dictionary(pa.int16(), pa.string())),
        pa.field("deep", pa.struct([pa.field("a b", pa.list_(pa.struct([pa.field("x", pa.float16())])))])),
    ]
)


def run(*arguments: str, **how: Any) -> Result:
    return CliRunner().invoke(command, list(arguments), obj=lancekeep, **how)


def exported(lake: str) -> str:
    done = run("export-catalog", lake)
    assert done.exit_code == 0, done.output
    return done.stdout


def applied(lake: str, file: Path, *options: str) -> Result:
    return run("apply", lake, str(file), "--commit-store", "file://" + lake + "-commits", *options)


def opened(lake: Path | str) -> lancekeep.Catalog:
    return lancekeep.connect(str(lake), commit_store=f"file://{lake}-commits")


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A catalog with something of each kind."""
    with opened(tmp_path / "source") as catalog:
        catalog.initialize()
        catalog.alter_namespace("", {"owner": "lab"})
        catalog.create_namespace("ml", {"note": 'line\n"quoted" ünicode'})
        catalog.create_namespace(["ml", "v1.2"])
        catalog.write("ml.t", SCHEMA.empty_table(), properties={"team": "vision"})
        catalog.tags.create("ml.t", "first", 1)
        catalog.write(["ml", "v1.2", "a b"], pa.table({f"c{n}": pa.array([], pa.int8()) for n in range(2000)}))
        catalog.declare_table("ml.declared", {"soon": "yes"})
        catalog.protect("ml.t")
        catalog.protect("ml")
    return str(tmp_path / "source")


@pytest.fixture
def file(source: str, tmp_path: Path) -> Path:
    (tmp_path / "catalog.json").write_text(exported(source))
    return tmp_path / "catalog.json"


def test_exported_catalog_applied_to_an_empty_one_is_exported_again(source: str, file: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    done = applied(target, file, "--yes")
    assert done.exit_code == 0, done.output
    assert exported(target) == file.read_text()
    again = applied(target, file, "--yes")
    assert (again.exit_code, again.stdout) == (0, "")
    with opened(target) as catalog:
        uri = catalog.describe_table("ml.t").uri
    with opened(source) as catalog:
        assert lance.dataset(uri).schema == lance.dataset(catalog.describe_table("ml.t").uri).schema


def test_plan_changes_nothing_and_its_id_applies_it(file: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    shown = applied(target, file, "-o", "jsonl")
    assert shown.exit_code == 0
    actions = [json.loads(line)["action"] for line in shown.stdout.splitlines()]
    assert actions == [
        *("set", "create namespace", "create namespace"),
        *("declare table", "create table", "tag", "create table", "protect", "protect"),
    ]
    [plan] = [line.rsplit(" ", 1)[1].rstrip(".") for line in shown.stderr.splitlines() if "--plan" in line]
    with opened(target) as catalog:
        assert catalog.list_namespaces() == []
        catalog.create_namespace("ml")
    assert applied(target, file, "--yes", "--plan", plan).exit_code == 1
    with opened(target) as catalog:
        assert catalog.list_tables("ml") == []
        catalog.drop_namespace("ml")
    assert applied(target, file, "--yes", "--plan", plan).exit_code == 0


def test_change_between_plan_and_answer_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(tmp_path / "target")

    def changed_by_another(plan: str) -> bool:
        with opened(target) as other:
            other.create_namespace("other")
            other.create_namespace("ml")
        return True

    monkeypatch.setattr("lancekeep.entrypoints.cli.apply.agreed", changed_by_another)
    done = applied(target, file)
    assert (done.exit_code, "has changed since the plan" in done.stderr) == (1, True)
    with opened(target) as catalog:
        assert catalog.list_tables("ml") == []


def test_only_prune_removes_what_the_file_lacks(source: str, file: Path) -> None:
    with opened(source) as catalog:
        catalog.create_namespace("extra")
        catalog.create_namespace("extra.inner")
        catalog.write("extra.inner.t", pa.table({"id": [1]}))
        catalog.alter_table("ml.t", {"team": "audio", "more": "1"})
        catalog.write(
            ["ml", "v1.2", "a b"], pa.table({f"c{n}": pa.array([1], pa.int8()) for n in range(2000)}), "append"
        )
        catalog.tags.create(["ml", "v1.2", "a b"], "late", 2)
        catalog.protect(["ml", "v1.2"])
    assert applied(source, file, "--yes").exit_code == 0
    with opened(source) as catalog:
        assert catalog.find_table("ml.t").properties["team"] == "vision"
        assert catalog.find_table("ml.t").properties["more"] == "1"
        assert catalog.table_exists("extra.inner.t")
    pruned = applied(source, file, "--yes", "--prune", "-o", "jsonl")
    assert pruned.exit_code == 0, pruned.output
    assert {json.loads(line)["action"] for line in pruned.stdout.splitlines()} == {
        *("unprotect", "unset", "delete tag", "drop table", "drop namespace")
    }
    assert exported(source) == file.read_text()
    assert "undrop" in pruned.stdout
    with opened(source) as catalog:
        assert [str(each.id) for each in catalog.list_dropped()] == ["extra.inner.t"]
        assert catalog.open(["ml", "v1.2", "a b"]).count_rows() == 1


def test_prune_of_a_protected_table_drops_nothing(source: str, tmp_path: Path) -> None:
    with opened(source) as catalog:
        catalog.unprotect("ml")
        catalog.write("first", pa.table({"id": [1]}))
    (tmp_path / "empty.json").write_text('{"format": 1}')
    done = applied(source, tmp_path / "empty.json", "--yes", "--prune")
    assert (done.exit_code, "cannot drop ml.t: it is protected. " in done.stderr.replace("\n", " ")) == (1, True)
    with opened(source) as catalog:
        assert catalog.table_exists("first")
        assert catalog.list_dropped() == []


def test_plan_that_fails_says_what_was_done(tmp_path: Path) -> None:
    column = {"name": "a", "nullable": True, "type": {"type": "int64"}}
    tables = [{"name": "t", "schema": {"fields": [column, column]}}]
    (tmp_path / "file.json").write_text(json.dumps({"format": 1, "namespaces": [{"name": "n"}], "tables": tables}))
    done = applied(str(tmp_path / "target"), tmp_path / "file.json", "--yes")
    assert (done.exit_code, "1 of 2 changes were made" in done.stderr) == (2, True), done.output


def test_id_of_a_plan_depends_on_nullability_and_metadata(tmp_path: Path) -> None:
    column = {"name": "a", "nullable": True, "type": {"type": "int64"}}
    shown = set()
    for different in ({}, {"nullable": False}, {"metadata": {"about": "key"}}):
        tables = [{"name": "t", "schema": {"fields": [{**column, **different}]}}]
        (tmp_path / "file.json").write_text(json.dumps({"format": 1, "tables": tables}))
        shown.add(applied(str(tmp_path / "target"), tmp_path / "file.json").stderr)
    assert len(shown) == 3


def test_table_is_kept_although_the_file_lacks_the_property_that_keeps_it(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"format": 1}')
    assert applied(source, tmp_path / "empty.json", "--yes", "--prune").exit_code == 1  # ml is protected
    with opened(source) as catalog:
        catalog.unprotect("ml")
        catalog.unprotect("ml.t")
    assert applied(source, tmp_path / "empty.json", "--yes", "--prune").exit_code == 0
    with opened(source) as catalog:
        assert catalog.describe_namespace("").properties.keys() <= {"lancekeep.commit_store"}
        assert {str(each.id) for each in catalog.list_dropped()} == {"ml.t", "ml.v1.2.a b"}


def test_differences_that_apply_cannot_remove_are_reported(source: str, file: Path) -> None:
    document = json.loads(file.read_text())
    table = next(each for each in document["tables"] if each["name"] == "ml.t")
    table["schema"]["fields"][0]["type"]["type"] = "int32"
    table["schema"].pop("metadata", None)
    table["tags"] = {"first": 1, "later": 9}
    file.write_text(json.dumps(document))
    done = applied(source, file, "--yes")
    assert done.exit_code == 1
    assert "ml.t has other columns" in done.stderr
    assert "Left out: tag ml.t later: version 9" in done.stderr
    with opened(source) as catalog:
        assert str(catalog.open("ml.t").schema.field("id").type) == "int64"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format"),
        ({"tables": {"ml": {}}}, "of type list"),
        ({"tables": [{"name": "ml"}]}, "twice"),
        ({"tables": [{"name": ""}]}, "twice, or has no name"),
        ({"tables": [{"name": "nowhere.t"}]}, "neither in the file nor in the catalog"),
        ({"tables": [{"name": "t", "propertys": {}}]}, "propertys"),
        ({"tables": [{"name": "t", "properties": {"a": 1}}]}, "texts"),
        ({"format": True}, "format is not 1"),
        ({"tables": [{"name": "t", "protected": "yes"}]}, "bool"),
        ({"tables": [{"name": "t", "schema": {"fields": [{"name": "a", "type": {"type": "nope"}}]}}]}, "nope"),
        ({"tables": [{"name": "t", "tags": {"a": "1"}}]}, "the tag a"),
        ({"tables": [{"name": "a/../b"}]}, "contains '/'"),
        ({"tables": [{"name": 3}]}, "3"),
        ({"namespaces": [{"name": "ml"}, {"name": "ml"}]}, "twice"),
        ({"namespaces": [{"name": "ml", "schema": {}}]}, "schema"),
        ({"properties": {"lancekeep.identity": "x"}}, "lancekeep.identity"),
    ],
)
def test_malformed_file_is_refused(file: Path, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    done = applied(str(tmp_path / "target"), file, "--yes")
    assert (done.exit_code, reason in done.stderr) == (2, True), done.output


def deep_columns(levels: int) -> bytes:
    found: dict[str, Any] = {"type": "int64"}
    for _ in range(levels):
        found = {"type": "list", "fields": [{"name": "i", "nullable": True, "type": found}]}
    schema = {"fields": [{"name": "a", "nullable": True, "type": found}]}
    return json.dumps({"format": 1, "tables": [{"name": "t", "schema": schema}]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[", b"[]", b"\xff\xfe\xff", b"[" * 100_000, b"null"),
        b'{"format": 1, "namespaces": [], "namespaces": [{"name": "a"}]}',
        b'{"format": 1, "properties": {"a": "1", "a": "2"}}',
        b'{"format": 1, "properties": {"a": "\\ud800"}}',
        *map(deep_columns, (130, 300)),
    ],
)
def test_file_that_is_no_catalog_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert applied(str(tmp_path / "target"), tmp_path / "file", "--yes").exit_code == 2


def test_columns_are_not_written_into_a_declared_table(file: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with opened(target) as catalog:
        catalog.create_namespace("ml")
        catalog.declare_table("ml.t", {"team": "audio"})
    done = applied(target, file, "--yes")
    assert (done.exit_code, "ml.t is only declared" in done.stderr) == (1, True)
    with opened(target) as catalog:
        assert catalog.describe_table("ml.t").version is None
        assert catalog.find_table("ml.t").properties["team"] == "vision"


def test_table_in_place_of_a_namespace_is_refused(file: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with opened(target) as catalog:
        catalog.write("ml", pa.table({"id": [1]}))
    done = applied(target, file, "--yes")
    assert (done.exit_code, "a table in the catalog" in done.stderr) == (2, True)


def test_catalog_of_a_server_is_exported_and_applied(source: str, file: Path, tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "target"), commit_store=f"file://{tmp_path}/c")
    with serving(namespace) as front:
        uri = front.uri
        done = run("apply", uri, str(file), "--yes", input="")
        assert done.exit_code == 1, done.output
        assert "Left out: protect" not in done.stderr
        assert "Left out: set (root)" in done.stderr
        document = json.loads(file.read_text())
        del document["properties"]
        assert json.loads(exported(uri)) == document


def test_partitions_and_views_are_left_out_with_a_message(tmp_path: Path) -> None:
    with opened(tmp_path / "lake") as catalog:
        catalog.write("t", pa.table({"id": [1]}))
        definition = lancekeep.ViewDefinition.parse('{"table": ["t"]}', auto_refresh=False)
        catalog.views.create("v", definition, pa.schema([("id", pa.int64())]))
    done = run("export-catalog", str(tmp_path / "lake"))
    assert "Left out the materialized view v." in done.stderr
    assert [each["name"] for each in json.loads(done.stdout)["tables"]] == ["t"]
