"""Hostile readers with rights on some columns and rows: nothing of the others is learnt.

Tables have the same permitted part, and hidden parts that differ in names, values, types and numbers of rows. Each
attack is sent to two tables. If one answer differs from the other, the attacker has learnt something.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import lance
import lance.namespace
import lancedb
import pyarrow as pa
import pytest
from rest_server import running

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.domain.restrictions import RESTRICTED
from lancekeep.domain.rights import RIGHT_OF, name_of
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEGMENTS
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.ports.table_structure import FieldMetadata, NewIndex

WORLDS = {"worlda": (0, 0), "worldb": (1, 0), "worldc": (0, 1), "worldd": (1, 1)}
"""The namespaces: the number of their hidden columns, and the number of their hidden rows."""
PLANTED = "planted"
"""A part of every hidden value and of every hidden name."""

POLICY = """
[[grants]]
role = "admin"
on = ""
principals = ["key:root"]
"""
RESTRICTED_GRANT = """
[[grants]]
role = "read"
on = "{world}"
principals = ["key:{name}"]
{restriction}
"""
COLUMNS = 'columns = ["id", "name", "word", "age", "vector", "group", "profile", "later"]'
RESTRICTIONS = {
    "columns": COLUMNS,
    "rows": "rows = \"team = 'open'\"",
    "both": f"{COLUMNS}\nrows = \"team = 'open' AND NOT (word = 'w-hidden')\"",
}
OTHER = {"columns": "worldb", "rows": "worldc", "both": "worldd"}
"""The namespace that differs from the first in what a reader may not see."""
T = "/v1/table/{world}$people"


def people(world: str) -> pa.Table:
    """Return permitted rows, which are the same in each world, between hidden rows, which are not."""
    columns, hidden = WORLDS[world]
    rows: list[dict[str, Any]] = []
    for number in range(12):
        rows.append(
            {
                "id": number,
                "name": f"n{number}",
                "word": str(number),
                "age": 20 + number,
                "vector": [float(number), 1.0],
                "group": "ab"[number % 2],
                "profile": {"city": f"c{number}"},
                "team": "open",
            }
        )
        rows += [
            {
                "id": 1000 + number * 10 + more + 500 * hidden,
                "name": f"{PLANTED}-name-{more}" + " n3 n3" * hidden,  # a word of a permitted row, in hidden ones
                "word": f"{PLANTED}-{more}" if hidden else "7",
                "age": None if hidden else 0,
                "vector": [900.0 if hidden else 0.5, 1.0],
                "group": f"{PLANTED}-{hidden}",
                "profile": {"city": f"{PLANTED}-city"},
                "team": "closed" if more else None,
            }
            for more in range(number % 3 + (5 if hidden else 2))
        ]
    for row in rows:
        at = row["id"]
        row["pay" if columns else "salary"] = at * (7 if columns else 1)
        row["memo"] = f"{PLANTED} memo{'x' if columns else at}"
        row["face"] = [float(-at if columns else at), 0.0]
        row["escape"] = f"{PLANTED}-{columns}-{at}"
        row["box"] = {f"{PLANTED}_inner": str(at) if columns else at}
    table = pa.Table.from_pylist(rows)
    for name in ("vector", "face"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(pa.list_(pa.float32(), 2)))
    place = table.schema.get_field_index("group")
    table = table.set_column(place, "group", table["group"].dictionary_encode())
    if columns:
        table = table.append_column("extra", pa.array(range(table.num_rows)))
        for name in ("_distance", "_score", "query_index"):  # the engine refuses a search that adds such a column
            table = table.append_column(name, pa.array(range(table.num_rows)))
    return table.replace_schema_metadata({"pandas": json.dumps({"columns": [f"{PLANTED}_{columns}"]})})


@attrs.define
class Site:
    folder: Path
    catalog: lancekeep.Catalog
    client: httpx.Client
    secrets: dict[str, str] = attrs.field(factory=dict)
    uri: str = ""

    def send(self, who: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"x-api-key": self.secrets[who]}
        if path.startswith("GET "):
            return self.client.get(self.uri + path.removeprefix("GET "), headers=headers)
        if isinstance(body, bytes):
            kind = {"content-type": "application/vnd.apache.arrow.stream"}
            return self.client.post(self.uri + path, content=body, headers={**headers, **kind})
        return self.client.post(self.uri + path, json={} if body is None else body, headers=headers)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("restricted")
    keys = KeyFile(folder / "keys.json")
    secrets = {name: keys.create(name)[1] for name in ("root", *RESTRICTIONS, "editor")}
    grants = [
        RESTRICTED_GRANT.format(world=world, name=name, restriction=restriction)
        for world in WORLDS
        for name, restriction in RESTRICTIONS.items()
    ]
    # The editor may move and change the table, and read some columns of it.
    for world in WORLDS:
        grants.append(RESTRICTED_GRANT.format(world=f"{world}.people", name="editor", restriction='columns = ["id"]'))
        grants.append(RESTRICTED_GRANT.format(world=f"{world}.open", name="editor", restriction="columns = ['memo']"))
        grants.append(
            f'[[grants]]\nrights = ["drop", "create", "append", "change", "schema", "index", "tag"]\n'
            f'on = "{world}"\nprincipals = ["key:editor"]\n'
        )
    (folder / "policy.toml").write_text(POLICY + "".join(grants))
    settings = ServerSettings(log_level="error", keys=str(folder / "keys.json"), policy=str(folder / "policy.toml"))
    audit = AuditLog(folder / "audit.jsonl")
    with (
        lancekeep.connect(str(folder / "lake"), commit_store="conditional-put://") as catalog,
        httpx.Client() as client,
    ):
        catalog.initialize()
        for world in WORLDS:
            fill(catalog, world)
        security = security_of(settings, {}, directory_of(catalog).versions.base_paths, audit.reloaded)
        app = create_app(
            CatalogNamespace(catalog),
            settings,
            around=security.around,
            middleware=security.middleware,
            others=dict.fromkeys(SEGMENTS, page_of(catalog, settings, security)),
            audit=audit,
            decisions=security.decisions,
        )
        with running(app) as uri:
            yield Site(folder, catalog, client, secrets, uri)


def fill(catalog: lancekeep.Catalog, world: str) -> None:
    catalog.create_namespace(world, {"note": f"{PLANTED}-{world}"})
    name, secret = f"{world}.people", "pay" if WORLDS[world][0] else "salary"
    old = people(world)  # at version 1, the name `later` was that of a hidden column
    catalog.write(name, old.append_column("later", pa.array([f"{PLANTED}-{at}" for at in old["id"].to_pylist()])))
    catalog.structure.drop_columns(name, ["later"])
    catalog.structure.add_columns(name, {"later": "id * 2"})
    note = {"lancekeep.note": f"{PLANTED}_{WORLDS[world]}"}
    catalog.structure.set_field_metadata(name, [FieldMetadata(path, note) for path in ("age", "profile.city")])
    catalog.tags.create(name, "first", 1)
    catalog.branches.create(name, "side", version=1)
    catalog.tags.create(name, "aside", 1, branch="side")
    catalog.structure.create_index(name, NewIndex("word", "BTREE", "words"))
    catalog.structure.create_index(name, NewIndex(secret, "BTREE", f"{secret}-{PLANTED}"))
    for column in ("memo", "name"):
        catalog.structure.create_index(name, NewIndex(column, "INVERTED", f"{column}-{PLANTED}"))
    catalog.write(f"{world}.empty", people(world).select(["memo", "team"]))


def query(**fields: Any) -> dict[str, Any]:
    return {"k": 1000, "vector": {}, **fields}


def named(*names: str, **fields: Any) -> dict[str, Any]:
    return query(columns={"column_names": list(names)}, **fields)


def aliased(fields: dict[str, str], **others: Any) -> dict[str, Any]:
    return query(columns={"column_aliases": fields}, **others)


def near(column: str | None = None, **fields: Any) -> dict[str, Any]:
    place = {} if column is None else {"vector_column": column}
    return {"k": 5, "vector": {"single_vector": [3.0, 1.0]}, **place, **fields}


def text(terms: str, *columns: str, **fields: Any) -> dict[str, Any]:
    return query(full_text_query={"string_query": {"query": terms, "columns": list(columns)}}, **fields)


def structured(part: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return query(full_text_query={"structured_query": {"query": part}}, **fields)


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


Q, C = f"{T}/query", f"{T}/count_rows"
FAILS = "CAST(word AS INT) > 0"
"""Fails for some hidden words of one namespace alone."""

ATTACKS: dict[str, tuple[str, Any]] = {
    "everything": (Q, query()),
    "hidden column": (Q, named("id", "salary")),
    "hidden column in another case": (Q, named("id", "SALARY")),
    "hidden column between backticks": (Q, named("`salary`")),
    "hidden column of the other world": (Q, named("id", "pay")),
    "star": (Q, named("*")),
    "row id as a column": (Q, named("_rowid")),
    "row address as a column": (Q, named("_rowaddr")),
    "row offset as a column": (Q, named("_rowoffset")),
    "versions as columns": (Q, named("_row_created_at_version")),
    "row ids": (Q, named("id", with_row_id=True)),
    "field of a hidden struct": (Q, named(f"box.{PLANTED}_inner")),
    "hidden struct": (Q, named("box")),
    "alias of a hidden column": (Q, aliased({"x": "salary"})),
    "alias with the name of a hidden column": (Q, aliased({"salary": "id"})),
    "hidden column in an expression": (Q, aliased({"x": "CASE WHEN salary > 3 THEN 1 ELSE 0 END"})),
    "hidden struct in an expression": (Q, aliased({"x": f"box['{PLANTED}_inner']"})),
    "field by a function": (Q, aliased({"x": f"get_field(box, '{PLANTED}_inner')"})),
    "all columns in a function": (Q, aliased({"x": "struct(*)"})),
    "subquery": (Q, aliased({"x": "(SELECT max(salary) FROM t)"})),
    "qualified name": (Q, aliased({"x": "t.salary"})),
    "row id in an expression": (Q, aliased({"x": "_rowid"})),
    "failing expression": (Q, aliased({"x": "10 / (age - 100)", "y": "CAST(word AS INT)"})),
    "filter by a hidden column": (Q, named("id", filter="salary > 3")),
    "filter by a hidden column, quoted": (Q, named("id", filter='"salary" > 3')),
    "filter by a hidden column in backticks": (Q, named("id", filter="`Salary` > 3")),
    "filter that names nothing hidden, then does": (Q, named("id", filter="id > 3 OR salary > 3")),
    "filter by a hidden null": (Q, named("id", filter="NOT (escape IS NULL)")),
    "word that names a hidden column": (Q, named("id", filter="name LIKE 'n%' ESCAPE '!'")),
    "hidden column as a keyword": (Q, named("id", filter="escape = 'x'")),
    "filter that closes the condition": (Q, named("id", filter="true) OR (true")),
    "filter with a hidden end": (Q, named("id", filter="id >= 0 OR true --")),
    "filter with a comment": (Q, named("id", filter="id >= 0 /*")),
    "filter with a second statement": (Q, named("id", filter="id >= 0; SELECT 1")),
    "filter with a union": (Q, named("id", filter="id >= 0 UNION SELECT salary FROM t")),
    "filter with an order": (Q, named("id", filter="id >= 0 ORDER BY salary")),
    "filter with a backslash": (Q, named("id", filter="name = '\\' OR salary > 3 OR name = '")),
    "filter always true": (Q, named("id", filter="true")),
    "filter that is null": (Q, named("id", filter="team IS NULL")),
    "filter on hidden rows": (Q, named("id", filter="id >= 1000")),
    "filter fails for hidden rows": (Q, named("id", filter="10 / age > 0")),
    "filter casts hidden rows": (Q, named("id", filter=FAILS)),
    "filter compares types": (Q, named("id", filter="word > age")),
    "filter compares a text with a number": (Q, named("id", filter="NOT (word = 5)")),
    "filter compares a text with a date": (Q, named("id", filter="word < DATE '2020-01-01'")),
    "filter compares a text with numbers": (Q, named("id", filter="word BETWEEN 0 AND 99")),
    "count compares a text with a number": (C, {"predicate": "word NOT IN (5, 6)"}),
    "filter by an index": (Q, named("id", filter=f"word = '{PLANTED}-1' OR word <> '1'")),
    "filter by row id": (Q, named("id", filter="_rowid < 9")),
    "filter by row address": (Q, named("id", filter="_rowaddr < 9")),
    "filter by an unknown function": (Q, named("id", filter="input_file_name() = 'x'")),
    "filter of nested parentheses": (Q, named("id", filter="(" * 300 + "id > 1" + ")" * 300)),
    "filter with a placeholder": (Q, named("id", filter="$1 = id")),
    "page": (Q, named("id", k=3, offset=2)),
    "page beyond the end": (Q, named("id", k=3, offset=12)),
    "nearest by a hidden vector": (Q, near("face")),
    "nearest": (Q, near(columns={"column_names": ["id"]})),
    "nearest by a batch": (
        Q,
        {"k": 2, "vector": {"multi_vector": [[3.0, 1.0], [900.0, 1.0]]}, "columns": {"column_names": ["id"]}},
    ),
    "nearest of hidden rows": (
        Q,
        {"k": 3, "vector": {"single_vector": [0.5, 1.0]}, "columns": {"column_names": ["id"]}},
    ),
    "nearest, then a filter": (Q, near(filter="id >= 0", columns={"column_names": ["id"]})),
    "nearest after a filter": (
        Q,
        near(filter="id >= 3", prefilter=True, columns={"column_names": ["id", "_distance"]}),
    ),
    "nearest of indexed rows": (Q, near(fast_search=True, columns={"column_names": ["id"]})),
    "nearest with row ids": (Q, near(with_row_id=True, columns={"column_names": ["id"]})),
    "text in hidden columns": (Q, text("memox", "memo", columns={"column_names": ["id"]})),
    "text in all columns": (Q, text(PLANTED, columns={"column_names": ["id"]})),
    "text in a permitted column": (Q, text("n3", "name", columns={"column_names": ["id", "_score"]})),
    "page of a text": (Q, text("n3 n4 n5", "name", k=2, offset=1, columns={"column_names": ["id", "_score"]})),
    "text and a filter": (Q, text("n3 n4", "name", filter="id > 3", columns={"column_names": ["id"]})),
    "text and a filter by its score": (Q, text("n3 n4", "name", filter="_score > 0.5")),
    "text in indexed rows": (Q, text("n3", "name", fast_search=True)),
    "text of the first version": (Q, text("n3", "name", version=1, columns={"column_names": ["id", "_score"]})),
    "text of a branch": (Q, text("n3", "name", branch="side", columns={"column_names": ["id", "_score"]})),
    "fuzzy text": (
        Q,
        structured(
            {"match": {"terms": "planter", "column": "name", "fuzziness": 2, "max_expansions": 1}},
            columns={"column_names": ["id", "_score"]},
        ),
    ),
    "text that the index lacks": (Q, text("n3", "word", columns={"column_names": ["id", "_score"]})),
    "text of all columns, structured": (Q, structured({"match": {"terms": PLANTED}})),
    "text of a hidden column, structured": (Q, structured({"match": {"terms": "memox", "column": "memo"}})),
    "text of a hidden column, nested": (
        Q,
        structured(
            {"boolean": {"must": [{"phrase": {"terms": "memox", "column": "memo"}}], "should": [], "must_not": []}}
        ),
    ),
    "hybrid": (Q, near(full_text_query={"string_query": {"query": "n3", "columns": ["name"]}})),
    "count": (C, {}),
    "count by a hidden column": (C, {"predicate": "salary > 3"}),
    "count that closes the condition": (C, {"predicate": "true) OR (true"}),
    "count that fails": (C, {"predicate": "10 / age > 0"}),
    "count of hidden rows": (C, {"predicate": "id >= 1000"}),
    "first version": (Q, query(version=1)),
    "column of the first version": (Q, named("later", version=1)),
    "version without the column": (Q, named("id", "later", version=2)),
    "rows of the first version": (C, {"version": 1}),
    "version that is missing": (Q, query(version=99)),
    "branch": (Q, query(branch="side")),
    "column of a branch": (Q, named("later", branch="side")),
    "rows of a branch": (C, {"branch": "side"}),
    "a column that is a time": (Q, named("id", filter="age < TIME '00:00:01'")),
    "membership of a hidden column": (Q, named("id", filter="array_has(face, 0)")),
    "membership in a permitted column": (Q, named("id", filter="array_has(vector, 3)")),
    "branch that is missing": (Q, query(branch="none")),
    "time": (Q, {**query(), "context": {"lancekeep.timestamp": "2100-01-01T00:00:00Z"}}),
    "describe": (f"{T}/describe", {}),
    "describe in detail": (f"{T}/describe", {"load_detailed_metadata": True}),
    "describe the first version": (f"{T}/describe", {"load_detailed_metadata": True, "version": 1}),
    "describe a tag": (f"{T}/describe", {"load_detailed_metadata": True, "tag": "first"}),
    "describe a tag of a branch": (f"{T}/describe", {"load_detailed_metadata": True, "tag": "aside"}),
    "describe a branch": (f"{T}/describe", {"load_detailed_metadata": True, "branch": "side"}),
    "describe with credentials": (f"{T}/describe", {"vend_credentials": True}),
    "describe by GET": ("GET /lancekeep/v1/table/{world}$people?load_detailed_metadata=true", None),
    "describe in a batch": (
        "/lancekeep/v1/table/batch-describe",
        {"ids": [["{world}", "people"]], "load_detailed_metadata": True},
    ),
    "older route": ("/QueryTable", {"id": ["{world}", "people"], **query()}),
    "namespace": ("/v1/namespace/{world}/describe", {}),
    "namespace by GET": ("GET /lancekeep/v1/namespace/{world}", None),
    "plan": (f"{T}/explain_plan", {"query": query(filter="salary > 3")}),
    "measured plan": (f"{T}/analyze_plan", query()),
    "statistics": (f"{T}/stats", {}),
    "indexes": (f"{T}/index/list", {}),
    "index statistics": (f"{T}/index/words/stats", {}),
    "versions": (f"{T}/version/list", {}),
    "a version": (f"{T}/version/describe", {"version": 1}),
    "tags": (f"{T}/tags/list", {}),
    "a tag": (f"{T}/tags/version", {"tag": "first"}),
    "branches": (f"{T}/branches/list", {}),
    "events": ("GET /v1/events?id={world}", None),
    "dropped": ("GET /lancekeep/v1/object/{world}/dropped", None),
    "update": (f"{T}/update", {"updates": [["age", "age + 1"]], "predicate": "salary > 3"}),
    "delete": (f"{T}/delete", {"predicate": "salary > 3"}),
    "insert": (f"{T}/insert", stream(pa.table({"id": [1]}))),
    "merge": (f"{T}/merge_insert?on=id&when_not_matched_insert_all=true", stream(pa.table({"id": [1]}))),
    "new column": (f"{T}/add_columns", {"new_columns": [{"name": "later2", "expression": "salary"}]}),
    "view": (
        "/v1/materialized_view/{world}$view/create",
        {
            "kind": "query",
            "output_schema": base64.b64encode(pa.schema([("id", pa.int64())]).serialize().to_pybytes()).decode(),
            "source_query": json.dumps({"table": ["{world}", "people"]}),
        },
    ),
    "a tag that is missing": (f"{T}/tags/version", {"tag": "none"}),
}


def of_world(value: Any, world: str) -> Any:
    if isinstance(value, bytes) or value is None:
        return value
    return json.loads(json.dumps(value).replace("{world}", world))


VOLATILE = re.compile(rb"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{8}_(?=world)")


def answer(site: Site, who: str, attack: str, world: str) -> tuple[int, bytes]:
    """Return the status and the bytes of an answer, without the name of the world."""
    path, body = ATTACKS[attack]
    found = site.send(who, path.replace("{world}", world), of_world(body, world))
    return found.status_code, VOLATILE.sub(b"", found.content.replace(world.encode(), b"world"))


@pytest.mark.parametrize("who", RESTRICTIONS)
def test_no_attack_learns_anything_of_hidden_columns_or_rows(site: Site, who: str) -> None:
    served = set()
    for attack, (path, _) in ATTACKS.items():
        if who != "both" and path not in (Q, C, f"{T}/describe"):
            continue  # refused for its operation, whatever is restricted
        one, two = (answer(site, who, attack, world) for world in ("worlda", OTHER[who]))
        assert one == two, (who, attack)
        assert one[0] in (200, 400, 403, 404, 501), (who, attack, one)
        if who == "both" and one[0] == 200:
            assert PLANTED.encode() not in one[1], (who, attack)
        if one[0] == 200:
            served.add(attack)
    assert {"everything", "page", "count", "nearest", "describe in detail", "text in a permitted column"} <= served
    assert {"branch", "fuzzy text", "hybrid", "text of a branch", "rows of a branch"} <= served


def rows_of(found: httpx.Response) -> list[dict[str, Any]]:
    assert found.status_code == 200, found.text
    rows: list[dict[str, Any]] = pa.ipc.open_file(io.BytesIO(found.content)).read_all().to_pylist()
    return rows


def test_attacks_would_learn_something_without_a_restriction(site: Site) -> None:
    """Most requests that are answered show the differences to a caller without a restriction."""
    telling = [
        attack for attack in ATTACKS if answer(site, "root", attack, "worlda") != answer(site, "root", attack, "worldd")
    ]
    assert len(telling) > len(ATTACKS) // 2


def test_a_restricted_caller_reads_its_part(site: Site) -> None:
    columns = {"id", "name", "word", "age", "vector", "group", "profile", "later"}
    found = rows_of(site.send("both", Q.replace("{world}", "worldd"), query()))
    assert ([row["id"] for row in found], set(found[0])) == (list(range(12)), columns)
    near_three = rows_of(site.send("both", Q.replace("{world}", "worldd"), named("id", **near(k=3))))
    assert {row["id"] for row in near_three} == {2, 3, 4}
    described = site.send("both", f"{T}/describe".replace("{world}", "worldd"), {"load_detailed_metadata": True}).json()
    assert {field["name"] for field in described["schema"]["fields"]} == columns
    old = rows_of(site.send("both", Q.replace("{world}", "worldd"), query(version=1)))
    assert set(old[0]) == columns - {"later"}


REFUSED_WITH_ROWS = (
    "row ids",
    "nearest, then a filter",
    "nearest of indexed rows",
    "nearest with row ids",
)


def test_what_depends_on_hidden_rows_is_refused_by_name(site: Site) -> None:
    for attack in REFUSED_WITH_ROWS:
        assert answer(site, "rows", attack, "worlda")[0] == 403, attack
    for attack in REFUSED_WITH_ROWS:
        assert answer(site, "columns", attack, "worlda")[0] == 200, attack


def test_indexes_of_all_rows_are_neither_read_nor_quoted(site: Site) -> None:
    """Of a table without the files of its indexes, a caller of some rows misses nothing."""
    site.catalog.write("worlda.broken", people("worlda"))
    site.catalog.structure.create_index("worlda.broken", NewIndex("word", "BTREE", "words"))
    site.catalog.structure.create_index("worlda.broken", NewIndex("vector", "IVF_FLAT", "near", {"num_partitions": 1}))
    [folder] = (site.folder / "lake").glob("*worlda$broken")
    shutil.rmtree(folder / "_indices")
    path = "/v1/table/worlda$broken/query"
    for body in (named("id", filter="word = '3'"), named("id", **near(k=1))):
        assert [row["id"] for row in rows_of(site.send("rows", path, body))] == [3]
        quoted = site.send("root", path, body).text
        assert ("_indices" in quoted, ".rs:" in quoted) == (True, False)
        refused = site.send("columns", path, body)
        assert (refused.status_code, refused.json()["code"]) == (500, 18)
        assert "run `lancekeep fsck`" in refused.json()["error"]
        assert not re.search(r"_indices|\.idx|\.lance|not found", refused.text)


def test_what_is_damaged_is_not_quoted(site: Site) -> None:
    """The engine quotes the size of the manifest file, which depends on hidden columns."""
    site.catalog.write("worlda.torn", people("worlda"))
    [manifest] = (site.folder / "lake").glob("*worlda$torn/_versions/*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:-16] + b"\xff" * 8 + manifest.read_bytes()[-8:])
    described = ("/v1/table/worlda$torn/describe", {"load_detailed_metadata": True})
    for path, body in (
        ("/v1/table/worlda$torn/query", query()),
        ("/v1/table/worlda$torn/query", {**query(), "context": {"lancekeep.timestamp": "2100-01-01T00:00:00Z"}}),
        ("/v1/table/worlda$torn/count_rows", {}),
        described,
    ):
        assert ".manifest" in site.send("root", path, body).text
        refused = site.send("both", path, body)
        assert (refused.status_code, refused.json()["code"]) == (500, 18)
        assert refused.json()["error"].endswith("run `lancekeep fsck`")


def test_an_entity_tag_of_another_caller_is_no_answer(site: Site) -> None:
    for path in ("/lancekeep/v1/table/worlda$people", "/lancekeep/v1/table/worlda$people?load_detailed_metadata=true"):
        mine, theirs = (site.send(who, f"GET {path}") for who in ("both", "root"))
        assert mine.headers["etag"] != theirs.headers["etag"]
        headers = {"x-api-key": site.secrets["both"], "if-none-match": theirs.headers["etag"]}
        again = site.client.get(site.uri + path, headers=headers)
        assert (again.status_code, again.content) == (200, mine.content)


def test_a_restricted_caller_moves_no_table_to_where_it_reads_more(site: Site) -> None:
    rename = "/v1/table/worlda$people/rename"
    refused = site.send("editor", rename, {"new_table_name": "open"})
    assert (refused.status_code, "worlda.open" in refused.text) == (403, True)
    assert site.send("root", f"{T}/exists".replace("{world}", "worlda")).status_code == 200


def test_other_grants_permit_what_they_permit(site: Site) -> None:
    table = T.replace("{world}", "worlda")
    assert site.send("editor", f"{table}/tags/create", {"tag": "mine", "version": 1}).status_code == 200
    refused = site.send("editor", f"{table}/update", {"updates": [["age", "age"]], "predicate": "salary > 3"})
    assert (refused.status_code, "some columns" in refused.text) == (403, True)
    refused = site.send("editor", f"{table}/add_columns", {"new_columns": [{"name": "x", "expression": "salary"}]})
    assert (refused.status_code, "some columns" in refused.text) == (403, True)
    assert site.send("root", f"{table}/tags/delete", {"tag": "mine"}).status_code == 200


def test_the_audit_log_says_what_was_restricted(site: Site) -> None:
    site.send("both", C.replace("{world}", "worlda"), {"predicate": f"name = '{PLANTED}'"})
    site.send("columns", f"{T}/stats".replace("{world}", "worlda"))
    counted, refused = site.audited()[-2:]
    assert (counted["decision"], counted["restricted"]) == ("allowed", ["columns", "rows"])
    assert (refused["decision"], "some columns" in refused["reason"]) == ("refused", True)
    assert PLANTED not in json.dumps(counted)


def test_clients_read_through_the_server(site: Site) -> None:
    properties = {"uri": site.uri, "header.x-api-key": site.secrets["both"]}
    namespace = lance.namespace.RestNamespace(**properties)
    answered = namespace.query_table({"id": ["worldd", "people"], "k": 100, "vector": {}, "filter": "age >= 30"})
    assert pa.ipc.open_file(answered.data).read_all()["id"].to_pylist() == [10, 11]
    database = lancedb.connect_namespace("rest", properties, namespace_client_pushdown_operations=["QueryTable"])
    with pytest.raises(RuntimeError, match="ListTableVersions"):  # lancedb reads the files of a table itself
        database.open_table("people", namespace_path=["worldd"])


def test_each_operation_is_refused_unless_it_is_listed(site: Site) -> None:
    """Whatever the body, an operation that shows or changes more is answered 403 for its path alone."""
    permitted = {"list_operations", "list_namespaces", "list_tables", "list_all_tables", *RESTRICTED}
    for operation in sorted(set(RIGHT_OF) - permitted):
        found = site.send("both", f"/{name_of(operation)}", {"id": ["worlda", "people"]})
        assert found.status_code in (400, 403, 404, 415), (operation, found.text)
