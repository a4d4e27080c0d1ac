"""The command line, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deployments import bucket, s3_options
from lying import ignoring_conditions
from served_processes import workers_of

import lancekeep
from lancekeep.adapters.manifest_stores.table_data import DataFiles
from lancekeep.application.catalog import directory_of
from lancekeep.domain.catalog import Put
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.entrypoints.cli import SECTIONS
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.cli.options import Stores, as_json, assume_yes, stores

PROGRAM = [sys.executable, "-m", "lancekeep"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def invoke(*arguments: str) -> Result:
    """In this process, which is faster."""
    return CliRunner().invoke(command, arguments, obj=lancekeep)


def options(endpoint: str) -> list[str]:
    return [part for name, value in s3_options(endpoint).items() for part in ("--storage-option", f"{name}={value}")]


# -- the frame -----------------------------------------------------------------------------------------------------


def test_version_is_that_of_the_package() -> None:
    told = run("--version")
    assert (told.stdout, told.returncode) == (f"lancekeep {version('lancekeep')}\n", 0)


def test_version_loads_no_engine() -> None:
    program = "import lancekeep.entrypoints.cli, sys; sys.exit('lance' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_first_process_of_a_container_ends_on_sigterm_while_it_starts(tmp_path: Path) -> None:
    """The system ignores the signal for such a process until it is handled; `docker stop` then waits and kills."""
    contained = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*contained, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare, of the package util-linux, and the right to make a namespace of processes")
    reached = tmp_path / "reached"
    os.mkfifo(reached)
    (tmp_path / "click.py").write_text(f"open({str(reached)!r}).read()")  # an import that takes long
    line = [*contained, sys.executable, "-m", "lancekeep", "serve", str(tmp_path / "lake")]
    with subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        try:
            with reached.open("w"):  # opens once the process reads
                [first] = workers_of(process.pid)
                os.kill(first, signal.SIGTERM)
                assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_installed_command_calls_the_named_function() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["lancekeep"].partition(":")
    program = f"import sys, {module}; sys.argv[1:] = ['--version']; {module}.{name}()"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("lancekeep ")


def test_help_lists_every_command_with_its_whole_summary_in_sections() -> None:
    shown = " ".join(run("--help").stdout.split())
    for title, entries in SECTIONS.items():
        assert f" {title}: " in shown
        for entry in entries:
            assert f" {entry.name} {entry.summary}" in shown


def test_summary_in_the_list_is_the_first_line_of_the_command_help() -> None:
    context = click.Context(command)
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        loaded = command.get_command(context, entry.name)
        assert loaded is not None
        assert (loaded.name, (loaded.help or "").partition("\n")[0]) == (entry.name, entry.summary)


def test_mistyped_command_is_answered_with_the_closest_name() -> None:
    shown = invoke("fsk", "lake")
    assert shown.exit_code == 2
    assert "fsck" in shown.stderr


def test_no_command_that_changes_data_is_suggested() -> None:
    for entry in (entry for entries in SECTIONS.values() for entry in entries if entry.stopped):
        shown = invoke(f"{entry.name}x", "lake")
        assert (shown.exit_code, f"'{entry.name}'" in shown.stderr) == (2, False)


def test_unexpected_error_shows_its_traceback_only_with_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancekeep, "certify", lambda *_, **__: dict[str, str]()["absent"], raising=False)
    told, whole = invoke("certify", "lake"), invoke("certify", "lake", "--debug")
    assert told.stderr == (
        "Error: KeyError: 'absent'.\nThis is a defect. Run the command again with --debug, and report the traceback.\n"
    )
    assert (told.exit_code, whole.exit_code) == (1, 1)
    assert "Traceback (most recent call last)" in whole.stderr
    assert whole.stderr.endswith(told.stderr)


def test_error_does_not_control_the_terminal() -> None:
    told = invoke("certify", "nonsense\x1b[31m://lake")
    assert "\x1b" not in told.stderr
    assert "\\x1b[31m" in told.stderr


SLOW_TO_IMPORT = {
    *("lance", "pandas", "pyarrow.compute", "rich.console", "rich.progress"),
    *("lancekeep.adapters.rest.catalog", "lancekeep.application.certification"),
    *("lancekeep.application.partitions.namespace", "lancekeep.application.upkeep.service"),
    *("lancekeep.adapters.lance.engine", "lancekeep.application.rows.writes", "lancekeep.domain.operations"),
}
"""Modules that a command which only lists names does not need."""
MOST_MODULES = 121
"""How many modules of Lancekeep a listing may import: each costs 1 ms."""


def modules_of(*arguments: str) -> tuple[str, set[str]]:
    """Run a command in a process of its own, and return its output and the modules that it imported."""
    program = (
        f"import sys, atexit; sys.argv[1:] = {list(arguments)!r}; "
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr)); "
        "from lancekeep.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.splitlines())


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_no_dependency_but_click(argument: str) -> None:
    _, modules = modules_of(argument)
    assert modules & {"attr", "lance", "numpy", "pyarrow", "rich", "lance_namespace"} == set()


@pytest.mark.parametrize("arguments", [["ls", "-r"], ["tree"]])
def test_listing_imports_only_what_it_needs(arguments: list[str], tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    catalog = lancekeep.connect(root, commit_store="conditional-put://")
    catalog.create_namespace("ml")
    for number in range(3):
        catalog.write(f"ml.t{number}", pa.table({"a": [number]}))
    shown, modules = modules_of(*arguments, root)
    assert "t2" in shown
    assert modules & SLOW_TO_IMPORT == set()
    assert len([name for name in modules if name.startswith("lancekeep.")]) <= MOST_MODULES


def test_listing_of_many_tables_imports_neither_engine_nor_pandas(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    catalog = lancekeep.connect(root)
    catalog.create_namespace("ml")
    entries = [ManifestEntry.table(ObjectId(("ml", f"t{number}")), f"t{number}", {}) for number in range(3000)]
    directory_of(catalog).ledger.manifest.apply(lambda view: ([Put(entry) for entry in entries], None))
    shown, modules = modules_of("ls", "--limit", "0", root, "ml")
    assert "ml.t2999" in shown
    assert modules & (SLOW_TO_IMPORT - {"pyarrow.compute"}) == set()


def test_command_reads_the_entries_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "lake")
    lancekeep.connect(root).create_namespace("ml")
    decode = Mock(wraps=DataFiles().decode)
    monkeypatch.setattr(DataFiles, "decode", decode)
    assert invoke("ls", root).exit_code == 0
    decode.assert_called_once()


def test_messages_name_only_commands_and_options_that_exist() -> None:
    context = click.Context(command)
    named = set()
    for path in (Path(__file__).parents[2] / "src").rglob("*.py"):
        source = re.sub(r'"\s*\n\s*f?"', "", path.read_text())  # join adjacent literals
        named |= {(path.name, *call.split()) for call in re.findall(r"(?<!`)`lancekeep ([^`\n]+)`(?!`)", source)}
    assert named
    for place, name, *arguments in named:
        loaded = command.get_command(context, name)
        assert loaded is not None, f"{place} names the command {name!r}, which does not exist"
        options = {option for parameter in loaded.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options, place


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["certify"], "no catalog is named"),
        (["certify", "lake", "--nonsense"], "No such option"),
        (["nonsense"], "No such command"),
        (["certify", "lake", "--storage-option", "secret"], "expected NAME=VALUE"),
        (["certify", "lake", "--commit-store-option", "a=1", "--commit-store-option", "a=2"], "a is given twice"),
        (["certify", "nonsense://lake"], "unknown scheme nonsense://"),
        (["certify", "lake", "--commit-store", "redys://host"], "did you mean 'redis'"),
        (["certify", "lake", "--storage-option", "fsink=true"], "did you mean 'fsync'"),
    ],
)
def test_invalid_command_exits_with_2(arguments: list[str], said: str) -> None:
    told = invoke(*arguments)
    assert told.exit_code == 2
    assert said in " ".join(told.stderr.split())
    assert told.stdout == ""


def test_invalid_option_is_reported_without_its_value() -> None:
    assert "hunter2" not in invoke("certify", "lake", "--storage-option", "=hunter2").stderr


def test_unreachable_store_exits_with_3_and_a_short_message(tmp_path: Path) -> None:
    for arguments in (
        ["certify", "s3://bucket/lake", *options("http://127.0.0.1:9")],
        ["certify", str(tmp_path), "--commit-store", "redis://:hunter2@127.0.0.1:9/0"],
    ):
        told = run(*arguments)
        assert told.returncode == 3
        assert told.stdout == ""
        assert told.stderr.startswith("Error: ")
        assert told.stderr.count("\n") <= 2
        assert "127.0.0.1:9" in told.stderr
        assert "hunter2" not in told.stderr


def test_missing_bucket_exits_with_3(moto_endpoint: str) -> None:
    told = invoke("certify", f"s3://no-such-{uuid4().hex}/lake", *options(moto_endpoint))
    assert told.exit_code == 3
    assert "has no bucket" in told.stderr


def test_other_errors_exit_with_1_what_failed_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        error = lancekeep.UnsafeStore("the store\nlacks it; choose another")
        error.add_note("and something is left")
        raise error

    monkeypatch.setattr(lancekeep, "certify", refuse, raising=False)
    told = invoke("certify", "lake")
    assert (told.exit_code, told.stderr) == (
        1,
        "Error: the store lacks it.\nChoose another and something is left\n",
    )


def test_commands_share_their_options() -> None:
    seen: list[object] = []

    @click.command()
    @as_json
    @assume_yes
    @stores
    def example(chosen: Stores, as_json: bool, assume_yes: bool) -> None:
        seen.extend((chosen.given, as_json, assume_yes))

    arguments = ["lake", "--commit-store", "sqlite:///c.db", "--storage-option", "a=b=c", "--json", "--yes"]
    arguments += ["--manifest-store", "json:///e.json", "--manifest-store-option", "pool=3"]
    CliRunner().invoke(example, [*arguments, "--commit-store-option", "password="], catch_exceptions=False)
    given = {
        "root": "lake",
        "commit_store": "sqlite:///c.db",
        "manifest_store": "json:///e.json",
        "storage_options": {"a": "b=c"},
        "commit_store_options": {"password": ""},
        "manifest_store_options": {"pool": "3"},
    }
    assert seen == [given, True, True]


# -- certify -------------------------------------------------------------------------------------------------------


def test_stores_that_pass_are_0_and_a_table(tmp_path: Path) -> None:
    told = run("certify", str(tmp_path / "lake"), "--commit-store", f"sqlite://{tmp_path}/commits.db")
    assert told.returncode == 0, told.stderr
    for shown in ("object store", "commit store", "create_only_put_race", "passed", "unsupported", "sqlite://"):
        assert shown in told.stdout
    assert told.stderr == ""


def test_json_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    told = run("certify", str(tmp_path / "lake"), "--commit-store", "memory://cli", "--json")
    assert told.returncode == 0
    document = json.loads(told.stdout)
    assert document["safe"] is True
    assert document["root"] == f"file://{tmp_path}/lake"
    assert document["commit_store"] == "memory://cli"
    assert {tuple(check) for check in document["checks"]} == {("subject", "name", "result", "evidence")}
    assert {check["result"] for check in document["checks"]} == {"passed", "unsupported"}


def test_output_json_is_the_form_of_json(tmp_path: Path) -> None:
    lancekeep.connect(str(tmp_path / "lake")).create_namespace("ml")
    told = [invoke("fsck", str(tmp_path / "lake"), *form).stdout for form in (("--json",), ("-o", "json"))]
    assert json.loads(told[0]) == json.loads(told[1])
    assert not invoke("fsck", str(tmp_path / "lake"), "-o", "table").stdout.startswith("{")


@pytest.fixture
def lying_s3(moto_endpoint: str) -> Iterator[tuple[str, list[str]]]:
    with ignoring_conditions(moto_endpoint) as endpoint:
        yield f"s3://{bucket(moto_endpoint)}/lake", options(endpoint)


def test_failed_check_exits_with_1_and_explains_the_risk(
    lying_s3: tuple[str, list[str]],
) -> None:
    root, given = lying_s3
    told = invoke("certify", root, *given, "--json")
    assert told.exit_code == 1
    failed = {
        check["name"]: check["evidence"] for check in json.loads(told.stdout)["checks"] if check["result"] == "failed"
    }
    assert "Do not commit to this storage" in failed["create_only_put"]


def test_report_shows_evidence_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        lancekeep.Check("object store", "copy", lancekeep.Result.FAILED, "[bold]it[/bold] differs. Do not"),
        lancekeep.Check("both", "clean_up", lancekeep.Result.PASSED, "nothing is left"),
    )
    certificate = lancekeep.Certificate("file:///lake", "", checks)
    monkeypatch.setattr(lancekeep, "certify", lambda *_, **__: certificate, raising=False)
    told = invoke("certify", "lake")
    assert told.exit_code == 1
    assert "file:///lake with no commit store" in told.stdout
    assert "[bold]it[/bold] differs. Do not" in told.stdout
    assert told.stdout.endswith("Not safe: copy failed.\n")


def test_secrets_are_shown_nowhere(moto_endpoint: str, redis_url: str, tmp_path: Path) -> None:
    name = bucket(moto_endpoint)
    given = [part.replace("secret_access_key=test", "secret_access_key=hunter2") for part in options(moto_endpoint)]
    told = run("certify", f"s3://{name}/lake", *given, "--commit-store", redis_url, "--json")
    assert told.returncode == 0, told.stderr
    assert "hunter2" not in told.stdout + told.stderr


def test_ctrl_c_cleans_up(moto_endpoint: str) -> None:
    """The process is stopped as soon as it has written something, wherever it is then."""
    import boto3

    name = bucket(moto_endpoint)
    client = boto3.client("s3", endpoint_url=moto_endpoint)
    arguments = [*PROGRAM, "certify", f"s3://{name}/lake", *options(moto_endpoint)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not client.list_objects_v2(Bucket=name).get("KeyCount"):
            assert process.poll() is None
            time.sleep(0.02)  # leave the server to the process
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said == "Stopped. What the measurement wrote was removed.\n"
    assert client.list_objects_v2(Bucket=name).get("KeyCount") == 0


# -- secrets -------------------------------------------------------------------------------------------------------


def shown_options(arguments: list[str], stdin: str = "", environment: dict[str, str] | None = None) -> Stores:
    """What a command works on, given arguments, standard input and environment variables."""
    seen: list[Stores] = []
    command_line = click.command()(stores(seen.append))
    result = CliRunner(env=environment).invoke(command_line, arguments, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return seen[0]


def test_options_come_from_a_file_from_stdin_and_from_the_environment(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("# of the lake\naws_secret_access_key=a=b \n\naws_region=eu-west-1\n")
    environment = {
        "LANCEKEEP_COMMIT_STORE": "redis://cache/0",
        "LANCEKEEP_COMMIT_STORE__USERNAME": "ada",
        "LANCEKEEP_STORAGE__AWS_REGION": "us-east-1",
        "LANCEKEEP_STORAGE__AWS_ACCESS_KEY_ID": "id",
    }
    arguments = ["lake", "--storage-option-file", str(secrets), "--commit-store-option-file", "-"]
    assert shown_options(arguments, "password=hunter2\n", environment).given == {
        "root": "lake",
        "commit_store": "redis://cache/0",
        "manifest_store": None,
        "storage_options": {
            "aws_region": "eu-west-1",
            "aws_access_key_id": "id",
            "aws_secret_access_key": "a=b ",
        },
        "commit_store_options": {"username": "ada", "password": "hunter2"},
        "manifest_store_options": {},
    }


def test_argument_takes_precedence_over_file_and_environment(tmp_path: Path) -> None:
    options_file = tmp_path / "options"
    options_file.write_text("aws_region=from-file")
    arguments = ["lake", "--storage-option-file", str(options_file), "--storage-option", "aws_region=from-argument"]
    given = shown_options(arguments, environment={"LANCEKEEP_STORAGE__AWS_REGION": "from-environment"}).given
    assert given["storage_options"] == {"aws_region": "from-argument"}


def test_invalid_line_of_option_file_is_refused_without_its_content() -> None:
    refused = CliRunner().invoke(command, ["fsck", "lake", "--storage-option-file", "-"], input="hunter2\n")
    assert refused.exit_code == 2
    assert "expected NAME=VALUE" in refused.stderr
    assert "hunter2" not in refused.output


def test_process_list_shows_no_secret_from_a_file(moto_endpoint: str, redis_url: str, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    given = {**s3_options(moto_endpoint), "aws_secret_access_key": "hunter2"}
    secrets.write_text("\n".join(f"{name}={value}" for name, value in given.items()))
    root = f"s3://{bucket(moto_endpoint)}/lake"
    told = run("certify", root, "--storage-option-file", str(secrets), "--commit-store", redis_url)
    assert told.returncode == 0, told.stderr
    assert "hunter2" not in told.stdout + told.stderr + " ".join(told.args)
