"""The pages of the files and commits of a table, and of dropped tables."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import attrs
import httpx
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from rest_server import serving
from starlette.testclient import TestClient
from unchecked import unchecked

import lancekeep
from lancekeep import Catalog, DirectoryNamespace, connect
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.conflict_count import ConflictCount, Conflicts
from lancekeep.domain.authorization import Grant, Policy, Principal
from lancekeep.domain.commit import Conflict
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import DataFile, DeletionFile, Fragment
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.rights import ROLES
from lancekeep.domain.version_row import VersionRow
from lancekeep.entrypoints.cli import lancekeep as cli
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import VIEWS, Page
from lancekeep.entrypoints.page.authorized import Access, AuthorizedCatalog
from lancekeep.entrypoints.page.drawing import MOST
from lancekeep.entrypoints.page.formats import command, span
from lancekeep.entrypoints.page.views import commits, dropped, file, files
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.format.values import encoded as encoded_message

MARKUP = "<script>alert(1)<"
RIGHT_TO_LEFT = "a\u202egnp"
T = ObjectId.of("ml.t")
ADA = Principal("key:ada")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def catalog(root: Path) -> Iterator[Catalog]:
    with connect(str(root / "lake"), commit_store=f"sqlite:///{root}/commits.db") as catalog:
        for namespace in ("ml", "secret"):
            catalog.create_namespace(namespace)
        rows = {"id": range(100), MARKUP: ["x" * 50] * 100, "vector": [{"a": 1, "b": [1.0] * 4}] * 100}
        catalog.write("ml.t", pa.table(rows))
        catalog.commit_change("ml.t", _indexed)
        catalog.write("ml.t", pa.table(rows), "append")
        catalog.data.delete("ml.t", "id < 25")
        catalog.write("secret.s", pa.table({"a": [1]}))
        catalog.clone("secret.s", "ml.of_secret")
        catalog.clone("ml.t", f"ml.{MARKUP}")
        catalog.clone("ml.t", "secret.of_t")
        yield catalog


def _indexed(dataset: Any) -> Any:
    dataset.create_scalar_index("id", "BTREE")
    return dataset


@pytest.fixture(scope="module")
def page(catalog: Catalog) -> TestClient:
    return TestClient(Page(catalog))


def narrow(catalog: Catalog, *subtrees: str) -> TestClient:
    """Return the page as a principal sees it that may read some subtrees."""
    grants = tuple(Grant(ROLES["read"], ObjectId.of(each), frozenset({ADA.name})) for each in subtrees)
    served = Page(catalog, Policy(grants))

    async def signed_in(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["principal"] = ADA
        await served(scope, receive, send)

    return TestClient(signed_in)


def directory(catalog: Catalog, table: str) -> Path:
    return Path(catalog.root_uri.removeprefix("file://"), catalog.find_table(table).location)


def text_of(page: TestClient, address: str, **query: object) -> str:
    answer = page.get(address, params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    assert MARKUP not in answer.text
    assert "\u202e" not in answer.text
    assert "style=" not in answer.text
    return unescape(answer.text)


# -- files -----------------------------------------------------------------------------------------------------------


def test_files_are_those_of_the_manifest(catalog: Catalog) -> None:
    view = files.build(catalog, T, {})
    dataset = catalog.open("ml.t")
    fragments = [each.metadata for each in dataset.get_fragments()]
    assert (view.version, view.fragments) == (dataset.version, len(fragments))
    assert (view.totals.rows, view.totals.deleted) == (dataset.count_rows(), 50)
    assert [bar.parts for bar in view.totals.bars] == [(75, 25), (75, 25)]
    assert [each.files[0].path for each in view.shown] == [f"data/{each.files[0].path}" for each in fragments]
    on_disk = [directory(catalog, "ml.t") / each.files[0].path for each in view.shown]
    assert view.totals.size == sum(each.stat().st_size for each in on_disk)
    assert [(directory(catalog, "ml.t") / each.files[1].path).is_file() for each in view.shown] == [True, True]


def test_columns_have_the_bytes_of_their_pages(catalog: Catalog) -> None:
    view = files.build(catalog, T, {})
    dataset = catalog.open("ml.t")
    engine = {each.id: each.bytes_on_disk for each in dataset.stats.data_stats().fields}
    top = {field.name(): field for field in dataset.lance_schema.fields()}
    stored = {name: sum(engine.get(each, 0) for each in _below(field)) for name, field in top.items()}
    assert dict(view.columns) == stored
    assert view.measured == 2


def _below(field: Any) -> list[int]:
    """Return the ids of a field and of all fields below it."""
    return [field.id(), *(id_ for child in field.children() for id_ in _below(child))]


def test_index_states_the_fragments_and_rows_that_it_covers(catalog: Catalog) -> None:
    [index] = files.build(catalog, T, {}).indexes
    assert (index.kind, index.columns, index.fragments) == ("BTree", ("id",), 1)
    assert index.indexed_rows + index.unindexed_rows == 150
    assert index.unindexed_rows > 0


def test_index_does_not_cover_fragments_that_are_gone(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"id": range(10)}))
        catalog.commit_change("t", _indexed)
        catalog.write("t", pa.table({"id": range(10, 20)}), "append")
        catalog.data.delete("t", "id < 10")
        view = files.build(catalog, ObjectId.of("t"), {})
    assert (view.fragments, [index.fragments for index in view.indexes]) == (1, [0])


def test_older_version_tag_and_branch_have_their_own_files(catalog: Catalog) -> None:
    catalog.branches.create("ml.t", "side")
    catalog.data.insert("ml.t", catalog.open("ml.t").head(3).to_reader(), branch="side")
    assert files.build(catalog, T, {"version": "1"}).totals.deleted == 0
    view = files.build(catalog, T, {"branch": "side"})
    assert (view.fragments, view.branch) == (3, "side")
    assert view.shown[2].files[0].path.startswith("tree/side/data/")
    own = {"branch": "side", "path": view.shown[2].files[0].path}
    assert file.build(catalog, T, own).document["kind"] == "data file"
    with pytest.raises(InvalidInput):
        file.build(catalog, T, {"path": own["path"]})


def test_many_fragments_have_a_bounded_page(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = _encoded(100_000)
    manifest = catalog.versions.manifest("ml.t")
    fragments = manifest.fragments
    monkeypatch.setattr(type(catalog.versions), "manifest", lambda *_, **__: _with(manifest, fragments, encoded))
    view = files.build(catalog, T, {"page": "2000"})
    assert view.fragments == 100_000
    assert len(view.totals.bars) <= MOST
    assert sum(sum(bar.parts) for bar in view.totals.bars) == view.totals.rows + view.totals.deleted == 10_000_000
    assert [each.id for each in view.shown] == list(range(99_950, 100_000))
    assert not view.more


def _encoded(count: int) -> list[bytes]:
    found = []
    for at in range(count):
        deleted = DeletionFile(num_deleted_rows=1) if at % 2 else None
        fragment = Fragment(at, (DataFile("gone.lance", (0,), (0,), 2, 0, 10),), deleted, 100)
        found.append(encoded_message(fragment).SerializeToString())
    return found


def _with(manifest: Any, fragments: Any, encoded: list[bytes]) -> Any:
    return attrs.evolve(manifest, fragments=fragments.of(encoded))


def test_page_of_files_shows_the_pictures_and_links(page: TestClient) -> None:
    html = text_of(page, "/t/ml.t/files")
    assert html.count('<svg role="img"') == 3
    assert "75 of them" not in html
    assert "/t/ml.t/file?version=" in html
    assert "ml.%3Cscript%3Ealert%281%29%3C" in html
    assert "secret.of_t" in html


def test_declared_table_has_a_sentence(catalog: Catalog, page: TestClient) -> None:
    catalog.declare_table("ml.declared")
    for view, sentence in (("files", "only declared"), ("commits", "no rows"), ("file", "has no version")):
        answer = page.get(f"/t/ml.declared/{view}")
        assert answer.status_code < 500
        assert sentence in answer.text


# -- one file --------------------------------------------------------------------------------------------------------


def test_each_file_of_a_version_opens(catalog: Catalog, page: TestClient) -> None:
    view = files.build(catalog, T, {})
    named = [each.path for fragment in view.shown for each in fragment.files]
    kinds = []
    for path in (*named, view.transaction or "", ""):
        found = file.build(catalog, T, {"path": path, "version": str(view.version)})
        assert not found.problem
        kinds.append(found.document["kind"])
        assert found.document["kind"] in text_of(page, "/t/ml.t/file", path=path)
    assert sorted(set(kinds)) == ["data file", "deletion file", "manifest", "transaction"]


@pytest.mark.parametrize(
    "path",
    [
        "data/../data/{own}",
        "./data/{own}",
        "data//{own}",
        "/etc/passwd",
        "../../commits.db",
        "data/{other}",
        "../{sibling}/data/{other}",
        "_versions/1.manifest",
        "_versions/",
        "data/",
        "data/\0",
        "data/%2e%2e",
        "file:///etc/passwd",
        RIGHT_TO_LEFT,
        "x" * 100_000,
    ],
)
def test_file_that_the_version_does_not_name_is_refused(catalog: Catalog, page: TestClient, path: str) -> None:
    own = files.build(catalog, T, {}).shown[0].files[0].path.removeprefix("data/")
    other = next((directory(catalog, "secret.s") / "data").iterdir()).name
    sibling = catalog.find_table("secret.s").location
    given = path.format(own=own, other=other, sibling=sibling)
    with pytest.raises(InvalidInput, match="has no file"):
        file.build(catalog, T, {"path": given})
    if len(given) < 1000:
        answer = page.get("/t/ml.t/file", params={"path": given})
        assert answer.status_code == 400
        assert "root:" not in answer.text


def test_file_of_another_version_is_not_opened(catalog: Catalog) -> None:
    [_, last] = files.build(catalog, T, {}).shown
    with pytest.raises(InvalidInput):
        file.build(catalog, T, {"path": last.files[0].path, "version": "1"})


def test_file_below_a_base_path_is_not_opened(catalog: Catalog) -> None:
    clone = ObjectId(("ml", MARKUP))
    view = files.build(catalog, clone, {})
    assert view.base_paths
    assert not any(each.is_open for fragment in view.shown for each in fragment.files)
    with pytest.raises(InvalidInput):
        file.build(catalog, clone, {"path": view.shown[0].files[0].path})


def test_description_has_a_bound(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        schema = pa.schema([pa.field(f"c{at}", pa.int8()) for at in range(1000)], {"k": "v" * 1_000_000})
        catalog.write("wide", schema.empty_table())
        answer = TestClient(Page(catalog)).get("/t/wide/file")
        assert answer.status_code == 200
        assert "900 more" in answer.text
        assert len(answer.text) < 100_000


def test_large_data_file_is_described_by_its_end(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.build(catalog, T, {}).shown[0].files[0].path
    whole = catalog.inspect("ml.t", file=path)
    read: list[int] = []
    store = type(directory_of(catalog).places.objects)
    tail = store.tail

    def measured(self: Any, key: str, most: int) -> Any:
        read.append(most)
        return tail(self, key, most)

    monkeypatch.setattr(store, "tail", measured)
    monkeypatch.setattr("lancekeep.application.rows.inspection._FOOTER", 8)
    assert catalog.inspect("ml.t", file=path) == whole
    assert len(read) > 1
    assert read[-1] < whole["size"] * 2


# -- damage ----------------------------------------------------------------------------------------------------------


def test_damage_becomes_a_sentence(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"a": [1, 2, 3]}))
        catalog.write("t", pa.table({"a": [4]}), "append")
        uri = directory(catalog, "t")
        [first, second] = (each.files[0].path for each in files.build(catalog, ObjectId.of("t"), {}).shown)
        (uri / first).unlink()
        (uri / second).write_bytes(b"not a data file")
        page = TestClient(Page(catalog))
        html = text_of(page, "/t/t/files")
        assert f"has no file '{first}'" in html
        assert "not a data file of format 2" in html
        assert "has no file" in text_of(page, "/t/t/file", path=first)
    manifest = next(iter(sorted((uri / "_versions").glob("*.manifest"))))
    whole = manifest.read_bytes()
    panics = whole[:-16] + (2).to_bytes(8, "little") + whole[-8:]
    for damaged in (whole[:-7] + b"garbage", whole[: len(whole) // 2], b"", panics):
        manifest.write_bytes(damaged)
        with connect(str(tmp_path)) as catalog:
            for view in ("files", "commits", "file"):
                answer = TestClient(Page(catalog)).get(f"/t/t/{view}")
                assert answer.status_code == 200, (view, damaged)


def _latest_manifest(root: Path) -> Path:
    """Return the manifest of the second version of the table."""
    [second] = (
        each
        for each in (root / "lake" / "t.lance" / "_versions").iterdir()
        if (name := ManifestName.parse(each.name)) is not None and name.version == 2
    )
    return second


def _garbage(root: Path) -> None:
    _latest_manifest(root).write_bytes(b"\xff" * 500)


def _cut(root: Path) -> None:
    _latest_manifest(root).write_bytes(_latest_manifest(root).read_bytes()[:10])


def _gone(root: Path) -> None:
    _latest_manifest(root).unlink()


def _foreign_row(root: Path) -> None:
    with closing(sqlite3.connect(root / "commits.db")) as database, database:
        database.execute("UPDATE version_rows SET path = '../elsewhere/1.manifest'")


@pytest.mark.parametrize("damage", [_garbage, _cut, _gone, _foreign_row])
def test_each_view_of_a_damaged_history_shows_the_finding(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = f"sqlite:///{tmp_path}/commits.db"
    with connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        for mode in ("create", "append"):
            catalog.write("t", pa.table({"id": [1]}), mode)
    damage(tmp_path)
    with connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        page = TestClient(Page(catalog))
        found = {view: page.get(f"/t/t{view}") for view in ("", "/history", "/files", "/commits", "/diff?from=1&to=2")}
        assert {view: answer.status_code for view, answer in found.items()} == dict.fromkeys(found, 200)
        assert any("Stored data of this table cannot be read" in answer.text for answer in found.values())
        assert "lancekeep fsck" in found[""].text
        assert page.get("/t/t/image", params={"version": 2, "row": 0, "column": "id"}).status_code >= 400


def test_file_before_format_2_is_said_to_be_one(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t.lance"), data_storage_version="legacy")
    with connect(str(tmp_path)) as catalog:
        [note] = files.build(catalog, ObjectId.of("t"), {}).notes
    assert note.endswith("has the version 0.2")


# -- commits ---------------------------------------------------------------------------------------------------------


def test_rows_of_the_commit_store_are_paged(
    catalog: Catalog, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = catalog.open("ml.t").version
    monkeypatch.setattr(commits, "PAGE", 2)
    seen: list[int] = []
    query: dict[str, str] = {}
    while True:
        view = commits.build(catalog, T, query)
        assert view.found is not None
        assert view.found.store.startswith("sqlite:///")
        assert all(row.is_final and row.file.startswith("_versions/") for row in view.rows)
        seen += [row.version for row in view.rows]
        if view.found.following is None:
            break
        query = {"before": str(view.found.following)}
    assert seen == list(range(latest, 0, -1))
    assert "Conflicts per hour" in text_of(page, "/t/ml.t/commits")


def test_commits_that_are_not_complete_are_shown_and_stay(tmp_path: Path) -> None:
    with connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/rows.db") as catalog:
        catalog.write("t", pa.table({"a": [1]}), properties={"x": "y"})
        own = directory_of(catalog)
        dataset = own.places.dataset_root(catalog.find_table("t"))
        row = own.commits.rows.latest(dataset.base_uri)
        assert row is not None
        content = own.places.objects.get(row.path)
        staged = {
            stage: f"{dataset.manifest_key(version, NamingScheme.V2)}-{uuid4()}"
            for stage, version in (("lost", 1), ("decided", 2), ("open", 3))
        }
        for key in staged.values():
            own.places.objects.put(key, content)
        own.commits.rows.reserve(VersionRow(dataset.base_uri, 2, staged["decided"], len(content), MARKUP), first=False)
        view = commits.build(catalog, ObjectId.of("t"), {})
        assert {each.stage.value: f"{dataset.key}/{each.file}" for each in view.staged} == staged
        assert [(each.version, each.is_final) for each in view.rows] == [(2, False), (1, True)]
        html = text_of(TestClient(Page(catalog)), "/t/t/commits")
        for words in (f"by {MARKUP}"[3:], "reserved", "lancekeep history", "lancekeep resolve", "lancekeep repair"):
            assert words in html
        again = commits.build(catalog, ObjectId.of("t"), {})
        assert again.staged == view.staged
        own.commits.rows.delete(dataset.base_uri, [1])  # as cleanup does
        assert commits.build(catalog, ObjectId.of("t"), {}).staged == view.staged


def test_unresolved_commits_of_all_tables_are_listed_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "lake")
    with connect(root, commit_store=f"sqlite:///{tmp_path}/rows.db") as catalog:
        own = directory_of(catalog)
        reserved = ["ml.a", "ml.b", f"ml.{MARKUP}", "secret.s"]
        for namespace in ("ml", "secret"):
            catalog.create_namespace(namespace)
        for name in (*reserved, "ml.complete"):
            catalog.write(name, pa.table({"a": [1]}))
        catalog.branches.create("ml.complete", "dev")
        for name in (*reserved, "ml.complete@dev"):
            table, _, branch = name.partition("@")
            history = own.places.dataset_root(catalog.find_table(table)).branch(branch or None)
            latest = own.commits.rows.latest(history.base_uri)
            assert latest is not None
            key = f"{history.manifest_key(latest.version + 1, NamingScheme.V2)}-{uuid4()}"
            own.places.objects.put(key, own.places.objects.get(latest.path))
            row = VersionRow(history.base_uri, latest.version + 1, key, latest.size, MARKUP)
            own.commits.rows.reserve(row, first=False)
        found = catalog.unresolved_commits()
        shown = {f"{each.table}{'@' if each.branch else ''}{each.branch or ''}" for each in found.commits}
        assert (shown, found.following) == ({*reserved, "ml.complete@dev"}, None)
        assert catalog.unresolved_commits() == found
        monkeypatch.setattr(commits, "PAGE", 2)
        page, address, seen = TestClient(Page(catalog)), "/commits", []
        while True:
            view = commits.build_unresolved(catalog, dict(httpx.URL(address).params))
            seen += [str(each.table) for each, _ in view.found or ()]
            assert MARKUP not in page.get(address).text
            if view.following is None:
                break
            address = f"/commits?{urlencode({'after': view.following})}"
        assert sorted(seen) == sorted([*reserved, "ml.complete"])
        narrowed = text_of(narrow(catalog, "ml.b"), "/commits")
        assert ("ml.b" in narrowed, "secret.s" in narrowed, "ml.a" in narrowed) == (True, False, False)
        with pytest.raises(InvalidInput, match="page before"):
            catalog.unresolved_commits(after="nonsense")
        listed = CliRunner().invoke(cli, ["ls", root, "--unresolved", "-o", "jsonl", "--limit", "3"], obj=lancekeep)
        assert (listed.exit_code, len(listed.stdout.splitlines())) == (0, 3), listed.output
        assert "More than 3" in listed.stderr
        catalog.versions.history("ml.a")
        assert "ml.a" not in {str(each.table) for each in catalog.unresolved_commits().commits}


def test_store_without_an_index_says_that_unresolved_commits_are_unknown(tmp_path: Path) -> None:
    with connect(str(tmp_path / "lake"), commit_store=f"file://{tmp_path}/rows") as catalog:
        assert "keeps no index" in text_of(TestClient(Page(catalog)), "/commits")
    with connect(str(tmp_path / "managed")) as catalog:
        assert catalog.unresolved_commits().commits == ()


def test_conflicts_of_the_last_hour_are_counted(tmp_path: Path) -> None:
    with connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/rows.db") as catalog:
        catalog.write("t", pa.table({"a": [1]}))
        runner = directory_of(catalog).commits
        history = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
        taken = runner.latest(history)
        assert taken is not None
        transaction = catalog.versions.manifest("t").transaction_file
        assert transaction is not None
        staged = f"{taken.path}-{uuid4()}"
        content = runner.objects.get(taken.path).replace(transaction[2:38].encode(), str(uuid4()).encode())
        runner.objects.put(staged, content)
        lost = runner.commit(history, taken.version, staged, len(content), branch=False, check=unchecked)
        assert isinstance(lost, Conflict)
        assert catalog.commit_rows("t").conflicts.count == 1
        html = text_of(TestClient(Page(catalog)), "/t/t/commits")
        assert "1 conflict of commits by this process since it opened the catalog" in html
        namespace = CatalogNamespace(catalog)
        metrics = TestClient(create_app(namespace, ServerSettings(log_level="error"))).get("/metrics").text
        assert "lancekeep_conflicts_last_hour 1.0" in metrics


def test_conflicts_are_forgotten_after_an_hour() -> None:
    now = [0.0]
    counted = ConflictCount(lambda: now[0])
    counted.add("a")
    now[0] = 1800.0
    counted.add("b")
    assert (counted.last_hour(), counted.last_hour("a")) == (Conflicts(2, 1800.0), Conflicts(1, 1800.0))
    now[0] = 3700.0
    assert (counted.last_hour(), counted.last_hour("a")) == (Conflicts(1, 3600.0), Conflicts(0, 3600.0))


# -- dropped ---------------------------------------------------------------------------------------------------------


def test_dropped_tables_are_paged_with_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(str(tmp_path), committer=MARKUP) as catalog:
        catalog.initialize()
        for name in (RIGHT_TO_LEFT, MARKUP, "--yes"):
            catalog.write([name], pa.table({"a": [1]}))
            catalog.drop_table([name], keep=timedelta(days=2))
        monkeypatch.setattr(dropped, "PAGE", 2)
        [first, second] = (dropped.build(catalog, {"page": page}, datetime.now(UTC)) for page in ("1", "2"))
        assert (first.count, first.more, second.more) == (3, True, False)
        found = {str(row.table.id): row for row in (*first.rows, *second.rows)}
        assert set(found) == {RIGHT_TO_LEFT, MARKUP, "--yes"}
        left = found[MARKUP].left
        assert left is not None
        assert timedelta(days=1) < left < timedelta(days=2)
        assert " -- " in found["--yes"].command
        over = dropped.build(catalog, {}, datetime.now(UTC) + timedelta(days=3))
        assert [row.left for row in over.rows] == [None, None]
        html = text_of(TestClient(Page(catalog)), "/dropped")
        assert "lancekeep undrop --drop=" in html
        assert "Time left" in html
        assert TestClient(Page(catalog)).get("/dropped?page=0&path=x").status_code == 400


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.5, "less than a second"),
        (61, "1 minute 1 second"),
        (86400 * 3 + 3600 * 4 + 5, "3 days 4 hours"),
        (7200, "2 hours 0 minutes"),
    ],
)
def test_time_span_has_two_units(seconds: float, expected: str) -> None:
    assert span(timedelta(seconds=seconds)) == expected


def test_command_line_keeps_every_argument_one_argument() -> None:
    line = command("repair", "/a b", "-x; rm -rf", table="--yes", yes=True)
    assert shlex.split(line) == ["lancekeep", "repair", "--table=--yes", "--yes", "--", "/a b", "-x; rm -rf"]


# -- permissions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["files", "file", "commits"])
def test_table_of_another_subtree_looks_like_a_missing_one(catalog: Catalog, view: str) -> None:
    page = narrow(catalog, "ml")
    hidden, missing = (page.get(f"/t/{table}/{view}") for table in ("secret.s", "secret.missing"))
    assert hidden.status_code == missing.status_code == 404
    assert hidden.text.replace("secret.s", "X") == missing.text.replace("secret.missing", "X")


def test_clones_and_dropped_tables_of_another_subtree_are_hidden(catalog: Catalog) -> None:
    catalog.write("secret.gone", pa.table({"a": [1]}))
    catalog.drop_table("secret.gone", keep=timedelta(days=1))
    page = narrow(catalog, "ml")
    assert "secret" not in text_of(page, "/t/ml.t/files")
    assert "secret" not in text_of(page, "/dropped")
    assert "secret.gone" in text_of(narrow(catalog, ""), "/dropped")


def test_base_paths_into_another_subtree_are_hidden(catalog: Catalog) -> None:
    page = narrow(catalog, "ml")
    location = catalog.find_table("secret.s").location
    for view in ("files", "file", "commits"):
        html = text_of(page, f"/t/ml.of_secret/{view}")
        assert location not in html
        assert "secret.s" not in html
    assert "base paths outside of its directory that you may not read" in text_of(page, "/t/ml.of_secret/files")
    assert location in text_of(narrow(catalog, ""), "/t/ml.of_secret/files")


def test_views_over_an_authorized_catalog_equal_those_of_the_catalog(catalog: Catalog) -> None:
    authorized: Any = AuthorizedCatalog(catalog, Access())
    assert files.build(authorized, T, {}) == files.build(catalog, T, {})
    assert at_one_time(commits.build(authorized, T, {})) == at_one_time(commits.build(catalog, T, {}))
    assert dropped.build(authorized, {}, NOW) == dropped.build(catalog, {}, NOW)


def at_one_time(view: Any) -> Any:
    """Return the view of commits without the seconds since conflicts are counted."""
    conflicts = attrs.evolve(view.found.conflicts, seconds=0.0)
    return attrs.evolve(view, found=attrs.evolve(view.found, conflicts=conflicts))


def test_hostile_parameters_are_never_a_failure_of_the_server(page: TestClient) -> None:
    values = ("1", "9" * 19, "²", "a/../../b", "\0", RIGHT_TO_LEFT)
    names = ("version", "branch", "page", "filter", "before", "path", "from", "to", "a", "b", "q", "namespace", "after")
    for address, _ in VIEWS:
        for name in names:
            for value in values if name not in ("a", "b", "q") else values[-2:]:
                answer = page.get(address.replace("{id}", "ml.t"), params={name: value})
                assert answer.status_code < 500, (address, name, value)


# -- a server --------------------------------------------------------------------------------------------------------


def test_catalog_of_a_server_has_sentences_for_what_it_lacks(tmp_path: Path) -> None:
    namespace = DirectoryNamespace(root=str(tmp_path))
    with serving(namespace) as front, connect(front.uri) as catalog:
        catalog.write("t", pa.table({"a": [1, 2, 3]}))
        page = TestClient(Page(catalog))
        html = text_of(page, "/t/t/files")
        assert "3, and 0 deleted rows" in html
        assert "no operation for 'clones_of'" in html
        for address in ("/t/t/commits", "/t/t/file"):
            assert "no operation for" in text_of(page, address)
        catalog.write("gone_lately", pa.table({"a": [1]}))
        catalog.drop_table("gone_lately", keep=timedelta(days=1))
        assert "gone_lately" in text_of(page, "/dropped")
