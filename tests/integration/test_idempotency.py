"""Requests with idempotency keys: one effect and one answer, over crashes, concurrent attempts and lost replies."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from faults import Crash, Faulty

import lancekeep
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.commits.keyed_requests import current_request, performing
from lancekeep.application.rows.idempotency import Answer, Attempt
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.domain.idempotency import PROPERTY, RequestKey, Superseded
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.table import REQUESTS_DIRECTORY
from lancekeep.domain.transaction import AllCommitted

ROWS = pa.table({"id": [1, 2]})
MODES = ("compatible", "v2")


@pytest.fixture(params=MODES)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Catalog]:
    """Open the same catalog in another process each time."""
    return lambda: lancekeep.connect(
        str(tmp_path / "lake"),
        mode=request.param,
        commit_store=f"sqlite://{tmp_path}/commits.db",
        storage_options={"fsync": "false"},
    )


def keyed(
    catalog: Catalog,
    key: str,
    operation: str,
    name: str,
    act: Callable[[], object],
    *,
    request: str = "the request",
    body: str = "",
) -> Any:
    """Perform an operation as a server does, and return its answer."""

    def attempt() -> Answer:
        try:
            return Answer(json.dumps(_plain(act())))
        except lancekeep.LancekeepError as error:
            if isinstance(error, lancekeep.Retryable | lancekeep.CommitUnknown):
                raise
            return Answer(json.dumps(type(error).__name__), refused=True)

    def committed(outcome: Committed | AllCommitted) -> Answer:
        return Answer(json.dumps(_plain(outcome)))

    request_key = RequestKey.of("ann", operation, tuple(name.split(".")), key)
    given = Attempt(fingerprint=request, act=attempt, committed=committed, body=lambda: body)
    return json.loads(directory_of(catalog).requests.perform(request_key, given))


def _plain(result: Any) -> object:
    if isinstance(result, Committed):
        return result.version
    return str(result.id) if hasattr(result, "id") else None


def new_key() -> str:
    return str(uuid4())


def crashing(act: Callable[[], object]) -> Callable[[], object]:
    """Perform an operation, and crash before its answer is stored."""

    def crashed() -> object:
        act()
        raise Crash

    return crashed


def rows(catalog: Catalog, table: str) -> list[int]:
    return sorted(catalog.open(table).to_table()["id"].to_pylist())


Operation = Callable[[Catalog], object]
OPERATIONS: dict[str, tuple[Operation, str, str, Operation, Callable[[Catalog], object]]] = {
    # name: how to prepare, the operation, its object, how to perform it, and the state that it leaves
    "create namespace": (
        lambda catalog: None,
        "create_namespace",
        "ns",
        lambda catalog: catalog.create_namespace("ns", {"a": "b"}),
        lambda catalog: catalog.describe_namespace("ns").properties,
    ),
    "drop namespace": (
        lambda catalog: catalog.create_namespace("ns"),
        "drop_namespace",
        "ns",
        lambda catalog: catalog.drop_namespace("ns"),
        lambda catalog: catalog.list_namespaces(),
    ),
    "declare": (
        lambda catalog: None,
        "declare_table",
        "t",
        lambda catalog: catalog.declare_table("t"),
        lambda catalog: catalog.list_tables(),
    ),
    "create": (
        lambda catalog: None,
        "create_table",
        "t",
        lambda catalog: catalog.write("t", ROWS),
        lambda catalog: rows(catalog, "t"),
    ),
    "create below": (
        lambda catalog: catalog.create_namespace("ns"),
        "create_table",
        "ns.t",
        lambda catalog: catalog.write("ns.t", ROWS),
        lambda catalog: rows(catalog, "ns.t"),
    ),
    "rename": (
        lambda catalog: catalog.write("t", ROWS),
        "rename_table",
        "t",
        lambda catalog: catalog.rename_table("t", "u"),
        lambda catalog: (catalog.list_tables(), rows(catalog, "u")),
    ),
    "deregister": (
        lambda catalog: catalog.write("t", ROWS),
        "deregister_table",
        "t",
        lambda catalog: catalog.deregister_table("t"),
        lambda catalog: catalog.list_tables(),
    ),
    "drop": (
        lambda catalog: catalog.write("t", ROWS),
        "drop_table",
        "t",
        lambda catalog: catalog.drop_table("t"),
        lambda catalog: catalog.list_tables(),
    ),
    "append": (
        lambda catalog: catalog.write("t", ROWS),
        "insert_into_table",
        "t",
        lambda catalog: catalog.write("t", ROWS, "append"),
        lambda catalog: rows(catalog, "t"),
    ),
    "delete": (
        lambda catalog: catalog.write("t", ROWS),
        "delete_from_table",
        "t",
        lambda catalog: catalog.commit_change("t", lambda dataset: (dataset.delete("id = 1") and dataset) or dataset),
        lambda catalog: (rows(catalog, "t"), catalog.describe_table("t").version),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_repeated_request_returns_the_first_answer(connect: Callable[[], Catalog], name: str) -> None:
    prepare, operation, object_id, act, state = OPERATIONS[name]
    catalog, key = connect(), new_key()
    prepare(catalog)
    first = keyed(catalog, key, operation, object_id, lambda: act(catalog))
    after = state(catalog)
    other = connect()
    assert keyed(other, key, operation, object_id, lambda: pytest.fail("performed twice")) == first
    assert state(other) == after


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_request_that_crashed_after_its_effect_is_answered_once(connect: Callable[[], Catalog], name: str) -> None:
    prepare, operation, object_id, act, state = OPERATIONS[name]
    catalog, key = connect(), new_key()
    prepare(catalog)
    with pytest.raises(Crash):
        keyed(catalog, key, operation, object_id, crashing(lambda: act(catalog)))
    after = state(catalog)
    other = connect()
    answer = keyed(other, key, operation, object_id, lambda: act(other))
    assert answer not in ("TableAlreadyExists", "NamespaceAlreadyExists", "TableNotFound", "NamespaceNotFound")
    assert state(other) == after
    third = connect()
    assert keyed(third, key, operation, object_id, lambda: act(third)) == answer
    assert state(third) == after


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_request_that_crashed_before_its_effect_is_performed(connect: Callable[[], Catalog], name: str) -> None:
    prepare, operation, object_id, act, state = OPERATIONS[name]
    catalog, key = connect(), new_key()
    prepare(catalog)

    def crash() -> None:
        raise Crash

    with pytest.raises(Crash):
        keyed(catalog, key, operation, object_id, crash)
    keyed(catalog, key, operation, object_id, lambda: act(catalog))
    after = state(catalog)
    keyed(catalog, key, operation, object_id, lambda: act(catalog))
    assert state(catalog) == after


def test_a_drop_is_not_repeated_on_the_next_table_of_the_name(connect: Callable[[], Catalog]) -> None:
    catalog, key = connect(), new_key()
    catalog.write("t", ROWS)
    with pytest.raises(Crash):
        keyed(catalog, key, "drop_table", "t", crashing(lambda: catalog.drop_table("t")))
    catalog.write("t", pa.table({"id": [7]}))
    other = connect()
    assert keyed(other, key, "drop_table", "t", lambda: other.drop_table("t")) == "t"
    assert rows(other, "t") == [7]


def test_the_key_of_another_request_is_refused(connect: Callable[[], Catalog]) -> None:
    catalog, key = connect(), new_key()
    keyed(catalog, key, "declare_table", "t", lambda: catalog.declare_table("t"))
    with pytest.raises(InvalidInput, match="another request"):
        keyed(catalog, key, "declare_table", "t", lambda: None, request="another request")
    assert keyed(catalog, key, "declare_table", "u", lambda: catalog.declare_table("u")) == "u"


@pytest.mark.parametrize("answered", [True, False])
def test_a_repeated_key_with_other_data_is_refused(connect: Callable[[], Catalog], answered: bool) -> None:
    catalog, key = connect(), new_key()
    catalog.write("t", ROWS)

    def act() -> object:
        committed = catalog.write("t", ROWS, "append")
        if not answered:
            raise Crash
        return committed

    with nullcontext() if answered else pytest.raises(Crash):
        keyed(catalog, key, "insert_into_table", "t", act, body="one")
    with pytest.raises(InvalidInput, match="another request"):
        keyed(catalog, key, "insert_into_table", "t", lambda: pytest.fail("performed"), body="two")
    assert keyed(catalog, key, "insert_into_table", "t", lambda: pytest.fail("performed"), body="one") == 2


def test_a_claim_that_is_not_settled_excludes_claims_of_other_versions(connect: Callable[[], Catalog]) -> None:
    """The first attempt may commit its version until then, and both would have the effect."""
    catalog, key = connect(), new_key()
    catalog.write("t", ROWS)
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))

    def claim(version: int) -> object:
        path = f"{root.manifest_key(version, NamingScheme.V2)}-{uuid4()}"
        request = current_request()
        assert request is not None
        request.claim(lambda: CommitToken(StagedManifest(root.base_uri, version, path, 1)))
        return None

    with pytest.raises(Crash):
        keyed(catalog, key, "insert_into_table", "t", crashing(lambda: claim(2)))
    with pytest.raises(Superseded):
        keyed(connect(), key, "insert_into_table", "t", lambda: claim(3))
    keyed(connect(), key, "insert_into_table", "t", lambda: claim(2))


def test_a_key_that_is_not_a_uuid_is_refused(connect: Callable[[], Catalog]) -> None:
    with pytest.raises(InvalidInput, match="not a UUID"):
        keyed(connect(), "../../etc", "declare_table", "t", lambda: None)


def test_a_refusal_is_repeated(connect: Callable[[], Catalog]) -> None:
    catalog, key = connect(), new_key()
    catalog.declare_table("t")
    assert keyed(catalog, key, "declare_table", "t", lambda: catalog.declare_table("t")) == "TableAlreadyExists"
    catalog.drop_table("t")
    assert keyed(catalog, key, "declare_table", "t", lambda: catalog.declare_table("t")) == "TableAlreadyExists"


@pytest.mark.parametrize("name", ["drop", "declare", "append", "create below"])
def test_an_attempt_that_was_overtaken_changes_nothing(connect: Callable[[], Catalog], name: str) -> None:
    """The second attempt completes while the first is about to perform the operation."""
    prepare, operation, object_id, act, state = OPERATIONS[name]
    slow, fast, key = connect(), connect(), new_key()
    prepare(slow)

    def overtaken() -> object:
        keyed(fast, key, operation, object_id, lambda: act(fast))
        if name == "drop":
            with performing(None):
                fast.write("t", pa.table({"id": [7]}))
        return act(slow)

    with pytest.raises(Superseded):
        keyed(slow, key, operation, object_id, overtaken)
    if name == "drop":
        assert rows(fast, "t") == [7]
    after = state(fast)
    keyed(slow, key, operation, object_id, lambda: act(slow))
    assert state(slow) == after


def test_an_operation_without_proof_is_not_repeated_until_it_has_an_answer(connect: Callable[[], Catalog]) -> None:
    catalog, key = connect(), new_key()
    with pytest.raises(Crash):
        keyed(catalog, key, "create_table_tag", "t", crashing(lambda: None))
    with pytest.raises(StoreUnavailable, match="left no answer"):
        keyed(catalog, key, "create_table_tag", "t", lambda: pytest.fail("performed twice"))


@pytest.mark.parametrize("method", ["put_if_absent", "get"])
@pytest.mark.parametrize("nth", range(3))
def test_lost_replies_of_the_object_store_change_nothing(connect: Callable[[], Catalog], method: str, nth: int) -> None:
    catalog, key = connect(), new_key()
    catalog.create_namespace("ns")
    objects = directory_of(catalog).ledger.commits.objects
    calls = [0]

    def decide(called: str, _: int) -> tuple[str, BaseException] | None:
        calls[0] += called == method
        return ("after", StoreUnavailable("lost")) if called == method and calls[0] == nth + 1 else None

    directory_of(catalog).ledger.commits.objects = Faulty(objects, decide)
    assert keyed(catalog, key, "declare_table", "ns.t", lambda: catalog.declare_table("ns.t")) == "ns.t"
    assert keyed(catalog, key, "declare_table", "ns.t", lambda: catalog.declare_table("ns.t")) == "ns.t"


def test_a_keyed_change_costs_two_requests_and_no_further_commit(connect: Callable[[], Catalog]) -> None:
    catalog = connect()
    catalog.create_namespace("ns")
    before = directory_of(catalog).ledger.view().version
    objects = Faulty(directory_of(catalog).ledger.commits.objects)
    directory_of(catalog).ledger.commits.objects = objects
    keyed(catalog, new_key(), "declare_table", "ns.t", lambda: catalog.declare_table("ns.t"))
    assert objects.counts == {"put_if_absent": 2}
    assert directory_of(catalog).ledger.view().version == before + 1


def test_records_are_removed_after_their_answers(connect: Callable[[], Catalog]) -> None:
    catalog = connect()
    for number in range(5):
        keyed(catalog, new_key(), "create_namespace", "ns", partial(catalog.create_namespace, f"n{number}"))
    assert sum(name.startswith(PROPERTY) for name in directory_of(catalog).ledger.view().properties) == 1


def test_clean_up_removes_old_requests_and_their_records(connect: Callable[[], Catalog]) -> None:
    catalog, key = connect(), new_key()
    keyed(catalog, key, "declare_table", "t", lambda: catalog.declare_table("t"))
    assert directory_of(catalog).requests.clean_up() == 0
    assert directory_of(catalog).requests.clean_up(keep=timedelta(0)) == 1
    assert not [name for name in directory_of(catalog).ledger.view().properties if name.startswith(PROPERTY)]
    assert not catalog.upkeep.fsck(deep=True).findings
    assert keyed(catalog, key, "declare_table", "t", lambda: catalog.declare_table("t")) == "TableAlreadyExists"


def test_clean_up_keeps_a_request_whose_last_entry_is_recent(connect: Callable[[], Catalog], tmp_path: Path) -> None:
    """Ages are counted from the latest entry, so later times of entries make the others older."""
    catalog, key, now = connect(), new_key(), time.time()
    requests = tmp_path / "lake" / "__manifest" / REQUESTS_DIRECTORY

    def days_later(entry: Path, days: int) -> None:
        os.utime(entry, (now + days * 86400,) * 2)

    keyed(catalog, key, "declare_table", "t", lambda: catalog.declare_table("t"))
    _, last = log = sorted(requests.rglob("*.json"))
    days_later(last, 8)
    assert directory_of(catalog).requests.clean_up() == 0
    assert keyed(catalog, key, "declare_table", "t", lambda: pytest.fail("performed twice")) == "t"
    keyed(catalog, new_key(), "declare_table", "u", lambda: catalog.declare_table("u"))
    for entry in set(requests.rglob("*.json")) - set(log):
        days_later(entry, 16)
    assert directory_of(catalog).requests.clean_up() == 1
    assert not any(entry.exists() for entry in log)


def test_fsck_accepts_the_logs(connect: Callable[[], Catalog]) -> None:
    catalog = connect()
    keyed(catalog, new_key(), "create_table", "t", lambda: catalog.write("t", ROWS))
    assert not catalog.upkeep.fsck(deep=True).findings
