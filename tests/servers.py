"""The servers of the tests: moto (AWS), Redis and a Hive Metastore.

Each is a context manager that starts a process or a container, yields a URL once the server answers, and stops it at
the end. If the machine cannot run a server, it raises `Unavailable` with the reason, and the fixture skips.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import docker
import pyspark
from docker.errors import APIError, DockerException, ImageNotFound
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy, LogMessageWaitStrategy

REDIS_IMAGE = os.environ.get("LANCEKEEP_REDIS_IMAGE", "redis:7")
MOTO_IMAGE = os.environ.get("LANCEKEEP_MOTO_IMAGE", "motoserver/moto:5.2.5")
MOTO_SERVER = Path(__file__).with_name("moto_server.py")


class Unavailable(Exception):
    """This machine cannot run the server; the message names what is missing."""


@contextmanager
def silent_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """Yield ``host:port`` of a server that never answers, and the connections that it has accepted."""
    connections: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                connections.append(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=accept, daemon=True).start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", connections
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                connection.close()


@contextmanager
def moto_process() -> Iterator[str]:
    """Run moto in a separate process, so that tests and servers do not share an interpreter lock."""
    command = [sys.executable, str(MOTO_SERVER), "127.0.0.1", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"moto did not start: {' '.join(command)} ended with {server.wait()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@contextmanager
def moto_container() -> Iterator[str]:
    container = container_of(MOTO_IMAGE)
    container.with_copy_into_container(MOTO_SERVER, "/moto_server.py")
    container.with_kwargs(entrypoint=["python", "-u", "/moto_server.py", "0.0.0.0", "5000"])
    container.with_exposed_ports(5000).waiting_for(HttpWaitStrategy(5000, "/moto-api/").with_poll_interval(0.2))
    with container:
        yield f"http://{address_of(container, 5000)}"


@contextmanager
def redis_container() -> Iterator[str]:
    container = container_of(REDIS_IMAGE)
    container.with_command(["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no"])
    ready = LogMessageWaitStrategy("Ready to accept connections").with_poll_interval(0.2)
    with container.with_exposed_ports(6379).waiting_for(ready):
        yield f"redis://{address_of(container, 6379)}/0"


@contextmanager
def redis_process() -> Iterator[str]:
    binary = shutil.which("redis-server")
    if binary is None:
        raise Unavailable("no redis-server on PATH (Debian: apt-get install redis-server)")
    port = free_port()
    command = [binary, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if not any("Ready to accept connections" in line for line in server.stdout):
                raise RuntimeError(f"redis-server did not start: {' '.join(command)} ended with {server.wait()}")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()


POSTGRES_DRIVER = Path("/usr/share/java/postgresql.jar")
"""The JDBC driver of Debian's package."""
HIVE_JARS = os.environ.get("LANCEKEEP_HIVE_JARS", "")
"""The directory of the jars of a standalone Metastore (`make hive`), instead of Hive 2.3 from pyspark."""
EVENT_CLEANER = "org.apache.hadoop.hive.metastore.events.EventCleanerTask"
_OPENED = ("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.util", "java.util.concurrent")
"""Packages of Java whose internals a standalone Metastore uses."""


@contextmanager
def hive_metastore(directory: Path, port: int | None = None, *, database: str = "") -> Iterator[str]:
    """Run a Hive Metastore; yield ``host:port`` of its Thrift service.

    Args:
        directory: The directory of its warehouse, settings and log.
        port: Its port. Default: a free one.
        database: The JDBC URL of its database, which outlives it: then the server is killed at the end. Default: a
            database in memory.
    """
    postgres = database.startswith("jdbc:postgresql:")
    if postgres and not POSTGRES_DRIVER.exists():
        raise Unavailable(f"no {POSTGRES_DRIVER} (Debian: apt-get install libpostgresql-jdbc-java)")
    derby = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    settings = {
        "javax.jdo.option.ConnectionURL": database or "jdbc:derby:memory:metastore;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver" if postgres else derby,
        "javax.jdo.option.ConnectionUserName": "postgres" if postgres else "APP",
        "datanucleus.connectionPoolingType": "HikariCP",  # the default is not among the jars
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.hmshandler.retry.interval": "100ms",
        "metastore.warehouse.external.dir": str(directory / "warehouse"),
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
        **dict.fromkeys(("metastore.task.threads.always", "metastore.task.threads.remote"), EVENT_CLEANER),
        "hive.metastore.warehouse.dir": str(directory / "warehouse"),
        "hive.metastore.event.db.notification.api.auth": "false",
        "hive.async.log.enabled": "false",  # its dependencies are not among the jars
    }
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    (directory / "hive-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    jars = Path(HIVE_JARS or Path(pyspark.__file__).parent / "jars") / "*"
    classes = f"{directory}:{jars}:{POSTGRES_DRIVER}"
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes]
    options.insert(0, "-Dderby.locks.deadlockTimeout=1")  # seconds until one of two requests is made again
    if HIVE_JARS:
        options[:0] = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    address = "127.0.0.1", port or free_port()
    command = [java, *options, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(address[1])]
    log = directory / "metastore.log"
    with log.open("w") as output, subprocess.Popen(command, cwd=directory, stdout=output, stderr=output) as server:
        try:
            while not _listens(address):
                if server.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended:\n{log.read_text()[-3000:]}")
                time.sleep(0.1)
            yield f"{address[0]}:{address[1]}"
        finally:
            server.send_signal(signal.SIGKILL if database else signal.SIGTERM)


def _listens(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address):
        return True
    return False


def container_of(image: str) -> DockerContainer:
    """Return a container of a local or pulled image, or raise `Unavailable`."""
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        raise Unavailable(f"no Docker here: {error}") from error
    try:
        try:
            client.images.get(image)
        except ImageNotFound:
            client.images.pull(image)
    except APIError as error:
        raise Unavailable(f"no image {image}, and it cannot be pulled: {error}") from error
    finally:
        client.close()
    return DockerContainer(image)


def address_of(container: DockerContainer, port: int) -> str:
    """Return ``host:port`` of a container; numeric, since "localhost" may resolve to ::1."""
    host = container.get_container_host_ip().replace("localhost", "127.0.0.1")
    return f"{host}:{container.get_exposed_port(port)}"


def free_port() -> int:
    """Return a free port outside the range from which the kernel assigns ports to clients.

    The bus of a Redis cluster node is 10,000 ports above; it must be outside that range, too.
    """
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
