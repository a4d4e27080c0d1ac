"""A catalog moves to servers that fail, that lack operations, or that are another maker's."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from faults import Crash
from home_copies import kills, shown
from lance.namespace import RestAdapter
from lance.namespace import RestNamespace as NativeClient
from rest_server import serving
from s3_front import Answer, Asked, s3_front

import lancekeep
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    Refused,
    StoreUnavailable,
    Unsupported,
)

ROWS = pa.table({"a": [1, 2, 3]})
FAST = {"fsync": "false"}
QUICK = {"read_timeout": "0.3", "retry_seconds": "0.1"}
EVERY = int(os.environ.get("LANCEKEEP_KILLS", "2")) > 2
"""Whether `make soak` runs the tests."""

Respond = Callable[[Asked], Answer]


@attrs.define
class Faulty:
    """A server of any make behind a front that keeps no idempotency keys, and answers some requests otherwise.

    Attributes:
        above: The root of the server, as a path.
        uri: The front.
        behind: The server itself.
        options: What a client needs to know of the server.
        respond: Answers a request.
    """

    above: Path
    uri: str
    behind: str
    options: Mapping[str, str]
    respond: Respond

    @property
    def lake(self) -> str:
        return str(self.above / "lake")

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(self.lake, mode="v2", commit_store="remembered", storage_options=FAST)

    def copy(self, *, goes: bool = True, options: Mapping[str, str] | None = None, **more: Any) -> Any:
        given = {**self.options, **QUICK, **(options or {})}
        more |= {"target_options": given} if goes else {"source_options": given, "writers_stopped": True}
        ends = (self.lake, self.uri) if goes else (self.uri, self.lake)
        return lancekeep.copy_catalog(*ends, mode="v2", storage_options=FAST, **more)

    def served(self) -> dict[str, Any]:
        """Return what the server shows, by the client of pylance."""
        client, found = NativeClient(uri=self.behind), dict[str, Any]()
        level: list[list[str]] = [[]]
        while level:
            below = [[*ids, name] for ids in level for name in _pages(client.list_namespaces, "namespaces", ids)]
            for ids in below:
                described = client.describe_namespace(api.DescribeNamespaceRequest(id=ids))
                found[".".join(ids)] = described.properties or {}
            for ids in level:
                for name in _pages(client.list_tables, "tables", ids):
                    table = client.describe_table(api.DescribeTableRequest(id=[*ids, name]))
                    rows = lance.dataset(table.location).to_table().to_pydict()
                    location = str(table.location).removeprefix("file://")
                    found[".".join([*ids, name])] = location, table.properties or {}, rows
            level = below
        return found


def _pages(call: Callable[[Any], Any], field: str, ids: list[str]) -> list[str]:
    kind = {"tables": api.ListTablesRequest, "namespaces": api.ListNamespacesRequest}[field]
    names: list[str] = []
    token = None
    while True:
        page = call(kind(id=ids, page_token=token))
        names += getattr(page, field)
        token = page.page_token
        if not token:
            return names


def forward(asked: Asked) -> Answer:
    answer = asked.forward({name: value for name, value in asked.headers.items() if name.lower() != "idempotency-key"})
    kept = {name: value for name, value in answer.headers.items() if name.lower() != "idempotency-key"}
    return attrs.evolve(answer, headers=kept)


@contextmanager
def faulty(above: Path, make: str = "lancekeep") -> Iterator[Faulty]:
    with ExitStack() as opened:
        if make == "lancekeep":
            namespace = lancekeep.DirectoryNamespace(root=str(above), mode="v2", **{"storage.fsync": "false"})
            behind, options = opened.enter_context(serving(namespace)).uri, {}
        else:
            native = {"root": str(above), "dir_listing_enabled": "false"}
            behind = f"http://127.0.0.1:{opened.enter_context(RestAdapter('dir', native, port=0)).port}"
            options = {"root": str(above)}
        server = Faulty(above, "", behind, options, forward)
        server.uri = opened.enter_context(s3_front(behind, lambda asked: server.respond(asked)))
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Faulty]:
    with faulty(tmp_path / "above") as found:
        yield found


def fill(server: Faulty) -> dict[str, Any]:
    """Make a catalog; return what it shows."""
    with server.connect() as catalog:
        catalog.create_namespace("ml", {"owner": "ann"})
        catalog.write("ml.t", ROWS)
        catalog.write("root_table", ROWS)
        return shown(catalog)


# -- faults --------------------------------------------------------------------------------------------------------


def _slow(asked: Asked) -> Answer:
    answer = forward(asked)
    time.sleep(0.5)
    return answer


def _lost(asked: Asked) -> Answer:
    forward(asked)
    return Answer(503, {}, b"")


def _garbage(asked: Asked) -> Answer:
    forward(asked)
    return Answer(200, {"content-type": "text/html"}, b"<html>")


FAULTS: dict[str, Respond] = {
    "500": lambda _: Answer(500, {}, b""),
    "lost": _lost,
    "429": lambda _: Answer(429, {}, b""),
    "garbage": _garbage,
    "404": lambda _: Answer(404, {}, b""),
    "403": lambda _: Answer(403, {}, b""),
    "slow": _slow,
}


def check_way_out(server: Faulty, before: dict[str, Any], error: LancekeepError) -> None:
    """Check that the source is the home, and the only one, or that the error says what to do."""
    server.respond = forward
    try:
        server.connect().close()
    except Refused as found:
        refused = found
    else:
        with server.connect() as catalog:
            assert shown(catalog) == before
        assert not any(isinstance(found, tuple) for found in server.served().values())
        return
    assert "call it again, or with give_up=True" in str(refused)
    assert "--give-up" in "".join(getattr(error, "__notes__", ()))


def move(server: Faulty, before: dict[str, Any], *, goes: bool, kind: str, number: int) -> bool:
    """Move a catalog while one request is answered otherwise; return whether there was such a request."""
    numbers = count(1)
    reached: list[str] = []

    def respond(asked: Asked) -> Answer:
        if next(numbers) != number:
            return forward(asked)
        reached.append(asked.path)
        return FAULTS[kind](asked)

    server.respond = respond
    try:
        assert server.copy(goes=goes).done
    except LancekeepError as error:
        if goes:
            check_way_out(server, before, error)
        server.respond = forward
        assert server.copy(goes=goes).done
    server.respond = forward
    if goes:
        assert server.served() == before
        with pytest.raises(Refused, match="moved to"):
            server.connect()
    else:
        with server.connect() as catalog:
            assert shown(catalog) == before
        client = NativeClient(uri=server.behind)
        for name in (["ml", "t"], ["root_table"]):
            client.deregister_table(api.DeregisterTableRequest(id=name))
    return bool(reached)


@pytest.mark.parametrize("make", ["lancekeep", "pylance"])
@pytest.mark.parametrize("kind", FAULTS)
def test_fault_of_any_request_loses_and_doubles_no_entry(tmp_path: Path, make: str, kind: str) -> None:
    with faulty(tmp_path / "above", make) as server:
        before = fill(server)
        for number in count(2 + list(FAULTS).index(kind), 3 if EVERY else 17):
            reached = [move(server, before, goes=goes, kind=kind, number=number) for goes in (True, False)]
            if not any(reached):
                break
        assert number > 30


def test_server_that_fails_once_at_every_request_gets_the_whole_catalog(server: Faulty) -> None:
    before = fill(server)
    failed: set[str] = set()

    def respond(asked: Asked) -> Answer:
        if asked.path in failed:
            return forward(asked)
        failed.add(asked.path)
        return Answer(500, {}, b"")

    server.respond = respond
    assert server.copy().done
    assert server.served() == before
    failed.clear()
    assert server.copy(goes=False).done
    with server.connect() as catalog:
        assert shown(catalog) == before


# -- servers that lack operations ----------------------------------------------------------------------------------


def lacking(*operations: str) -> Respond:
    """Answer requests whose path ends so like a server that does not have them."""

    def respond(asked: Asked) -> Answer:
        path = asked.path.partition("?")[0]
        return Answer(501, {}, b"") if path.endswith(operations) else forward(asked)

    return respond


@pytest.mark.parametrize("operation", ["/register", "/create", "/list", "/describe"])
def test_server_without_an_operation_leaves_the_source_the_home(server: Faulty, operation: str) -> None:
    before = fill(server)
    server.respond = lacking(operation)
    with pytest.raises(Unsupported):
        server.copy()
    server.respond = forward
    with server.connect() as catalog:
        assert shown(catalog) == before
    assert not any(isinstance(found, tuple) for found in server.served().values())
    assert server.copy().done


def test_server_that_lists_no_versions_takes_a_catalog(server: Faulty) -> None:
    before = fill(server)
    server.respond = lacking("/version/list")
    assert server.copy().done
    assert server.served() == before
    assert server.copy(goes=False).done


def test_tables_that_a_server_cannot_deregister_are_taken_out_by_hand(tmp_path: Path) -> None:
    with faulty(tmp_path / "above", "pylance") as server:
        before = fill(server)
        with server.connect() as catalog:
            catalog.write("with_properties", ROWS, properties={"unit": "m"})
            before = shown(catalog)
        server.respond = lacking("/deregister")
        with pytest.raises(Refused, match=r"Take ml\.t out of the server by its own means") as refused:
            server.copy()
        assert "--give-up" in refused.value.__notes__[0]
        with pytest.raises(Refused, match="was given up, and not to the end"):
            server.copy()
        client = NativeClient(uri=server.behind)
        for name in (["ml", "t"], ["with_properties"]):
            client.deregister_table(api.DeregisterTableRequest(id=name))
        with pytest.raises(Refused, match="Take root_table out"):
            server.copy(give_up=True)
        client.deregister_table(api.DeregisterTableRequest(id=["root_table"]))
        server.copy(give_up=True)
        with server.connect() as catalog:
            assert shown(catalog) == before


def test_table_that_a_server_lists_and_does_not_find_is_not_lost(server: Faulty) -> None:
    before = fill(server)
    assert server.copy().done
    server.respond = lambda asked: Answer(404, {}, b"") if "/table/ml%24t/describe" in asked.path else forward(asked)
    with pytest.raises(Refused, match=r"ml\.t: the catalog's entry of the table ml\.t has no location"):
        server.copy(goes=False)
    server.respond = lambda asked: Answer(404, {}, b"") if "/namespace/ml/table/list" in asked.path else forward(asked)
    with pytest.raises(LancekeepError, match="404"):
        server.copy(goes=False)
    server.respond = forward
    assert server.served() == before
    assert server.copy(goes=False).done


# -- the way out ---------------------------------------------------------------------------------------------------


def stop_after_the_first_table(server: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lancekeep.adapters.rest.home.at_once", lambda act, items: list(map(act, items)))
        kill = kills(patch)
        kill(4)
        with pytest.raises(Crash):
            server.copy()


@pytest.fixture
def stopped(server: Faulty, monkeypatch: pytest.MonkeyPatch) -> tuple[Faulty, dict[str, Any]]:
    """Return a server that has one of two tables, because the copy was stopped."""
    before = fill(server)
    stop_after_the_first_table(server, monkeypatch)
    assert [name for name, found in server.served().items() if isinstance(found, tuple)] == ["ml.t"]
    return server, before


def test_copy_to_a_server_that_is_gone_permanently_is_given_up(stopped: tuple[Faulty, dict[str, Any]]) -> None:
    server, before = stopped
    with pytest.raises(Refused, match="was stopped before the end, call it again, or with give_up=True"):
        server.connect()
    server.respond = lambda _: Answer(503, {}, b"")
    for give_up in (False, True):
        with pytest.raises(StoreUnavailable) as unavailable:
            server.copy(give_up=give_up)
        assert "gone=true" in unavailable.value.__notes__[0]
    with pytest.raises(InvalidInput, match="only with give_up"):
        server.copy(options={"gone": "true"})
    with pytest.raises(InvalidInput, match="'yes'"):
        server.copy(options={"gone": "yes"}, give_up=True)
    with pytest.raises(InvalidInput, match="unknown setting"):
        server.copy(goes=False, options={"gone": "true"}, give_up=True)
    server.copy(options={"gone": "true"}, give_up=True)
    with server.connect() as catalog:
        assert shown(catalog) == before


def test_other_direction_is_refused_until_the_copy_has_ended(stopped: tuple[Faulty, dict[str, Any]]) -> None:
    server, before = stopped
    with pytest.raises(Refused, match="is an unfinished copy of"):
        server.copy(goes=False)
    with pytest.raises(Refused):
        server.copy(goes=False, give_up=True)
    assert server.copy().done
    assert server.served() == before


def test_table_that_was_renamed_on_the_server_leaves_it_when_the_copy_is_given_up(
    stopped: tuple[Faulty, dict[str, Any]],
) -> None:
    server, before = stopped
    with lancekeep.connect(server.behind) as catalog:
        catalog.rename_table("ml.t", "renamed")
        catalog.write("renamed", ROWS, "append")
    with pytest.raises(Refused, match="the server lists renamed in its directory"):
        server.copy()
    assert not any(isinstance(found, tuple) for found in server.served().values())
    with server.connect() as catalog:
        assert shown(catalog).keys() == before.keys()
        assert catalog.data.count("ml.t") == 6


def test_version_that_only_the_server_has_ends_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(tmp_path / "above") as server:
        fill(server)
        stop_after_the_first_table(server, monkeypatch)
        respond = server.respond

        def later(asked: Asked) -> Answer:
            answer = respond(asked)
            is_list = asked.path.partition("?")[0].endswith("/version/list")
            return attrs.evolve(answer, body=answer.body.replace(b'"version":1', b'"version":2')) if is_list else answer

        server.respond = later
        with pytest.raises(Refused, match=r"ml\.t: the server has version 2, .* in the storage is 1"):
            server.copy(give_up=True)
        server.respond = forward
        server.copy(give_up=True)
        assert not any(isinstance(found, tuple) for found in server.served().values())


def test_server_over_the_same_entries_that_are_only_namespaces_ends_the_copy(tmp_path: Path) -> None:
    with faulty(tmp_path / "above") as server:
        root = str(server.above)
        with lancekeep.connect(root, mode="v2", storage_options=FAST) as catalog:
            catalog.create_namespace("ml", {"owner": "ann"})
        with pytest.raises(Refused) as refused:
            lancekeep.copy_catalog(root, server.uri, mode="v2", storage_options=FAST, target_options=QUICK)
        assert "is the home of the catalog" in refused.value.__notes__[0]
        with lancekeep.connect(root, mode="v2", storage_options=FAST) as catalog:
            assert catalog.list_namespaces() == ["ml"]


def test_copy_that_is_given_up_stops_and_leaves_nothing(server: Faulty) -> None:
    before = fill(server)
    given_up: list[Any] = []

    def respond(asked: Asked) -> Answer:
        answer = forward(asked)
        if asked.path.partition("?")[0].endswith("ml%24t/register") and not given_up:
            given_up.append(server.copy(give_up=True))
            answer = forward(asked)  # the table arrives after the other process has looked
        return answer

    server.respond = respond
    with pytest.raises(ConcurrentModification, match="continues or has ended"):
        server.copy(options={"read_timeout": "30"})
    assert given_up
    assert not any(isinstance(found, tuple) for found in server.served().values())
    with server.connect() as catalog:
        assert shown(catalog) == before
    assert server.copy().done


def test_tables_are_entered_at_once_and_none_is_begun_after_an_error(server: Faulty) -> None:
    with server.connect() as catalog:
        catalog.write("t", ROWS)
        first = Path(catalog.describe_table("t").uri.removeprefix("file://"))
        for number in range(10):
            shutil.copytree(first, f"{server.lake}/{number}")
            catalog.register_table(f"t{number}", str(number))
        for name in ("a", "a.b", "a.b.c", "a.b.c.d"):
            catalog.create_namespace(name)
        catalog.rename_table("t0", "a.b.c.d.t")
        before = shown(catalog)
    together, asked_for = Barrier(8), list[str]()

    def respond(asked: Asked) -> Answer:
        if not asked.path.partition("?")[0].endswith("/register"):
            return forward(asked)
        asked_for.append(asked.path)
        with suppress(BrokenBarrierError):
            together.wait(30)  # all of them have begun
        return Answer(400, {}, b"")

    server.respond = respond
    with pytest.raises(LancekeepError) as error:
        server.copy(options={"read_timeout": "60"})
    assert not together.broken
    assert len(asked_for) == 8
    check_way_out(server, before, error.value)
    assert server.copy().done
    assert server.served() == before


# -- what others do on the server ----------------------------------------------------------------------------------


def test_table_that_others_create_is_kept(server: Faulty) -> None:
    before = fill(server)
    created: list[str] = []

    def respond(asked: Asked) -> Answer:
        if "/register" in asked.path and not created:
            created.append(asked.path)
            others.write("root_table", ROWS.slice(0, 1))
        return forward(asked)

    with lancekeep.connect(server.behind) as others:
        server.respond = respond
        with pytest.raises((Refused, AlreadyExists), match=r"outside of the root|instead of"):
            server.copy()
        assert others.data.count("root_table") == 1
    with server.connect() as catalog:
        assert shown(catalog) == before


def test_properties_that_a_server_adds_end_the_copy(server: Faulty) -> None:
    before = fill(server)

    def respond(asked: Asked) -> Answer:
        answer = forward(asked)
        return attrs.evolve(answer, body=answer.body.replace(b'"owner":"ann"', b'"owner":"ann","by":"me"'))

    server.respond = respond
    with pytest.raises(AlreadyExists, match="ml: the server has it with other properties"):
        server.copy()
    with server.connect() as catalog:
        assert shown(catalog) == before


# -- pages ---------------------------------------------------------------------------------------------------------


def test_tables_on_many_pages(server: Faulty) -> None:
    tables, page = (1100, 100) if EVERY else (12, 5)
    with server.connect() as catalog:
        catalog.write("t0", ROWS)
        first = catalog.describe_table("t0").uri.removeprefix("file://")
        for number in range(1, tables):
            shutil.copytree(first, f"{server.lake}/t{number}.lance")
    with lancekeep.connect(server.lake, mode="compatible", storage_options=FAST) as catalog:
        catalog.upkeep.migrate()
        before = shown(catalog)
    assert len(before) == tables
    pages = []

    def respond(asked: Asked) -> Answer:
        answer = forward(asked)
        if not asked.path.partition("?")[0].endswith("/table/list"):
            return answer
        names = json.loads(answer.body)["tables"][:page]
        pages.append(names)
        more = {"page_token": names[-1]} if len(names) == page else {}
        return attrs.evolve(answer, body=json.dumps({"tables": names, **more}).encode())

    server.respond = respond
    assert server.copy().done
    assert server.served() == before
    assert server.copy(goes=False).done
    with server.connect() as catalog:
        assert shown(catalog) == before
    assert len(pages) > 4 * tables / page


# -- names and properties ------------------------------------------------------------------------------------------

NAMES = [".hid den", "a+b%24", "?q=1#x", "a:b&c;d", "größe таблица", "😀\u202e", "a.b.lance", "a", "A", "e\u0301"]
NAMES += ["'\"`"]
TEXTS = {"": "", "k": "", "ключ": "зн\0", "😀": "\u2028\n\r\t", "quote": "\"{}'"}


@pytest.mark.parametrize("make", ["lancekeep", "pylance"])
def test_names_and_properties_of_every_kind(tmp_path: Path, make: str) -> None:
    with faulty(tmp_path / "above", make) as server:
        names = NAMES if make == "lancekeep" else NAMES[:5]
        texts = TEXTS if make == "lancekeep" else {"k": "v"}
        with server.connect() as catalog:
            catalog.write("first", ROWS, properties=texts if make == "lancekeep" else None)
            first = Path(catalog.describe_table("first").uri.removeprefix("file://"))
            catalog.create_namespace("long", {"k": "x" * 1_000_000})
            for number, name in enumerate(names):
                directory = f"{name if make == 'lancekeep' else number}.lance"  # pylance takes a space for no table
                catalog.create_namespace([name], texts)
                shutil.copytree(first, f"{server.lake}/{directory}")
                catalog.register_table([name, name], directory)
            before = shown(catalog)
        assert len(before) == 2 * len(names) + 2
        assert server.copy().done
        if make == "lancekeep":  # of pylance, client and server do not agree on the space
            assert server.served() == before
        assert server.copy(goes=False).done
        with server.connect() as catalog:
            assert shown(catalog) == before


def test_name_after_which_a_server_shows_nothing_ends_the_copy(tmp_path: Path) -> None:
    with faulty(tmp_path / "above", "pylance") as server:
        fill(server)
        with server.connect() as catalog:
            catalog.create_namespace(["'"])
            catalog.write(["'", "t"], ROWS)
            before = shown(catalog)
            with pytest.raises(LancekeepError, match="tokenizing") as refused:
                server.copy()
            assert "is the home of the catalog" in refused.value.__notes__[0]
            assert shown(catalog) == before
        assert NativeClient(uri=server.behind).list_tables(api.ListTablesRequest(id=[])).tables == []
