"""The commands that read: what is here, what is in it, what changed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deployments import bucket, s3_options

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.cli import setup

GOLDEN = Path(__file__).parents[1] / "fixtures" / "commands"
LONG = "a_table_with_a_name_that_is_longer_than_what_a_narrow_terminal_shows_on_one_line"
SHOWN = {
    "ls": "ls LAKE",
    "ls-long": "ls LAKE ml -l",
    "ls-recursive": "ls LAKE -r",
    "tree": "tree LAKE",
    "describe-catalog": "describe LAKE",
    "describe-namespace": "describe LAKE ml",
    "describe-table": "describe LAKE ml.features",
    "schema": "schema LAKE ml.features",
    "count": "count LAKE ml.features",
    "head": "head LAKE ml.features -n 3",
    "head-exact": "head LAKE ml.features -n 1 --exact --column id --column embedding",
    "tail": "tail LAKE ml.features -n 2 --column id --column text",
    "sample": "sample LAKE ml.features -n 2 --seed 1 --column id --column score",
    "take": "take LAKE ml.features 5 0",
    "history": "history LAKE ml.features",
    "show": "show LAKE ml.features 3",
    "diff": "diff LAKE ml.features first",
    "diff-rows": "diff LAKE ml.features 1 2 --key id --column id --column text --column embedding",
    "ls-dropped": "ls LAKE --dropped",
    "config-show": "config show",
    "doctor": "doctor LAKE",
    "cost": "cost LAKE",
    "cost-table": "cost LAKE ml.features",
    "cost-versions": "cost LAKE ml.features --versions",
    "tag": "tag LAKE ml.features",
    "branch": "branch LAKE ml.features",
    "log": "log LAKE ml.features",
    "log-graph": "log LAKE ml.features --graph",
    "query": "query LAKE 'SELECT id % 3 AS r, count(*) AS n, max(text) AS t FROM ml.features GROUP BY 1 ORDER BY 1'",
    "apply": "apply LAKE LAKE/../catalog.json --prune",
    "stats": "stats LAKE ml.features",
    "search": "search LAKE ml.features --like 2 -k 2 --select id --select text --select embedding",
}
WIDTHS = (60, 80, 120)


def rows(first: int, last: int) -> pa.Table:
    numbers = range(first, last)
    vectors = pa.array([[n / 7] * 16 for n in numbers], pa.list_(pa.float32(), 16))
    return pa.table(
        {
            "id": numbers,
            "text": [f"row {n}: {'long text ' * (n * 20)}" if n % 5 == 3 else f"row {n}" for n in numbers],
            "score": [None if n % 4 == 0 else n / 3 for n in numbers],
            "blob": [bytes([n]) * 2000 for n in numbers],
            "embedding": vectors,
            "nested": [{"a": n, "b": [n, n]} for n in numbers],
        }
    )


CATALOG_FILE = {
    "format": 1,
    "namespaces": [{"name": "ml", "properties": {"owner": "audio"}}, {"name": "ml.models"}, {"name": "raw"}],
    "tables": [
        {"name": "ml.features", "properties": {"source": "camera"}, "tags": {"first": 2}, "protected": True},
        {
            "name": "raw.images",
            "schema": {"fields": [{"name": "id", "nullable": True, "type": {"type": "int64"}}]},
            "properties": {"source": "camera"},
        },
    ],
}


@pytest.fixture(scope="module")
def lake() -> Iterator[str]:
    """A catalog at a path of constant length, so that lines break at the same places."""
    place = tempfile.mkdtemp(prefix="lk-", dir="/tmp")
    with lancekeep.connect(
        f"{place}/lake", commit_store=f"sqlite://{place}/commits.db", committer="ada@lab"
    ) as catalog:
        catalog.create_namespace("ml", {"owner": "vision"})
        catalog.create_namespace("ml.models")
        catalog.write("events", pa.table({"id": [1]}))
        catalog.write(f"ml.{LONG}", pa.table({"id": [1]}))
        catalog.declare_table("ml.models.declared")
        catalog.write("ml.features", rows(0, 6), properties={"source": "camera"})
        catalog.tags.create("ml.features", "first", 1)
        catalog.write("ml.features", rows(6, 10), "append")
        catalog.branches.create("ml.features", "trial")
        catalog.structure.add_columns("ml.features", {"double": "id * 2"})
        catalog.commit_change(
            "ml.features", lambda dataset: lance.write_dataset(rows(10, 12), dataset, mode="append"), branch="trial"
        )
        catalog.structure.create_index("ml.features", lancekeep.NewIndex("id", "BTREE"))
        catalog.write("ml.old", pa.table({"id": [1]}))
        catalog.drop_table("ml.old", keep=timedelta(days=7))
    Path(place, "lancekeep.toml").write_text(
        f'root = "{place}/lake"\ncommitter = "ada@lab"\n[catalogs.prod]\nroot = "s3://user:secret@bucket/lake"\n'
    )
    Path(place, "catalog.json").write_text(json.dumps(CATALOG_FILE))
    yield f"{place}/lake"
    shutil.rmtree(place)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, lake: str) -> None:
    """A machine whose versions and settings do not depend on the real one."""
    monkeypatch.setattr("platform.python_version", lambda: "3.11.9")
    monkeypatch.setattr(setup, "version", lambda _: "1.2.3")
    monkeypatch.setattr(setup, "find_spec", lambda name: None if name == "redis" else name)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setenv("LANCEKEEP_CONFIG", f"{Path(lake).parent}/lancekeep.toml")


def invoke(line: str, lake: str, width: int | None = None) -> Result:
    environment = {"COLUMNS": str(width) if width else None, "TZ": "UTC"}
    arguments = [each.replace("LAKE", lake) for each in shlex.split(line)]
    return CliRunner(env=environment).invoke(command, arguments, obj=lancekeep)


def data(line: str, lake: str) -> list[dict[str, object]]:
    done = invoke(f"{line} -o jsonl", lake)
    assert done.exit_code == 0, done.output
    return [json.loads(each) for each in done.stdout.splitlines()]


def normal(text: str, lake: str) -> str:
    """Replace what differs between runs by texts of the same length."""
    place = os.path.dirname(lake)
    shown = "/srv/lakes/abc".ljust(len(place), "x")
    broken = re.compile(r"(\n +)?".join(map(re.escape, place)))  # a line may break inside of the path
    text = broken.sub(lambda found: "".join(map("".join, zip_longest(shown, found.groups(""), fillvalue=""))), text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-02 03:04:05", text)
    text = re.sub(r"[0-9a-f]{16}-[0-9a-f]{4}(\s*)[0-9a-f]{4}", r"0123456789abcdef-0123\g<1>4567", text)
    return re.sub(r"[0-9a-f]{8}(?=_ml\$)", "01234567", text)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", SHOWN)
def test_output_is_that_of_the_golden_file(name: str, lake: str) -> None:
    parts = []
    for width in WIDTHS:
        done = invoke(SHOWN[name], lake, width)
        assert done.exit_code == 0, done.output
        assert max(map(len, done.stdout.splitlines())) <= width
        parts.append(f"$ {SHOWN[name]}  # {width} columns\n{normal(done.stdout, lake)}")
    if name.startswith("cost"):  # the sizes of manifests vary
        parts = [re.sub(r"\d(?=[\d.]* k?B)", "0", part) for part in parts]
    golden, found = GOLDEN / f"{name}.txt", "\n".join(parts)
    if os.environ.get("LANCEKEEP_GOLDEN") == "write":
        golden.write_text(found)
    assert found == golden.read_text(), "if the change is intended: LANCEKEEP_GOLDEN=write"


def test_every_golden_file_has_a_command() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == SHOWN.keys()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("line", ["ls LAKE ml", "tree LAKE"])
def test_long_names_wrap_and_are_whole(line: str, width: int, lake: str) -> None:
    shown = invoke(line, lake, width).stdout
    assert LONG in re.sub(r"\s|│| table$", "", shown.replace("  table", ""))


# -- rows ----------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_pylance(lake: str) -> None:
    with lancekeep.connect(lake, commit_store="remembered") as catalog:
        uri = catalog.describe_table("ml.features").uri
    whole = lance.dataset(uri).to_table(columns=["id", "double"]).to_pylist()
    columns = "--column id --column double"
    assert data(f"head LAKE ml.features -n 4 {columns}", lake) == whole[:4]
    assert data(f"tail LAKE ml.features -n 4 {columns}", lake) == whole[-4:]
    assert data(f"take LAKE ml.features 7 2 {columns}", lake) == [whole[7], whole[2]]
    assert data(f"head LAKE ml.features -n 100 {columns} --where id>3", lake) == [
        each for each in whole if each["id"] > 3
    ]
    assert data(f"tail LAKE ml.features -n 2 {columns} --where id<5", lake) == whole[3:5]
    sampled = data(f"sample LAKE ml.features -n 5 {columns}", lake)
    assert all(each in whole for each in sampled)
    assert len({str(each) for each in sampled}) == 5
    assert data("head LAKE ml.features -n 0", lake) == []
    assert data(f"head LAKE ml.features -n {10**20} {columns}", lake) == whole


def test_version_tag_and_branch_choose_the_rows(lake: str) -> None:
    counts = {
        "": "10",
        " --version 1": "6",
        " --version first": "6",
        " --branch trial": "12",
    }
    assert {option: invoke(f"count LAKE ml.features{option}", lake).stdout.strip() for option in counts} == counts


@pytest.mark.parametrize("line", ["head LAKE ml.features -n 100", "history LAKE ml.features", "ls LAKE ml -l"])
def test_all_forms_have_the_same_rows(line: str, lake: str) -> None:
    expected = data(line, lake)
    assert len(expected) > 2
    assert json.loads(invoke(f"{line} -o json", lake).stdout) == expected
    read = list(csv.DictReader(io.StringIO(invoke(f"{line} -o csv", lake).stdout)))
    assert [set(row) for row in read] == [set(row) for row in expected]
    first = next(iter(expected[0]))
    assert [row[first] for row in read] == [str(row[first]) for row in expected]
    streamed = pa.ipc.open_stream(invoke(f"{line} -o arrow", lake).stdout_bytes).read_all()
    assert streamed[first].to_pylist() == [row[first] for row in expected]


def test_values_that_json_does_not_have_are_texts(tmp_path: Path) -> None:
    values = pa.table({"x": [float("nan"), float("inf"), 1.5], "b": [b"\xff", None, b""]})
    with lancekeep.connect(str(tmp_path / "odd")) as catalog:
        catalog.write("t", values)
    read = data("head LAKE t", str(tmp_path / "odd"))
    assert read == [{"x": "nan", "b": "/w=="}, {"x": "inf", "b": None}, {"x": 1.5, "b": ""}]


def test_values_do_not_control_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[31mred\x1b]0;title\x07 \u202eright-to-left\nnew [bold]line[/bold]" + "x" * 10_000
    with lancekeep.connect(str(tmp_path / "odd")) as catalog:
        catalog.write("t", pa.table({"text": [hostile], "\x1bcolumn": [1]}))
    shown = invoke("head LAKE t", str(tmp_path / "odd"), 80).stdout
    assert not {"\x1b", "\x07", "\u202e"} & {*shown}
    assert "\\x1b[31mred" in shown
    assert "[bold]line[/bold]" in re.sub(r"\s", "", shown)
    assert len(shown) < 1000
    assert invoke("schema LAKE t", str(tmp_path / "odd"), 80).stdout.isprintable() or "\x1b" not in shown


def test_narrow_terminal_shows_rows_one_by_one(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "wide")) as catalog:
        catalog.write("t", pa.table({f"column_{n}": ["value"] for n in range(30)}))
    shown = invoke("head LAKE t", str(tmp_path / "wide"), 60).stdout.splitlines()
    assert shown[:2] == ["row 1", "column_0   value"]
    assert len(shown) == 31


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("head LAKE ml.absent", 3, "does not exist"),
        ("head LAKE ml.features --version 99", 3, "99"),
        ("head LAKE ml.features --version absent", 3, "absent"),
        ("head LAKE ml.features --column absent", 2, "absent"),
        ("head LAKE ml.features --where id>", 2, "the engine cannot read these rows"),
        ("take LAKE ml.features 10", 2, "no position 10"),
        ("show LAKE ml.features 99", 3, "99"),
        ("describe LAKE absent", 3, "neither a table nor a namespace"),
        ("ls LAKE absent", 3, "absent"),
        ("head LAKE ml.models.declared", 3, "declared"),
    ],
)
def test_mistake_is_answered_with_its_exit_code(line: str, code: int, said: str, lake: str) -> None:
    told = invoke(line, lake)
    assert (told.exit_code, told.stdout) == (code, ""), told.output
    assert said in told.stderr
    assert "Traceback" not in told.stderr


# -- listing -------------------------------------------------------------------------------------------------------


def test_listing_ends_at_its_limit_and_says_so(tmp_path: Path) -> None:
    root = str(tmp_path / "many")
    with lancekeep.connect(root) as catalog:
        for number in range(5):
            catalog.create_namespace(f"n{number}")
            catalog.declare_table(f"t{number}")
    short = invoke("ls LAKE --limit 7 -o csv", root)
    assert short.stdout.split()[1:] == [*(f"n{n},namespace" for n in range(5)), "t0,table", "t1,table"]
    assert "More than 7 names; --limit 0 lists all." in short.stderr
    assert len(data("ls LAKE --limit 0", root)) == len(data("ls LAKE --limit 10", root)) == 10
    assert [row["name"] for row in data("ls LAKE -r", root)] == [f"t{n}" for n in range(5)]
    assert "more than 2" in invoke("tree LAKE --limit 2", root).stdout


# -- tags and branches ---------------------------------------------------------------------------------------------


def test_tags_and_branches_are_created_moved_and_deleted(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root) as catalog:
        for number in range(3):
            catalog.write("t", pa.table({"id": [number]}), "append" if number else "create")

        def tagged() -> dict[str, int]:
            return {name: tag.version for name, tag in catalog.tags.list("t").items()}

        for line, expected in (
            ("tag LAKE t good", {"good": 3}),
            ("tag LAKE t old --version 1", {"good": 3, "old": 1}),
            ("tag LAKE t good --move --version 2", {"good": 2, "old": 1}),
            ("tag LAKE t old -d", {"good": 2}),
        ):
            assert invoke(line, root).exit_code == 0
            assert tagged() == expected
        assert invoke("tag LAKE t good", root).exit_code == 1  # it exists
        assert invoke("branch LAKE t trial --version 2", root).exit_code == 0
        assert catalog.open("t", branch="trial").count_rows() == 2
        refused = invoke("branch LAKE t trial -d", root)
        assert (refused.exit_code, "Nothing was changed" in refused.stderr) == (1, True)
        assert list(catalog.branches.list("t")) == ["trial"]
        assert invoke("branch LAKE t trial -d --yes", root).exit_code == 0
        assert list(catalog.branches.list("t")) == []


# -- this machine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "result", "failed"),
    [
        (0, "agrees with the storage", False),
        (0.9, "agrees with the storage", False),  # the storage states whole seconds
        (20, "19 s ahead of the storage", False),
        (-20, "20 s behind the storage", False),
        (90, "89 s ahead of the storage", True),
        (-3600, "3600 s behind the storage", True),
    ],
)
def test_skew_of_the_clock_is_judged(ahead: float, result: str, failed: bool) -> None:
    answered = datetime(2026, 1, 1, tzinfo=UTC)
    now = answered + timedelta(seconds=ahead)
    found = setup.clock_check(now, answered, now)
    assert (found.result, found.failed, bool(found.advice)) == (result, failed, failed)


def test_machine_is_checked_before_a_catalog_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = CliRunner().invoke(command, ["doctor", "-o", "jsonl"], obj=lancekeep)
    found = {row["check"]: row["result"] for row in map(json.loads, done.stdout.splitlines())}
    assert (done.exit_code, found["catalog"], "pylance" in found, "clock" in found) == (0, "none is named", True, False)


def test_clock_is_compared_with_replies_of_s3(moto_endpoint: str) -> None:
    options = s3_options(moto_endpoint)
    with lancekeep.connect(f"s3://{bucket(moto_endpoint)}/lake", storage_options=options) as catalog:
        catalog.create_namespace("ml")
        root = catalog.root_uri
    given = [part for name, value in options.items() for part in ("--storage-option", f"{name}={value}")]
    done = CliRunner().invoke(command, ["doctor", root, *given, "-o", "jsonl"], obj=lancekeep)
    found = {row["check"]: row["result"] for row in map(json.loads, done.stdout.splitlines())}
    assert (found["catalog"], found["clock"]) == (f"{root} opens", "agrees with the storage"), done.output
