"""Native writers over stores and servers that lose replies, and directories copied in the middle of a commit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pytest
import writers
from faults import Crash, Faulty, crash_at, lost_replies
from lance.namespace import RestNamespace
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError
from rest_server import Front, serving

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import StoreUnavailable


@pytest.fixture
def namespace(tmp_path: Path) -> lancekeep.DirectoryNamespace:
    namespace = lancekeep.DirectoryNamespace(
        root=str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db"
    )
    namespace.catalog.create_namespace("hot")
    namespace.catalog.write("hot.t", writers.row(0, 0))
    return namespace


def through(namespace: lancekeep.DirectoryNamespace, objects: Any, rows: Any, patience: float) -> None:
    """Put doubles between the namespace and its stores."""
    retry = Retry(patience, sleep=lambda _: None)
    directory_of(namespace.catalog).ledger.commits = TableCommits(objects, rows, "tester", retry)


@pytest.mark.parametrize("replies", [1, 3])
@pytest.mark.parametrize("method", ["reserve", "finalize", "copy_if_absent", "delete", "get", "latest"])
def test_native_append_with_lost_replies_commits_once(
    namespace: lancekeep.DirectoryNamespace, method: str, replies: int
) -> None:
    commits = directory_of(namespace.catalog).commits
    through(
        namespace,
        Faulty(commits.objects, lost_replies(method, replies)),
        Faulty(commits.rows, lost_replies(method, replies)),
        5.0,
    )
    writers.append(namespace, 1, 1)
    assert sorted(namespace.catalog.open("hot.t").to_table()["number"].to_pylist()) == [0, 1]
    assert [entry.version for entry in namespace.catalog.versions.history("hot.t")] == [2, 1]


def test_unknown_commit_is_raised_with_its_token_and_resolved_later(
    namespace: lancekeep.DirectoryNamespace,
) -> None:
    catalog = namespace.catalog
    healthy = directory_of(catalog).commits
    broken = [False]

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "reserve":
            broken[0] = True
            return "after", StoreUnavailable("the reply was lost")
        return ("before", StoreUnavailable("down")) if broken[0] else None

    objects, rows = Faulty(healthy.objects, down), Faulty(healthy.rows, down)
    through(namespace, objects, rows, 0.05)
    with pytest.raises(lancekeep.CommitUnknown) as raised:
        catalog.write("hot.t", writers.row(1, 1), "append")
    assert "delete" not in objects.calls
    directory_of(catalog).ledger.commits = healthy
    for _ in range(2):  # settling is idempotent
        assert catalog.resolve(str(raised.value.token)) == catalog.resolve(raised.value.token)
    assert isinstance(catalog.resolve(raised.value.token), lancekeep.Committed)
    assert sorted(catalog.open("hot.t").to_table()["number"].to_pylist()) == [0, 1]


@pytest.fixture
def front(namespace: lancekeep.DirectoryNamespace) -> Iterator[Front]:
    with serving(namespace) as front:
        yield front


@pytest.mark.parametrize("looks_lost", [0, 1])
def test_native_append_with_503_after_success_commits_once(
    namespace: lancekeep.DirectoryNamespace, front: Front, looks_lost: int
) -> None:
    front.losses.update(create_table_version=1, describe_table_version=looks_lost)
    writers.append(RestNamespace(uri=front.uri), 1, 1)
    assert not +front.losses
    assert front.asked.count("create_table_version") == 1
    require_one_append(namespace)


def test_native_append_is_unknown_if_server_answers_only_503_after_success(
    namespace: lancekeep.DirectoryNamespace, front: Front
) -> None:
    """Nor does it then take away what the version needs."""
    front.losses.update(create_table_version=1, describe_table_version=100)
    with pytest.raises(OSError, match="the commit may or may not have been applied"):
        writers.append(RestNamespace(uri=front.uri), 1, 1)
    assert front.asked.count("create_table_version") == 1
    require_one_append(namespace)


def test_native_append_through_repeating_proxy_commits_once(
    namespace: lancekeep.DirectoryNamespace, front: Front
) -> None:
    front.repeats["create_table_version"] = 1
    writers.append(RestNamespace(uri=front.uri), 1, 1)
    assert not +front.repeats
    require_one_append(namespace)


def require_one_append(namespace: lancekeep.DirectoryNamespace) -> None:
    catalog = namespace.catalog
    assert sorted(catalog.open("hot.t").to_table()["number"].to_pylist()) == [0, 1]
    assert [entry.version for entry in catalog.versions.history("hot.t")] == [2, 1]
    assert not catalog.upkeep.fsck(deep=True).findings


def test_operation_with_503_after_success_has_one_effect(namespace: lancekeep.DirectoryNamespace, front: Front) -> None:
    """A repeated request reports the earlier effect."""
    client = RestNamespace(uri=front.uri)
    for operation, request, again in (
        ("create_namespace", api.CreateNamespaceRequest(id=["n"]), "Namespace already exists"),
        ("declare_table", api.DeclareTableRequest(id=["n", "t"]), "Table already exists"),
        (
            "rename_table",
            api.RenameTableRequest(id=["n", "t"], new_table_name="u", new_namespace_id=["n"]),
            "Table not found",
        ),
        ("deregister_table", api.DeregisterTableRequest(id=["n", "u"]), "Table not found"),
        ("drop_table", api.DropTableRequest(id=["hot", "t"]), "Table not found"),
        ("drop_namespace", api.DropNamespaceRequest(id=["n"]), "Namespace not found"),
    ):
        front.losses[operation] = 1
        before = directory_of(namespace.catalog).ledger.view().version
        with pytest.raises(ServiceUnavailableError):
            getattr(client, operation)(request)
        assert directory_of(namespace.catalog).ledger.view().version == before + 1
        with pytest.raises(LanceNamespaceError, match=again):
            getattr(client, operation)(request)
        assert directory_of(namespace.catalog).ledger.view().version == before + 1
    assert namespace.catalog.list_namespaces() == ["hot"]
    assert namespace.catalog.list_tables("hot") == []


def test_copied_directory_is_a_complete_table(namespace: lancekeep.DirectoryNamespace, tmp_path: Path) -> None:
    catalog = namespace.catalog
    directory = Path("/" + directory_of(catalog).places.dataset_root(catalog.find_table("hot.t")).key)
    writers.append(namespace, 1, 1)
    shutil.copytree(directory, tmp_path / "idle")
    plain = lance.dataset(str(tmp_path / "idle"))
    assert (plain.version, plain.count_rows()) == (2, 2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["reserve", "copy_if_absent", "finalize", "delete"])
def test_directory_copied_between_steps_is_at_most_one_version_behind(
    namespace: lancekeep.DirectoryNamespace, tmp_path: Path, method: str, when: str
) -> None:
    catalog = namespace.catalog
    healthy = directory_of(catalog).commits
    directory = Path("/" + directory_of(catalog).places.dataset_root(catalog.find_table("hot.t")).key)
    dead = [False]

    def die(name: str, count: int) -> tuple[str, BaseException] | None:
        if dead[0]:
            return "before", Crash()
        if name == method:
            dead[0] = True
            return crash_at(count, when)(name, count)
        return None

    through(namespace, Faulty(healthy.objects, die), Faulty(healthy.rows, die), 1.0)
    with pytest.raises(BaseException):  # noqa: B017, PT011 # whatever the native engine makes of a dead callback
        writers.append(namespace, 1, 1)
    shutil.copytree(directory, tmp_path / "copy")
    plain = lance.dataset(str(tmp_path / "copy"))
    copied = plain.version in (2,) or (plain.version == 1 and method in ("reserve", "copy_if_absent"))
    assert copied
    directory_of(catalog).ledger.commits = healthy
    directory_of(catalog).commits.forget()
    writers.append(namespace, 2, 2)
    rows = catalog.open("hot.t").to_table()["number"].to_pylist()
    assert rows in ([0, 1, 2], [0, 2])
    assert (rows == [0, 2]) == (method == "reserve" and when == "before")
