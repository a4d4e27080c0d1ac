"""Session fixtures for servers and Spark, the place of files, weak storage, and the rule against skips."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import boto3.session
import botocore.session
import fsspec
import pytest
from botocore.loaders import create_loader
from engines import Engine, MissingEngine, running
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from hypothesis import settings
from postgres_servers import new_server, postgres_container, postgres_process
from soak import is_soak
from spark_imports import WITH_IMPORTS

from servers import Unavailable, hive_metastore, moto_container, moto_process, redis_container, redis_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY = Path("/dev/shm")
"""The file system in memory on Linux."""
ROOM = 4 << 30
"""How much space there must be for the files of the tests."""
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xms1g -Xmn600m"
"""Options of Spark's JVM: compile fast, and neither discard compiled code nor collect garbage often."""
NO_SKIP = os.environ.get("LANCEKEEP_NO_SKIP") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of the tests in memory, and give generated examples no deadline.

    A sync in memory takes no time; it is half the time of many tests.
    """
    settings.register_profile("untimed", settings(), deadline=None)
    settings.load_profile("untimed")
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection(session: pytest.Session) -> None:
    """Stop the garbage collector: hardly anything that a collection of tests allocates is garbage."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the garbage collector, which ignores what exists from now on, and runs as seldom as in a server."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> Iterator[None]:
    """Set test credentials for this process and its children, so no test reaches a real account."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture(scope="session", autouse=True)
def aws_models() -> Iterator[None]:
    """Share the descriptions of AWS services between all sessions; reading them dominates the cost of a client."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(create_loader))
        patch.setattr(boto3.session.Session, "_setup_loader", lambda _: None)  # grows the loader; serves resources only
        yield


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """Yield the URL of a shared S3 and DynamoDB server: credentials test/test, region us-east-1."""
    yield from _first_available(moto_process)


@pytest.fixture(scope="session")
def moto_container_endpoint() -> Iterator[str]:
    """Yield the URL of a server like that of `moto_endpoint`, in a container."""
    yield from _first_available(moto_container)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of a shared Redis server: a container, or else a local process."""
    yield from _first_available(redis_container, redis_process)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the URL of a shared PostgreSQL database with our schema: a local process, or else a container."""
    yield from _first_available(postgres_process, postgres_container)


@pytest.fixture(scope="session")
def hive_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a shared Hive Metastore, without a path: Hive 2.3 from the jars in pyspark.

    Its own database is Derby, or what LANCEKEEP_HIVE_DATABASE names.
    """
    if os.environ.get("LANCEKEEP_HIVE_DATABASE") == "postgresql":
        yield from _first_available(lambda: hive_on_postgres(tmp_path_factory.mktemp("metastore")))
        return
    with hive_metastore(tmp_path_factory.mktemp("metastore")) as address:
        yield f"hive://{address}"


@pytest.fixture(scope="session")
def hive_postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a shared Hive Metastore over a PostgreSQL of its own."""
    yield from _first_available(lambda: hive_on_postgres(tmp_path_factory.mktemp("metastore")))


@contextmanager
def hive_on_postgres(directory: Path) -> Iterator[str]:
    with new_server() as database:
        jdbc = f"jdbc:postgresql://127.0.0.1:{database.port}/postgres"
        with hive_metastore(directory, database=jdbc) as address:
            yield f"hive://{address}"


@pytest.fixture(scope="session")
def engine_of() -> Iterator[Callable[[str], Engine]]:
    """Yield a function that returns an engine of `engines.ALL`, in a process that lasts for the session."""
    with ExitStack() as stack:

        @cache
        def start(name: str) -> Engine:
            try:
                return stack.enter_context(running(name))
            except MissingEngine as error:
                pytest.skip(str(error))

        yield start


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the session of a run: not in UTC, with small batches and one retry per task."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in WITH_IMPORTS.items():
            patch.setenv(name, value)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("MALLOC_ARENA_MAX", "2")  # as the documentation advises; else freed memory stays in each arena
        scratch = tmp_path_factory.mktemp("spark")
        session = (
            SparkSession.builder.master("local[2,2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", JVM)
            .config("spark.local.dir", str(scratch))
            .config("spark.sql.catalogImplementation", "in-memory")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")  # few statements run twice, so compiling costs more
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


def _first_available(*servers: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """Yield the URL of the first server that starts, or skip. CI accepts only the first."""
    reasons = []
    for server in servers[:1] if NO_SKIP else servers:
        with ExitStack() as stack:
            try:
                url = stack.enter_context(server())
            except Unavailable as error:
                reasons.append(str(error))
                continue
            yield url
            return
    pytest.skip("; ".join(reasons))


class Shelf(DirFileSystem):  # type: ignore[misc] # fsspec has no types
    """A storage of fsspec without guarantees: ``shelf://key`` is a file below ``directory``."""

    protocol = "shelf"
    cachable = False
    directory = ""

    def __init__(self) -> None:
        super().__init__(path=self.directory, fs=LocalFileSystem())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("shelf://").strip("/")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a root on storage without create-only writes; its files are below `tmp_path`."""
    monkeypatch.setattr(Shelf, "directory", str(tmp_path))
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    return "shelf://a/lake"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves out, before options select tests by their marks."""
    for item in items:
        if is_soak(item.nodeid):
            item.add_marker("soak")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from scheduling import TogetherOrAlone

    return TogetherOrAlone(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _skips_nothing((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _skips_nothing((yield))


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _skips_nothing(report: Report) -> Report:
    """Fail skipped tests if LANCEKEEP_NO_SKIP=1, since an incomplete machine must not pass."""
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        skip = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"{skip} (LANCEKEEP_NO_SKIP=1: nothing may skip here)"
    return report
