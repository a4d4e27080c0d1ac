"""The behaviours of namespaces through the server, with each client; native writers and lancedb through it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest
import writers
from lance.namespace import RestNamespace
from lance_namespace import errors as api_errors
from rest_clients import GeneratedNamespace, LanceDBNamespace
from rest_server import serving

import lancekeep
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.testing.behaviours import BEHAVIOURS, Open
from lancekeep.testing.concurrency import PROCESSES
from lancekeep.testing.suite import NamespaceBehaviours

KILLS = int(os.environ.get("LANCEKEEP_KILLS", "2"))


class ThroughServers(NamespaceBehaviours):
    """Each instance has a server of its own, so the servers share nothing but the stores."""

    properties: dict[str, str] = {}  # noqa: RUF012 - nothing changes it

    def connect(self, uri: str) -> api.LanceNamespace:
        raise NotImplementedError

    @pytest.fixture
    def namespace_factory(self, tmp_path: Path) -> Iterator[Open]:
        given = {"root": str(tmp_path / "lake"), "storage.fsync": "false", **self.properties}
        with ExitStack() as servers:
            yield lambda: self.connect(servers.enter_context(serving(lancekeep.DirectoryNamespace(**given))).uri)


class Native(RestNamespace):
    """pylance's own client, which takes and returns a dict in the operations on one version."""

    def create_table_version(self, request: Any) -> Any:
        return _in_dicts(super().create_table_version, request, api.CreateTableVersionResponse)

    def describe_table_version(self, request: Any) -> Any:
        return _in_dicts(super().describe_table_version, request, api.DescribeTableVersionResponse)

    def batch_delete_table_versions(self, request: Any) -> Any:
        return _in_dicts(super().batch_delete_table_versions, request, api.BatchDeleteTableVersionsResponse)


def _in_dicts(operation: Callable[[Any], Any], request: Any, response: Any) -> Any:
    """Call an operation of pylance's client with a dict; native code gives one itself."""
    return operation(request) if isinstance(request, dict) else response.from_dict(operation(request.to_dict()))


UNSENT = ("schema/field-metadata", "schema/no-table-update-field-metadata", "batches/", "transactions/alter")
"""The behaviours that pylance's client cannot show: it has no such method, or drops the actions of AlterTransaction."""


class TestNativeClient(ThroughServers):
    properties = {"commit_store": "conditional-put://"}  # noqa: RUF012 - nothing changes it

    def connect(self, uri: str) -> api.LanceNamespace:
        native: Any = Native
        namespace: api.LanceNamespace = native(uri=uri)
        return namespace

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Leave out what pylance's client does not send."""
        offered = [each for each in BEHAVIOURS if not each.id.startswith(UNSENT)]
        metafunc.parametrize("behaviour", offered, ids=[each.id for each in offered])


class TestGeneratedClient(ThroughServers):
    """The client that is generated from the specification; `make soak` runs every behaviour."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Take every fourth behaviour: the requests are those of pylance's client, which takes them all."""
        chosen = list(BEHAVIOURS)[:: 1 if "LANCEKEEP_ALL_CLIENTS" in os.environ else 4]
        metafunc.parametrize("behaviour", chosen, ids=[each.id for each in chosen])

    def connect(self, uri: str) -> api.LanceNamespace:
        return GeneratedNamespace(uri)


class TestLanceDB(ThroughServers):
    """lancedb's connection, with what it can express. Its errors are its own, so few behaviours are refusals."""

    properties = {"commit_store": "conditional-put://"}  # noqa: RUF012 - nothing changes it

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        chosen = [each for each in BEHAVIOURS if each.id in THROUGH_LANCEDB]
        metafunc.parametrize("behaviour", chosen, ids=[each.id for each in chosen])

    def connect(self, uri: str) -> api.LanceNamespace:
        return LanceDBNamespace(uri)


THROUGH_LANCEDB = (
    "namespaces/create",
    "namespaces/create-overwrite",
    "namespaces/properties",
    "namespaces/properties-none@child",
    "namespaces/drop",
    "namespaces/drop-cascade",
    "namespaces/drop-restrict",
    "namespaces/drop-skip@child",
    "names/dots",
    "names/percent-of-namespace",
    "names/quotes-of-namespace@child",
    "tables/create",
    "tables/create-empty@child",
    "tables/create-exist-ok",
    "tables/create-overwrite@child",
    "tables/mode-spelling",
    "tables/properties-none",
    "tables/version@child",
    "tables/write-declared",
    "tables/drop",
    "tables/drop-and-create",
    "tables/drop-declared@child",
    "rename/name",
    "rename/namespace",
    "pages/tables",
    "pages/namespaces",
    "pages/root-level",
    "pages/changes-between",
    "races/different-names",
    "doors/tables",
    "doors/reads-write-nothing@child",
    "data/insert@child",
    "data/insert-overwrite",
    "data/count",
    "data/merge",
    "data/merge-composite-key@child",
    "data/merge-insert-only",
    "data/merge-update-filter",
    "data/merge-update-only@child",
    "data/update@child",
    "data/update-all",
    "data/delete@child",
    "data/restore",
    "data/missing-insert-into-table",
    "data/missing-merge-insert-into-table@child",
    "data/missing-update-table",
    "data/missing-delete-from-table@child",
    "data/missing-count-table-rows",
    "data/missing-restore-table@child",
    "tags/create",
    "tags/delete@child",
    "tags/no-table-create-table-tag",
)


# -- native writers ----------------------------------------------------------------------------------------------


@contextmanager
def server(root: str, store: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server in a process of its own; yields it and its port."""
    line = [sys.executable, "-m", "lancekeep", "serve", root, "--commit-store", store, "--port", str(port)]
    with subprocess.Popen([*line, "--log-level", "error"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"


def rows_of(catalog: lancekeep.Catalog) -> Counter[tuple[int, int]]:
    table = catalog.open("hot.t").to_table()
    return Counter(zip(table["writer"].to_pylist(), table["number"].to_pylist(), strict=True))


@pytest.mark.slow
def test_a_killed_server_loses_nothing_and_doubles_nothing(place: tuple[str, str], tmp_path: Path) -> None:
    """One writer goes on while its server is killed and started again on the same port."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    catalog = lancekeep.connect(place[0], commit_store=place[1])
    catalog.create_namespace("hot")
    catalog.write("hot.t", writers.row(-1, 0))
    ledger = tmp_path / "acknowledged"
    ledger.touch()
    port = 0
    for kill in range(KILLS):
        with server(*place, port) as (process, port):
            writer = PROCESSES.Process(
                target=writers.append_through_server,
                args=(f"http://127.0.0.1:{port}", kill, str(ledger)),
                daemon=True,
            )
            before = ledger.stat().st_size
            writer.start()
            while ledger.stat().st_size == before and writer.is_alive():
                time.sleep(0.005)  # until it writes; then for a while that is different every time
            time.sleep(chance.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            process.wait()
            writer.join()
        written = rows_of(catalog)
        acknowledged = [line.split(",") for line in ledger.read_text().splitlines()]
        assert all(written[int(w), int(n)] == 1 for w, n in acknowledged), f"kill {kill}"
        assert max(written.values()) == 1
    assert {finding.kind for finding in catalog.upkeep.fsck(deep=True).findings} <= {Kind.STAGED}
    with server(*place, port) as (_, port):
        writers.append(RestNamespace(uri=f"http://127.0.0.1:{port}"), 1000, 0)
    assert rows_of(catalog)[1000, 0] == 1


def test_two_servers_on_one_table_lose_no_commit(place: tuple[str, str]) -> None:
    catalog = lancekeep.connect(place[0], commit_store=place[1])
    catalog.create_namespace("hot")
    catalog.write("hot.t", writers.row(-1, 0))
    properties = {"root": place[0], "commit_store": place[1]}
    with (
        serving(lancekeep.DirectoryNamespace(**properties)) as one,
        serving(lancekeep.DirectoryNamespace(**properties)) as other,
    ):
        clients = [RestNamespace(uri=front.uri) for front in (one, other)]
        for number in range(3):
            for writer, client in enumerate(clients):
                writers.append(client, writer, number)
    assert rows_of(catalog) == Counter({(-1, 0): 1, **{(w, n): 1 for w in range(2) for n in range(3)}})
    assert [entry.version for entry in catalog.versions.history("hot.t")] == list(range(7, 0, -1))


def test_every_native_operation_works_through_the_server(place: tuple[str, str]) -> None:
    catalog = lancekeep.connect(place[0], commit_store=place[1])
    with serving(lancekeep.DirectoryNamespace(root=place[0], commit_store=place[1])) as front:
        namespace = RestNamespace(uri=front.uri)
        namespace.create_namespace(api.CreateNamespaceRequest(id=["hot"]))
        lance.write_dataset(writers.row(0, 0), namespace_client=namespace, table_id=writers.TABLE, mode="create")
        for number in range(1, 4):
            writers.append(namespace, 0, number)
        dataset = lance.dataset(namespace_client=namespace, table_id=writers.TABLE)
        dataset.tags.create("first", 2)
        dataset.delete("number = 1")
        dataset.update({"number": "number + 10"}, where="number = 2")
        changed = pa.table({"writer": pa.array([0, 9], pa.int64()), "number": pa.array([3, 9], pa.int64())})
        dataset.merge_insert(["writer", "number"]).when_not_matched_insert_all().execute(changed)
        dataset.create_scalar_index("number", "BTREE")
        dataset.optimize.compact_files()
        dataset.add_columns({"double": "number * 2"})
        assert dataset.to_table(filter="number = 12").to_pylist() == [{"writer": 0, "number": 12, "double": 24}]
        assert dataset.checkout_version(2).count_rows() == 2
        assert lance.dataset(namespace_client=namespace, table_id=writers.TABLE, version="first").version == 2
        lance.dataset(namespace_client=namespace, table_id=writers.TABLE, version=4).restore()
        lance.write_dataset(writers.row(5, 5), namespace_client=namespace, table_id=writers.TABLE, mode="overwrite")
    assert rows_of(catalog) == Counter({(5, 5): 1})
    assert front.asked.count("create_table_version") == len(catalog.versions.history("hot.t"))
    assert not catalog.upkeep.fsck(deep=True).findings


@pytest.mark.parametrize("change", ["dropped", "deregistered", "recreated"])
def test_a_native_append_to_a_former_table_commits_nothing(place: tuple[str, str], change: str) -> None:
    catalog = lancekeep.connect(place[0], commit_store=place[1])
    catalog.create_namespace("hot")
    catalog.write("hot.t", writers.row(-1, 0))
    location = catalog.describe_table("hot.t").uri
    with serving(lancekeep.DirectoryNamespace(root=place[0], commit_store=place[1])) as front:
        dataset = lance.dataset(namespace_client=RestNamespace(uri=front.uri), table_id=writers.TABLE)
        if change == "deregistered":
            catalog.deregister_table("hot.t")
        else:
            catalog.drop_table("hot.t")
        if change == "recreated":
            catalog.write("hot.t", writers.row(7, 7))
        with pytest.raises(OSError, match=r"may or may not have been applied|InvalidTableState|dropped"):
            lance.write_dataset(writers.row(1, 1), dataset, mode="append")
        with pytest.raises(Exception, match="Table not found"):
            lance.dataset(namespace_client=RestNamespace(uri=front.uri), table_id=["hot", "u"])
    if change == "recreated":
        assert rows_of(catalog) == Counter({(7, 7): 1})
    versions = Path(location.removeprefix("file://"), "_versions")
    finals = [path for path in versions.glob("*.manifest") if versions.exists()]
    assert len(finals) == (1 if change == "deregistered" else 0)


# -- lancedb -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pushdown", [[], ["QueryTable", "CreateTable"]], ids=["local", "server"])
def test_a_lancedb_table_lives_through_every_operation(place: tuple[str, str], pushdown: list[str]) -> None:
    catalog = lancekeep.connect(place[0], commit_store=place[1])
    with serving(lancekeep.DirectoryNamespace(root=place[0], commit_store=place[1])) as front:
        db: Any = lancedb.connect_namespace("rest", {"uri": front.uri}, namespace_client_pushdown_operations=pushdown)
        db.create_namespace(["ml"])
        data = pa.table({"id": pa.array(range(8), pa.int64()), "text": [f"number {n}" for n in range(8)]})
        table = db.create_table("t", data, namespace_path=["ml"])
        table.add(data.slice(0, 1).set_column(0, "id", pa.array([100], pa.int64())))
        table.delete("id = 3")
        assert list(db.table_names(namespace_path=["ml"])) == ["t"]
        found = db.open_table("t", namespace_path=["ml"])
        assert found.count_rows() == 8
        assert found.search().where("id > 5").select(["id"]).limit(10).to_arrow()["id"].to_pylist() == [6, 7, 100]
    plain = lance.dataset(catalog.describe_table("ml.t").uri)
    assert sorted(plain.to_table()["id"].to_pylist()) == [0, 1, 2, 4, 5, 6, 7, 100]


# -- differences -------------------------------------------------------------------------------------------------


def test_an_error_keeps_its_class_through_each_client(place: tuple[str, str]) -> None:
    with serving(lancekeep.DirectoryNamespace(root=place[0])) as front:
        for client in (RestNamespace(uri=front.uri), GeneratedNamespace(front.uri)):
            with pytest.raises(api_errors.NamespaceNotFoundError):
                client.list_tables(api.ListTablesRequest(id=["gone"]))
            with pytest.raises(api_errors.TableNotFoundError):
                client.describe_table(api.DescribeTableRequest(id=["gone"]))
            with pytest.raises(api_errors.InvalidInputError):
                client.list_tables(api.ListTablesRequest(id=[], limit=0))
