"""Tables with stable row ids, chosen by an argument, by a property, and by a default of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance_namespace import CreateTableRequest
from rest_server import serving

import lancekeep
from lancekeep import PartitionBy
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.catalog import CatalogView, Put
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.features import Feature
from lancekeep.domain.view import ViewDefinition
from lancekeep.format.table_version import TableVersion

PROPERTY = "lancekeep.stable_row_ids"
STABLE, PLAIN = {PROPERTY: "true"}, {PROPERTY: "false"}
SCHEMA = pa.schema({"id": pa.int64(), "x": pa.int64()})
Make = Callable[..., None]


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "x": [number * 10 for number in numbers]}, SCHEMA)


def native(catalog: lancekeep.Catalog, name: str = "t") -> lance.LanceDataset:
    """Open a table without the catalog."""
    return lance.dataset(catalog.describe_table(name).uri)


def is_stable(catalog: lancekeep.Catalog, name: str = "t") -> bool:
    """Whether pylance says so; the flag of each manifest has to agree."""
    dataset = native(catalog, name)
    found = [TableVersion.parse(path.read_bytes(), str(path)).manifest for path in manifests(dataset)]
    stated = [flags for each in found for flags in (each.reader_feature_flags, each.writer_feature_flags)]
    assert {bool(flags & Feature.STABLE_ROW_IDS) for flags in stated} == {dataset.has_stable_row_ids}
    return bool(dataset.has_stable_row_ids)


def manifests(dataset: lance.LanceDataset) -> list[Path]:
    return list(Path(dataset.uri.removeprefix("file://"), "_versions").glob("*.manifest"))


def ids(dataset: Any) -> dict[int, int]:
    """The id of each row, by its number."""
    found = dataset.to_table(columns=["id"], with_row_id=True)
    return dict(zip(found["id"].to_pylist(), found["_rowid"].to_pylist(), strict=True))


def write(catalog: lancekeep.Catalog, **stated: Any) -> None:
    catalog.write("t", rows(1, 2), **stated)


def overwrite_missing(catalog: lancekeep.Catalog, **stated: Any) -> None:
    catalog.write("t", rows(1, 2), "overwrite", **stated)


def write_fragments(catalog: lancekeep.Catalog, **stated: Any) -> None:
    plan = catalog.begin_write("t", SCHEMA, **stated)
    fragments = lance.fragment.write_fragments(rows(1, 2), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    catalog.commit_fragments(plan, fragments)


def write_in_transaction(
    catalog: lancekeep.Catalog, name: str, first: Mapping[str, Any], second: Mapping[str, Any] = MappingProxyType({})
) -> None:
    with catalog.transaction() as transaction:
        transaction.write(name, rows(1), **first)
        transaction.write(name, rows(2), "append", **second)


WRITES: list[Make] = [write, overwrite_missing, write_fragments]


@pytest.fixture(params=["v2", "compatible", "v1", "storage-managed", "server"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    root, kind = str(tmp_path / "lake"), request.param
    store = None if kind == "storage-managed" else f"sqlite://{tmp_path}/commits"
    if store is not None and kind == "server":
        with (
            serving(lancekeep.DirectoryNamespace(root=root, commit_store=store)) as front,
            lancekeep.connect(front.uri) as catalog,
        ):
            yield catalog
        return
    mode = kind if kind in ("compatible", "v1") else "v2"
    with lancekeep.connect(root, mode=mode, commit_store=store) as catalog:
        yield catalog


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits") as catalog:
        yield catalog


def compacted(dataset: lance.LanceDataset) -> lance.LanceDataset:
    dataset.optimize.compact_files()
    return dataset


@pytest.mark.parametrize("make", WRITES)
def test_argument_gives_a_new_table_stable_row_ids(catalog: lancekeep.Catalog, make: Make) -> None:
    make(catalog, stable_row_ids=True)
    assert is_stable(catalog)
    before = ids(native(catalog))
    catalog.write("t", rows(3), "append", stable_row_ids=True)
    catalog.open("t").update({"x": "x + 1"}, where="id = 1")
    catalog.commit_change("t", compacted)
    after = native(catalog)
    assert len(after.get_fragments()) == 1
    assert {number: row for number, row in ids(after).items() if number in before} == before
    catalog.write("t", rows(7), "overwrite", stable_row_ids=True)
    assert is_stable(catalog)


def test_argument_of_a_transaction_gives_new_tables_stable_row_ids(lake: lancekeep.Catalog) -> None:
    chosen = {"stable_row_ids": True}
    write_in_transaction(lake, "t", chosen)
    assert is_stable(lake)
    assert ids(native(lake)) == {1: 0, 2: 1}
    with (
        pytest.raises(InvalidInput, match="t has stable row ids, and keeps that"),
        lake.transaction() as transaction,
    ):
        transaction.write("t", rows(3), "append", stable_row_ids=False)
    with pytest.raises(InvalidInput, match="stable_row_ids with its first write only"):
        write_in_transaction(lake, "u", {}, chosen)
    assert [lake.describe_table("t").version, lake.table_exists("u")] == [1, False]


def test_tables_have_no_stable_row_ids_by_default(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1))
    catalog.write("u", rows(1), stable_row_ids=False)
    assert (is_stable(catalog), is_stable(catalog, "u")) == (False, False)


@pytest.mark.parametrize("make", WRITES)
def test_property_gives_a_new_table_stable_row_ids(lake: lancekeep.Catalog, make: Make) -> None:
    make(lake, properties=STABLE)
    assert is_stable(lake)
    assert lake.find_table("t").properties == STABLE
    lake.write("t", rows(1), "overwrite", properties={"k": "v"})
    assert lake.find_table("t").properties == {"k": "v", **STABLE}
    assert is_stable(lake)


@pytest.mark.parametrize("catalog", ["v1"], indirect=True)
def test_directory_without_properties_takes_the_argument_only(catalog: lancekeep.Catalog) -> None:
    with pytest.raises(Unsupported, match="cannot store the properties of t"):
        catalog.write("t", rows(1), properties=STABLE)
    assert not catalog.table_exists("t")


@pytest.mark.parametrize("catalog", ["compatible", "storage-managed", "server"], indirect=True)
def test_first_version_of_a_declared_table_follows_its_property(catalog: lancekeep.Catalog) -> None:
    for name, properties in (("t", STABLE), ("u", PLAIN), ("v", None)):
        catalog.declare_table(name, properties)
        catalog.write(name, rows(1), "overwrite")
    assert [is_stable(catalog, name) for name in "tuv"] == [True, False, False]
    catalog.declare_table("w", PLAIN)
    with pytest.raises(InvalidInput, match="w has no stable row ids, and keeps that"):
        catalog.write("w", rows(1), "overwrite", stable_row_ids=True)
    assert catalog.describe_table("w").version is None


def test_property_of_the_root_is_the_default_of_new_tables(lake: lancekeep.Catalog) -> None:
    lake.write("before", rows(1))
    lake.alter_namespace([], STABLE)
    for number, make in enumerate(WRITES):
        make(lake)
        assert is_stable(lake), make
        lake.rename_table("t", f"t{number}")
    lake.write("plain", rows(1), stable_row_ids=False)
    lake.write("before", rows(2), "overwrite")
    with lake.transaction() as transaction:
        transaction.write("both", rows(1))
        transaction.write("both", rows(2), "append")
    lake.clone("before", "clone", deep=True)
    lake.clone("before", "shallow")
    lake.register_table("again", lake.deregister_table("plain").location)
    names = ("before", "both", "clone", "shallow", "again")
    assert [is_stable(lake, name) for name in names] == [False, True, False, False, False]
    assert [PROPERTY in lake.find_table(name).properties for name in names] == [False, True, False, False, False]
    lake.alter_namespace([], remove=[PROPERTY])
    lake.write("after", rows(1))
    assert not is_stable(lake, "after")


def test_default_applies_to_new_views(lake: lancekeep.Catalog) -> None:
    lake.write("t", rows(1, 2))
    lake.alter_namespace([], STABLE)
    lake.views.create("v", ViewDefinition.parse('{"table": ["t"], "filter": "id > 1"}', auto_refresh=False), SCHEMA)
    for act in (
        lambda: lake.write("t", rows(3), "append"),
        lambda: lake.open("t").update({"x": "x + 1"}, where="id = 2"),
    ):
        act()
        lake.views.refresh("v")
        assert is_stable(lake, "v")
    assert native(lake, "v").to_table().sort_by("id").to_pylist() == [{"id": 2, "x": 21}, {"id": 3, "x": 30}]


def test_default_applies_to_new_partitions(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode="v2") as catalog:
        parts = catalog.partitions.create(SCHEMA, [PartitionBy.identity("id")])
        catalog.alter_namespace([], STABLE)
        written = parts.write(rows(1, 2))
        assert [is_stable(catalog, str(each.table.id)) for each in written] == [True, True]


@pytest.mark.parametrize("present", [True, False])
def test_contradicting_write_is_refused_before_anything_is_written(catalog: lancekeep.Catalog, present: bool) -> None:
    write(catalog, stable_row_ids=present)
    found = f"t has {'' if present else 'no '}stable row ids, and keeps that for all of its versions"
    for mode in ("append", "overwrite"):
        for make in (catalog.write, catalog.begin_write):
            data = rows(3) if make == catalog.write else SCHEMA
            with pytest.raises(InvalidInput, match=found):
                make("t", data, mode, stable_row_ids=not present)
    assert catalog.describe_table("t").version == 1
    assert native(catalog).to_table() == rows(1, 2)
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.write("t", rows(3), stable_row_ids=not present)


def test_contradicting_property_is_refused(lake: lancekeep.Catalog) -> None:
    lake.write("t", rows(1), stable_row_ids=True)
    lake.write("u", rows(1))
    refused: list[Callable[[], object]] = [
        lambda: lake.write("t", rows(2), "overwrite", properties=PLAIN),
        lambda: lake.alter_table("t", PLAIN),
        lambda: lake.alter_table("u", STABLE),
        lambda: lake.register_table("v", place, STABLE),
    ]
    place = lake.find_table("u").location
    lake.deregister_table("u")
    lake.register_table("u", place, PLAIN)
    lake.alter_table("u", PLAIN)
    for act in refused:
        with pytest.raises(InvalidInput, match="and keeps that for all of its versions"):
            act()
    assert [lake.describe_table(name).version for name in "tu"] == [1, 1]
    assert (is_stable(lake), is_stable(lake, "u")) == (True, False)
    assert lake.find_table("u").properties == PLAIN


def set_natively(catalog: lancekeep.Catalog, properties: dict[str, str | None]) -> None:
    """Set properties of the table t without the checks of the catalog."""

    def decide(view: CatalogView) -> tuple[list[Put], None]:
        entry = view.find("t")
        assert entry is not None
        return [Put(entry.with_properties(properties))], None

    directory_of(catalog).ledger.manifest.apply(decide)


@pytest.mark.parametrize("stable", [True, False])
def test_fsck_reports_a_table_that_a_native_writer_made_with_other_row_ids(
    lake: lancekeep.Catalog, stable: bool
) -> None:
    property_of_table = "lancekeep.stable_row_ids"
    lake.declare_table("t", {property_of_table: str(not stable).lower()})
    lance.write_dataset(rows(1), lake.describe_table("t").uri, enable_stable_row_ids=stable)
    lake.branches.create("t", "b")
    [finding] = lake.upkeep.fsck(deep=True, grace=0).findings
    assert (finding.kind, finding.object, finding.repair) == (Kind.ROW_IDS, "t", "")
    assert f"Set it to {str(stable).lower()!r}" in finding.meaning
    lake.tags.create("t", "gone", 1)
    place = Path(lake.describe_table("t").uri.removeprefix("file://"))
    tag = place / "_refs" / "tags" / "gone.json"
    tag.write_text(tag.read_text().replace('"version":1', '"version":9').replace('"version": 1', '"version": 9'))
    kinds = {each.kind for each in lake.upkeep.fsck(deep=True, grace=0).findings}
    assert kinds == {Kind.ROW_IDS, Kind.TAG}
    tag.unlink()
    set_natively(lake, {property_of_table: "maybe"})
    [finding] = lake.upkeep.fsck(deep=True, grace=0).findings
    assert (finding.kind, "'maybe'" in finding.meaning) == (Kind.ROW_IDS, True)
    lake.alter_table("t", {property_of_table: str(stable).lower()})
    assert lake.upkeep.fsck(deep=True, grace=0).findings == ()


def test_values_without_meaning_are_refused(catalog: lancekeep.Catalog) -> None:
    accepted = "its values are 'true' and 'false'"
    for value in ("True", "yes", "1", ""):
        with pytest.raises(InvalidInput, match=accepted):
            catalog.write("t", rows(1), properties={PROPERTY: value})
        with pytest.raises(InvalidInput, match=accepted):
            catalog.declare_table("t", {PROPERTY: value})
    with pytest.raises(InvalidInput, match="its values are True, False and None"):
        catalog.write("t", rows(1), stable_row_ids="false")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"stable_row_ids is False, and the property .* is 'true'; give one"):
        catalog.write("t", rows(1), properties=STABLE, stable_row_ids=False)
    assert not catalog.table_exists("t")


def test_namespaces_other_than_the_root_have_no_default(lake: lancekeep.Catalog) -> None:
    with pytest.raises(InvalidInput, match="is a property of the root namespace and of tables"):
        lake.create_namespace("ns", STABLE)
    with pytest.raises(InvalidInput, match="its values are 'true' and 'false'"):
        lake.alter_namespace([], {PROPERTY: "on"})


def test_rest_creates_tables_with_stable_row_ids(tmp_path: Path) -> None:
    """A client of the REST interface states the property; a client of Lancekeep also gets the default of the server."""
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits")
    with serving(namespace) as front, lancekeep.connect(front.uri) as served:
        client = lance_namespace.connect("rest", {"uri": front.uri})
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, SCHEMA) as writer:
            writer.write_table(rows(1))
        body = stream.getvalue().to_pybytes()
        client.create_table(CreateTableRequest(id=["t"], properties=STABLE), body)
        assert is_stable(served)
        with pytest.raises(Exception, match="and keeps that for all of its versions"):
            client.create_table(CreateTableRequest(id=["t"], mode="overwrite", properties=PLAIN), body)
        assert served.describe_table("t").version == 1
        namespace.catalog.alter_namespace([], STABLE)
        served.write("u", rows(1))
        client.create_table(CreateTableRequest(id=["v"]), body)
        served.write("w", rows(1), stable_row_ids=False)
        assert [is_stable(served, name) for name in "uvw"] == [True, True, False]


def test_delta_and_difference_show_updated_rows(lake: lancekeep.Catalog) -> None:
    for name, stable in (("t", True), ("u", False)):
        lake.write(name, rows(1, 2, 3), stable_row_ids=stable)
        lake.open(name).update({"x": "x + 1"}, where="id = 2")
    changed = native(lake).delta(compared_against=1).get_updated_rows().read_all()
    assert changed.select(["id", "x"]).to_pylist() == [{"id": 2, "x": 21}]
    found = lake.diff("t", 1, 2).rows(columns=["x"]).read_all()
    assert found["_change_type"].to_pylist() == ["update_preimage", "update_postimage"]
    assert native(lake, "u").delta(compared_against=1).get_updated_rows().read_all().num_rows == 0  # finds none
    with pytest.raises(Unsupported):
        lake.diff("u", 1, 2).rows()
