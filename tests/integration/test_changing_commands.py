"""The commands that change tables and namespaces, and copy rows from and to files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command

ROWS = pa.table({"id": [1, 2, 3], "name": ["ada", None, "cy"]})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEKEEP_ROOT", "lake")
    return tmp_path


def invoke(line: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(command, line.split(), obj=lancekeep, input=stdin)


def done(line: str, stdin: bytes | None = None) -> Result:
    result = invoke(line, stdin)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result


def rows_of(name: str) -> list[dict[str, object]]:
    """Read the rows with plain pylance."""
    with lancekeep.connect() as catalog:
        uri = catalog.describe_table(name).uri
    rows: list[dict[str, object]] = lance.dataset(uri).to_table().to_pylist()
    return rows


# -- entries -------------------------------------------------------------------------------------------------------


def test_namespace_and_table_are_created_with_properties() -> None:
    done("create ml --namespace --property owner=vision")
    done("create ml.t --column id=int64 --column v=float[4] --column at=timestamp[us] --property source=camera")
    with lancekeep.connect() as catalog:
        assert catalog.describe_namespace("ml").properties["owner"] == "vision"
        assert catalog.describe_table("ml.t").properties == {"source": "camera"}
        schema = catalog.open("ml.t").schema
    assert schema == pa.schema({"id": pa.int64(), "v": pa.list_(pa.float32(), 4), "at": pa.timestamp("us")})


def test_properties_are_set_and_removed() -> None:
    done("create ml --namespace")
    done("create ml.t --column id=int64")
    done("set ml.t a=b=c d=e")
    done("set ml owner=ada")
    done("unset ml.t d")
    with lancekeep.connect() as catalog:
        assert catalog.describe_table("ml.t").properties == {"a": "b=c"}
        assert catalog.describe_namespace("ml").properties["owner"] == "ada"


def test_table_is_renamed_deregistered_and_registered() -> None:
    done("create ml --namespace")
    with lancekeep.connect() as catalog:
        catalog.write("ml.t", ROWS)
        location = catalog.find_table("ml.t").location
    done("rename ml.t ml.u")
    assert rows_of("ml.u") == ROWS.to_pylist()
    done("deregister ml.u --yes")
    assert invoke("count ml.u").exit_code == 3
    done(f"register ml.v {location}")
    assert rows_of("ml.v") == ROWS.to_pylist()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("create t", 2, "--namespace or the columns"),
        ("create t --column id=nonsense", 2, "'nonsense' is no Arrow type"),
        ("create absent.t --column id=int64", 3, "absent"),
        ("set absent a=b", 3, "absent"),
        ("set t nonsense", 2, "KEY=VALUE"),
        ("rename absent other", 3, "absent"),
        ("register t nowhere", 3, "nowhere"),
        ("restore t", 2, "VERSION or --at"),
        ("head t --at nonsense", 2, "neither a time"),
    ],
)
def test_mistake_changes_nothing(line: str, code: int, said: str) -> None:
    done("create other --column id=int64")
    told = invoke(line)
    assert (told.exit_code, said in told.stderr) == (code, True), told.output
    assert done("ls -r -o csv").stdout == "name,kind\nother,table\n"


@pytest.mark.parametrize(("answer", "stays"), [(b"n\n", True), (b"\n", True), (b"y\n", False)])
def test_drop_asks_at_a_terminal(answer: bytes, stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done("create t --column id=int64")
    monkeypatch.setattr("lancekeep.entrypoints.cli.console.can_ask", lambda: True)
    told = invoke("drop t", answer)
    assert "Drop t, and remove the files at" in told.stderr
    assert (invoke("count t").exit_code == 0) == stays


def test_drop_without_a_terminal_changes_nothing() -> None:
    done("create t --column id=int64")
    assert "Nothing was changed" in done("drop t").stdout
    assert done("count t").stdout == "0\n"


# -- versions ------------------------------------------------------------------------------------------------------


def test_restore_brings_back_the_rows_of_a_version_and_of_a_tag() -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
        catalog.write("t", ROWS, "append")
        catalog.tags.create("t", "double", 2)
    assert "3 rows, -3" in done("restore t 1").stderr
    assert rows_of("t") == ROWS.to_pylist()
    done("restore t double")
    assert rows_of("t") == ROWS.to_pylist() * 2
    assert done("history t -o csv").stdout.count("Restore") == 2


def test_time_selects_a_version() -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
        catalog.write("t", ROWS, "append")
        newer, older = catalog.versions.history("t")
    assert done(f"count t --at {older.timestamp.isoformat()}").stdout == "3\n"
    assert done(f"count t --at {newer.timestamp.isoformat()}").stdout == "6\n"
    assert done("count t --at 0s").stdout == "6\n"
    assert invoke("count t --at 2d").exit_code == 3
    assert len(done(f"history t --since {newer.timestamp.isoformat()} -o jsonl").stdout.splitlines()) == 1
    done(f"restore t --at {older.timestamp.isoformat()}")
    assert rows_of("t") == ROWS.to_pylist()


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl", "arrow"])
def test_exported_rows_are_imported_again(form: str, home: Path) -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
    done(f"export t rows.{form}")
    done(f"import u rows.{form}")
    expected = ROWS.to_pylist()
    if form == "csv":  # it has no null
        expected[1]["name"] = ""
    assert rows_of("u") == expected
    assert [each.name for each in home.iterdir() if each.name.endswith(".part")] == []


def test_exported_file_keeps_the_permissions_and_the_link_of_the_file_before(home: Path) -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", pa.table({"id": [1]}))
    private, link, pipe = home / "private.csv", home / "link.csv", home / "pipe.csv"
    private.touch(mode=0o600)
    link.symlink_to(private)
    done("export t link.csv --overwrite")
    assert (private.read_text(), private.stat().st_mode & 0o777, link.is_symlink()) == ("id\n1\n", 0o600, True)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    done("export t pipe.csv --overwrite")
    assert (os.read(reader, 100), pipe.is_fifo()) == (b"id\n1\n", True)
    os.close(reader)


def test_exported_file_is_read_by_arrow(home: Path) -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
        catalog.write("t", ROWS, "append")
    done("export t one.parquet --version 1 --where id>1 --column name")
    assert pq.read_table("one.parquet").to_pydict() == {"name": [None, "cy"]}
    refused = invoke("export t one.parquet")
    assert (refused.exit_code, "exists" in refused.stderr) == (1, True)
    done("export t one.parquet --overwrite")
    assert pq.read_table("one.parquet").num_rows == 6
    assert json.loads(done("export t - --format jsonl --where id=3 --version 1").stdout) == {"id": 3, "name": "cy"}


def test_failed_export_leaves_no_file(home: Path) -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
    before = {*home.iterdir()}
    assert invoke("export t rows.csv --where id>").exit_code == 2
    assert {*home.iterdir()} == before


def test_files_of_one_import_are_one_version(home: Path) -> None:
    (home / "a.csv").write_text("id,name\n1,ada\n2,bob\n")
    (home / "b.jsonl").write_text('{"name": "cy", "id": 3}\n')
    done("import t a.csv b.jsonl")
    assert rows_of("t") == [{"id": n, "name": name} for n, name in ((1, "ada"), (2, "bob"), (3, "cy"))]
    done("import t - --format csv", b"id,name\n4,dee\n")
    assert [row["id"] for row in rows_of("t")] == [1, 2, 3, 4]
    done("import t b.jsonl --write overwrite")
    assert rows_of("t") == [{"name": "cy", "id": 3}]
    assert len(done("history t -o jsonl").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("a.csv", "id,name\n1\n", "a.csv: "),
        ("a.jsonl", "{", "a.jsonl: "),
        ("a.parquet", "garbage", "a.parquet: "),
        ("a.arrow", "garbage", "a.arrow: "),
        ("a.txt", "text", "Add --format"),
        ("absent.csv", None, "absent.csv: "),
    ],
)
@pytest.mark.parametrize("place", ["first", "second"])
def test_file_that_cannot_be_read_is_named_and_nothing_is_written(
    file: str, content: str | None, said: str, place: str, home: Path
) -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
    done("export t good.parquet")
    if content is not None:
        (home / file).write_text(content)
    files = f"good.parquet {file}" if place == "second" else file
    told = invoke(f"import t {files}")
    assert (told.exit_code, said in told.stderr) == (2, True), told.output
    assert rows_of("t") == ROWS.to_pylist()


def test_file_without_a_column_of_the_first_file_is_refused(home: Path) -> None:
    (home / "a.csv").write_text("id,name\n1,ada\n")
    (home / "b.csv").write_text("id\n2\n")
    told = invoke("import t a.csv b.csv")
    assert (told.exit_code, "b.csv: " in told.stderr, "name" in told.stderr) == (2, True, True), told.output
    assert invoke("count t").exit_code == 3


# -- the way back --------------------------------------------------------------------------------------------------


def test_new_catalog_keeps_dropped_tables_and_brings_them_back() -> None:
    assert "is a new catalog" in done("init").stderr
    assert "Nothing was changed" in done("init").stderr
    with lancekeep.connect() as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", ROWS)
        catalog.write("ml.t", ROWS, "append")
    assert "brings it back for 7 days" in done("drop ml.t --yes").stdout
    assert done("ls ml -o csv").stdout == "name,kind\n"
    [dropped] = [json.loads(line) for line in done("ls --dropped -o jsonl").stdout.splitlines()]
    assert dropped["name"] == "ml.t"
    assert "with 6 rows" in done("undrop ml.t --as ml.back").stderr
    assert rows_of("ml.back") == ROWS.to_pylist() * 2
    assert len(done("history ml.back -o jsonl").stdout.splitlines()) == 2
    assert done("ls --dropped -o jsonl").stdout == ""


def test_purge_removes_a_dropped_table_after_a_confirmation(home: Path) -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
    done("drop t --keep 7d --yes")
    refused = invoke("purge t")
    assert (refused.exit_code, "Nothing was changed" in refused.stderr) == (1, True)
    assert list((home / "lake").glob("t.lance/data/*"))
    done("purge t --yes")
    assert not list((home / "lake").glob("t.lance/data/*"))
    assert invoke("undrop t").exit_code == 3


def test_table_is_removed_at_once_if_nothing_keeps_it(home: Path) -> None:
    done("init")
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
    assert "and the files at" in done("drop t --keep 0s --yes").stdout
    assert done("ls --dropped -o jsonl").stdout == ""


def test_protected_table_is_not_dropped() -> None:
    with lancekeep.connect() as catalog:
        catalog.write("t", ROWS)
    done("protect t")
    told = invoke("drop t --yes")
    assert (told.exit_code, "protected" in told.stderr) == (1, True)
    done("unprotect t")
    done("drop t --yes")


def test_catalog_of_init_remembers_its_commit_store(home: Path) -> None:
    done(f"init --commit-store sqlite://{home}/commits.db")
    assert f"Commit store: sqlite://{home}/commits.db, which" in done("create t --column id=int64").stderr
