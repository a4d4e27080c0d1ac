"""Tables whose migration of manifest names, by pylance, has stopped half-way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from deployments import Deployment, bucket, deployment, s3_options

import lancekeep
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.operations import Transaction, UpdateConfig
from lancekeep.ports.rows import MergeRule
from lancekeep.ports.table_structure import NewIndex

ROW = pa.table({"i": pa.array([1], pa.int64())})
TABLE = ObjectId.of("t")
VERSIONS = 4
CLOSED = "multiple manifest naming schemes"
"""Part of pylance's message if it refuses a mixture."""
REFUSED = re.compile(
    r"Damaged: .*migrate_manifest_names \(`lancekeep migrate-names`\)"
    rf"|ValueError: .*{CLOSED}|Unsupported: .*one atomic step"
)
"""A refusal: of ours, of pylance if a change opens the table first, or of a transaction without a store for it."""


@attrs.frozen
class Lake:
    """A catalog of one deployment, over the table ``t``, which pylance has created with V1 names."""

    given: Deployment
    catalog: lancekeep.Catalog

    @property
    def uri(self) -> str:
        return f"{self.given.root}/t.lance"

    def connect(self) -> lancekeep.Catalog:
        return connect(self.given)

    def plain(self, version: int | None = None) -> lance.LanceDataset:
        return lance.dataset(self.uri, version=version, storage_options=self.given.storage_options or None)

    def rename(self, versions: Sequence[int]) -> None:
        """Give the manifests of these versions their V2 names, as pylance does."""
        root, objects = (
            directory_of(self.catalog).places.dataset_root(self.catalog.find_table("t")),
            directory_of(self.catalog).commits.objects,
        )
        for version in versions:
            source, target = (root.manifest_key(version, scheme) for scheme in (NamingScheme.V1, NamingScheme.V2))
            objects.copy(source, target)
            objects.delete(source)
        if not objects.guarantees.paged:
            objects.put(root.hint_key, json.dumps({"version": versions[-1]}).encode())

    def contents(self) -> object:
        """Return the files of the catalog and the rows of the table's versions."""
        catalog = self.catalog
        root, objects = (
            directory_of(catalog).places.dataset_root(catalog.find_table("t")),
            directory_of(catalog).commits.objects,
        )
        files = [(info.key, info.size) for info in objects.list(root.key.rpartition("/")[0] + "/")]
        if directory_of(catalog).commits.rows.guarantees.derived:
            return files
        return files, directory_of(catalog).commits.rows.list(root.base_uri, after=None, limit=None, descending=False)

    def complete(self) -> None:
        """Complete the migration as the message says."""
        if directory_of(self.catalog).commits.rows.guarantees.derived:
            self.plain(VERSIONS).migrate_manifest_paths_v2()
            return
        with self.connect() as other:
            other.upkeep.migrate_manifest_names("t", reader_pause=0, interrupt_plain_readers=True)


def connect(given: Deployment) -> lancekeep.Catalog:
    return lancekeep.connect(given.root, commit_store=given.commit_store or None, storage_options=given.storage_options)


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, moto_endpoint: str, redis_url: str) -> Lake:
    kind: str = request.param
    store, _, on_s3 = kind.partition(" on ")
    match store:
        case "storage":
            given = Deployment(str(tmp_path / "lake"), "")
        case "memory":
            given = Deployment(str(tmp_path / "lake"), f"memory://{uuid4().hex}")
        case _:
            given = deployment(store, tmp_path, redis_url, moto_endpoint)
    if on_s3:
        given = Deployment(f"s3://{bucket(moto_endpoint)}/lake", given.commit_store, s3_options(moto_endpoint))
    for version in range(VERSIONS):
        lance.write_dataset(
            ROW,
            f"{given.root}/t.lance",
            mode="append" if version else "create",
            storage_options=given.storage_options or None,
            enable_v2_manifest_paths=False,
        )
    with lancekeep.connect(given.root, storage_options=given.storage_options) as catalog:
        if given.commit_store:
            catalog.upkeep.change_commit_store(given.commit_store)
    return Lake(given, connect(given))


def in_transaction(catalog: lancekeep.Catalog) -> None:
    with catalog.transaction() as transaction:
        transaction.write("t", ROW, "append")


def delete_version(catalog: lancekeep.Catalog) -> None:
    directory_of(catalog).versions.delete_versions(
        directory_of(catalog).places.dataset_root(catalog.find_table("t")), [1]
    )


def answer_of(catalog: lancekeep.Catalog, change: Callable[[lancekeep.Catalog], object]) -> str:
    try:
        return f"accepted: {change(catalog)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def config() -> Transaction:
    return Transaction(1, str(uuid4()), operation=UpdateConfig())


CHANGES: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "append": lambda catalog: catalog.write("t", ROW, "append"),
    "overwrite": lambda catalog: catalog.write("t", ROW, "overwrite"),
    "insert": lambda catalog: catalog.data.insert(TABLE, ROW.to_reader()),
    "distributed write": lambda catalog: catalog.begin_write("t", ROW.schema, "append"),
    "transaction": in_transaction,
    "commit": lambda catalog: catalog.commit("t", config()),
    "detached commit": lambda catalog: catalog.commit("t", config(), detached=True),
    "delete": lambda catalog: catalog.data.delete(TABLE, "i = 1"),
    "update": lambda catalog: catalog.data.update(TABLE, {"i": "2"}, None),
    "merge": lambda catalog: catalog.data.merge(TABLE, ROW.to_reader(), MergeRule(["i"], update=True)),
    "restore": lambda catalog: catalog.versions.restore(TABLE, 1),
    "compact": lambda catalog: catalog.upkeep.compact("t"),
    "columns": lambda catalog: catalog.structure.add_columns(TABLE, {"j": "i"}, None),
    "index": lambda catalog: catalog.structure.create_index(TABLE, NewIndex("i", "BTREE"), None),
    "branch": lambda catalog: catalog.branches.create(TABLE, "b", None, None),
    "materialize": lambda catalog: catalog.upkeep.materialize("t"),
    "relocate": lambda catalog: catalog.upkeep.relocate("t", "elsewhere"),
    "rename": lambda catalog: catalog.rename_table("t", "u"),
    "delete version": delete_version,
}
OLDER, NEWER, INNER = (1, 2), (3, 4), (2, 3)


@pytest.mark.parametrize(
    ("lake", "renamed"),
    [
        *((store, OLDER) for store in ("storage", "conditional-put", "sqlite", "files", "redis", "memory", "dynamodb")),
        *((store, NEWER) for store in ("storage", "conditional-put", "sqlite")),
        *((f"{store} on s3", OLDER) for store in ("storage", "conditional-put", "sqlite")),
        ("storage on s3", NEWER),
        ("conditional-put on s3", INNER),
    ],
    indirect=["lake"],
)
def test_mixture_of_pylance_is_never_changed_until_it_is_migrated(lake: Lake, renamed: Sequence[int]) -> None:
    lake.rename(renamed)
    before = lake.contents()
    answers = {name: answer_of(lake.catalog, change) for name, change in CHANGES.items()}
    assert [name for name, answer in answers.items() if not REFUSED.search(answer)] == [], answers
    assert lake.contents() == before
    if renamed == OLDER and lake.given.storage_options:  # its readers take the first listed name
        assert lake.plain().version == 2
    else:
        with pytest.raises(ValueError, match=CLOSED):
            lake.plain()
    lake.complete()
    assert lake.catalog.write("t", ROW, "append").version == lake.plain().version
    assert lake.plain().count_rows() == VERSIONS + 1


@pytest.mark.parametrize("lake", ["conditional-put"], indirect=True)
def test_refused_append_has_written_no_file_for_a_moment(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.rename(NEWER)
    written: list[str] = []
    monkeypatch.setattr(LocalObjectStore, "put", lambda store, key, content: written.append(key))
    with pytest.raises(LancekeepError, match="mixes the V1 and V2"):
        CHANGES["append"](lake.catalog)
    assert written == []


@pytest.mark.parametrize("lake", ["sqlite", "conditional-put on s3"], indirect=True)
def test_native_commit_to_a_mixture_is_refused(lake: Lake) -> None:
    """pylance has written its files by then; the version is not created."""
    namespace = lancekeep.DirectoryNamespace(**lake.given.properties)
    dataset = lance.dataset(namespace_client=namespace, table_id=["t"])
    lake.rename(OLDER)
    root = directory_of(lake.catalog).places.dataset_root(lake.catalog.find_table("t"))

    def finals() -> list[str]:
        keys = (info.key for info in directory_of(lake.catalog).commits.objects.list(root.versions_key))
        return [key for key in keys if key.endswith(".manifest")]

    before = finals()
    with pytest.raises((OSError, RuntimeError)):
        dataset.insert(ROW, mode="append")
    assert finals() == before
    lake.complete()
    lance.dataset(namespace_client=namespace, table_id=["t"]).insert(ROW, mode="append")
    assert lake.plain().count_rows() == VERSIONS + 1
    namespace.catalog.close()


@pytest.mark.parametrize(
    ("lake", "renamed"),
    [("storage", OLDER), ("conditional-put on s3", NEWER), ("sqlite", OLDER), ("sqlite", NEWER)],
    indirect=["lake"],
)
def test_fsck_reports_a_mixture_with_its_remedy(lake: Lake, renamed: Sequence[int]) -> None:
    lake.rename(renamed)
    found = [each for each in lake.catalog.upkeep.fsck(tables=["t"], grace=0).findings if each.kind is Kind.MIXED]
    assert len(found) == 1
    assert "`lancekeep migrate-names`" in found[0].meaning
    lake.complete()
    assert lake.catalog.upkeep.fsck(tables=["t"], grace=0).findings == ()


@pytest.mark.parametrize("lake", ["storage", "conditional-put"], indirect=True)
def test_changes_after_a_stale_hint_are_refused(lake: Lake) -> None:
    """The hint names the last version with a V2 name, so the search from it ends there."""
    lake.rename([1, 2, 3])
    before = lake.contents()
    for name in ("append", "overwrite", "insert", "commit"):
        with pytest.raises(LancekeepError, match="mixes the V1 and V2 manifest naming schemes"):
            CHANGES[name](lake.connect())
    assert lake.contents() == before
