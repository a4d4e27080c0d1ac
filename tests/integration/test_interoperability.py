"""Lancekeep and the native namespace on one directory, in two processes: after every step both show the same.

`DEPARTURES` names the places where the native namespace departs from the specification. Each has a test that fails once
the departure no longer exists. ``docs/interoperability.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from writers import Answer, Peers, answer, open_namespace

from lancekeep.application.upkeep.fsck import Kind

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
MORE = pa.table({"a": pa.array([4], pa.int64())})
NO_ROWS = pa.table({"a": pa.array([], pa.int64())})

MODES: Mapping[str, Mapping[str, str]] = {
    "v1": {"manifest_enabled": "false"},
    "compatible": {},
    "manifest first": {"dir_listing_to_manifest_migration_enabled": "true"},
    "v2": {"dir_listing_enabled": "false"},
}
"""The modes of both by their native names; compatibility is two of native, and one here."""

DEPARTURES = {
    "rename": "`rename_table` is not implemented.",
    "cascade": "`drop_namespace` does not support `Cascade`: as with `Restrict`, a namespace that is not empty stays.",
    "namespace modes": "`create_namespace` treats `exist_ok` and `overwrite` as `create`; `drop_namespace` treats "
    "`Skip` as `Fail`.",
    "root properties": "`describe_namespace` does not return the properties of the root; its writes keep them.",
    "root from listing": "In compatibility mode it reads the tables of the root only from the directory listing. It "
    "does not see renamed tables, tables in other directories, or properties. With "
    "`dir_listing_to_manifest_migration_enabled=true` it reads the manifest first, as the specification requires.",
    "written in v1 directories": "Even with that property, `list_tables` with `include_declared=false` omits a table "
    "of the root whose directory is not `{name}.lance`.",
    "no marker": "In compatibility mode `deregister_table` removes the table from the manifest but creates no "
    "marker, so by rule 1 the table still exists.",
    "occupied directory": "In compatibility mode, creating a table under the name of a deregistered table fails with "
    "an internal error.",
    "encoded names": "A directory name with a character that a URI encodes (other than a space) is encoded twice. "
    "`declare_table` creates its marker in another directory; `list_tables` with `include_declared=false` omits the "
    "table; `drop_table` removes the entry, fails with an internal error, and leaves the files. Creating, "
    "describing, reading and appending work.",
    "no rows": "With a manifest, `create_table` refuses a stream without a record batch with an internal error.",
    "all tables": "`list_all_tables` returns only the V1 directories of the root, and nothing from child namespaces "
    "or V2.",
    "missing namespace": "`list_tables` and `list_namespaces` return an empty list for a namespace that does not "
    "exist.",
    "orphans": "`declare_table` and `create_table` succeed below a namespace that does not exist, and leave an orphan.",
    "declared": "`create_table` in mode `create` writes into a declared table.",
    "declared location": "`declare_table` refuses every location except its own default.",
    "any directory": "`register_table` accepts a directory without a table, and the directory of another table.",
    "missing version": "`describe_table` does not check whether the requested version exists.",
    "limit": "A `limit` of 0 returns an empty page without a token, as for an empty namespace.",
    "root drop": "Dropping the root namespace is invalid input; Lancekeep reports an invalid state of the catalog.",
    "deprecated": "The deprecated `create_empty_table` is not implemented.",
    "models": "`describe_table_version` accepts only a mapping, not the request model of `lance_namespace`.",
    "v1 register": "In V1, `register_table` is not supported, not even for a deregistered table.",
    "v1 modes": "In V1, `create_table` treats `exist_ok` and `overwrite` as `create`.",
    "v1 drop": "In V1, dropping a table that does not exist is an internal error.",
    "v1 identifiers": "In V1, every operation refuses an identifier that does not have exactly one name as "
    "unsupported.",
    "v1 empty directory": "In V1, an empty directory `{name}.lance` is listed, but not found.",
}


def properties(root: Path, mode: str, *, native: bool = False) -> dict[str, str]:
    quick = {} if native else {"storage.fsync": "false"}
    return {"root": str(root), **MODES[mode], **quick}


@pytest.fixture(scope="module")
def peer() -> Iterator[Peers]:
    """A process with native namespaces."""
    peers = Peers(1)
    yield peers
    peers.close()


@attrs.frozen
class Pair:
    """Both on one directory: ours in this process, the native one in another."""

    peer: Peers
    root: Path
    mode: str
    own: Any

    @staticmethod
    def on(peer: Peers, root: Path, mode: str) -> Pair:
        return Pair(peer, root, mode, open_namespace(False, properties(root, mode)))

    def ours(self, operation: str, **fields: Any) -> Answer:
        return answer(self.own, (operation, fields))

    def native(self, operation: str, **fields: Any) -> Answer:
        return self.peer.race((True, properties(self.root, self.mode, native=True), [(operation, fields)]))[0][0]


@pytest.fixture(params=MODES)
def pair(request: pytest.FixtureRequest, tmp_path: Path, peer: Peers) -> Pair:
    return Pair.on(peer, tmp_path / "lake", request.param)


def ok(given: Answer) -> Any:
    assert given[0] == "ok", given
    return given[1]


# -- step by step ------------------------------------------------------------------------------------------------

OURS_ALONE = ("rename_table", "alter_namespace", "alter_table")
"""What native cannot do."""

Step = tuple[str, dict[str, Any]]
"""An operation and its fields; a location that is a tuple is that of the table of these names."""

V1_STEPS: list[Step] = [
    ("create_table", {"id": ["t"], "data": ROWS}),
    ("declare_table", {"id": ["d"]}),
    ("append_rows", {"id": ["t"], "data": MORE}),
    ("create_table", {"id": ["u v"], "data": MORE}),
    ("append_rows", {"id": ["t"], "data": MORE}),
    ("deregister_table", {"id": ["t"]}),
    ("drop_table", {"id": ["d"]}),
    ("declare_table", {"id": ["d"]}),
    ("declare_table", {"id": ["e"]}),
    ("drop_table", {"id": ["u v"]}),
]

STEPS: list[Step] = [
    ("create_namespace", {"id": ["a"], "properties": {"owner": "Zoë"}}),
    ("create_namespace", {"id": ["a", "b c"]}),
    ("declare_table", {"id": ["a", "d"], "properties": {"k": "v"}}),
    ("create_table", {"id": ["a", "t"], "data": ROWS}),
    ("create_table", {"id": ["a", "b c", "t"], "data": ROWS}),
    ("create_table", {"id": ["r"], "data": ROWS}),
    ("declare_table", {"id": ["d"]}),
    ("append_rows", {"id": ["a", "t"], "data": MORE}),
    ("append_rows", {"id": ["r"], "data": MORE}),
    ("alter_namespace", {"identifier": [], "set": {"of": "the root"}}),
    ("create_table", {"id": ["a", "t"], "data": MORE, "mode": "exist_ok"}),
    ("create_table", {"id": ["a", "t"], "data": MORE, "mode": "overwrite"}),
    ("alter_namespace", {"identifier": ["a"], "set": {"x": "1"}, "remove": ["owner"]}),
    ("alter_table", {"identifier": ["a", "t"], "set": {"x": "1"}}),
    ("alter_table", {"identifier": ["r"], "set": {"x": "1"}}),
    ("append_rows", {"id": ["a", "t"], "data": ROWS}),
    ("rename_table", {"id": ["a", "t"], "new_namespace_id": ["a", "b c"], "new_table_name": "moved"}),
    ("append_rows", {"id": ["a", "b c", "moved"], "data": MORE}),
    ("deregister_table", {"id": ["a", "b c", "moved"]}),
    ("register_table", {"id": ["a", "again"], "location": ("a", "b c", "moved")}),
    ("append_rows", {"id": ["a", "again"], "data": MORE}),
    ("rename_table", {"id": ["r"], "new_table_name": "s"}),
    ("create_table", {"id": ["r"], "data": MORE}),
    ("drop_table", {"id": ["a", "d"]}),
    ("drop_table", {"id": ["d"]}),
    ("drop_table", {"id": ["a", "b c", "t"]}),
    ("drop_namespace", {"id": ["a", "b c"]}),
    ("create_namespace", {"id": ["a", "b c"], "properties": {"recreated": "yes"}}),
    ("drop_table", {"id": ["a", "again"]}),
    ("drop_namespace", {"id": ["a", "b c"]}),
    ("drop_namespace", {"id": ["a"]}),
]

V1_END = {"d": None, "e": None}
END = {"r": [4], "s": [1, 2, 3, 4]}
"""The tables of the root when all is done, and their rows."""

TURNS: Mapping[str, Callable[[int], bool]] = {
    "native writes": lambda step: True,
    "lancekeep writes": lambda step: False,
    "in turn, native first": lambda step: step % 2 == 0,
    "in turn, lancekeep first": lambda step: step % 2 == 1,
}
"""Whether a step is the native one's."""


@pytest.mark.parametrize("turn", TURNS)
def test_after_every_step_both_show_the_same(pair: Pair, turn: str) -> None:
    lain: dict[tuple[str, ...], str] = {}
    shown: Any = None
    for number, (operation, fields) in enumerate(V1_STEPS if pair.mode == "v1" else STEPS):
        location = fields.get("location")
        given = {**fields, "location": lain[location]} if location else fields
        native = TURNS[turn](number) and operation not in OURS_ALONE
        ok((pair.native if native else pair.ours)(operation, **given))
        shown = ok(pair.ours("world"))
        assert ok(pair.native("world")) == as_native_shows(pair.mode, shown), (operation, fields)
        lain |= directories(shown)
    assert not shown["namespaces"]
    assert shown["properties"] == ({} if pair.mode == "v1" else {"of": "the root"})
    rows = {name: table["rows"] and table["rows"]["a"] for name, table in shown["tables"].items()}
    assert rows == (V1_END if pair.mode == "v1" else END)
    assert [
        finding for finding in pair.own.catalog.upkeep.fsck().findings if finding.kind is not Kind.DEREGISTERED
    ] == []


def as_native_shows(mode: str, shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what native must list, according to the documented departures of a whole listing."""
    expected = deepcopy(dict(shown))
    expected["properties"] = {}  # departure: root properties
    if mode in ("compatible", "manifest first"):  # departure: written in v1 directories
        v1 = {name for name, table in shown["tables"].items() if table["directory"] == f"{name}.lance"}
        expected["written"] = [name for name in shown["written"] if name in v1]
        if mode == "compatible":  # departure: root from listing
            expected["tables"] = {name: {**shown["tables"][name], "properties": {}} for name in sorted(v1)}
    return expected


def directories(shown: Mapping[str, Any], *names: str) -> dict[tuple[str, ...], str]:
    """Return the location of each table."""
    found = {(*names, name): table["directory"] for name, table in shown["tables"].items()}
    for name, below in shown["namespaces"].items():
        found |= directories(below, *names, name)
    return found


@pytest.mark.parametrize("operation", ["list_tables", "list_namespaces"])
@pytest.mark.parametrize("native_first", [True, False])
def test_page_tokens_are_interchangeable(peer: Peers, tmp_path: Path, operation: str, native_first: bool) -> None:
    pair = Pair.on(peer, tmp_path / "lake", "v2")
    names = sorted(["a", "b c", "Zoë", "ü", "日本", "a.b", "~", "e\u0301", "🚣"], key=str.encode)
    ok(pair.ours("create_namespace", id=["n"]))
    kind = operation.removeprefix("list_")
    for name in names:
        create = "declare_table" if kind == "tables" else "create_namespace"
        ok(pair.ours(create, id=["n", name]))
    pages, token = [], None
    for number in range(2 * len(names)):
        ask = pair.native if (number % 2 == 0) == native_first else pair.ours
        page = ok(ask(operation, id=["n"], limit=2, page_token=token))
        pages.append(page[kind])
        token = page.get("page_token")
        if token is None:
            break
    assert pages == [names[at : at + 2] for at in range(0, len(names), 2)]


@pytest.mark.parametrize("mode", ["compatible", "manifest first", "v2"])
def test_native_writes_keep_properties_of_the_root(peer: Peers, tmp_path: Path, mode: str) -> None:
    pair = Pair.on(peer, tmp_path / "lake", mode)
    ok(pair.ours("alter_namespace", identifier=[], set={"k": "v"}))
    ok(pair.native("create_namespace", id=["n"]))
    ok(pair.native("declare_table", id=["n", "t"]))
    ok(pair.native("drop_table", id=["n", "t"]))
    assert ok(pair.ours("describe_namespace", id=[]))["properties"] == {"k": "v"}
    assert not ok(pair.native("describe_namespace", id=[])).get("properties"), DEPARTURES["root properties"]


# -- one answer each ---------------------------------------------------------------------------------------------


@attrs.frozen
class Case:
    """A call, how each answers it (an error, or ok), and the departure where native answers otherwise."""

    operation: str
    fields: Mapping[str, Any]
    ours: str = "ok"
    native: str = ""
    departure: str = ""


T, D, N, X, BELOW_X, ROOT = ["t"], ["d"], ["n"], ["x"], ["x", "y"], list[str]()
"""A table, a declared table, a namespace that holds a table, nothing, below nothing, and the root."""

NO_TABLE, NO_NAMESPACE, NO_VERSION = "TableNotFoundError", "NamespaceNotFoundError", "TableVersionNotFoundError"
TABLE_EXISTS, NAMESPACE_EXISTS = "TableAlreadyExistsError", "NamespaceAlreadyExistsError"
INVALID, UNSUPPORTED, INTERNAL = "InvalidInputError", "UnsupportedOperationError", "InternalError"

EVERYWHERE = [
    Case("create_empty_table", {"id": ["e"]}, "ok", UNSUPPORTED, "deprecated"),
    Case("describe_table_version", {"id": T, "version": 1}, "ok", "TypeError", "models"),
    Case("list_table_versions", {"id": D}),
    Case("list_table_versions", {"id": X}, NO_TABLE),
    Case("table_exists", {"id": T}),
    Case("table_exists", {"id": D}),
    Case("table_exists", {"id": X}, NO_TABLE),
    Case("describe_table", {"id": X}, NO_TABLE),
    Case("describe_table", {"id": T, "version": 7}, NO_VERSION, "ok", "missing version"),
    Case("deregister_table", {"id": X}, NO_TABLE),
    Case("declare_table", {"id": T}, TABLE_EXISTS),
    Case("declare_table", {"id": D}, TABLE_EXISTS),
    Case("create_table", {"id": T, "data": MORE}, TABLE_EXISTS),
    Case("create_table", {"id": D, "data": MORE}, TABLE_EXISTS, "ok", "declared"),
    Case("namespace_exists", {"id": ROOT}),
    Case("list_tables", {"id": ROOT, "limit": 1, "page_token": "z"}),
    Case("list_tables", {"id": ROOT, "limit": 0}, INVALID, "ok", "limit"),
    Case("drop_namespace", {"id": ROOT}, "InvalidTableStateError", INVALID, "root drop"),
]

V1_ALONE = [
    Case("create_namespace", {"id": N}, UNSUPPORTED),
    Case("namespace_exists", {"id": X}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("describe_namespace", {"id": X}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("list_namespaces", {"id": X}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("list_tables", {"id": X}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("drop_namespace", {"id": X}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("declare_table", {"id": BELOW_X}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("declare_table", {"id": ROOT}, INVALID, UNSUPPORTED, "v1 identifiers"),
    Case("create_table", {"id": BELOW_X, "data": MORE}, NO_NAMESPACE, UNSUPPORTED, "v1 identifiers"),
    Case("create_table", {"id": T, "data": MORE, "mode": "exist_ok"}, "ok", TABLE_EXISTS, "v1 modes"),
    Case("create_table", {"id": T, "data": MORE, "mode": "overwrite"}, "ok", TABLE_EXISTS, "v1 modes"),
    Case("declare_table", {"id": X, "properties": {"k": "v"}}, UNSUPPORTED),
    Case("declare_table", {"id": X, "location": "own"}, UNSUPPORTED, INVALID, "declared location"),
    Case("drop_table", {"id": X}, NO_TABLE, INTERNAL, "v1 drop"),
    Case("register_table", {"id": T, "location": "t.lance"}, "ok", UNSUPPORTED, "v1 register"),
    Case("register_table", {"id": X, "location": "t.lance"}, UNSUPPORTED),
    Case("rename_table", {"id": T, "new_table_name": "x"}, UNSUPPORTED, "NotImplementedError", "rename"),
]

WITH_MANIFEST = [
    Case("create_namespace", {"id": N}, NAMESPACE_EXISTS),
    Case("create_namespace", {"id": T}, NAMESPACE_EXISTS),
    Case("create_namespace", {"id": ROOT}, NAMESPACE_EXISTS),
    Case("create_namespace", {"id": BELOW_X}, NO_NAMESPACE),
    Case("create_namespace", {"id": N, "mode": "exist_ok"}, "ok", NAMESPACE_EXISTS, "namespace modes"),
    Case("create_namespace", {"id": ["m"], "mode": "overwrite"}, "ok", NAMESPACE_EXISTS, "namespace modes"),
    Case("namespace_exists", {"id": X}, NO_NAMESPACE),
    Case("namespace_exists", {"id": T}, NO_NAMESPACE),
    Case("describe_namespace", {"id": X}, NO_NAMESPACE),
    Case("list_namespaces", {"id": X}, NO_NAMESPACE, "ok", "missing namespace"),
    Case("list_tables", {"id": X}, NO_NAMESPACE, "ok", "missing namespace"),
    Case("drop_namespace", {"id": X}, NO_NAMESPACE),
    Case("drop_namespace", {"id": X, "mode": "skip"}, "ok", NO_NAMESPACE, "namespace modes"),
    Case("drop_namespace", {"id": N}, "NamespaceNotEmptyError"),
    Case("drop_namespace", {"id": N, "behavior": "Cascade"}, "ok", "NamespaceNotEmptyError", "cascade"),
    Case("declare_table", {"id": N}, TABLE_EXISTS),
    Case("declare_table", {"id": ROOT}, INVALID),
    Case("declare_table", {"id": BELOW_X}, NO_NAMESPACE, "ok", "orphans"),
    Case("declare_table", {"id": X, "location": "own"}, "ok", INVALID, "declared location"),
    Case("create_table", {"id": N, "data": MORE}, TABLE_EXISTS),
    Case("create_table", {"id": X, "data": NO_ROWS}, "ok", INTERNAL, "no rows"),
    Case("create_table", {"id": BELOW_X, "data": MORE}, NO_NAMESPACE, "ok", "orphans"),
    Case("create_table", {"id": T, "data": MORE, "mode": "exist_ok"}),
    Case("describe_table", {"id": N}, NO_TABLE),
    Case("drop_table", {"id": X}, NO_TABLE),
    Case("drop_table", {"id": N}, NO_TABLE),
    Case("deregister_table", {"id": N}, NO_TABLE),
    Case("register_table", {"id": T, "location": ("t",)}, TABLE_EXISTS),
    Case("register_table", {"id": X, "location": ("t",)}, INVALID, "ok", "any directory"),
    Case("register_table", {"id": X, "location": "nothing"}, NO_TABLE, "ok", "any directory"),
    Case("register_table", {"id": X, "location": "../t"}, INVALID),
    Case("register_table", {"id": X, "location": "/t"}, INVALID),
    Case("register_table", {"id": BELOW_X, "location": ("t",)}, NO_NAMESPACE),
    Case("rename_table", {"id": T, "new_table_name": "x"}, "ok", "NotImplementedError", "rename"),
]


def filled(peer: Peers, root: Path, mode: str) -> Pair:
    pair = Pair.on(peer, root, mode)
    ok(pair.ours("create_table", id=T, data=ROWS))
    ok(pair.ours("declare_table", id=D))
    if mode != "v1":
        for names in (N, ["m"]):
            ok(pair.ours("create_namespace", id=names))
        ok(pair.ours("declare_table", id=["n", "c"]))
    return pair


@pytest.mark.parametrize("mode", MODES)
def test_each_call_is_answered_alike(peer: Peers, tmp_path: Path, mode: str) -> None:
    for number, case in enumerate([*EVERYWHERE, *(V1_ALONE if mode == "v1" else WITH_MANIFEST)]):
        answers = {}
        for who in ("ours", "native"):
            pair = filled(peer, tmp_path / f"{number} {who}", mode)
            before = ok(pair.ours("world"))
            fields = dict(case.fields)
            if isinstance(fields.get("location"), tuple):
                fields["location"] = directories(before)[fields["location"]]
            answers[who] = getattr(pair, who)(case.operation, **fields)[0]
            if answers[who] != "ok":
                assert ok(pair.ours("world")) == before, case
        assert answers["ours"] == case.ours, case
        assert answers["native"] == (case.native or case.ours), (case, DEPARTURES.get(case.departure))


# -- departures that need more than a call -----------------------------------------------------------------------


def test_departure_all_tables(pair: Pair) -> None:
    filled(pair.peer, pair.root, pair.mode)
    everything = ["d", "t"] if pair.mode == "v1" else ["d", "n$c", "t"]
    assert ok(pair.ours("list_all_tables"))["tables"] == everything
    assert ok(pair.native("list_all_tables"))["tables"] == ([] if pair.mode == "v2" else ["d", "t"])


@pytest.mark.parametrize("mode", ["compatible", "manifest first"])
def test_departures_no_marker_and_occupied_directory(peer: Peers, tmp_path: Path, mode: str) -> None:
    """Only a deregistration by Lancekeep hides the table in both, and only Lancekeep recreates it."""
    pair = filled(peer, tmp_path / "lake", mode)
    ok(pair.native("deregister_table", id=T))
    assert pair.native("table_exists", id=T)[0] == pair.ours("table_exists", id=T)[0] == "ok"
    ok(pair.ours("deregister_table", id=T))
    assert pair.native("table_exists", id=T)[0] == pair.ours("table_exists", id=T)[0] == NO_TABLE
    assert pair.native("create_table", id=T, data=MORE)[0] == INTERNAL
    ok(pair.ours("create_table", id=T, data=MORE))
    assert ok(pair.ours("world"))["tables"]["t"]["rows"] == {"a": [4]}


@pytest.mark.parametrize("native_creates", [True, False])
@pytest.mark.parametrize("mode", ["compatible", "v2"])
def test_departure_encoded_names(peer: Peers, tmp_path: Path, mode: str, native_creates: bool) -> None:
    pair = filled(peer, tmp_path / "lake", mode)
    names = ["n", "é %#"]
    ok((pair.native if native_creates else pair.ours)("create_table", id=names, data=ROWS))
    ok(pair.native("append_rows", id=names, data=MORE))
    ok(pair.ours("append_rows", id=names, data=MORE))
    places = [ok(ask("describe_table", id=names))["location"] for ask in (pair.native, pair.ours)]
    assert [lance.dataset(place).to_table()["a"].to_pylist() for place in places] == [[1, 2, 3, 4, 4]] * 2
    written = {"id": N, "include_declared": False}
    assert ok(pair.ours("list_tables", **written))["tables"] == ["é %#"]
    assert ok(pair.native("list_tables", **written))["tables"] == []
    ok(pair.native("declare_table", id=["n", "ü"]))
    assert pair.own.catalog.upkeep.fsck(grace=0).findings[0].kind is Kind.DANGLING, "the marker lies elsewhere"
    ok(pair.ours("drop_table", id=["n", "ü"]))
    assert pair.native("drop_table", id=names)[0] == INTERNAL
    assert pair.ours("table_exists", id=names)[0] == NO_TABLE
    report = pair.own.catalog.upkeep.fsck()
    assert Kind.UNREGISTERED in {finding.kind for finding in report.findings}, "the files are left"


# -- the page ----------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


def test_page_lists_every_departure() -> None:
    lines = (DOCS / "interoperability.md").read_text().replace("\n  ", " ").splitlines()  # items may be wrapped
    assert [line for line in lines if line.startswith("- **")] == [
        f"- **{name}**: {sentence}" for name, sentence in DEPARTURES.items()
    ]


def test_every_departure_has_a_test() -> None:
    answered = {case.departure for case in (*EVERYWHERE, *V1_ALONE, *WITH_MANIFEST)} - {""}
    whole_listings = {"root properties", "root from listing", "written in v1 directories"}
    more_than_a_call = {"all tables", "no marker", "occupied directory", "encoded names"}
    elsewhere = {"v1 empty directory"}  # test_modes.py
    assert answered | whole_listings | more_than_a_call | elsewhere == DEPARTURES.keys()
