"""Random catalogs move in random directions between homes that hold different things."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from faults import Crash
from home_copies import DECLARED, Kill, kills, shown
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance.namespace import RestNamespace as NativeClient
from rest_server import serving

import lancekeep
from lancekeep.domain.errors import LancekeepError, Refused

ROWS = pa.table({"a": [1, 2, 3]})
FAST = {"fsync": "false"}
EVERY = int(os.environ.get("LANCEKEEP_KILLS", "2")) > 2
"""Whether `make soak` runs the tests."""
DIRECTORIES = ("v1", "v2", "compatible")

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from(["v", '"{']), max_size=1)
SHAPES: dict[str, list[str]] = {
    "flat": ["table"],
    "databases": ["space", "nested", "alter", "drop"],
    "any": ["space", "nested", "table", "alter", "drop", "declare", "protect", "keep"],
}
"""The changes of a catalog: tables of the root only, as V1 and all others hold; of databases, as a Metastore; any."""
CATALOGS = st.sampled_from(sorted(SHAPES)).flatmap(
    lambda shape: st.lists(st.tuples(st.sampled_from(SHAPES[shape]), NAMES, NAMES, TEXTS), min_size=2, max_size=6)
)
THEN = ["again", "give up", "give up twice", "back"]
"""What happens after a kill, before the copy is completed."""
KILLS = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(THEN)), max_size=2)
MOVES = st.lists(st.tuples(st.integers(0, 11), KILLS), min_size=2, max_size=4)


@attrs.frozen
class Site:
    """The homes of one catalog.

    Attributes:
        lake: The root.
        others: The URLs of homes elsewhere.
        prefix: The prefix of its namespaces, which no other catalog in a Metastore has.
    """

    lake: str
    others: list[str]
    prefix: str

    @property
    def homes(self) -> list[str]:
        return [*DIRECTORIES, *self.others]

    def connect(self, home: str) -> lancekeep.Catalog:
        if home.startswith("http"):
            return lancekeep.connect(home)
        more: dict[str, Any] = {"mode": home} if home in DIRECTORIES else {"manifest_store": home}
        return lancekeep.connect(self.lake, commit_store="remembered", storage_options=FAST, **more)

    def copy(self, at: str, to: str, **more: Any) -> lancekeep.CatalogCopy:
        places = [self.lake if home in DIRECTORIES else home for home in (at, to)]
        mode = next((home for home in (at, to) if home in DIRECTORIES), None)
        stopped = at == "v1" or at.startswith("http")
        return lancekeep.copy_catalog(
            *places, root=self.lake, mode=mode, storage_options=FAST, writers_stopped=stopped, **more
        )

    def shown(self, home: str) -> dict[str, Any]:
        """Return what a home shows, with the dropped tables that can come back.

        Clients of pylance must list the same, where there are any.
        """
        with self.connect(home) as catalog:
            dropped = [] if home == "v1" else [str(each.id) for each in catalog.list_dropped()]
            entries = shown(catalog, self.prefix)
            dropped = [name for name in dropped if name.startswith(self.prefix) or "." not in name]
        client = self.native(home)
        if client is not None:
            named = {name for name in listed(client) if name.startswith(self.prefix) or name in entries}
            assert named == {name for name, found in entries.items() if found != DECLARED}
        return {"entries": entries, "dropped": dropped}

    def native(self, home: str) -> api.LanceNamespace | None:
        """Return pylance's client of a home."""
        if home.startswith("http"):
            return NativeClient(uri=home)
        if home not in DIRECTORIES:
            return None
        parts = {"manifest_enabled": home != "v1", "dir_listing_enabled": home != "v2"}
        both = {"dir_listing_to_manifest_migration_enabled": home == "compatible"}
        return NativeNamespace(root=self.lake, **{name: str(on).lower() for name, on in (parts | both).items()})

    def make(self, catalog: lancekeep.Catalog, kind: str, name: str, other: str, texts: dict[str, str]) -> None:
        """Make a random change; it may be refused."""
        space, table = f"{self.prefix}{name}", f"{self.prefix}{name}.{other}"
        match kind:
            case "table":
                catalog.write(other, ROWS)
            case "space":
                catalog.create_namespace(space, texts)
            case "nested":
                catalog.create_namespace(space, exist_ok=True)
                catalog.write(table, ROWS, properties=texts or None)
            case "alter":
                catalog.alter_table(table, texts)
            case "drop":
                catalog.drop_table(table, keep=timedelta(0))
            case "keep":
                catalog.drop_table(table, keep=timedelta(days=2))
            case "declare":
                catalog.declare_table(f"{space}.declared" if catalog.namespace_exists(space) else "declared")
            case "protect":
                catalog.protect(table)

    def holds(self, home: str, state: dict[str, Any], *, protected: bool) -> bool:
        """Return whether a home can hold a catalog, by what the pages say about it."""
        spaces = {name for name, found in state["entries"].items() if isinstance(found, dict)}
        tables = {name: found for name, found in state["entries"].items() if name not in spaces}
        if home == "v1":
            own = {name: found == DECLARED or found[0].endswith(f"/{name}.lance") for name, found in tables.items()}
            plain = not any(found[1] for found in tables.values() if found != DECLARED)
            return not (spaces or state["dropped"] or protected) and plain and all(own.values())
        if home.startswith("hive"):
            return all("." in name for name in tables)
        if home.startswith("http"):
            return not (state["dropped"] or protected) and DECLARED not in tables.values()
        return True


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Kill:
    return kills(monkeypatch)


@pytest.fixture(params=["postgresql", "hive"])
def elsewhere(request: pytest.FixtureRequest) -> Callable[[], list[str]]:
    """Return a function that returns the URLs of homes outside of the root that no other catalog has."""
    server: str = request.getfixturevalue("postgres_url")
    hive = [request.getfixturevalue("hive_url")] if request.param == "hive" else []
    return lambda: [f"{server}?catalog={uuid4()}", *hive]


@settings(
    max_examples=80 if EVERY else 4,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(at=st.sampled_from(DIRECTORIES), changes=CATALOGS, moves=MOVES)
def test_random_catalog_is_equal_in_each_home_that_can_hold_it(
    tmp_path: Path,
    elsewhere: Callable[[], list[str]],
    kill: Kill,
    at: str,
    changes: list[tuple[str, str, str, dict[str, str]]],
    moves: list[tuple[int, list[tuple[int, str]]]],
) -> None:
    prefix = f"n{uuid4().hex[:8]}_"
    above = str(tmp_path / prefix)
    namespace = lancekeep.DirectoryNamespace(root=above, mode="v2", **{"storage.fsync": "false"})
    with serving(namespace) as front:
        move(Site(f"{above}/lake", [*elsewhere(), front.uri], prefix), kill, at, changes, moves)


def move(
    site: Site,
    kill: Kill,
    at: str,
    changes: list[tuple[str, str, str, dict[str, str]]],
    moves: list[tuple[int, list[tuple[int, str]]]],
) -> None:
    """Make a catalog, and move it; also to homes that cannot hold it, which must refuse it."""
    protected, had_no_identity = False, at == "v1"
    with site.connect(at) as catalog:
        catalog.write("x", ROWS) if at == "v1" else catalog.create_namespace(f"{site.prefix}x")
        for change in changes:
            with suppress(LancekeepError):
                site.make(catalog, *change)
                protected = protected or change[0] == "protect"
    expected = site.shown(at)
    for chosen, stops in moves:
        others = [home for home in site.homes if home != at and not {home, at} <= set(DIRECTORIES)]
        to = others[chosen % len(others)]
        event(f"{_kind(at)} to {_kind(to)}")
        if to == "v1" and Path(site.lake, "__manifest").exists():
            with pytest.raises(Refused):  # a V1 directory has no manifest table
                site.copy(at, to)
            assert site.shown(at) == expected
            continue
        if not site.holds(to, expected, protected=protected):
            assert site.copy(at, to, dry_run=True).obstacles
            with pytest.raises(Refused, match="Nothing was copied"):
                site.copy(at, to)
            assert site.shown(at) == expected
            continue
        if had_no_identity and is_other_catalog(site, at, to):
            assert site.shown(at) == expected
            continue
        for number, then in stops:
            kill(number)
            with suppress(Crash):
                site.copy(at, to)
            kill(None)
            after_a_kill(site, kill, at, to, then, expected)
        assert site.copy(at, to).done
        assert site.shown(to) == expected
        if not at.startswith("http"):
            with pytest.raises(Refused):
                site.connect(at)
        at = to
        had_no_identity = had_no_identity or at == "v1"
        tables = [name for name, found in expected["entries"].items() if isinstance(found, tuple)]
        if tables:
            with site.connect(at) as catalog:
                catalog.write(tables[0], ROWS, "append")
            expected = site.shown(at)


def is_other_catalog(site: Site, at: str, to: str) -> bool:
    """Return whether a former home does not know a catalog again that was in a V1 directory, without an identity."""
    try:
        site.copy(at, to, dry_run=True)
    except Refused as refused:
        if "their identities differ. Copy into an empty home" not in str(refused):
            raise
        return True
    return False


def after_a_kill(site: Site, kill: Kill, at: str, to: str, then: str, expected: dict[str, Any]) -> None:
    """Do what a user may do after a copy was stopped; none of it may lose anything."""
    if then == "back":
        with suppress(Refused):  # unless the copy was complete
            assert site.copy(to, at).done
            assert site.shown(at) == expected
    if not then.startswith("give up"):
        return
    if then == "give up twice":
        kill(2)
        with suppress(Crash, Refused):
            site.copy(at, to, give_up=True)
        kill(None)
    try:
        site.copy(at, to, give_up=True)
    except Refused as refused:  # the copy is complete, has not begun, or was given up
        assert "nothing was changed" in str(refused)  # noqa: PT017 - the error is one of two outcomes
    else:
        assert site.shown(at) == expected


def _kind(home: str) -> str:
    return home.partition(":")[0]


def listed(client: api.LanceNamespace) -> set[str]:
    """Return the namespaces and the tables with a version that a client of pylance lists."""
    found: set[str] = set()
    level: list[list[str]] = [[]]
    while level:
        below = [(ids, client.list_namespaces(api.ListNamespacesRequest(id=ids)).namespaces) for ids in level]
        spaces = [[*ids, name] for ids, names in below for name in names]
        tables = [[*ids, name] for ids in level for name in client.list_tables(api.ListTablesRequest(id=ids)).tables]
        found |= {".".join(ids) for ids in spaces}
        for ids in tables:
            location = client.describe_table(api.DescribeTableRequest(id=ids)).location
            with suppress(ValueError):  # it has no version
                lance.dataset(location)
                found.add(".".join(ids))
        level = spaces
    return found
