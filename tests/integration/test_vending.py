"""Temporary credentials for one table, from the token service of moto."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import lance
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from deployments import s3_options
from lance.namespace import RestNamespace
from lance_namespace import DescribeTableRequest
from rest_server import running
from s3_front import s3_front
from starlette.testclient import TestClient
from vending import ROLE, Enforcing, Lake, permits, unremembered

import lancekeep
from lancekeep.adapters.credential_vendors.sts import Role, StsVendor, session_policy
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import InvalidInput


class Now:
    """A clock that the test sets."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


OBJECT = "arn:aws:s3:::lake/"


@pytest.mark.parametrize(
    ("action", "permitted"),
    [
        (Action.READ, {"s3:GetObject"}),
        (Action.WRITE, {"s3:GetObject", "s3:PutObject"}),
        (Action.DELETE, {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}),
    ],
)
def test_a_session_policy_permits_one_table_and_one_role(action: Action, permitted: set[str]) -> None:
    policy = session_policy("s3://lake/root/t.lance", action)
    operations = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:PutBucketPolicy", "s3:GetObjectAcl")
    inside = f"{OBJECT}root/t.lance/data/x.lance"
    assert {each for each in operations if permits(policy, each, inside)} == permitted
    for outside in ("root/t.lance2/x", "root/u.lance/x", "root/__manifest/x", "root/t.lance", "x/root/t.lance/x", ""):
        assert not any(permits(policy, each, OBJECT + outside) for each in operations)
    assert not permits(policy, "s3:GetObject", "arn:aws:s3:::other/root/t.lance/x")


def test_a_session_policy_lists_one_table() -> None:
    policy = session_policy("s3://lake/root/t.lance", Action.READ)
    listed = [None, "", "root/", "root/t.lance", "root/t.lance2/", "root/t.lance/", "root/t.lance/_versions/"]
    assert [permits(policy, "s3:ListBucket", "arn:aws:s3:::lake", prefix) for prefix in listed] == [False] * 5 + [
        True
    ] * 2


@pytest.mark.parametrize("name", ["*", "a*", "?", "a$${aws:username}", "${*}", "%2A"])
def test_the_name_of_a_table_is_no_pattern(name: str) -> None:
    """A table may be called `*`; its credentials reach no other table."""
    policy = session_policy(f"s3://lake/root/{name}.lance", Action.WRITE)
    for other in ("ab", "x", "a$admin", "abc"):
        assert not permits(policy, "s3:GetObject", f"{OBJECT}root/{other}.lance/x")
    assert permits(policy, "s3:GetObject", f"{OBJECT}root/{name.replace('%2A', '*')}.lance/x")


@pytest.mark.parametrize("location", ["s3://lake", "s3://lake/", "/lake/t", "file:///lake/t", "gs://lake/t"])
def test_credentials_that_cannot_be_limited_are_refused(location: str) -> None:
    with pytest.raises(InvalidInput):
        session_policy(location, Action.READ)


def test_credentials_are_remembered_until_shortly_before_they_expire(moto_endpoint: str) -> None:
    options = {**s3_options(moto_endpoint), "aws_secret_access_key": "planted-secret"}
    options |= dict.fromkeys(("google_service_account_key", "ACCOUNT_KEY", "sas_token"), "planted-secret")
    now = Now(0.0)
    vendor = StsVendor(Role(arn=ROLE, duration=900, endpoint=moto_endpoint), options, now=now)
    first = vendor.vend("s3://lake/t.lance", Action.READ, "key:ada")
    now.seconds = int(first["expires_at_millis"]) / 1000 - 226
    assert vendor.vend("s3://lake/t.lance", Action.READ, "key:ada") == first
    others = [
        vendor.vend("s3://lake/u.lance", Action.READ, "key:ada"),
        vendor.vend("s3://lake/t.lance", Action.WRITE, "key:ada"),
        vendor.vend("s3://lake/t.lance", Action.READ, "key:bob"),
    ]
    now.seconds += 2
    others.append(vendor.vend("s3://lake/t.lance", Action.READ, "key:ada"))
    assert len({each["aws_access_key_id"] for each in (first, *others)}) == 5
    assert "planted-secret" not in json.dumps(first) + repr(vendor)


@pytest.mark.parametrize("role", [{"arn": ROLE, "duration": 899}, {"arn": ROLE, "duration": 43_201}, {"arn": "x"}])
def test_invalid_roles_are_refused(role: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        StsVendor(Role(**role), {})


@pytest.fixture
def lake(moto_endpoint: str, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(moto_endpoint, tmp_path)
    with lake.catalog:
        yield lake


def test_a_server_vends_credentials_by_role(lake: Lake) -> None:
    own = {lake.options[name] for name in lake.options if "key" in name}
    lake.catalog.write("a.u", pa.table({"id": [1]}))
    with TestClient(lake.app) as client:
        for who in ("reader", "writer"):
            headers = {"x-api-key": lake.keys[who]}
            for body in ({}, {"vend_credentials": True}):
                options = client.post("/v1/table/a$t/describe", headers=headers, json=body).json()["storage_options"]
                assert int(options["expires_at_millis"]) > 0
                assert not own & set(options.values())
            answer = client.post("/v1/table/a$t/describe", headers=headers, json={"vend_credentials": False})
            assert answer.json().get("storage_options") is None
            answer = client.get("/lancekeep/v1/table/a$t", headers=headers)
            assert (answer.json().get("storage_options"), "etag" in answer.headers) == (None, True)
            ids = [["a", "t"], ["a", "u"]]
            for wanted in (None, False):
                batch = {"ids": ids, "vend_credentials": wanted}
                answer = client.post("/lancekeep/v1/table/batch-describe", headers=headers, json=batch)
                vended = [each["response"].get("storage_options", {}) for each in answer.json()["results"]]
                assert not own & {value for each in vended for value in each.values()}
                tokens = {each.get("aws_session_token") for each in vended}
                assert len(tokens - {None}) == (2 if wanted is None else 0)  # each table has its own
        answer = client.post("/v1/table/a$new/declare", headers={"x-api-key": lake.keys["writer"]}, json={})
        assert answer.json()["storage_options"]["aws_session_token"]


def test_a_caller_that_may_append_gets_no_credentials_to_write(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that write objects could overwrite them, so only the right commit has them."""
    enforcing = Enforcing(monkeypatch)
    inside = f"arn:aws:s3:::{lake.catalog.root_uri.removeprefix('s3://')}/a$t/data/x"
    with TestClient(lake.app) as client:

        def asked(who: str, path: str, body: dict[str, Any]) -> Any:
            return client.post(path, headers={"x-api-key": lake.keys[who]}, json=body)

        for path in ("a$t/describe", "a$new/declare"):
            answer = asked("collector", f"/v1/table/{path}", {})
            assert (answer.status_code, answer.json().get("storage_options")) == (200, None), answer.text
        refused = asked("collector", "/v1/table/a$more/declare", {"vend_credentials": True})
        assert (refused.status_code, "needs the right read" in refused.text) == (403, True)
        assert not lake.catalog.table_exists("a.more")
        options = asked("changer", "/v1/table/a$t/describe", {}).json()["storage_options"]
        policy = enforcing.policies[options["aws_access_key_id"]]
        actions = {action for statement in policy["Statement"] for action in statement["Action"]}
        assert not any(permits(policy, action, inside) for action in ("s3:PutObject", "s3:DeleteObject"))
        assert "s3:GetObject" in actions


def test_credentials_reach_the_source_of_a_clone_only_for_its_readers(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The author of a manifest chooses its base paths, so they grant nothing."""
    lake.catalog.create_namespace("b")
    lake.catalog.write("b.source", pa.table({"id": [7]}))
    source, clone = lake.catalog.describe_table("b.source").uri, f"{lake.catalog.root_uri}/clones/c"
    lance.dataset(source, storage_options=lake.options).shallow_clone(clone, 1, storage_options=lake.options)
    lake.catalog.register_table("a.clone", "clones/c")
    policies: dict[str, Any] = {}
    original = StsVendor._assume

    def noted(self: StsVendor, policy: str, principal: str) -> Any:
        policies[principal] = json.loads(policy)
        return original(self, policy, principal)

    monkeypatch.setattr(StsVendor, "_assume", noted)
    with TestClient(lake.app) as client:
        for who in lake.keys:
            assert client.post("/v1/table/a$clone/describe", headers={"x-api-key": lake.keys[who]}).status_code == 200
    inside, outside = (f"arn:aws:s3:::{uri.removeprefix('s3://')}/data/x.lance" for uri in (clone, source))
    assert all(permits(policy, "s3:GetObject", inside) for policy in policies.values())
    readers = [who for who, policy in policies.items() if permits(policy, "s3:GetObject", outside)]
    assert readers == ["key:auditor"]
    assert not any(permits(policy, "s3:PutObject", outside) for policy in policies.values())


def test_a_session_policy_that_is_too_long_is_refused(moto_endpoint: str) -> None:
    vendor = StsVendor(Role(arn=ROLE, endpoint=moto_endpoint), s3_options(moto_endpoint))
    with pytest.raises(InvalidInput, match="vend_credentials"):
        vendor.vend("s3://lake/t.lance", Action.READ, "key:ada", [f"s3://lake/{'x' * 60}{n}" for n in range(30)])


def test_native_clients_read_and_write_with_vended_credentials(lake: Lake) -> None:
    with running(lake.app) as uri:
        namespace = RestNamespace(uri=uri, **{"header.x-api-key": lake.keys["writer"]})
        lance.write_dataset(pa.table({"id": [2]}), namespace_client=namespace, table_id=["a", "t"], mode="append")
        read = lance.dataset(namespace_client=namespace, table_id=["a", "t"])
        assert sorted(read.to_table()["id"].to_pylist()) == [1, 2]
    assert lake.catalog.open("a.t").count_rows() == 2


DENIED = r"AccessDenied|403"


def test_vended_credentials_reach_one_table_of_an_enforcing_server(
    moto_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforcing = Enforcing(monkeypatch)
    with s3_front(moto_endpoint, enforcing.answer) as endpoint:
        lake = Lake(moto_endpoint, tmp_path, through=endpoint)
        lake.catalog.write("a.neighbour", pa.table({"id": [9]}))
        neighbour = lake.catalog.describe_table("a.neighbour").uri
        with running(lake.app) as uri:
            vended: dict[str, dict[str, str]] = {}
            for who in ("reader", "writer"):
                namespace = RestNamespace(uri=uri, **{"header.x-api-key": lake.keys[who]})
                dataset = lance.dataset(namespace_client=namespace, table_id=["a", "t"])
                assert dataset.to_table()["id"].to_pylist() == [1]
                described = namespace.describe_table(DescribeTableRequest(id=["a", "t"]))
                vended[who] = described.storage_options or {}
                with pytest.raises((OSError, ValueError), match=DENIED):
                    lance.dataset(neighbour, storage_options=vended[who]).to_table()
                with pytest.raises((OSError, ValueError), match=DENIED):
                    lance.write_dataset(pa.table({"id": [6]}), neighbour, mode="append", storage_options=vended[who])
            assert enforcing.refused
            append: dict[str, Any] = {"table_id": ["a", "t"], "mode": "append"}
            namespace = RestNamespace(uri=uri, **{"header.x-api-key": lake.keys["reader"]})
            with pytest.raises((OSError, ValueError), match=DENIED):
                lance.write_dataset(pa.table({"id": [2]}), namespace_client=namespace, **append)
            namespace = RestNamespace(uri=uri, **{"header.x-api-key": lake.keys["writer"]})
            lance.write_dataset(pa.table({"id": [3]}), namespace_client=namespace, **append)
            objects = boto3.client(
                "s3",
                endpoint_url=endpoint,
                region_name="us-east-1",
                aws_access_key_id=vended["writer"]["aws_access_key_id"],
                aws_secret_access_key=vended["writer"]["aws_secret_access_key"],
                aws_session_token=vended["writer"]["aws_session_token"],
            )
            bucket_name, _, prefix = neighbour.removeprefix("s3://").partition("/")
            own = lake.catalog.describe_table("a.t").uri.removeprefix(f"s3://{bucket_name}/")
            with pytest.raises(ClientError, match=DENIED):
                objects.list_objects_v2(Bucket=bucket_name, Prefix=prefix)
            [listed, *_] = objects.list_objects_v2(Bucket=bucket_name, Prefix=f"{own}/data/")["Contents"]
            with pytest.raises(ClientError, match=DENIED):
                objects.delete_object(Bucket=bucket_name, Key=listed["Key"])
        rows = {
            name: lance.dataset(lake.catalog.describe_table(name).uri, storage_options=lake.options).to_table()["id"]
            for name in ("a.t", "a.neighbour")
        }
        assert {name: sorted(found.to_pylist()) for name, found in rows.items()} == {"a.t": [1, 3], "a.neighbour": [9]}
        lake.catalog.close()


def test_a_write_that_outlives_its_credentials_continues_with_new_ones(
    moto_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage refuses the first credentials while the rows are written."""
    enforcing = Enforcing(monkeypatch)
    vended: list[str] = []

    def short_lived(self: StsVendor, *arguments: Any) -> Mapping[str, str]:
        options = unremembered(self, *arguments)
        vended.append(options["aws_access_key_id"])
        return options if enforcing.expired else {**options, "expires_at_millis": "1"}

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            yield pa.record_batch({"id": [number]})
        enforcing.expired.update(vended)

    monkeypatch.setattr(StsVendor, "vend", short_lived)
    with s3_front(moto_endpoint, enforcing.answer) as endpoint:
        lake = Lake(moto_endpoint, tmp_path, through=endpoint)
        with running(lake.app) as uri:
            namespace = RestNamespace(uri=uri, **{"header.x-api-key": lake.keys["writer"]})
            rows = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
            lance.write_dataset(rows, namespace_client=namespace, table_id=["a", "t"], mode="append")
        assert set(vended) > enforcing.expired > set()
        found = lance.dataset(lake.catalog.describe_table("a.t").uri, storage_options=lake.options).to_table()
        assert sorted(found["id"].to_pylist()) == [0, 1, 1, 2, 3, 4]
        lake.catalog.close()


def test_a_catalog_over_a_server_renews_its_credentials(
    moto_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage refuses the credentials with which the catalog has opened the table."""
    enforcing = Enforcing(monkeypatch)

    def short_lived(self: StsVendor, *arguments: Any) -> Mapping[str, str]:
        options = unremembered(self, *arguments)
        return options if enforcing.expired else {**options, "expires_at_millis": "1"}

    monkeypatch.setattr(StsVendor, "vend", short_lived)
    with s3_front(moto_endpoint, enforcing.answer) as endpoint:
        lake = Lake(moto_endpoint, tmp_path, through=endpoint)
        with running(lake.app) as uri, lancekeep.connect(uri, api_key=lake.keys["writer"]) as catalog:
            dataset = catalog.open("a.t")
            catalog.write("a.t", pa.table({"id": [2]}), "append")
            enforcing.expired.update(enforcing.policies)
            assert dataset.to_table()["id"].to_pylist() == [1]
            dataset.insert(pa.table({"id": [3]}), mode="append")
        found = lance.dataset(lake.catalog.describe_table("a.t").uri, storage_options=lake.options).to_table()
        assert sorted(found["id"].to_pylist()) == [1, 2, 3]
        lake.catalog.close()
