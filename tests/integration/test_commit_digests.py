"""Commits that record digests: each changed byte of their files is found, and no commit waits for a record."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from engines import ALL, Engine

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep import digest_recorder
from lancekeep.domain.digests import DIGESTS
from lancekeep.domain.errors import AccessDenied, InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.view import ViewDefinition
from lancekeep.entrypoints import hashing
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.rows import MergeRule
from lancekeep.ports.table_structure import NewIndex

STORES = ("conditional-put", "sqlite", "storage-managed")
RECORDS = ".lancekeep-digests/*.jsonl"
DIRECTORIES = ("data", "_deletions", "_indices", "_versions", "_transactions")
ON = {DIGESTS: "true"}
OFF = {DIGESTS: "false"}
T = ObjectId.of("t")


@attrs.frozen
class Lake:
    """A catalog whose commits record digests."""

    directory: Path
    catalog: lancekeep.Catalog
    commit_store: str | None = None

    def files(self, table: str = "") -> set[Path]:
        """Return the files of tables that versions name."""
        below = self.at(table) if table else self.directory
        found = (path for path in below.rglob("*") if path.is_file() and "__manifest" not in path.parts)
        return {
            path for path in found if any(f"/{name}/" in str(path) for name in DIRECTORIES) and path.suffix != ".json"
        }

    def at(self, table: str) -> Path:
        return self.directory / "lake" / self.catalog.find_table(table).location

    def records(self, table: str) -> list[Path]:
        return list(self.at(table).glob(RECORDS))

    def verified(self) -> list[str]:
        """Return the problems; all files have a digest if there are none."""
        report = lancekeep.verify(self.catalog)
        missing = [
            f"{table.table}: {table.undigested}, {table.unrecorded}" for table in report.tables if table.undigested
        ]
        return [f"{problem.object}: {problem.reason}" for problem in report.problems] + missing


def connected(directory: Path, store: str = "conditional-put") -> Lake:
    urls = {"sqlite": f"sqlite:///{directory}/rows.db", "conditional-put": "conditional-put://"}
    catalog = lancekeep.connect(str(directory / "lake"), mode="v2", commit_store=urls.get(store))
    return Lake(directory, catalog, urls.get(store))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = connected(tmp_path)
    lake.catalog.alter_namespace("", ON)
    with lake.catalog:
        yield lake


def rows(*values: int) -> pa.Table:
    return pa.table({"i": pa.array(values, pa.int64()), "s": [f"row {value}" for value in values]})


# -- every kind of commit ---------------------------------------------------------------------------------------------


def committed_together(catalog: lancekeep.Catalog) -> None:
    with catalog.transaction() as transaction:
        for name in ("t", "u"):
            transaction.write(name, rows(70), "append")


def committed_by_transaction(catalog: lancekeep.Catalog) -> None:
    """Commit the files of an append that was undone, without the engine, also as a detached version."""
    before = catalog.open("t").version
    catalog.write("t", rows(80), "append")
    manifest = min((path_of(catalog, "t") / "_versions").glob("[0-9]*.manifest"))
    transaction = TableVersion.parse(manifest.read_bytes(), str(manifest)).transaction
    assert transaction is not None
    latest = catalog.versions.restore(T, before).version
    catalog.commit("t", attrs.evolve(transaction, uuid=str(uuid4()), read_version=latest))
    catalog.commit("t", attrs.evolve(transaction, uuid=str(uuid4()), read_version=latest), detached=True)


def path_of(catalog: lancekeep.Catalog, table: str) -> Path:
    return Path(services_of(catalog).uri(catalog.find_table(table)).removeprefix("file://"))


def viewed(catalog: lancekeep.Catalog) -> None:
    query = json.dumps({"table": ["t"], "columns": {"i": "i"}, "filter": "i > 1"})
    definition = ViewDefinition.parse(query, auto_refresh=True)
    catalog.views.create(ObjectId.of("view"), definition, pa.schema([("i", pa.int64())]))
    catalog.views.refresh(ObjectId.of("view"))


def branched(catalog: lancekeep.Catalog) -> None:
    catalog.branches.create(T, "b", None, None)
    catalog.data.insert(T, rows(90).to_reader(), branch="b")
    catalog.data.delete(T, "i = 90", branch="b")


def planned(catalog: lancekeep.Catalog, mode: str) -> None:
    plan = catalog.begin_write("t", rows().schema, mode)
    fragments = lance.fragment.write_fragments(rows(95), plan.uri)
    catalog.commit_fragments(plan, fragments)


def compacted(catalog: lancekeep.Catalog) -> None:
    catalog.upkeep.compact("t")


COMMITS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "append": lambda catalog: catalog.write("t", rows(7, 8), "append"),
    "append a stream": lambda catalog: catalog.write("t", rows(9).to_reader(), "append"),
    "insert": lambda catalog: catalog.data.insert(T, rows(10).to_reader()),
    "index": lambda catalog: catalog.structure.create_index(T, NewIndex("i", "BTREE", "by_i"), None),
    "delete": lambda catalog: catalog.data.delete(T, "i = 7"),
    "update": lambda catalog: catalog.data.update(T, {"s": "'changed'"}, "i = 8"),
    "merge": lambda catalog: catalog.data.merge(T, rows(8, 11).to_reader(), MergeRule(["i"], update=True)),
    "add a column": lambda catalog: catalog.structure.add_columns(T, {"n": "i + 1"}, None),
    "drop a column": lambda catalog: catalog.structure.drop_columns(T, ["n"], None),
    "compact": compacted,
    "optimize": lambda catalog: catalog.commit_change(
        "t", lambda dataset: (dataset.optimize.optimize_indices(), dataset)[1]
    ),
    "append planned fragments": partial(planned, mode="append"),
    "commit a transaction": committed_by_transaction,
    "commit together": committed_together,
    "branch": branched,
    "clone": lambda catalog: catalog.clone("t", "shallow"),
    "clone deeply": lambda catalog: catalog.clone("t", "deep", deep=True),
    "append to a clone": lambda catalog: catalog.write("shallow", rows(12), "append"),
    "materialize": lambda catalog: catalog.upkeep.materialize("shallow"),
    "view": viewed,
    "restore": lambda catalog: catalog.versions.restore(T, 2),
    "overwrite": lambda catalog: catalog.write("t", rows(1, 2), "overwrite"),
    "rename": lambda catalog: (catalog.write("u", rows(3), "append"), catalog.rename_table("u", "v")),
    "tier": lambda catalog: catalog.upkeep.move_fragments("v", timedelta(0), f"{catalog.root_uri}-tier"),
}
MANAGED = {"commit together"}
"""Kinds of commits that need a commit store."""


@pytest.mark.parametrize("store", STORES)
def test_every_kind_of_commit_records_its_files(tmp_path: Path, store: str) -> None:
    lake = connected(tmp_path, store)
    catalog = lake.catalog
    catalog.alter_namespace("", ON)
    for name in ("t", "u"):
        catalog.write(name, rows(1))
    new: dict[str, set[Path]] = {"create": lake.files()}
    for kind, commit in COMMITS.items():
        if kind in MANAGED and store != "sqlite":
            continue
        before = lake.files()
        commit(catalog)
        new[kind] = lake.files() - before
        assert new[kind], kind
    hold(catalog)
    assert lake.verified() == []
    require_found(lake, {path: kind for kind, paths in new.items() for path in paths if path.exists()})
    assert lake.verified() == []


def hold(catalog: lancekeep.Catalog) -> None:
    """Tag every version, so that `verify` reads it."""
    for table in catalog.list_tables():
        for branch in (None, *catalog.branches.list(ObjectId.of(table))):
            for each in catalog.open(table, branch=branch).versions():
                tag = f"{branch or ''}{each['version']}"
                catalog.tags.create(ObjectId.of(table), tag, each["version"], branch)


def require_found(lake: Lake, files: dict[Path, str]) -> None:
    """Change each file, and require that `verify` names all that a kept version needs."""
    needed = {path: kind for path, kind in files.items() if is_needed(lake, path)}
    assert {path.parts[-2] if path.parts[-2] in DIRECTORIES else path.parts[-3] for path in needed} == {*DIRECTORIES}
    manifests = [path for path in needed if path.suffix == ".manifest"]
    for some in ([path for path in needed if path not in manifests], manifests):  # manifests name the other files
        whole = {path: path.read_bytes() for path in some}
        for path, content in whole.items():
            path.write_bytes(flipped(content))
        problems = lake.verified()
        for path in some:
            assert any(path.name in problem for problem in problems), (needed[path], path)
            path.write_bytes(whole[path])


def is_needed(lake: Lake, path: Path) -> bool:
    return any(path.name in record.read_text() for record in lake.directory.rglob(RECORDS))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


# -- the property -----------------------------------------------------------------------------------------------------


def test_a_table_overrides_the_catalog(lake: Lake) -> None:
    for name, properties in (("t", {}), ("u", OFF)):
        lake.catalog.write(name, rows(1), properties=properties)
    directory_of(lake.catalog).recorder.flush()
    assert [len(lake.records(name)) for name in ("t", "u")] == [1, 0]
    lake.catalog.alter_table("u", ON)
    lake.catalog.alter_namespace("", remove=[DIGESTS])
    for name in ("t", "u"):
        lake.catalog.write(name, rows(2), "append")
    directory_of(lake.catalog).recorder.flush()
    assert [len(lake.records(name)) for name in ("t", "u")] == [1, 1]


def test_other_values_and_namespaces_are_refused(lake: Lake) -> None:
    lake.catalog.write("t", rows(1))
    for alter in (
        lambda: lake.catalog.alter_namespace("", {DIGESTS: "yes"}),
        lambda: lake.catalog.alter_table("t", {DIGESTS: "1"}),
        lambda: lake.catalog.create_namespace("n", ON),
    ):
        with pytest.raises(InvalidInput, match=DIGESTS):
            alter()


# -- records ----------------------------------------------------------------------------------------------------------


def test_files_before_the_property_are_counted(tmp_path: Path) -> None:
    lake = connected(tmp_path)
    lake.catalog.write("t", rows(1))
    lake.catalog.alter_namespace("", ON)
    [before] = lancekeep.verify(lake.catalog).tables
    assert (before.digests, before.undigested, before.unrecorded) == (0, 3, (1,))
    lake.catalog.write("t", rows(2), "append")
    [after] = lancekeep.verify(lake.catalog).tables
    assert (after.digests, after.undigested, after.unrecorded) == (3, 1, ())
    lancekeep.digest(lake.catalog)
    assert lake.verified() == []


def committed_apart(lake: Lake, ends: str) -> None:
    """Append twice in another process, which ends at once."""
    program = (
        "import lancekeep, os, pyarrow as pa\n"
        f"root, store = {str(lake.directory / 'lake')!r}, {lake.commit_store!r}\n"
        "catalog = lancekeep.connect(root, mode='v2', commit_store=store)\n"
        "for number in (2, 3):\n"
        "    catalog.write('t', pa.table({'i': [number], 's': ['']}), 'append')\n"
        f"{ends}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_process_records_its_commits_before_it_ends(lake: Lake) -> None:
    lake.catalog.write("t", rows(1))
    committed_apart(lake, "")
    assert lake.verified() == []


def test_commits_of_a_killed_process_are_unknown_and_not_damaged(lake: Lake) -> None:
    lake.catalog.write("t", rows(1))
    committed_apart(lake, "os._exit(0)")
    report = lancekeep.verify(lake.catalog)
    [table] = report.tables
    assert (table.undigested, table.unrecorded, report.problems) == (4, (3,), ())
    lancekeep.digest(lake.catalog)
    assert lake.verified() == []


def test_a_record_that_cannot_be_written_is_a_warning(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake.catalog.write("t", rows(1))
    directory_of(lake.catalog).recorder.flush()
    objects = type(directory_of(lake.catalog).commits.objects)
    put = objects.put

    def refusing(self: Any, key: str, content: bytes) -> None:
        if ".lancekeep-digests" in key:
            raise AccessDenied(f"{key} must not be written")
        put(self, key, content)

    with monkeypatch.context() as patched:
        patched.setattr(objects, "put", refusing)
        assert lake.catalog.write("t", rows(2), "append").version == 2
        directory_of(lake.catalog).recorder.flush()
    assert "the digests of version 2" in caplog.text
    assert lake.catalog.write("t", rows(3), "append").version == 3
    [table] = lancekeep.verify(lake.catalog).tables
    assert (table.undigested, table.unrecorded) == (1, ())


def test_contents_beyond_the_bound_are_hashed_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_recorder, "_MOST_BYTES", 0)
    lake.catalog.write("t", rows(1))
    lake.catalog.write("t", rows(2), "append")
    assert lake.verified() == []


def flushed(lake: Lake, *values: int) -> None:
    for value in values:
        lake.catalog.write("t", rows(value), "append")
        directory_of(lake.catalog).recorder.flush()


def cleaned(lake: Lake) -> None:
    lake.catalog.upkeep.cleanup(0, grace=0)


def digested(lake: Lake) -> None:
    assert lancekeep.digest(lake.catalog).recorded == 0


@pytest.mark.parametrize("folding", [cleaned, digested])
def test_records_of_commits_are_merged(lake: Lake, folding: Callable[[Lake], None]) -> None:
    lake.catalog.write("t", rows(1))
    flushed(lake, 2, 3, 4)
    lake.catalog.write("t", rows(5), "overwrite")
    flushed(lake, 6)
    assert len(lake.records("t")) > 3
    folding(lake)
    [record] = lake.records("t")
    names = [json.loads(line)["file"] for line in record.read_text().splitlines()]
    assert sorted(names) == sorted(str(path.relative_to(lake.at("t"))) for path in lake.files("t"))
    assert lake.verified() == []


def test_a_record_that_appears_during_a_merge_stays(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.write("t", rows(1))
    flushed(lake, 2)
    listed = hashing._listed

    def late(*arguments: Any) -> Any:
        found = listed(*arguments)
        flushed(lake, 3)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(hashing, "_listed", late)
        lancekeep.digest(lake.catalog)
    assert lake.verified() == []


def test_a_dropped_table_leaves_no_record(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        catalog.alter_namespace("", ON)
        catalog.write("t", rows(1))
        directory = path_of(catalog, "t")
        catalog.drop_table("t")
        directory_of(catalog).recorder.flush()
        assert not list(directory.rglob(RECORDS))
        catalog.write("t", rows(2))  # in the same directory
        assert lancekeep.verify(catalog).problems == ()


def test_clean_up_by_pylance_keeps_the_records(lake: Lake) -> None:
    lake.catalog.write("t", rows(1))
    flushed(lake, 2, 3)
    lance.dataset(str(lake.at("t"))).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert len(lake.records("t")) == 2
    assert lake.verified() == []


@pytest.mark.parametrize("name", ALL)
def test_other_engines_ignore_the_records(tmp_path: Path, engine_of: Callable[[str], Engine], name: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        catalog.alter_namespace("", ON)
        catalog.write("t", rows(1))
        handle = engine_of(name).open(str(path_of(catalog, "t")))
        catalog.write("t", rows(2), "append")
        directory_of(catalog).recorder.flush()
        handle.append(rows(3))
        assert sorted(lance.dataset(str(path_of(catalog, "t"))).to_table()["i"].to_pylist()) == [1, 2, 3]
        report = lancekeep.verify(catalog)
        assert (report.problems, report.tables[0].unrecorded) == ((), (3,))


def test_relocated_table_takes_its_records_along(lake: Lake) -> None:
    lake.catalog.write("t", rows(1))
    flushed(lake, 2)
    lake.catalog.write("t", rows(3), "append")
    lake.catalog.upkeep.relocate("t", "archive/t")
    assert lake.verified() == []


def test_commits_to_s3_record_their_files(moto_endpoint: str) -> None:
    root = f"s3://{bucket(moto_endpoint)}/lake"
    options = s3_options(moto_endpoint)
    with lancekeep.connect(root, commit_store="conditional-put://", storage_options=options) as catalog:
        catalog.alter_namespace("", ON)
        catalog.write("t", rows(1))
        catalog.write("t", rows(2), "append")
        catalog.data.delete(T, "i = 1")
        report = lancekeep.verify(catalog)
        assert (report.problems, report.tables[0].undigested) == ((), 0)


def test_commits_through_a_namespace_record_their_files(tmp_path: Path) -> None:
    root, store = str(tmp_path / "lake"), "conditional-put://"
    with lancekeep.connect(root, commit_store=store) as catalog:
        catalog.alter_namespace("", ON)
        namespace = lancekeep.DirectoryNamespace(root=root, commit_store=store)
        lance.write_dataset(rows(1), namespace_client=namespace, table_id=["t"])
        lance.write_dataset(rows(2), namespace_client=namespace, table_id=["t"], mode="append")
        directory_of(namespace.catalog).recorder.flush()
        [table] = lancekeep.verify(catalog).tables
        assert (table.version, table.undigested) == (2, 0)
