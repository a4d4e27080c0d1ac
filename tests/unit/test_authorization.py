"""The decisions of a policy, the policy file, and the permissions of operations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import lance_namespace as api
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.adapters.authorization.policy_file import PolicyFile, read_policy
from lancekeep.adapters.rest.routes import DescribeTablesRequest
from lancekeep.domain.authorization import EVERYONE, Decision, Grant, Policy, Principal
from lancekeep.domain.bounds import MOST_TOGETHER
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import ROLES, Permission, Right, permission_of
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.namespace.extensions import MOST_TABLES
from lancekeep.entrypoints.rest.security.permissions import Kind, Need, needs

ADA = Principal("key:ada", frozenset({"engineers"}))
BOB = Principal("key:bob")
READ, WRITE, ADMIN = (Permission(each) for each in (Right.READ, Right.COMMIT, Right.DROP))
"""A permission that each role has, and no weaker one."""
ALLOWED, DENIED, HIDDEN = Decision.ALLOWED, Decision.DENIED, Decision.HIDDEN
ROOT = Need(Permission(Right.ADMINISTER), ObjectId(), Kind.NAMESPACE)

POLICY = """
[[grants]]
role = "write"
on = "ml.features"
principals = ["key:ada"]

[[grants]]
role = "read"
on = ["ml"]
groups = ["engineers"]
"""


def of(text: str) -> ObjectId:
    return ObjectId.of(text)


def grant(role: str, on: str, *principals: str) -> Grant:
    return Grant(ROLES[role], of(on), frozenset(principals))


def need(operation: str, name: str, kind: Kind, right: Right | None = None) -> Need:
    """Return what an operation needs on an object, or a right that it needs besides and its name does not permit."""
    return Need(permission_of(operation) if right is None else Permission(right), of(name), kind)


def test_a_role_covers_its_subtree_and_weaker_roles() -> None:
    policy = Policy((grant("write", "ml.a", ADA.name),))
    for name in ("ml.a", "ml.a.b"):
        assert [policy.decide(ADA, action, of(name)) for action in (READ, WRITE, ADMIN)] == [ALLOWED, ALLOWED, DENIED]
    for name in ("", "ml", "ml.b", "ml.ab", "a"):
        assert [policy.decide(ADA, action, of(name)) for action in (READ, WRITE, ADMIN)] == [HIDDEN] * 3
    assert policy.decide(BOB, READ, of("ml.a")) is HIDDEN


def test_listings_show_ancestors_of_permitted_objects_alone() -> None:
    policy = Policy((grant("read", "ml.a", ADA.name),))
    assert [name for name in ("", "ml", "ml.a", "ml.a.b", "ml.b", "other") if policy.sees(ADA, of(name))] == [
        "",
        "ml",
        "ml.a",
        "ml.a.b",
    ]
    assert not policy.sees(BOB, of(""))


def test_permitted_subtrees_are_the_widest_grants_below_an_object() -> None:
    names = ("ml.a", "ml.a.b", "ml.a!", "ml.c.d", "other")
    policy = Policy((*(grant("read", name, ADA.name) for name in names), grant("admin", "", BOB.name)))

    def subtrees(principal: Principal, name: str) -> list[str]:
        return [str(each) for each in policy.subtrees(principal, of(name), [Permission(Right.LIST)])]

    assert subtrees(ADA, "ml") == ["ml.a", "ml.a!", "ml.c.d"]
    assert subtrees(ADA, "") == ["ml.a", "ml.a!", "ml.c.d", "other"]
    assert subtrees(ADA, "ml.a.x") == ["ml.a.x"]
    assert subtrees(BOB, "ml") == ["ml"]
    assert subtrees(ADA, "foreign") == subtrees(Principal("key:eve"), "") == []


def test_the_strongest_grant_decides() -> None:
    policy = Policy((grant("read", "", EVERYONE), grant("admin", "ml", BOB.name)))
    assert policy.decide(ADA, WRITE, of("ml.a")) is DENIED
    assert policy.decide(BOB, ADMIN, of("ml.a")) is ALLOWED
    assert policy.decide(BOB, WRITE, of("other")) is DENIED


def test_a_policy_file_is_read_and_reloaded(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    policy = PolicyFile(path)
    assert policy.decide(ADA, WRITE, of("ml.features")) is ALLOWED
    assert policy.decide(ADA, WRITE, of("ml.other")) is DENIED
    path.write_text(POLICY + '\n[[grants]]\nrole = "admin"\non = ""\nprincipals = ["key:bob"]\n')
    assert policy.decide(BOB, ADMIN, of("anything")) is ALLOWED


@pytest.mark.parametrize(
    ("question", "code", "answer"),
    [
        ("key:ada write ml.features", 0, "Allowed: key:ada may write ml.features."),
        (
            "key:ada DropTable ml.features",
            1,
            "Refused: key:ada needs drop (role admin) on ml.features, and has role write.",
        ),
        ("key:bob DescribeTable ml.t", 1, "Refused: key:bob has no right on ml.t, which therefore looks absent to it."),
        ("key:bob query_table ml.t --group engineers", 0, "read: grant 2 grant 2: role read on ml for group engineers"),
        (
            "key:ada ListTables ml",
            0,
            "Allowed: key:ada may ListTables ml. list: grant 1 grant 1: role write on ml.features",
        ),
        ("key:ada ListTables other", 1, "has no right on other"),
        ("key:ada RenameTable ml.t", 2, "neither a right, a role nor an operation that needs rights on one object"),
    ],
)
def test_the_command_explains_a_decision(question: str, code: int, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    result = CliRunner().invoke(command, ["policy", "test", str(path), *question.split()], obj=lancekeep)
    assert (result.exit_code, answer in " ".join(result.output.split())) == (code, True), result.output
    if code < 2:
        as_json = CliRunner().invoke(command, ["policy", "test", str(path), *question.split(), "--json"], obj=lancekeep)
        assert (json.loads(as_json.stdout)["decision"] == "allowed") == (code == 0)


@pytest.mark.parametrize("how", ["invalid", "removed"])
def test_a_broken_policy_keeps_the_last_one_and_is_reported(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    policy = PolicyFile(path)
    path.write_text(POLICY.replace("write", "owner")) if how == "invalid" else os.remove(path)
    for _ in range(2):
        assert policy.decide(ADA, WRITE, of("ml.features")) is ALLOWED
    assert policy.problem is not None
    assert len([record for record in caplog.records if "stays in force" in record.getMessage()]) == 1
    path.write_text("# no grant\n")
    assert policy.decide(ADA, READ, of("ml.features")) is HIDDEN
    assert policy.problem is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("grant = []", "unknown key 'grant'"),
        ("grants = 1", r"\[\[grants\]\]"),
        ("[[grants]]\nrole='read'\non=''\nprincipals=['a']\nprincipal='b'", "unknown key 'principal'"),
        ("[[grants]]\nrole='owner'\non=''\nprincipals=['a']", "choose read, write, admin"),
        ("[[grants]]\nrole='read'\nprincipals=['a']", "on is missing"),
        ("[[grants]]\nrole='read'\non=''\nprincipals=['ada']", "'ada' has no kind; write 'key:ada' for an API key"),
        ("[[grants]]\nrole='read'\non='a..b'\nprincipals=['a']", "empty name"),
        ("[[grants]]\nrole='read'\non='a'", "no principal and no group"),
        ("[[grants]]\nrole='read'\non='a'\nprincipals='ada'", "give a list of names"),
        ("[[grants]\n", "not a TOML file"),
    ],
)
def test_an_invalid_policy_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        read_policy(path)


def test_an_unknown_operation_needs_the_whole_catalog() -> None:
    assert needs("new_operation", api.DropTableRequest(id=["a"])) == [ROOT]


def test_a_location_needs_the_whole_catalog() -> None:
    name = ["a", "t"]
    new = {each: need(each, "a.t", Kind.NEW) for each in ("declare_table", "register_table", "create_table")}
    assert needs("declare_table", api.DeclareTableRequest(id=name)) == [new["declare_table"]]
    request = api.DeclareTableRequest(id=name, location="b.lance")
    assert needs("declare_table", request) == [new["declare_table"], ROOT]
    registration = api.RegisterTableRequest(id=name, location="b.lance")
    assert needs("register_table", registration) == [new["register_table"], ROOT]
    creation = api.CreateTableRequest(id=name, storage_options={"endpoint": "x"})
    assert needs("create_table", creation) == [new["create_table"], ROOT]


@pytest.mark.parametrize("mode", ["overwrite", "Overwrite", "Over_Write"])
def test_to_replace_a_namespace_needs_what_its_drop_needs(mode: str) -> None:
    assert needs("create_namespace", api.CreateNamespaceRequest(id=["a"])) == [need("create_namespace", "a", Kind.NEW)]
    replaced = api.CreateNamespaceRequest(id=["a"], mode=mode)
    assert needs("create_namespace", replaced)[1:] == [need("", "a", Kind.NEW, Right.DROP)]


def test_a_rename_needs_source_and_target() -> None:
    def targets(namespace: list[str] | None) -> list[tuple[Right, ObjectId, Kind]]:
        request = api.RenameTableRequest(id=["a", "t"], new_table_name="u", new_namespace_id=namespace)
        source, target = needs("rename_table", request)
        assert source == need("rename_table", "a.t", Kind.TABLE)
        assert target.permission.operation == "RenameTable"
        return [(target.right, target.object_id, target.kind)]

    assert targets(["b"]) == [(Right.CREATE, of("b.u"), Kind.NEW)]
    assert targets([]) == [(Right.CREATE, of("u"), Kind.NEW)]
    assert targets(None) == [(Right.CREATE, of("a.u"), Kind.NEW)]


def test_a_batch_needs_the_permissions_of_every_member() -> None:
    version = api.CreateTableVersionRequest(id=["a"], version=2, manifest_path="p")
    batch = api.BatchCommitTablesRequest(
        operations=[
            api.CommitTableOperation(create_table_version=version),
            api.CommitTableOperation(deregister_table=api.DeregisterTableRequest(id=["b"])),
            api.CommitTableOperation(declare_table=api.DeclareTableRequest(id=["c"], location="b.lance")),
        ]
    )
    assert needs("batch_commit_tables", batch) == [
        need("create_table_version", "a", Kind.TABLE),
        need("deregister_table", "b", Kind.TABLE),
        need("declare_table", "c", Kind.NEW),
        ROOT,
    ]
    assert needs("batch_commit_tables", api.BatchCommitTablesRequest(operations=[])) == [ROOT]


def test_a_batch_that_is_too_long_is_refused_before_its_members_are_looked_at() -> None:
    versions = api.BatchCreateTableVersionsRequest.model_construct(entries=[None] * (MOST_TOGETHER + 1))
    operations = api.BatchCommitTablesRequest.model_construct(operations=[None] * (MOST_TOGETHER + 1))
    tables = DescribeTablesRequest.model_construct(ids=[None] * (MOST_TABLES + 1))
    for operation, batch, message in (
        ("batch_create_table_versions", versions, "entries has 1,001 entries"),
        ("batch_commit_tables", operations, "operations has 1,001 entries"),
        ("describe_tables", tables, "ids has 101 tables"),
    ):
        with pytest.raises(InvalidInput, match=message):
            needs(operation, batch)


def test_a_view_needs_its_source() -> None:
    def of_source(query: str) -> list[Need]:
        request = api.CreateMaterializedViewRequest(id=["v"], kind="query", source_query=query, output_schema="{}")
        return needs("create_materialized_view", request)

    new = need("create_materialized_view", "v", Kind.NEW)
    assert of_source('{"table": ["a", "t"]}') == [new, need("", "a.t", Kind.TABLE, Right.READ)]
    assert of_source('{"sql": "select * from secret"}') == [new, ROOT]
    for query in ("select 1", "[" * 100_000, '{"table": ' * 100_000):
        with pytest.raises(InvalidInput):
            of_source(query)
