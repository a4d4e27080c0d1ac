"""Limits of SQL expressions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lancekeep import connect
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.expressions import MOST_PARTS, require_shallow
from lancekeep.ports.rows import MergeRule, Query

LONG = {
    "sum": "id" + "+1" * 300 + ">1",
    "cast": "id" + "::bigint" * 300 + "=1",
    "is": "b" + " IS TRUE" * 300,
    "between": "b" + " BETWEEN 0 AND 1" * 300,
    "calls": "abs(id, 1)" + "+abs(id, 1)" * 300 + ">1",
    "cases": "CASE WHEN b THEN 1 END" + "+CASE WHEN b THEN 1 END" * 300 + ">1",
    "brackets": "id" + "[1]" * 300,
    "inside": "id > 0 OR (id" + "-1" * 300 + ") > 1",
    "in a call": "abs(1, id" + "*1" * 300 + ") > 1",
    "open": "(" * 300,
    "comments": "id" + "+1/*OR*/" * 300,
    "escapes": "s" + "||E'\\' OR '" * 300,
}
SHALLOW = {
    "or": " OR ".join(f"(id > {at} AND id < {at + 1})" for at in range(5000)),
    "list": f"id IN ({', '.join(map(str, range(20_000)))})",
    "case": f"CASE {' '.join(f'WHEN id = {at} THEN {at + 1}' for at in range(500))} ELSE 0 END > 7",
    "between": " AND ".join(["id BETWEEN 0 AND 9"] * 500),
    "quoted": f"s = '{'+1 ' * 1000}' OR `{'a ' * 300}` = 1",
}


@pytest.mark.parametrize("name", LONG)
def test_long_chain_of_operators_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="names, values and operators"):
        require_shallow(LONG[name])


@pytest.mark.parametrize("name", SHALLOW)
def test_wide_expression_is_accepted(name: str) -> None:
    require_shallow(SHALLOW[name])


def test_every_door_refuses_a_long_chain(tmp_path: Path) -> None:
    rows = pa.table({"id": [1]})
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", rows)
        for act in (
            lambda: catalog.data.query("t", Query(condition=LONG["sum"])),
            lambda: catalog.data.query("t", Query(columns={"x": LONG["sum"]})),
            lambda: catalog.data.explain("t", Query(condition=LONG["sum"])),
            lambda: catalog.data.count("t", LONG["sum"]),
            lambda: catalog.scan("t").where(LONG["sum"]).to_arrow(),
            lambda: catalog.data.delete("t", LONG["sum"]),
            lambda: catalog.data.update("t", {"id": LONG["sum"]}),
            lambda: catalog.data.update("t", {"id": "1"}, LONG["sum"]),
            lambda: catalog.data.merge("t", rows.to_reader(), MergeRule(["id"], delete=True, delete_if=LONG["sum"])),
            lambda: catalog.structure.add_columns("t", {"x": LONG["sum"]}),
            lambda: catalog.structure.declare_columns("t", {"x": LONG["sum"]}),
        ):
            with pytest.raises(InvalidInput, match="names, values and operators"):
                act()
        assert catalog.open("t").version == 1


def test_engine_plans_the_longest_chains(tmp_path: Path) -> None:
    chains = [
        "id" + "+1" * ((MOST_PARTS - 3) // 2) + ">1",
        "b" + " IS TRUE" * ((MOST_PARTS - 1) // 2),
        "id" + "::bigint" * ((MOST_PARTS - 3) // 2) + "=1",
    ]
    code = f"""if True:
        import pyarrow as pa, lancekeep
        with lancekeep.connect({str(tmp_path)!r}) as catalog:
            catalog.write("t", pa.table({{"id": [1], "b": [True]}}))
            for chain in {chains!r}:
                assert catalog.data.count("t", chain) == 1
    """
    subprocess.run([sys.executable, "-c", code], check=True)
