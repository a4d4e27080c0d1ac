"""Every command works with the catalog of a server, or its error names the alternative."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from rest_server import Front, serving

import lancekeep
from lancekeep.entrypoints.cli import SECTIONS
from lancekeep.entrypoints.cli import lancekeep as command

ELSEWHERE = "Run it where the catalog's storage and commit store are configured"
COMMANDS = {entry.name for entries in SECTIONS.values() for entry in entries}
WORKS = {
    "drop": "drop {uri} ns.t --yes",
    "deregister": "deregister {uri} ns.t --yes",
}
READS = {
    "branch": ("branch {uri} ns.t", ""),
    "count": ("count {uri} ns.t", "2"),
    "describe": ("describe {uri} ns.t", "2"),
    "diff": ("diff {uri} ns.t 1 1", "rows before"),
    "doctor": ("doctor {uri}", "opens"),
    "events": ("events {uri} --after latest", "Events"),
    "export": ("export {uri} ns.t - --format csv", "id"),
    "head": ("head {uri} ns.t", "1"),
    "history": ("history {uri} ns.t", "1"),
    "log": ("log {uri} ns.t --graph", "1"),
    "ls": ("ls {uri} ns -l", "ns.t"),
    "quotas": ("quotas {uri} -o json", "[]"),
    "sample": ("sample {uri} ns.t", "2"),
    "schema": ("schema {uri} ns.t", "int64"),
    "show": ("show {uri} ns.t 1", "2"),
    "stats": ("stats {uri} ns.t", "2"),
    "tag": ("tag {uri} ns.t", ""),
    "tail": ("tail {uri} ns.t -n 1", "2"),
    "take": ("take {uri} ns.t 1", "2"),
    "tree": ("tree {uri}", "ns/"),
}
REFUSED = {
    "init": ("init {uri}", ELSEWHERE),
    "adopt-identity": ("adopt-identity {uri} --yes", ELSEWHERE),
    "backup": ("backup {uri} {directory}/backup", ELSEWHERE),
    "clone": ("clone {uri} ns.t ns.u", ELSEWHERE),
    "materialize": ("materialize {uri} ns.t", ELSEWHERE),
    "relocate": ("relocate {uri} ns.t elsewhere --yes", ELSEWHERE),
    "tier": ("tier {uri} ns.t {directory}/cold --older-than 7d --yes", ELSEWHERE),
    "migrate": ("migrate {uri}", ELSEWHERE),
    "migrate-names": ("migrate-names {uri} ns.t", ELSEWHERE),
    "cost": ("cost {uri} ns.t", ELSEWHERE),
    "cleanup": ("cleanup {uri} --older-than 7d", ELSEWHERE),
    "direct-commits": ("direct-commits {uri} ns.t", ELSEWHERE),
    "fsck": ("fsck {uri}", ELSEWHERE),
    "repair": ("repair {uri} --yes", ELSEWHERE),
    "maintain": ("maintain {uri} --policy {directory}/policy.toml", ELSEWHERE),
    "export-manifest": ("export-manifest {uri}", ELSEWHERE),
    "optimize": ("optimize {uri}", ELSEWHERE),
    "verify": ("verify {uri}", ELSEWHERE),
    "digest": ("digest {uri}", ELSEWHERE),
    "copy-catalog": ("copy-catalog {uri} {directory}/lake", "Name the directory as the source"),
    "certify": ("certify {uri}", "Give the root of the catalog's storage"),
    "ingest": ("ingest {uri} ns.t {directory}/policy.toml", ELSEWHERE),
    "set": ("set {uri} ns.t a=b", "no operation of the REST protocol changes properties"),
    "unset": ("unset {uri} ns.t a", "no operation of the REST protocol changes properties"),
    "inspect": ("inspect {uri} ns.t", ELSEWHERE),
    "webhooks": ("webhooks {uri}", ELSEWHERE),
}
TESTED_ELSEWHERE = {
    "resolve": "test_resolve_settles_an_unknown_commit_through_a_server",
    "apply": "test_catalog_file.py writes a file to a server",
    "export-catalog": "test_catalog_file.py reads the file of a server",
    "query": "test_stats_and_search_commands.py queries the tables of a server",
    "search": "test_stats_and_search_commands.py searches the tables of a server",
    "conformance": "test_conformance.py judges servers",
    "migrate-schema": "works on a database, not on a catalog",
    "serve": "test_any_implementation_can_be_served serves a server",
    "completion": "opens no catalog",
    "config": "opens no catalog",
    "policy": "works on a file, not on a catalog",
    "audit": "works on a file, not on a catalog",
    "keys": "works on a file, not on a catalog",
    "spark-jar": "writes a file and opens no catalog",
    "ui": "test_page_of_another_server_is_read_through_its_api",
    **dict.fromkeys(("backfill", "compact", "index", "upsert"), "test_jobs_write_through_a_server"),
}


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    namespace = lancekeep.DirectoryNamespace(
        **{"root": str(tmp_path / "lake"), "storage.fsync": "false", "commit_store": f"sqlite://{tmp_path}/commits.db"}
    )
    (tmp_path / "policy.toml").write_text('every = "1h"\n')
    namespace.catalog.events.record()
    with serving(namespace) as running:
        catalog = lancekeep.connect(running.uri)
        catalog.create_namespace("ns")
        catalog.write("ns.t", pa.table({"id": [1, 2]}))
        yield running


@pytest.fixture
def uri(front: Front) -> str:
    return front.uri


def test_every_command_is_tested_over_a_server() -> None:
    assert not COMMANDS - {*WORKS, *READS, *CHANGES, *REFUSED, *TESTED_ELSEWHERE}


@pytest.mark.parametrize("name", WORKS)
def test_command_works_over_a_server(uri: str, tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(command, WORKS[name].format(uri=uri).split(), obj=lancekeep)
    assert result.exit_code == 0, result.output
    assert not lancekeep.connect(uri).table_exists("ns.t")
    kept = list((tmp_path / "lake").rglob("*.manifest"))
    assert [lance.dataset(str(each.parents[1])).count_rows() for each in kept if "ns$t" in str(each)] == (
        [2] if name == "deregister" else []
    )


@pytest.mark.parametrize("name", READS)
def test_reading_command_works_over_a_server(uri: str, name: str) -> None:
    line, shown = READS[name]
    result = CliRunner().invoke(command, line.format(uri=uri).split(), obj=lancekeep)
    assert (result.exit_code, shown in result.stdout) == (0, True), result.output


@pytest.mark.parametrize("number", [2**31, 10**30])
def test_history_of_a_server_takes_any_limit(uri: str, number: int) -> None:
    result = CliRunner().invoke(command, ["history", uri, "ns.t", "-n", str(number), "-o", "jsonl"], obj=lancekeep)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1), result.output


CHANGES = {
    "bench": "bench {uri} --seconds 0.1 --yes",
    "create": "create {uri} ns.u --column id=int64",
    "import": "import {uri} ns.t {directory}/rows.csv",
    "register": "register {uri} ns.w {location}",
    "rename": "rename {uri} ns.t ns.v",
    "restore": "restore {uri} ns.t 1",
    "protect": "protect {uri} ns.t",
    "purge": "purge {uri} ns.old --yes",
    "undrop": "undrop {uri} ns.old --as ns.new",
    "unprotect": "unprotect {uri} ns",
}


@pytest.mark.parametrize("name", CHANGES)
def test_changing_command_works_over_a_server(uri: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.csv").write_text("id\n3\n")
    with lancekeep.connect(uri) as catalog:
        location = catalog.describe_table("ns.t").uri.rpartition("/")[2]
        if name == "register":
            catalog.deregister_table("ns.t")
        if name in ("purge", "undrop"):
            catalog.write("ns.old", pa.table({"id": [3]}))
            catalog.drop_table("ns.old", keep=3600)
    line = CHANGES[name].format(uri=uri, directory=tmp_path, location=location)
    result = CliRunner().invoke(command, line.split(), obj=lancekeep)
    assert result.exit_code == 0, result.output
    with lancekeep.connect(uri) as catalog:
        tables = {table: catalog.versions.describe(f"ns.{table}").rows for table in catalog.list_tables("ns")}
    expected = {"create": {"t": 2, "u": 0}, "import": {"t": 3}, "register": {"w": 2}, "rename": {"v": 2}}
    expected["undrop"] = {"t": 2, "new": 1}
    assert tables == expected.get(name, {"t": 2})


def test_tags_and_branches_change_over_a_server(uri: str) -> None:
    for line in ("tag {uri} ns.t good", "branch {uri} ns.t trial", "branch {uri} ns.t trial -d --yes"):
        result = CliRunner().invoke(command, line.format(uri=uri).split(), obj=lancekeep)
        assert result.exit_code == 0, result.output
    catalog = lancekeep.connect(uri)
    assert (list(catalog.tags.list("ns.t")), list(catalog.branches.list("ns.t"))) == (["good"], [])


def unknown(front: Front) -> str:
    """Return the token of an append whose replies are lost."""
    catalog = lancekeep.connect(front.uri, properties={"rest.retry_seconds": "0.3"})
    front.losses["create_table_version"] = front.losses["describe_table_version"] = 1000
    with pytest.raises(lancekeep.CommitUnknown) as raised:
        catalog.write("ns.t", pa.table({"id": [3]}), "append")
    front.losses.clear()
    return str(raised.value.token)


def test_resolve_settles_an_unknown_commit_through_a_server(front: Front) -> None:
    token = unknown(front)
    for _ in range(2):
        result = CliRunner().invoke(command, ["resolve", front.uri, token, "--json"], obj=lancekeep)
        assert (result.exit_code, json.loads(result.output)["version"]) == (0, 2), result.output
    assert sorted(lancekeep.connect(front.uri).open("ns.t").to_table()["id"].to_pylist()) == [1, 2, 3]


def test_resolve_reports_a_commit_that_stays_unknown(front: Front) -> None:
    token = unknown(front)
    front.losses["create_table_version"] = 1000
    line = ["resolve", front.uri, token]
    result = CliRunner().invoke(command, line, obj=lancekeep, env={"LANCEKEEP_REST__RETRY_SECONDS": "0.3"})
    assert (result.exit_code, "Still unknown" in result.output) == (3, True), result.output


@pytest.mark.parametrize(("of_server", "message"), [(False, "not a commit token"), (True, "no table of")])
def test_resolve_refuses_a_token_that_is_not_of_the_server(front: Front, of_server: bool, message: str) -> None:
    token = unknown(front).replace("ns$t", "ns$u") if of_server else "nonsense"
    before = lancekeep.connect(front.uri).versions.history("ns.t")
    result = CliRunner().invoke(command, ["resolve", front.uri, token], obj=lancekeep)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert lancekeep.connect(front.uri).versions.history("ns.t") == before


@pytest.mark.parametrize("name", [name for name in REFUSED if name in COMMANDS])
def test_command_without_an_operation_says_where_to_run_it(uri: str, tmp_path: Path, name: str) -> None:
    line, message = REFUSED[name]
    result = CliRunner().invoke(command, line.format(uri=uri, directory=tmp_path).split(), obj=lancekeep)
    assert result.exit_code == 1, result.output
    assert message in " ".join(result.output.split())
    assert lancekeep.connect(uri).open("ns.t").count_rows() == 2
