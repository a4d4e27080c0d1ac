"""The commit store in PostgreSQL under faults: crashes, failovers, lost sessions, poolers, roles and migrations."""

from __future__ import annotations

import os
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from contracts.test_commit_stores import (
    MEMORY,
    check_unavailable,
    commit_a_few,
    every_call,
    final,
    self_signed,
    staged,
    use_everything,
)
from pages import ROOT, Reader
from postgres_servers import PostgresServer, drain, migrated_server, new_server, run_as_server
from redis_servers import poll

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.composition import migrate_schema
from lancekeep.domain.errors import AccessDenied, InvalidInput, LancekeepError, StoreUnavailable, Unsupported
from lancekeep.domain.version_row import Claim, NotReady, Reserved, Taken
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.postgres import database
from lancekeep.testing.concurrency import race
from servers import Unavailable, free_port

PAGE = ROOT / "docs" / "postgres.md"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        with migrated_server("deadlock_timeout=200ms") as server:
            yield server
    except Unavailable as error:
        pytest.skip(str(error))


@contextmanager
def opened(url: str, options: Mapping[str, str] | None = None) -> Iterator[ExternalCommitStore]:
    with closing(open_commit_store(url, options or {}, MEMORY)) as store:
        yield store


def new_role(server: PostgresServer, *settings: str) -> str:
    """Create a role that may do everything, with settings of its own."""
    name = f"role_{uuid4().hex[:8]}"
    server.run(f"CREATE ROLE {name} LOGIN SUPERUSER", *(f"ALTER ROLE {name} {setting}" for setting in settings))
    return name


def wait_for_lock(admin: psycopg.Connection[Any]) -> None:
    """Wait until a session of Lancekeep waits for another transaction."""
    waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'lancekeep' AND wait_event_type = 'Lock'"
    poll(lambda: admin.execute(waiting).fetchone() is not None)


def insert(admin: psycopg.Connection[Any], base_uri: str, version: int) -> None:
    admin.execute(
        "INSERT INTO lancekeep.version_row VALUES (%s, %s, %s, 1, 'eve', true)", (base_uri, version, f"x-{uuid4()}")
    )


# -- decisions under concurrency -------------------------------------------------------------------------------------


def test_one_of_racing_first_versions_begins_a_history(server: PostgresServer) -> None:
    """Two processes that begin a branch at different versions do not conflict on the primary key."""
    with opened(server.url()) as store:
        for _ in range(20):
            base_uri = f"s3://bucket/{uuid4()}"
            rows = [staged(version, base_uri) for version in (1, 7, 9)]
            answers = race(3, lambda number, rows=rows: store.reserve(rows[number], first=True))  # type: ignore[misc]
            (winner,) = [row for row, answer in zip(rows, answers, strict=True) if answer == Reserved()]
            assert store.list(base_uri, after=None, limit=None, descending=False) == [winner]
            assert sorted(map(repr, answers)) == sorted(map(repr, [Reserved(), *[NotReady(winner)] * 2]))


def test_deadlock_is_repeated(server: PostgresServer) -> None:
    names = sorted(f"s3://bucket/{uuid4()}" for _ in range(2))
    rows = [staged(1, name) for name in names]
    with (
        opened(server.url()) as store,
        psycopg.connect(server.dsn, application_name="rival") as rival,
        psycopg.connect(server.dsn, autocommit=True) as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        rival.execute("SET deadlock_timeout = '60s'")  # so the store's transaction is the one that ends
        insert(rival, names[1], 1)
        told = threads.submit(store.reserve_all, [Claim(row, first=True) for row in reversed(rows)])
        wait_for_lock(admin)
        insert(rival, names[0], 1)  # returns once the deadlock is broken
        rival.rollback()
        assert told.result() == Reserved()
        assert list(store.latest_all(names)) == rows


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_serialization_failure_is_repeated(server: PostgresServer, outcome: str) -> None:
    """The role's default isolation makes the wait for a concurrent row a serialization failure."""
    role = new_role(server, "SET default_transaction_isolation = 'serializable'")
    base_uri = f"s3://bucket/{uuid4()}"
    row = staged(1, base_uri)
    with (
        opened(server.url(user=role)) as store,
        psycopg.connect(server.dsn) as rival,
        psycopg.connect(server.dsn, autocommit=True) as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        insert(rival, base_uri, 1)
        told = threads.submit(store.reserve, row, first=True)
        wait_for_lock(admin)
        getattr(rival, outcome)()
        answer, held = told.result(), store.latest(base_uri)
    assert held is not None
    assert answer == (Taken(held) if outcome == "commit" else Reserved())
    assert (held == row) == (outcome == "rollback")


# -- sessions, connections and servers that fail ---------------------------------------------------------------------


def test_ended_sessions_are_replaced(server: PostgresServer) -> None:
    role = new_role(server)
    with opened(server.url(user=role)) as store:
        for _ in range(2):
            race(4, lambda _: commit_a_few(store))  # several sessions are idle now
            server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
        commit_a_few(store)


def test_exhausted_connections_are_unavailable(server: PostgresServer) -> None:
    role = f"role_{uuid4().hex[:8]}"
    server.run(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1", f"GRANT pg_read_all_data TO {role}")
    with opened(server.url(user=role)) as store:
        with (
            psycopg.connect(server.dsn.replace("user=postgres", f"user={role}")),
            pytest.raises(StoreUnavailable, match=r"too many connections .* Raise max_connections"),
        ):
            store.latest("s3://bucket/t")
        poll(lambda: store.latest("s3://bucket/t") is None)


def test_busy_connections_of_the_process_are_unavailable(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    with (
        opened(server.url(), {"connections": "1"}) as store,
        psycopg.connect(server.dsn) as rival,
        psycopg.connect(server.dsn, autocommit=True) as admin,
        ThreadPoolExecutor(1) as threads,
    ):
        insert(rival, base_uri, 1)
        told = threads.submit(store.reserve, staged(1, base_uri), first=True)
        wait_for_lock(admin)
        monkeypatch.setattr(database, "SECONDS", 0.01)
        with pytest.raises(StoreUnavailable, match="all 1 connections of this process"):
            store.latest(base_uri)
        rival.commit()
        assert isinstance(told.result(), Taken)


def test_stopped_server_is_unavailable_by_the_deadline(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is up, but no answer arrives."""
    monkeypatch.setattr(database, "SECONDS", 0.2)
    with opened(server.url()) as store, psycopg.connect(server.dsn, autocommit=True) as admin:
        assert store.latest("s3://bucket/t") is None
        sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'lancekeep'"
        pids = [pid for (pid,) in admin.execute(sessions)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable, match="no answer within"):
                store.latest("s3://bucket/t")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert store.latest("s3://bucket/t") is None


def test_killed_server_is_unavailable_and_keeps_rows(server: PostgresServer) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    one, two = staged(1, base_uri), staged(2, base_uri)
    server.stop()
    server.settings = (*server.settings, "fsync=on")
    server.start()
    with opened(server.url().replace("postgres@", "postgres:hunter2@")) as store:
        assert store.reserve(one, first=True) == Reserved()
        assert store.finalize(final(one))
        assert store.reserve(two, first=False) == Reserved()
        server.kill()
        check_unavailable(store, f"127.0.0.1:{server.port}")
        server.start()
        assert store.list(base_uri, after=None, limit=None, descending=False) == [final(one), two]
        assert store.reserve(two, first=False) == Reserved()
        commit_a_few(store)


def test_failover_to_a_standby_that_missed_rows(server: PostgresServer) -> None:
    """Writers follow the primary. A row that had not reached the standby can be entered again."""
    base_uri = f"s3://bucket/{uuid4()}"
    one, two = staged(1, base_uri), staged(2, base_uri)
    with migrated_server("fsync=on") as primary, new_server(primary=primary) as standby:
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
        with opened(f"postgresql://postgres@{hosts}/postgres") as store, opened(standby.url()) as stale:
            assert store.reserve(one, first=True) == Reserved()
            poll(lambda: stale.latest(base_uri) == one)
            with pytest.raises(Unsupported, match="read-only"):
                stale.reserve(two, first=False)
            standby.kill()
            assert store.finalize(final(one))
            assert store.reserve(two, first=False) == Reserved()
            primary.kill()
            standby.start()
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.latest(base_uri)
            standby.program("pg_ctl", "promote", "-w", "-D", str(standby.directory / "data"))
            assert store.latest(base_uri) == one
            store.record([final(two)])
            assert store.finalize(final(one))
            assert store.latest(base_uri) == final(two)
            commit_a_few(store)


# -- poolers ---------------------------------------------------------------------------------------------------------


@contextmanager
def pgbouncer(server: PostgresServer) -> Iterator[str]:
    """Yield ``host:port`` of a PgBouncer in transaction mode, with one session for all clients."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        pytest.skip("no pgbouncer on PATH (Debian: apt-get install pgbouncer)")
    port, settings = free_port(), server.directory / f"{uuid4()}.ini"
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 1\n"
    )
    settings.chmod(0o644)
    with run_as_server([binary, str(settings)]) as process:
        assert process.stderr is not None
        assert any("process up" in line for line in process.stderr)
        Thread(target=drain, args=(process.stderr,), daemon=True).start()
        yield f"127.0.0.1:{port}"
        process.terminate()


def test_pooler_in_transaction_mode(server: PostgresServer) -> None:
    with pgbouncer(server) as address:
        url = f"postgresql://postgres@{address}/postgres"
        with (
            opened(url, {"prepared_statements": "false"}) as store,
            opened(f"{url}?prepared_statements=false&connections=3") as other,
        ):
            for each in (store, other) * 4:
                commit_a_few(each)
            race(6, lambda number: commit_a_few((store, other)[number % 2]))


def test_pooler_in_transaction_mode_with_prepared_statements_is_refused(server: PostgresServer) -> None:
    def commit_often(stores: tuple[ExternalCommitStore, ...]) -> None:
        for store in stores * 10:
            commit_a_few(store)

    with pgbouncer(server) as address:
        url = f"postgresql://postgres@{address}/postgres"
        with (
            opened(url) as store,
            opened(url, {"connections": "3"}) as other,  # with connections of its own
            pytest.raises(InvalidInput, match="prepared_statements=false"),
        ):
            commit_often((store, other))


# -- credentials ---------------------------------------------------------------------------------------------------


def test_passwords_come_from_places_that_are_not_shown(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hba = server.directory / "data" / "pg_hba.conf"
    hba.write_text(f"host all ada 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
    server.run("SELECT pg_reload_conf()", "CREATE ROLE ada LOGIN SUPERUSER PASSWORD 'hunter2'")
    url = server.url(user="ada")
    port, files = str(server.port), {name: tmp_path / name for name in ("pass", "service")}
    files["pass"].write_text(f"127.0.0.1:{port}:*:ada:hunter2\n")
    files["pass"].chmod(0o600)
    files["service"].write_text(f"[lake]\nhost=127.0.0.1\nport={port}\ndbname=postgres\nuser=ada\npassword=hunter2\n")
    places: list[tuple[str, dict[str, str], dict[str, str]]] = [
        (url, {"password": "hunter2"}, {}),
        (url.replace("ada@", "ada:hunter2@"), {}, {}),
        (url, {}, {"PGPASSWORD": "hunter2"}),
        (url, {}, {"PGPASSFILE": str(files["pass"])}),
        ("postgresql:///?service=lake", {}, {"PGSERVICEFILE": str(files["service"])}),
        (f"postgresql:///postgres?host={server.directory}", {"user": "postgres"}, {"PGPORT": port}),
    ]
    for given, options, environment in places:
        with monkeypatch.context() as patch, closing(open_commit_store(given, options, MEMORY)) as store:
            for name, value in environment.items():
                patch.setenv(name, value)
            commit_a_few(store)
            assert "hunter" not in store.url + repr(store)
            assert "ada" not in store.url
    for given, options in ((url, {}), (url, {"password": "hunter3"}), (server.url(user="eve"), {})):
        with opened(given, options) as store, pytest.raises(AccessDenied, match=f"127.0.0.1:{port}") as caught:
            store.latest("s3://bucket/t")
        assert "hunter" not in "".join(traceback.format_exception(caught.value))


def test_certificate_is_verified(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with new_server() as server:
        for name, source in (("server.crt", certificate), ("server.key", key)):
            target = shutil.copy(source, server.directory / "data" / name)
            os.chmod(target, 0o600)
            if os.getuid() == 0:
                shutil.chown(target, "postgres", "postgres")
        server.stop()
        server.settings = ("ssl=on",)
        server.start()
        hba = server.directory / "data" / "pg_hba.conf"
        hba.write_text("hostssl all all 127.0.0.1/32 trust\n")
        server.run("SELECT pg_reload_conf()")
        trusted = {"sslmode": "verify-full", "sslrootcert": certificate}
        migrate_schema(server.url(), trusted)
        with opened(server.url(), trusted) as store:
            commit_a_few(store)
        wrong: list[tuple[dict[str, str], type[LancekeepError], str]] = [
            ({"sslmode": "disable"}, AccessDenied, "no pg_hba.conf entry"),
            ({"sslmode": "verify-full", "sslrootcert": "system"}, StoreUnavailable, "certificate"),
            ({"sslmode": "verify-full", "sslrootcert": f"{tmp_path}/none"}, InvalidInput, "sslrootcert"),
        ]
        for options, error, message in wrong:
            with opened(server.url(), options) as store, pytest.raises(error, match=message):
                store.latest("s3://bucket/t")


# -- the schema ------------------------------------------------------------------------------------------------------


def new_database(server: PostgresServer, options: str = "") -> str:
    name = f"lake_{uuid4().hex[:8]}"
    server.run(f"CREATE DATABASE {name} {options}")
    return server.url(name)


def test_schema_is_migrated_once_and_checked(server: PostgresServer) -> None:
    url = new_database(server)
    with opened(url) as store:
        for act in every_call(store, staged(1)):
            with pytest.raises(InvalidInput, match=f"lancekeep migrate-schema {re.escape(store.url)}"):
                act()
        told = race(4, lambda _: migrate_schema(url))
        latest = told[0][1]
        assert sorted(told) == [(0, latest), *[(latest, latest)] * 3]
        commit_a_few(store)
    admin = url.removeprefix("postgresql://")
    with psycopg.connect(f"postgresql://{admin}", autocommit=True) as connection:
        connection.execute("INSERT INTO lancekeep.migration VALUES (99)")
    with opened(url) as store, pytest.raises(Unsupported, match="install a newer release"):
        store.latest("s3://bucket/t")
    with pytest.raises(Unsupported, match="install a newer release"):
        migrate_schema(url)


def test_schema_is_not_migrated_while_a_backup_reads(server: PostgresServer) -> None:
    url = new_database(server)
    migrate_schema(url)
    address = f"postgresql://{url.removeprefix('postgresql://')}"
    with psycopg.connect(address, autocommit=True) as owner, psycopg.connect(address) as backup:
        owner.execute("DELETE FROM lancekeep.migration WHERE number > 2")
        owner.execute("DROP INDEX lancekeep.change_older")
        owner.execute("ALTER TABLE lancekeep.change DROP COLUMN changed, DROP COLUMN properties")
        backup.execute("SELECT FROM lancekeep.change")
        with pytest.raises(StoreUnavailable, match=r"lock timeout\. Another session holds a lock"):
            migrate_schema(url)
        backup.rollback()
        before, latest = migrate_schema(url)
        assert before == 2 < latest


def test_schemas_of_one_database_are_separate(server: PostgresServer) -> None:
    base_uri, urls = f"s3://bucket/{uuid4()}", [f"{server.url()}?schema=lake_{name}" for name in "ab"]
    for url in urls:
        migrate_schema(url)
    with opened(urls[0]) as one, opened(urls[1]) as two:
        assert one.reserve(staged(1, base_uri), first=True) == Reserved()
        assert two.latest(base_uri) is None
        assert one.url != two.url


def test_unusable_databases_are_refused(server: PostgresServer) -> None:
    latin = new_database(server, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    for url, message in ((latin, "not UTF8"), (server.url("nowhere"), "createdb"), ("sqlite:///x", "has no schema")):
        with pytest.raises(InvalidInput, match=message):
            migrate_schema(url)
    with opened(server.url()) as store, pytest.raises(InvalidInput, match="too long"):
        store.reserve(staged(1, f"s3://bucket/{os.urandom(5000).hex()}"), first=True)


def test_page_sets_up_roles_with_the_privileges_that_they_need(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server.run("CREATE DATABASE lake")
    address = f"@127.0.0.1:{server.port}/lake"

    def run(statements: str) -> None:
        with psycopg.connect(f"postgresql://postgres{address}", autocommit=True) as admin:
            admin.execute(statements.encode())

    def place(line: str) -> None:
        if "--original" in line:
            with catalog_of("lake_writer", address, "lake", "prod") as catalog:
                catalog.write("t", pa.table({"a": [1]}))
            os.rename("lake", "new")
        elif "adopt-identity" in line:
            shutil.copytree("new", "copy")

    places = {"@db:5432/lake": address, **{f"s3://bucket/{name}": name for name in ("lake", "new", "copy")}}
    places["s3://bucket/ml"] = f"file://{tmp_path}/ml"
    assert Reader(places, {}, statements=run, before=place).read(PAGE) == 9
    for root, name in (("new", "prod"), ("copy", "test")):
        with catalog_of("lake_writer", address, root, name) as adopted:
            assert adopted.open("t").to_table()["a"].to_pylist() == [1]
    with opened(f"postgresql://lake_writer{address}") as store:
        use_everything(store)
        commit_a_few(store)
        with pytest.raises(AccessDenied):
            migrate_schema(f"postgresql://lake_writer{address}")
    with opened(f"postgresql://lake_reader{address}") as store:
        get, latest, listed, reserve, reserve_all, latest_all, finalize, record, delete = every_call(store, staged(1))
        for read in (get, latest, listed, latest_all):
            read()
        for write in (reserve, reserve_all, finalize, record, delete):
            with pytest.raises(AccessDenied, match="privileges"):
                write()
    with catalog_of("lake_reader", address, "new", "prod") as reader:
        assert reader.list_tables() == ["t"]
        assert "t" in {str(change.object_id) for change in reader.changes.read(limit=10_000).changes}
        changing: list[Callable[[], object]] = [
            lambda: reader.create_namespace("m"),
            lambda: reader.drop_table("t", keep=0),
            lambda: reader.write("t", pa.table({"a": [1]}), "append"),
            reader.upkeep.optimize,
        ]
        for change in changing:
            with pytest.raises(AccessDenied):
                change()
    require_separate(address, f"{tmp_path}/ml")


def test_server_of_tests_runs_on_when_its_log_is_long() -> None:
    with new_server() as server, psycopg.connect(server.dsn, autocommit=True) as admin:
        for _ in range(40):
            admin.execute(f"DO $$ BEGIN RAISE LOG '{'x' * 4000}'; END $$".encode())
        assert admin.execute("SELECT 1").fetchone() == (1,)


def catalog_of(role: str, address: str, root: str, name: str) -> lancekeep.Catalog:
    return lancekeep.connect(root, impl="postgres", uri=f"postgresql://{role}{address}?catalog={name}")


def require_separate(address: str, root: str) -> None:
    """The role ``ml_writer`` sees and changes the catalog ``ml`` only, also with statements of its own."""
    with catalog_of("ml_writer", address, root, "ml") as ml:
        ml.create_namespace("n")
        ml.write("n.t", pa.table({"a": [1]}))
        ml.rename_table("n.t", "n.u")
        ml.write("n.u", pa.table({"a": [2]}), "append")
        assert ml.data.count("n.u") == 2
        assert {str(change.object_id) for change in ml.changes.read().changes} <= {"(root)", "n", "n.t", "n.u"}
        assert ml.upkeep.fsck().findings == ()
        ml.upkeep.optimize()
    for name, place in (("prod", "lake"), ("missing", f"{root}-missing")):
        with pytest.raises(AccessDenied, match="no policy permits this role"):
            catalog_of("ml_writer", address, place, name)
    with opened(f"postgresql://ml_writer{address}") as store:
        _, _, _, reserve, reserve_all, _, _, record, _ = every_call(store, staged(1))
        for refused in (reserve, reserve_all, record):
            with pytest.raises(AccessDenied, match="row-level security"):
                refused()
    with psycopg.connect(f"postgresql://ml_writer{address}", autocommit=True) as connection:
        own = connection.execute("SELECT count(*) FROM lancekeep.catalog").fetchone()
        assert own == (1,)
        for table in ("entry", "change"):
            assert connection.execute(f"SELECT DISTINCT catalog FROM lancekeep.{table}".encode()).rowcount == 1
        (places,) = (
            connection.execute("SELECT array_agg(DISTINCT base_uri) FROM lancekeep.version_row").fetchone() or ()
        )
        assert places
        assert all(place.startswith(f"file://{root}/") for place in places)
        for statement in (
            "UPDATE lancekeep.catalog SET root = 'file://'",
            "UPDATE lancekeep.catalog SET name = 'prod2'",
            "UPDATE lancekeep.entry SET catalog = catalog + 1000",
            "UPDATE lancekeep.version_row SET base_uri = 's3://bucket/other'",
            "INSERT INTO lancekeep.change (catalog, version, token) VALUES (1000, 1, 'x')",
            "DROP POLICY ml ON lancekeep.catalog",
            "ALTER TABLE lancekeep.entry DISABLE ROW LEVEL SECURITY",
            "SET ROLE lake_writer",
            "TRUNCATE lancekeep.entry",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
