"""Grants of columns and rows: what they permit, how they combine, and how expressions are read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from click.testing import CliRunner

from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.application.rows.sealed_batches import bare, sealed
from lancekeep.domain.authorization import Decision, Policy, Principal
from lancekeep.domain.conditions import condition_of, expression_of, path_of
from lancekeep.domain.errors import AccessDenied, ColumnNotFound, InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import SchemaField
from lancekeep.domain.restrictions import RESTRICTED, Restriction, column_types, readable, united
from lancekeep.domain.rights import BATCHES, RIGHT_OF, Right, name_of, permission_of
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.namespace.restricted import RestrictedOperations
from lancekeep.entrypoints.page.authorized import Access

ADA = Principal("key:ada", frozenset({"analysts"}))
TABLE = ObjectId.of("hr.people")
GRANT = """
[[grants]]
role = "read"
on = "hr.people"
groups = ["analysts"]
columns = ["id", "name"]
rows = "team = 'a'"
"""


def policy_of(tmp_path: Path, text: str) -> Policy:
    (tmp_path / "policy.toml").write_text(text)
    return read_policy(tmp_path / "policy.toml")


# -- operations ---------------------------------------------------------------------------------------------------

NAMES_ALONE = {"list_operations", "list_namespaces", "list_tables", "list_all_tables"}


@pytest.mark.parametrize("operation", sorted(RIGHT_OF))
def test_each_operation_has_a_stated_behaviour_within_a_restriction(tmp_path: Path, operation: str) -> None:
    """A new operation is refused, until the table of the page and `RESTRICTED` state it."""
    decision = policy_of(tmp_path, GRANT).decide(ADA, permission_of(operation), TABLE)
    page = (Path(__file__).parents[2] / "docs" / "restricted-rights.md").read_text()
    rows = [
        line for line in page.splitlines() if line.startswith("|") and re.search(rf"\b{name_of(operation)}\b", line)
    ]
    assert len(rows) == 1, f"docs/restricted-rights.md states {operation} once"
    if operation in NAMES_ALONE:
        assert decision is Decision.ALLOWED
    elif operation in RESTRICTED:
        assert decision is Decision.RESTRICTED
        assert hasattr(RestrictedOperations, f"_{operation}")
    else:
        assert decision in (Decision.RESTRICTED, Decision.DENIED)
        assert "refused" in rows[0]


def test_batches_have_a_stated_behaviour() -> None:
    page = (Path(__file__).parents[2] / "docs" / "restricted-rights.md").read_text()
    assert all(name_of(each) in page for each in BATCHES)


def test_restricted_grants_add_no_right(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, GRANT)
    assert policy.rights(ADA, TABLE) == {Right.CONNECT, "ListNamespaces", "ListTables", "ListAllTables"}
    assert policy.subtrees(ADA, ObjectId(), [permission_of("list_events")]) == []
    assert policy.subtrees(ADA, ObjectId(), [permission_of("list_tables")]) == [TABLE]
    assert policy.sees(ADA, TABLE.parent)
    assert not Access(ADA, policy).may_read(TABLE)  # so no page shows it
    assert not Access(ADA, policy).sees(TABLE)
    assert policy.decide(Principal("key:bob"), permission_of("query_table"), TABLE) is Decision.HIDDEN


def test_a_grant_without_a_restriction_wins(tmp_path: Path) -> None:
    free = '[[grants]]\nrights = ["read"]\non = "hr"\nprincipals = ["key:ada"]\n'
    policy = policy_of(tmp_path, GRANT + free)
    assert policy.decide(ADA, permission_of("query_table"), TABLE) is Decision.ALLOWED
    assert policy.decide(ADA, permission_of("describe_table"), TABLE) is Decision.RESTRICTED


A, B, X, Y = frozenset({"a"}), frozenset({"b"}), frozenset({condition_of("t = 1")}), frozenset({condition_of("t = 2")})
ALL: frozenset[str] | None = None


def test_grants_of_the_same_rows_add_columns_and_grants_of_the_same_columns_add_rows() -> None:
    everything = frozenset[object]()
    assert united([Restriction(A, X), Restriction(B, X)]) == Restriction(A | B, X)
    assert united([Restriction(A, X), Restriction(A, Y)]) == Restriction(A, X | Y)
    assert united([Restriction(A), Restriction(A, Y)]) == Restriction(A)
    assert united([Restriction(A, X), Restriction(ALL, X)]) == Restriction(ALL, X)
    assert united([Restriction(A, X)] * 2) == Restriction(A, X)
    assert united([Restriction(A), Restriction(ALL, X)]) is None
    assert united([Restriction(A, X), Restriction(B, Y)]) is None
    assert not everything
    assert Restriction(A, X | Y).condition == "((`t` = 1)) OR ((`t` = 2))"


# -- the file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('columns = ["a.b"]', "no column"),
        ('columns = ["*"]', "no column"),
        ("columns = []", "empty"),
        ('columns = "id"', "list of names"),
        ('rows = "true"', "cannot be read"),
        ('rows = "1 = 1"', "cannot be read"),
        ('rows = "team = "', "cannot be read"),
        ('rows = "lower(team) = 1"', "cannot be read"),
        ("rows = \"team = 'a' -- x\"", "no comments"),
        ("rows = \"team = 'a'; x\"", "backticks"),
        ("rows = 1", "as text"),
        ('hidden = ["a"]', "unknown key"),
    ],
)
def test_invalid_restrictions_are_refused_when_the_policy_is_read(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        policy_of(tmp_path, f'[[grants]]\nrole = "read"\non = "hr"\nprincipals = ["*"]\n{line}\n')


@pytest.mark.parametrize("rights", ['role = "write"', 'rights = ["read", "append"]', 'rights = ["GetTableStats"]'])
def test_a_restricted_grant_permits_reading_alone(tmp_path: Path, rights: str) -> None:
    with pytest.raises(InvalidInput, match="reading alone"):
        policy_of(tmp_path, f'[[grants]]\n{rights}\non = "hr"\nprincipals = ["*"]\ncolumns = ["id"]\n')


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        ("QueryTable", 0, "within a restriction: columns id, name; rows ((`team` = 'a'))"),
        ("read", 0, "within a restriction"),
        ("ListTables", 0, "Allowed"),
        ("GetTableStats", 1, "shows or changes more than columns id, name"),
        ("ExplainTableQueryPlan", 1, "permitted are QueryTable"),
        ("UpdateTable", 1, "needs change"),
    ],
)
def test_policy_test_explains_a_restriction(tmp_path: Path, operation: str, code: int, words: str) -> None:
    policy_of(tmp_path, GRANT)
    line = ["policy", "test", str(tmp_path / "policy.toml"), "key:ada", operation, "hr.people", "--group", "analysts"]
    found = CliRunner().invoke(command, line)
    assert (found.exit_code, words in found.output) == (code, True), found.output
    report = json.loads(CliRunner().invoke(command, [*line, "--json"]).output)
    assert (report["decision"] in ("allowed", "restricted")) is (code == 0)


# -- columns ------------------------------------------------------------------------------------------------------


def fields(*columns: tuple[str, int] | tuple[str, int, str]) -> list[SchemaField]:
    found: list[SchemaField] = []
    for name, number, *kind in columns:
        *above, own = name.split("/")
        parent = next((each.id for each in found if above and each.name == above[-1]), -1)
        found.append(SchemaField(own, number, parent, kind[0] if kind else "int64"))
    return found


LATEST = fields(("id", 0), ("note", 5), ("box", 6, "struct"), ("box/in", 7), ("Word", 8), ("word", 9))


def columns_of(now: list[SchemaField], *names: str, rows: str = "") -> tuple[str, ...]:
    conditions = frozenset([condition_of(rows)] if rows else [])
    return readable(now, LATEST, Restriction(frozenset(names) if names else None, conditions), "t").columns


def test_columns_are_permitted_by_name_and_identity() -> None:
    assert columns_of(LATEST, "id", "note", "missing") == ("id", "note")
    assert columns_of(fields(("id", 0), ("note", 1)), "id", "note") == ("id",)  # another column of this name, earlier
    assert columns_of(fields(("id", 0), ("salary", 5)), "id", "note") == ("id",)  # the same column by another name
    assert columns_of(fields(("id", 0), ("box", 6, "struct"), ("box/in", 7), ("box/old", 4)), "id", "box") == ("id",)
    with pytest.raises(AccessDenied):
        columns_of(LATEST, "missing")


def test_names_that_differ_by_case_alone_are_not_permitted() -> None:
    assert columns_of(LATEST, "id", "word") == ("id",)
    assert columns_of(LATEST, rows="id = 1") == ("id", "note", "box")


@pytest.mark.parametrize("rows", ["missing = 1", "ID = 1", "word = 1", "box.other = 1", "note.x = 1"])
def test_a_condition_that_does_not_fit_the_table_refuses(rows: str) -> None:
    with pytest.raises(AccessDenied):
        columns_of(LATEST, rows=rows)


def test_a_condition_on_another_column_of_an_earlier_version_refuses() -> None:
    assert columns_of(fields(("note", 5)), rows="note = 1") == ("note",)
    with pytest.raises(AccessDenied):
        columns_of(fields(("note", 1)), rows="note = 1")


def test_columns_that_show_other_rows_are_not_permitted_with_rows() -> None:
    kinds = fields(
        ("id", 0), ("d", 1, "dict:string:int32:false"), ("s", 2, "struct"), ("s/d", 3, "dict:string:int8:false")
    )
    found = readable(kinds, kinds, Restriction(None, frozenset([condition_of("id = 1")])), "t")
    assert found.columns == ("id", "d")
    assert readable(kinds, kinds, Restriction(frozenset({"s"})), "t").columns == ("s",)


# -- expressions --------------------------------------------------------------------------------------------------

PATHS = {("id",), ("name",), ("box",), ("box", "in"), ("end",), ("we rd",)}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("id=1", "`id` = 1"),
        ("id IN(1,2) and not name like 'a''b'", "`id` IN ( 1 , 2 ) AND NOT `name` LIKE 'a''b'"),
        ("box.in", "`box` . `in`"),
        ("`we rd` * -1.5e3", "`we rd` * - 1.5e3"),
        (
            "CASE WHEN id IS NOT NULL THEN lower(name) ELSE 'x' END",
            "CASE WHEN `id` IS NOT NULL THEN lower ( `name` ) ELSE 'x' END",
        ),
        ("CAST(id AS decimal(10, 2))::text", "cast ( `id` AS DECIMAL ( 10 , 2 ) ) :: TEXT"),
        ("box['in'] = date '2020-01-01'", "`box` [ 'in' ] = DATE '2020-01-01'"),
        ("end = 1 AND name NOT IN ('a')", "`end` = 1 AND `name` NOT IN ( 'a' )"),
        ("id is distinct from null", "`id` IS DISTINCT FROM NULL"),
    ],
)
def test_expressions_are_written_again_with_quoted_names(given: str, written: str) -> None:
    assert expression_of(given, PATHS) == written.replace("`box` . `in`", "`box`.`in`")


@pytest.mark.parametrize(
    "given",
    [
        *(
            "ID = 1",
            "salary",
            "name + salary",
            "`Id`",
            "box.other",
            "id.x",
            "t.id",
            "escape = 1",
            "when = 1",
            "like = 1",
        ),
        *("lower(salary)", "name = _rowid", "case when then then then end", "end.x = 1", "id = date"),
    ],
)
def test_names_that_are_not_readable_are_absent(given: str) -> None:
    with pytest.raises(ColumnNotFound):
        expression_of(given, PATHS)


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            " ",
            "id =",
            "= 1",
            "id = 1)",
            "(id = 1",
            "id) OR (id",
            "id = 1; id",
            "id = 1 -- x",
            "id /* */ = 1",
            "id 1",
        ),
        *('"id" = 1', "id = '\\'", "id = $1", "id = ?", "{id}", "f(*)", "count(*)", "*", "id.*", "input(id)", "id[1)"),
        *(
            "id = 'a",
            "`id",
            "id = 1 limit 1",
            "id = 1 union",
            "id as x",
            "id, name",
            "0x1F",
            "id = 1a",
            "id AND AND id",
        ),
        *(
            "cast(id AS nothing)",
            "(select 1)",
            "id IS",
            "id NOT",
            "e'x'",
            "id::end",
            "id @> 1",
            "id = :a",
            "\x00",
            "id\u00a0= 1",
        ),
    ],
)
def test_other_texts_are_refused(given: str) -> None:
    with pytest.raises((InvalidInput, ColumnNotFound)):
        expression_of(given, PATHS)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("team = 'a'", "(`team` = 'a')"),
        ("NOT team IS NULL OR 1 < id and ok", "NOT (`team` IS NULL) OR (1 < `id`) AND (`ok`)"),
        ("not not (a.b between -1 and 2)", "((`a`.`b` BETWEEN -1 AND 2))"),
        ("date = date '2020-01-01'", "(`date` = DATE '2020-01-01')"),
        ("`or` in ('x', null) and t not ilike 'x%'", "(`or` IN ('x', NULL)) AND (`t` NOT ILIKE 'x%')"),
    ],
)
def test_conditions_compare_columns_with_constants(given: str, written: str) -> None:
    assert condition_of(given).text == written


@pytest.mark.parametrize(
    "given",
    [
        *(
            "a = b",
            "a + 1 = 2",
            "lower(a) = 'x'",
            "cast(a as int) = 1",
            "1 / a > 0",
            "a = 1) or (a = 2",
            "true",
            "a is b",
        ),
        *(
            "a = -b",
            "a in (b)",
            "a in ()",
            "a between 1 and b",
            "a like b",
            "a::int = 1",
            "not",
            "a = 1 or",
            "a[1] = 1",
        ),
        *("case when a = 1 then true end", "(((a = 1))", "a = 1 a", "a not 1", "(" * 99 + "a = 1" + ")" * 99),
    ],
)
def test_conditions_that_may_fail_are_refused(given: str) -> None:
    with pytest.raises(InvalidInput):
        condition_of(given)


def test_paths_are_read_as_the_engine_reads_them() -> None:
    assert path_of("a.`b.c`.d") == ("a", "b.c", "d")
    for text in ("a.", ".a", "a b", "a, b", "a + b", "'a'", "", "*", "a.*", "`a", "1"):
        with pytest.raises(ColumnNotFound):
            path_of(text)


@pytest.mark.parametrize(
    ("rows", "path"),
    [
        ("t = 'x' AND n IN (1, null) AND NOT b AND d < DATE '2020-01-01' AND m > '2020-01-01'", None),
        ("x IS NULL AND t IS NOT NULL", None),
        ("NOT (t = 5)", ("t",)),
        ("n BETWEEN 1 AND 'x'", ("n",)),
        ("t < DATE '2020-01-01'", ("t",)),
        ("5 < x AND x IN (-1.25, 2e3)", None),
        ("5.125 < x", ("x",)),
        ("x LIKE 'a'", ("x",)),
        ("n", ("n",)),
        ("t IS TRUE", ("t",)),
        ("n LIKE '1%'", ("n",)),
    ],
)
def test_a_constant_has_the_kind_of_its_column(rows: str, path: tuple[str, ...] | None) -> None:
    """Of another kind, the engine converts the values of the column, and fails at what it cannot convert."""
    types = {
        "t": "string",
        "n": "int32",
        "b": "bool",
        "d": "date32:day",
        "m": "timestamp:us:-",
        "x": "decimal:128:38:2",
    }
    table = fields(*((name, at, kind) for at, (name, kind) in enumerate(types.items())))
    found = condition_of(rows).unfit(column_types(table))
    assert (found and found.path) == path
    if path is not None:
        with pytest.raises(AccessDenied, match="another type"):
            readable(table, table, Restriction(None, frozenset([condition_of(rows)])), "t")


def test_a_blob_of_earlier_engines_is_compared_with_nothing() -> None:
    blob = attrs.evolve(fields(("c", 0, "large_binary"))[0], metadata={"lance-encoding:blob": b"true"})
    condition = condition_of("c = X'61'")
    assert condition.unfit(column_types([blob])) is not None
    assert condition.unfit(column_types(fields(("c", 0, "large_binary")))) is None


def test_schemas_show_no_metadata_but_the_names_of_extension_types() -> None:
    note, extension = {"note": "salary"}, {"ARROW:extension:name": "my.kind"}
    inner = pa.field("a", pa.int64(), metadata=note)
    kinds = (
        *(pa.int64(), pa.struct([inner]), pa.list_(inner), pa.large_list(inner), pa.list_(inner, 2)),
        pa.map_(pa.field("k", pa.string(), nullable=False, metadata=note), pa.field("v", pa.int64(), metadata=note)),
    )
    given = pa.schema(
        [pa.field(f"f{at}", kind, metadata=note | extension) for at, kind in enumerate(kinds)], {"pandas": "salary"}
    )
    found = bare(given)
    assert found.equals(given)
    assert b"salary" in given.serialize().to_pybytes()
    assert b"salary" not in found.serialize().to_pybytes()
    assert found.field("f0").metadata == {b"ARROW:extension:name": b"my.kind"}


def test_batches_show_nothing_of_the_rows_between_them() -> None:
    def given(*sizes: int) -> list[pa.RecordBatch]:
        rows = iter(range(sum(sizes)))
        numbers = [[next(rows) for _ in range(size)] for size in sizes]
        words = pa.array(["hidden", "a", "b"])
        kind = pa.dictionary(pa.int8(), pa.string())
        return [
            pa.record_batch(
                [
                    pa.array(each, pa.int64()),
                    pa.DictionaryArray.from_arrays(pa.array([1 + one % 2 for one in each], pa.int8()), words),
                ],
                pa.schema([("n", pa.int64()), ("d", kind)]),
            )
            for each in numbers
        ]

    one, two = (given(*sizes) for sizes in ((3, 0, 8192, 5, 10000), (18200,)))
    found = [list(sealed(iter(each), each[0].schema)) for each in (one, two)]
    assert [[batch.num_rows for batch in each] for each in found] == [[8192, 8192, 1816]] * 2
    assert all(first.equals(second) for first, second in zip(*found, strict=True))
    assert all("hidden" not in batch["d"].dictionary.to_pylist() for batch in found[0])
    assert list(sealed(iter([]), one[0].schema)) == []
