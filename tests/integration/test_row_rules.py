"""CHECK constraints and generated columns: every writer of the catalog enforces them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.rows import MergeRule

T = ObjectId.of("t")
PROPERTIES = {"constraint.positive": "id > 0", "generated.twice": "id * 2"}


def rows(*ids: int | None) -> pa.Table:
    twice = [None if number is None else number * 2 for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "twice": pa.array(twice, pa.int64()), "name": ["x"] * len(ids)})


@pytest.fixture
def catalog(tmp_path: Path) -> lancekeep.Catalog:
    return lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")


def stored(catalog: lancekeep.Catalog) -> list[int | None]:
    """Return the ids as plain pylance reads them."""
    found: list[int | None] = lance.dataset(catalog.describe_table("t").uri).to_table()["id"].to_pylist()
    return sorted(found, key=str)


def merged(catalog: lancekeep.Catalog, data: pa.Table) -> None:
    catalog.data.merge(T, data.to_reader(), MergeRule(["id"], update=True, insert=True))


def transacted(catalog: lancekeep.Catalog, data: pa.Table) -> None:
    with catalog.transaction() as transaction:
        transaction.write("t", data, "append")


def distributed(catalog: lancekeep.Catalog, data: pa.Table) -> None:
    plan = catalog.begin_write("t", data.schema, "append")
    catalog.commit_fragments(plan, directory_of(catalog).engine.write_fragments(plan, data.to_reader()))


WRITERS: dict[str, Callable[[lancekeep.Catalog, pa.Table], Any]] = {
    "append": lambda catalog, data: catalog.write("t", data, "append"),
    "stream": lambda catalog, data: catalog.write("t", data.to_reader(), "append"),
    "overwrite": lambda catalog, data: catalog.write("t", data, "overwrite"),
    "insert": lambda catalog, data: catalog.data.insert(T, data.to_reader()),
    "merge": merged,
    "transaction": transacted,
    "distributed": distributed,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_each_writer_enforces_the_rules(catalog: lancekeep.Catalog, writer: str) -> None:
    catalog.write("t", rows(1), properties=PROPERTIES)
    with pytest.raises(InvalidInput, match=r"1 row\(s\) violate the constraint 'positive', id > 0"):
        WRITERS[writer](catalog, rows(2, 0))
    with pytest.raises(InvalidInput, match="another value in the generated column 'twice' than id \\* 2"):
        WRITERS[writer](catalog, rows(2).set_column(1, "twice", pa.array([5], pa.int64())))
    assert stored(catalog) == [1]
    WRITERS[writer](catalog, rows(3, None))
    assert stored(catalog) == ([3, None] if writer == "overwrite" else [1, 3, None])


def test_creation_enforces_the_rules(catalog: lancekeep.Catalog) -> None:
    for data, error in [(rows(0), "violate the constraint"), (rows(1).drop_columns(["twice"]), "no column 'twice'")]:
        with pytest.raises(InvalidInput, match=error):
            catalog.write("t", data, properties=PROPERTIES)
        assert not catalog.table_exists("t")


def test_update_is_checked_on_the_rows_that_it_makes(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1, 2, 3), properties=PROPERTIES)
    for values, error in [
        ({"id": "id - 2", "twice": "id * 2 - 4"}, "violate"),
        ({"id": "id + 10"}, "generated column"),
        ({"id": "-1", "twice": "-2"}, "violate"),
        ({"id": "7", "twice": "5"}, "generated column"),
    ]:
        with pytest.raises(InvalidInput, match=error):
            catalog.data.update(T, values, "id < 3")
    assert catalog.data.update(T, {"id": "id - 2", "twice": "id * 2 - 4"}, "id = 3")[1] == 1
    assert catalog.data.update(T, {"name": "'y'"}, "id = 2")[1] == 1
    assert stored(catalog) == [1, 1, 2]
    assert catalog.data.update(T, {"id": "7", "twice": "14"}, "id = 2")[1] == 1
    assert catalog.data.update(T, {"id": "NULL", "twice": "NULL"}, "id = 1")[1] == 2
    assert stored(catalog) == [7, None, None]


def test_update_is_checked_by_a_rule_without_columns(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1, 2), properties={"constraint.open": "1 > 0"})
    assert catalog.data.update(T, {"id": "7"}, "id = 2")[1] == 1
    catalog.alter_table("t", {"constraint.open": "1 < 0"})
    with pytest.raises(InvalidInput, match="violate the constraint 'open'"):
        catalog.data.update(T, {"id": "8"})
    assert stored(catalog) == [1, 7]


def test_branches_and_old_versions_are_checked_before_they_are_published(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1, -1))
    catalog.data.delete(T, "id < 0")
    catalog.branches.create(T, "dev", None, None)
    catalog.data.insert(T, rows(-5).to_reader(), branch="dev")
    catalog.alter_table("t", PROPERTIES)
    with pytest.raises(InvalidInput, match="violate"):
        catalog.data.insert(T, rows(-6).to_reader(), branch="dev")
    with pytest.raises(InvalidInput, match="violate"):
        catalog.branches.fast_forward(T, "dev")
    with pytest.raises(InvalidInput, match="violate"):
        catalog.versions.restore(T, 1)
    assert stored(catalog) == [1]


def test_rule_that_is_added_holds_for_the_next_append(catalog: lancekeep.Catalog) -> None:
    """Appends keep the latest version in memory, with the rules that the table had."""
    catalog.write("t", rows(1))
    catalog.write("t", rows(-1), "append")
    with lancekeep.connect(catalog.root_uri, commit_store=directory_of(catalog).commits.rows.url) as other:
        other.alter_table("t", {"constraint.positive": "id > 0"})
    with pytest.raises(InvalidInput, match="violate"):
        catalog.write("t", rows(-2), "append")
    catalog.alter_table("t", {}, ["constraint.positive"])
    catalog.write("t", rows(-3), "append")
    assert stored(catalog) == [-1, -3, 1]


@pytest.mark.parametrize(
    "text",
    ["upper(name) = 'A'", "name = 'it''s'", "id >", "id > 1 GARBAGE", "a = b = c", "id > timestamp '2026-01-01'"],
)
def test_rule_that_a_writer_cannot_evaluate_is_refused_when_it_is_made(catalog: lancekeep.Catalog, text: str) -> None:
    catalog.write("t", rows(1))
    with pytest.raises(InvalidInput, match="not every writer can evaluate it"):
        catalog.alter_table("t", {"constraint.c": text})
    assert catalog.find_table("t").properties == {}


def test_rule_of_a_missing_column_refuses_every_write(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1))
    catalog.alter_table("t", {"constraint.c": "missing > 1"})
    with pytest.raises(LancekeepError, match="they have no column 'missing'"):
        catalog.write("t", rows(2), "append")
    assert stored(catalog) == [1]
