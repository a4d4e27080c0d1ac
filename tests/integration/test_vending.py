"""Temporary credentials for one table, from the token service of moto."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from lance.namespace import RestNamespace
from rest_server import running
from starlette.testclient import TestClient

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.credential_vendors.sts import Role, StsVendor, session_policy
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ROLE = "arn:aws:iam::123456789012:role/lancekeep"
POLICY = """
[[grants]]
role = "read"
on = "a"
principals = ["key:reader"]

[[grants]]
role = "write"
on = "a"
principals = ["key:writer"]

[[grants]]
role = "read"
on = ""
principals = ["key:auditor"]
"""


class Now:
    """A clock that the test sets."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def permits(policy: Mapping[str, Any], action: str, resource: str, prefix: str | None = None) -> bool:
    """Evaluate a policy as IAM does, as far as session policies of Lancekeep need it."""
    for statement in policy["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        if (
            action in actions
            and any(matches(each, resource) for each in resources)
            and (wanted is None or (prefix is not None and any(matches(each, prefix) for each in wanted)))
        ):
            return True
    return False


def matches(pattern: str, text: str) -> bool:
    parts = re.findall(r"\$\{[*?$]\}|.", pattern, re.DOTALL)
    wildcards = {"*": ".*", "?": "."}
    regex = "".join(wildcards.get(part) or re.escape(part[2] if len(part) > 1 else part) for part in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


OBJECT = "arn:aws:s3:::lake/"


@pytest.mark.parametrize(
    ("action", "permitted"),
    [
        (Action.READ, {"s3:GetObject"}),
        (Action.WRITE, {"s3:GetObject", "s3:PutObject"}),
        (Action.ADMIN, {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}),
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


class Lake:
    """A catalog on S3 whose server vends credentials."""

    def __init__(self, moto_endpoint: str, folder: Path) -> None:
        self.endpoint = moto_endpoint
        self.options = s3_options(moto_endpoint)
        root = f"s3://{bucket(moto_endpoint)}/lake"
        self.catalog = lancekeep.connect(root, storage_options=self.options, commit_store=f"sqlite:///{folder}/c.db")
        self.catalog.create_namespace("a")
        self.catalog.write("a.t", pa.table({"id": [1]}))
        keys = KeyFile(folder / "keys.json")
        self.keys = {name: keys.create(name)[1] for name in ("reader", "writer", "auditor")}
        (folder / "policy.toml").write_text(POLICY)
        settings = ServerSettings(
            log_level="error",
            keys=str(keys.path),
            policy=str(folder / "policy.toml"),
            vending={"role_arn": ROLE, "duration": 900, "endpoint": moto_endpoint},
        )
        security = security_of(settings, self.options, self.catalog.versions.base_paths)
        namespace = CatalogNamespace(self.catalog)
        self.app = create_app(namespace, settings, around=security.around, middleware=security.middleware)


@pytest.fixture
def lake(moto_endpoint: str, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(moto_endpoint, tmp_path)
    with lake.catalog:
        yield lake


def test_a_server_vends_credentials_by_role(lake: Lake) -> None:
    own = {lake.options[name] for name in lake.options if "key" in name}
    with TestClient(lake.app) as client:
        for who in ("reader", "writer"):
            headers = {"x-api-key": lake.keys[who]}
            for body in ({}, {"vend_credentials": True}):
                options = client.post("/v1/table/a$t/describe", headers=headers, json=body).json()["storage_options"]
                assert int(options["expires_at_millis"]) > 0
                assert not own & set(options.values())
            answer = client.post("/v1/table/a$t/describe", headers=headers, json={"vend_credentials": False})
            assert answer.json().get("storage_options") is None
        answer = client.post("/v1/table/a$new/declare", headers={"x-api-key": lake.keys["writer"]}, json={})
        assert answer.json()["storage_options"]["aws_session_token"]


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


def test_a_write_outlives_its_credentials(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that expire during the write are renewed by describe_table."""
    asked: list[float] = []
    original = StsVendor.vend

    def short_lived(self: StsVendor, *arguments: Any) -> Mapping[str, str]:
        asked.append(1)
        options = dict(original(self, *arguments))
        return {**options, "expires_at_millis": "1"} if len(asked) <= 2 else options  # expired at once

    monkeypatch.setattr(StsVendor, "vend", short_lived)
    with running(lake.app) as uri:
        namespace = RestNamespace(uri=uri, **{"header.x-api-key": lake.keys["writer"]})
        batches = pa.RecordBatchReader.from_batches(
            pa.schema([("id", pa.int64())]), (pa.record_batch({"id": [number]}) for number in range(5))
        )
        lance.write_dataset(batches, namespace_client=namespace, table_id=["a", "t"], mode="append")
    assert len(asked) > 2
    assert lake.catalog.open("a.t").count_rows() == 6
