"""Limits of SQL expressions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancekeep import Catalog, ViewDefinition, connect
from lancekeep.adapters.lance.panics import is_panic
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.expression_growth import FUNCTIONS, growing_functions
from lancekeep.domain.expressions import MOST_CHARACTERS, MOST_COMMAS, MOST_JOINED, MOST_PARTS, require_bounded
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
    "quotes in comments": "id /*'*/" + "+1" * 300 + "/*'*/ > 1",
    "quotes in lines": "id --'\n" + "+1" * 300 + " --'\n > 1",
    "conditions between comments": "s = /*'*/ s" + " and b" * 300 + "/*'*/",
    "quoted dollars": "s <> $$'$$" + " and b" * 300 + " and s <> $$'$$",
    "escaped quotes": "s <> E'\\''" + " and b" * 300 + " and s <> 'x'",
}
SHALLOW = {
    "or": " OR ".join(f"(id > {at} AND id < {at + 1})" for at in range(5000)),
    "list": f"id IN ({', '.join(map(str, range(20_000)))})",
    "case": f"CASE {' '.join(f'WHEN id = {at} THEN {at + 1}' for at in range(500))} ELSE 0 END > 7",
    "between": " AND ".join(["id BETWEEN 0 AND 9"] * 500),
    "marks in texts": "s <> '" + "#1 -- /* $2 */ \\ " * 300 + "'",
    "quoted": f"s = '{'+1 ' * 1000}' OR `{'a ' * 300}` = 1",
}


@pytest.mark.parametrize("name", LONG)
def test_long_chain_of_operators_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="names, values and operators"):
        require_bounded(LONG[name])


GROWING = {
    "padded": "lpad(s, 2000000000, 'x')",
    "capitals and a space": "LPAD (s, 20000)",
    "after a condition": "id > 0 AND rpad(s, 9999999) = 'x'",
    "repeated twice": "repeat(repeat(s, 100), 100)",
    "a quoted name": "`repeat`(s, 2000)",
    "a column as number": "repeat(s, id)",
    "a computed number": "repeat(s, 100 * 100)",
    "a number in parentheses": "repeat(s, (1000000))",
    "a converted number": "repeat(s, CAST('1000000' AS int))",
    "a number of two parts": "repeat(s, 1e9)",
    "hidden by a comment": "repeat/**/(s, 2)",
    "hidden by a quote": "'\\' = s OR repeat(s, 1000) = '\\'",
    "a list": "array_repeat(s, 1000000)",
    "a range": "range(0, 1000000000)",
    "a range of two signs": "generate_series(-500000000, 500000000)",
    "a longer list": "array_resize(l, 500, repeat('x', 500))",
    "a replacement of another": f"replace(replace(s, 'a', '{'b' * 100}'), 'b', '{'c' * 100}')",
    "a column as replacement": "replace(s, 'a', t)",
    "groups in a replacement": f"regexp_replace(s, '.', '{'$0' * 200}')",
    "groups of a pattern": f"regexp_match(s, '{'(' * 300}a{')' * 300}')",
    "a separator": f"array_to_string(make_array(s, s, s), '{'-' * 100}')",
    "encoded often": "encode(" * 11 + "s" + ", 'hex')" * 11,
    "a type": "arrow_cast(l, 'FixedSizeList(1000000000, Int64)')",
    "many arguments": f"concat({', '.join('s' * 300)})",
    "a list of columns": f"[{', '.join('s' * 300)}]",
    "a long constant": f"s || '{'x' * 20_000}'",
    "a branch": f"CASE WHEN b THEN '{'x' * 20_000}' END",
    "a sum of branches": "CASE WHEN b THEN repeat(s, 150) END || CASE WHEN b THEN repeat(s, 150) END",
    "an unknown function": "array_transform(l, x)",
}
SMALL = (
    "lpad(s, 10, '0') = '0000000001'",
    "repeat(s, 200) = 'x'",
    "range(0, 10) = l",
    "replace(regexp_replace(s, ' +', ' '), 'a', 'bb') = 'c'",
    "regexp_match(s, '(a|b)') IS NOT NULL",
    "arrow_cast(v, 'FixedSizeList(1536, Float32)') IS NULL",
    f"array_has_any(l, [{', '.join(map(str, range(3000)))}])",
    f"s = '{'x' * 20_000}'",
    f"s IN ('{'x' * 20_000}', 'y')",
    "CAST(x AS decimal(10, 2)) BETWEEN (1) AND (2) AND NOT (b)",
    "price = '$5 (new)' OR s = 'a\\b'",
    "coalesce(a, b, c) >= timestamp '2020-01-01 00:00:00'",
    "s LIKE 'repeat (%' AND s <> 'lpad(s, 1000000)'",
)


@pytest.mark.parametrize("name", GROWING)
def test_expression_with_a_large_value_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"as large as|larger than the memory|how large"):
        require_bounded(GROWING[name])


@pytest.mark.parametrize("expression", SMALL)
def test_expression_with_a_small_value_is_accepted(expression: str) -> None:
    require_bounded(expression)


def test_values_of_one_request_are_bounded_together() -> None:
    require_bounded(*["repeat(s, 20)"] * 9, *["id + 1"] * 500)
    with pytest.raises(InvalidInput, match="as large as"):
        require_bounded(*["repeat(s, 20)"] * 11)


def test_engine_has_each_function_of_the_tables(tmp_path: Path) -> None:
    """A name that the engine does not know is a mistake here; names of SQL's grammar may be none of its functions."""
    dataset = lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t.lance")

    def is_known(name: str) -> bool:
        try:
            dataset.scanner(columns={"x": f"{name}(id)"}).to_table()
        except BaseException as error:  # some functions panic when their arguments are missing
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            return "Invalid function" not in str(error)
        return True

    assert [name for name in sorted(FUNCTIONS | growing_functions()) if not is_known(name)] == []


@pytest.mark.parametrize("name", SHALLOW)
def test_wide_expression_is_accepted(name: str) -> None:
    require_bounded(SHALLOW[name])


def test_every_door_refuses_an_expression_without_a_bound(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"id": [1]}))
        for act in doors(catalog, LONG["sum"]):
            with pytest.raises(InvalidInput, match="names, values and operators"):
                act()
        for act in doors(catalog, GROWING["a column as number"].replace("s,", "'x',")):
            with pytest.raises(InvalidInput, match="larger than the memory"):
                act()
        assert catalog.open("t").version == 1


def doors(catalog: Catalog, expression: str) -> tuple[Callable[[], object], ...]:
    """Return calls that take an expression of a caller."""
    rows = pa.table({"id": [1]})
    definition = json.dumps({"table": ["t"], "columns": {"x": expression}})
    return (
        lambda: catalog.data.query("t", Query(condition=expression)),
        lambda: catalog.data.query("t", Query(columns={"x": expression})),
        lambda: catalog.data.explain("t", Query(condition=expression)),
        lambda: catalog.data.count("t", expression),
        lambda: catalog.scan("t").where(expression).to_arrow(),
        lambda: catalog.data.delete("t", expression),
        lambda: catalog.data.update("t", {"id": expression}),
        lambda: catalog.data.update("t", {"id": "1"}, expression),
        lambda: catalog.data.merge("t", rows.to_reader(), MergeRule(["id"], delete=True, delete_if=expression)),
        lambda: catalog.structure.add_columns("t", {"x": expression}),
        lambda: catalog.structure.declare_columns("t", {"x": expression}),
        lambda: catalog.views.create("v", ViewDefinition.parse(definition, auto_refresh=False), rows.schema),
    )


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


@pytest.mark.parametrize("word", ["and", "or", "AND", "Or"])
def test_a_chain_of_conditions_that_would_end_the_process_is_refused(word: str) -> None:
    require_bounded(f" {word} ".join(["a > 0"] * (MOST_JOINED + 1)))
    with pytest.raises(InvalidInput, match="10,001 AND and OR"):
        require_bounded(f" {word} ".join(["a > 0"] * (MOST_JOINED + 2)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = '" + "x" * MOST_CHARACTERS + "'", "4,194,310 characters; at most 4,194,304"),
        ("a in (" + "1," * MOST_COMMAS + "1, 2)", "100,001 commas; at most 100,000"),
    ],
)
def test_a_long_expression_is_refused(text: str, found: str) -> None:
    with pytest.raises(InvalidInput, match=found):
        require_bounded("a > 0", text)


def test_commas_of_texts_are_not_counted() -> None:
    require_bounded(f"a in ('{',' * 2 * MOST_COMMAS}')")
