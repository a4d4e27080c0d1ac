"""The services of a catalog, through a directory and through a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from rest_server import serving

import lancekeep

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(params=["directory", "server"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    settings = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}
    if request.param == "directory":
        with lancekeep.connect(properties=settings) as opened:
            yield opened
        return
    with serving(lancekeep.DirectoryNamespace(**settings)) as front, lancekeep.connect(front.uri) as opened:
        yield opened


def stored(catalog: lancekeep.Catalog) -> Any:
    """Return the table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table("ns.t").uri)


@pytest.mark.parametrize("named", ["ns.t", ["ns", "t"], lancekeep.ObjectId.of("ns.t")], ids=["text", "list", "id"])
def test_services_accept_each_spelling_of_an_identifier(catalog: lancekeep.Catalog, named: lancekeep.ObjectId) -> None:
    catalog.create_namespace("ns")
    catalog.write(named, ROWS)
    changed, updated = catalog.data.update(named, {"id": "id + 10"})
    assert (changed.version, updated) == (2, 3)
    assert catalog.data.count(named, "id > 11", version=2) == 2
    catalog.tags.create(named, "v1", 1)
    catalog.tags.update(named, "v1", 2)
    assert {name: tag.version for name, tag in catalog.tags.list(named).items()} == {"v1": 2}
    catalog.structure.create_branch(named, "dev", version=1)
    assert list(catalog.structure.branches(named)) == ["dev"]
    assert catalog.structure.create_index(named, lancekeep.NewIndex("id", "BTREE")).version == 3
    assert [index.columns for index in catalog.structure.indexes(named)] == [["id"]]
    catalog.structure.add_columns(named, {"twice": "id * 2"})
    assert sorted(stored(catalog).to_table()["twice"].to_pylist()) == [22, 24, 26]
    view = lancekeep.ViewDefinition.parse('{"table": ["ns", "t"], "columns": ["id"]}', auto_refresh=False)
    catalog.views.create("ns.v", view, ROWS.schema)
    assert catalog.views.refresh("ns.v").how is lancekeep.Refresh.FULL
    assert catalog.views.definition("ns.v").query == view.query


def test_a_list_of_tags_reads_an_iterator_of_names_once(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.write("ns.t", ROWS)
    catalog.tags.create(iter(["ns", "t"]), "v1", 1)
    assert list(catalog.tags.list(iter(["ns", "t"]))) == ["v1"]


CALLS: dict[str, Callable[[lancekeep.Catalog, str], object]] = {
    "data": lambda catalog, name: catalog.data.count(name),
    "tags": lambda catalog, name: catalog.tags.get(name, "v1"),
    "structure": lambda catalog, name: catalog.structure.branches(name),
    "views": lambda catalog, name: catalog.views.definition(name),
}


@pytest.mark.parametrize("service", CALLS)
def test_services_check_identifiers(catalog: lancekeep.Catalog, service: str) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="empty name"):
        CALLS[service](catalog, "ns..t")
    with pytest.raises(lancekeep.TableNotFound):
        CALLS[service](catalog, "missing")
