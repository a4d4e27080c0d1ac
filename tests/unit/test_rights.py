"""The rights of a policy: every operation has one, the roles mean what they meant, and unknown names are refused."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import lance_namespace as api
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.adapters.rest.routes import EXTENSIONS, LEGACY_ROUTES, ROUTES, AlterRequest
from lancekeep.domain.authorization import Decision, Grant, Policy, Principal
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import (
    BATCHES,
    INCLUDED,
    OPERATIONS,
    RIGHT_OF,
    ROLES,
    SINGLE,
    Permission,
    Right,
    granted,
    name_of,
    role_of,
)
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.rest.security.permissions import gained, needs, plain_needs

ADA = Principal("key:ada")

OF_ROLE = {
    "read": """
        list_operations list_namespaces list_tables list_all_tables list_dropped_tables describe_namespace
        namespace_exists describe_table table_exists list_table_versions describe_table_version get_table_stats
        count_table_rows query_table explain_table_query_plan analyze_table_query_plan list_table_indices
        describe_table_index_stats list_table_tags get_table_tag_version list_table_branches describe_transaction
        list_events list_quotas
    """,
    "write": """
        alter_namespace alter_table restore_table create_table_version insert_into_table merge_insert_into_table
        update_table delete_from_table alter_table_add_columns alter_table_alter_columns alter_table_drop_columns
        alter_table_backfill_columns update_table_schema_metadata update_field_metadata create_table_index
        create_table_scalar_index drop_table_index create_table_tag update_table_tag delete_table_tag
        create_table_branch delete_table_branch refresh_materialized_view create_namespace declare_table create_table
        create_empty_table register_table create_materialized_view
    """,
    "admin": """
        drop_namespace drop_table deregister_table batch_delete_table_versions rename_table undrop_table purge_table
        protect_object unprotect_object alter_transaction
    """,
}
ROLE_OF = {operation: role for role, operations in OF_ROLE.items() for operation in operations.split()}
"""The weakest role that each operation needed on its object before policies could name rights."""


def test_every_operation_has_a_right() -> None:
    interface = {
        name
        for name, _ in inspect.getmembers(api.LanceNamespace, inspect.isfunction)
        if not name.startswith("_") and name not in ("namespace_id", "retrieve_ops_metrics", "reset_ops_metrics")
    }
    routed = {route.operation for route in (*ROUTES, *EXTENSIONS, *LEGACY_ROUTES)}
    assert interface | routed == set(RIGHT_OF) | set(BATCHES)
    assert sum(map(len, OPERATIONS.values())) == len(RIGHT_OF)
    assert set(OPERATIONS) == set(Right)
    assert {member for members in BATCHES.values() for member in members} <= set(RIGHT_OF)


@pytest.mark.parametrize("operation", sorted(RIGHT_OF))
def test_roles_permit_what_they_permitted(operation: str) -> None:
    roles = list(ROLES)
    for role, rights in ROLES.items():
        policy = Policy((Grant(rights, ObjectId.of("ml"), frozenset({ADA.name})),))
        decisions = {
            policy.decide(ADA, need.permission, need.object_id) for need in plain_needs(operation, ObjectId.of("ml.t"))
        }
        allowed = roles.index(role) >= roles.index(ROLE_OF[operation])
        assert (decisions == {Decision.ALLOWED}) == allowed
    assert set(ROLES["read"]) < set(ROLES["write"]) < set(ROLES["admin"]) == set(Right)


def test_modes_of_roles_are_what_they_were() -> None:
    """What a mode or a property needs besides, a role has if it had the operation with this mode."""
    write = [
        ("create_table", api.CreateTableRequest(id=["t"], mode="overwrite")),
        ("create_table", api.CreateTableRequest(id=["t"], mode="exist_ok")),
        ("insert_into_table", api.InsertIntoTableRequest(id=["t"], mode="overwrite")),
        ("create_namespace", api.CreateNamespaceRequest(id=["t"], mode="exist_ok")),
        ("refresh_materialized_view", api.RefreshMaterializedViewRequest(id=["t"], src_version=1)),
        ("alter_table", AlterRequest(id=["t"], properties={"lancekeep.maintenance": "auto"})),
        ("merge_insert_into_table", api.MergeInsertIntoTableRequest(id=["t"], when_not_matched_insert_all=True)),
    ]
    admin = [
        ("create_namespace", api.CreateNamespaceRequest(id=["t"], mode="overwrite")),
        ("drop_table", api.DropTableRequest(id=["t"], context={"lancekeep.keep": "0"})),
    ]
    for role, requests in (("write", write), ("admin", admin)):
        for operation, request in requests:
            assert max(map(role_of, (each.right for each in needs(operation, request))), key=list(ROLES).index) == role


@pytest.mark.parametrize(
    ("flags", "rights"),
    [
        ({"when_not_matched_insert_all": True}, ["append", "read"]),
        ({"when_not_matched_insert_all": True, "when_matched_update_all": False}, ["append", "read"]),
        ({"when_not_matched_insert_all": True, "when_matched_update_all": True}, ["append", "change", "read"]),
        ({"when_not_matched_insert_all": True, "when_matched_update_all_filt": ""}, ["append", "change", "read"]),
        ({"when_not_matched_insert_all": True, "when_not_matched_by_source_delete_filt": "x"}, None),
        ({"when_not_matched_insert_all": True, "when_not_matched_by_source_delete": True}, None),
        ({"when_matched_update_all": True}, ["change", "read"]),
        ({}, ["change", "read"]),
    ],
)
def test_a_merge_that_only_inserts_appends(flags: dict[str, object], rights: list[str] | None) -> None:
    request = api.MergeInsertIntoTableRequest.model_validate({"id": ["t"], "on": ["id"], **flags})
    found = [each.right for each in needs("merge_insert_into_table", request)]
    assert found == (rights or ["append", "change", "read"])


def test_a_commit_includes_every_change_of_a_table() -> None:
    changing = {Right.APPEND, Right.CHANGE, Right.SCHEMA, Right.INDEX, Right.TAG, Right.BRANCH, Right.RESTORE}
    assert INCLUDED[Right.COMMIT] == changing | {Right.READ}
    assert granted(["commit"]) == {Right.CONNECT, Right.COMMIT, Right.READ, *changing}


def test_a_single_operation_permits_no_other_of_its_right() -> None:
    found = granted(["CreateTableTag"])
    assert found == {Right.CONNECT, "CreateTableTag"}
    assert Permission(Right.TAG, "CreateTableTag").is_in(found)
    assert not Permission(Right.TAG, "DeleteTableTag").is_in(found)
    assert not Permission(Right.TAG).is_in(found)
    assert set(SINGLE) == {name_of(each) for each in RIGHT_OF}


def test_a_move_gains_what_the_target_has_and_the_source_lacks() -> None:
    assert gained(granted(["drop", "tag"]), granted(["drop", "read", "CreateTableTag"])) == ["read"]
    assert gained(ROLES["admin"], granted(["read", "DropTable"])) == []
    assert gained(granted(["CreateTableTag"]), granted(["tag"])) == ["tag"]


def test_subtrees_unite_the_rights_of_several_grants() -> None:
    def grant(on: str, *names: str) -> Grant:
        return Grant(granted(names), ObjectId.of(on), frozenset({ADA.name}))

    policy = Policy((grant("ml", "read"), grant("ml.a", "list"), grant("ml.b", "describe"), grant("x", "list")))
    both = [Permission(Right.LIST), Permission(Right.READ)]
    assert [str(each) for each in policy.subtrees(ADA, ObjectId(), both)] == ["ml.a"]
    assert [str(each) for each in policy.subtrees(ADA, ObjectId(), both[:1])] == ["ml.a", "x"]
    assert [str(each) for each in policy.subtrees(ADA, ObjectId.of("ml.a.t"), both)] == ["ml.a.t"]
    assert policy.subtrees(ADA, ObjectId.of("ml.b"), both) == []


def test_a_policy_names_rights_and_operations(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[grants]]\nrights = ["append", "describe", "CreateTableTag"]\non = "ml"\nprincipals = ["key:ada"]\n'
        '[[grants]]\nrole = "read"\non = ""\nprincipals = ["*"]\n'
    )
    first, second = read_policy(path).grants
    assert first.rights == {"connect", "append", "describe", "CreateTableTag"}
    assert (first.title, first.role, first.number) == ("describe, append, CreateTableTag", None, 1)
    assert (second.title, second.role, second.number) == ("role read", "read", 2)


@pytest.mark.parametrize(
    ("rights", "message"),
    [
        ('["apend"]', "'apend' is neither a right nor an operation; the nearest is 'append'"),
        ('["DropTabel"]', "the nearest is 'DropTable'"),
        ('["drop_table"]', "the nearest is 'DropTable'"),
        ('["Read"]', "the nearest is 'read'"),
        ('["§"]', "the nearest is"),
        ('["write"]', "'write' is a role and no right; write role = 'write'"),
        ('["BatchCommitTables"]', "BatchCommitTables needs the rights of its members; name DeclareTable, "),
        ('["DescribeTables"]', "name DescribeTable"),
        ("[]", "rights is empty"),
        ('"read"', "give a list of names"),
        ('["read"]\nrole = "read"', "a role and rights"),
        ("[1]", "give a list of names"),
    ],
)
def test_unknown_rights_are_refused_when_the_policy_is_read(rights: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f'[[grants]]\nrights = {rights}\non = ""\nprincipals = ["key:ada"]\n')
    with pytest.raises(InvalidInput, match=re.escape(message)):
        read_policy(path)


@pytest.mark.parametrize(
    ("question", "code", "shown"),
    [
        ("key:ada InsertIntoTable ml.t", 0, "append: grant 1 grant 1: describe, append, CreateTableTag on ml"),
        ("key:ada DeleteTableTag ml.t", 1, "needs tag (role write) on ml.t, and has describe, append, CreateTableTag."),
        ("key:ada CreateTableTag ml.t", 0, "tag: grant 1"),
        ("key:ada UpdateTable ml.t", 1, "change: no grant read: no grant grant 1:"),
        ("key:ada ListTables ml", 1, "needs list (role read) on ml"),
        ("key:ada append ml.t", 0, "Allowed: key:ada may append ml.t."),
        ("key:ada write ml.t", 1, "needs list (role read) on ml.t"),
        ("key:bob append ml.t", 1, "has no right on ml.t"),
    ],
)
def test_the_command_explains_which_rights_and_grants_decide(
    question: str, code: int, shown: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[grants]]\nrights = ["append", "describe", "CreateTableTag"]\non = "ml"\nprincipals = ["key:ada"]\n'
    )
    result = CliRunner().invoke(command, ["policy", "test", str(path), *question.split()], obj=lancekeep)
    assert (result.exit_code, shown in " ".join(result.output.split())) == (code, True), result.output


def test_the_command_lists_the_rights() -> None:
    result = CliRunner().invoke(command, ["policy", "rights", "--json"], obj=lancekeep)
    listed = {each["right"]: (each["role"], each["operations"]) for each in json.loads(result.stdout)}
    assert listed == {
        right.value: (role_of(right), [name_of(each) for each in found]) for right, found in OPERATIONS.items()
    }
    assert "InsertIntoTable" in CliRunner().invoke(command, ["policy", "rights"], obj=lancekeep).output


def test_the_page_lists_the_rights_and_roles() -> None:
    text = (Path(__file__).parents[2] / "docs/security.md").read_text()

    def table(heading: str) -> dict[str, str]:
        rows = text.partition(f"| {heading} |\n")[2].partition("\n\n")[0]
        return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", rows, re.MULTILINE))

    listed = {right: re.findall("[A-Z][A-Za-z]+", found) for right, found in table("right | operations").items()}
    assert listed == {right.value: [name_of(each) for each in found] for right, found in OPERATIONS.items()}
    weaker: set[str] = {Right.CONNECT}
    for (role, rights), (name, found) in zip(ROLES.items(), table("role | rights").items(), strict=True):
        assert (role, sorted(rights - weaker)) == (name, sorted(re.findall(r"`(\w+)`", found)))
        weaker |= rights
