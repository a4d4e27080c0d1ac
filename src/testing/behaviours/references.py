"""Behaviours of tags and branches."""

from __future__ import annotations

import lance
from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, Bench, Capability, claim
from lancekeep.testing.behaviours.registry import BRANCHES, OPERATION_404, TAGS, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add


def two_versions(bench: Bench) -> str:
    """Create a table with the rows [1, 2, 3] and then [4], and return its location."""
    location = bench.create("t").location
    bench.create("t", OTHERS, mode="Overwrite")
    return str(location)


@behaviour("tags/create", "CreateTableTag: Create a new tag for table `id` that points to a specific version.", TAGS)
def _create_tag(bench: Bench) -> None:
    location = two_versions(bench)
    bench.one.ask("create_table_tag", id=bench.at("t"), tag="first", version=1)
    found = bench.other.ask("get_table_tag_version", id=bench.at("t"), tag="first")
    claim((found.version, found.branch) == (1, None), "the tag points elsewhere")
    claim(lance.dataset(location, version="first").to_table()["a"].to_pylist() == [1, 2, 3], "Lance reads other rows")


@behaviour("tags/create-taken", "CreateTableTag: 9 (TableTagAlreadyExists).", TAGS)
def _create_tag_taken(bench: Bench) -> None:
    two_versions(bench)
    bench.one.ask("create_table_tag", id=bench.at("t"), tag="x", version=1)
    bench.other.refused("create_table_tag", errors.TableTagAlreadyExistsError, id=bench.at("t"), tag="x", version=2)
    claim(bench.one.ask("get_table_tag_version", id=bench.at("t"), tag="x").version == 1, "the tag has moved")


@behaviour("tags/create-missing-version", "CreateTableTag: 11 (TableVersionNotFound).", TAGS)
def _create_tag_of_missing_version(bench: Bench) -> None:
    two_versions(bench)
    bench.one.refused("create_table_tag", errors.TableVersionNotFoundError, id=bench.at("t"), tag="x", version=9)
    claim(bench.one.ask("list_table_tags", id=bench.at("t")).tags == {}, "the tag is created all the same")


@behaviour("tags/create-invalid", "CreateTableTag: 13 (InvalidInput).", TAGS)
def _create_tag_of_invalid_name(bench: Bench) -> None:
    two_versions(bench)
    for name in ("a/b", "..", "", "x.lock", "ü"):
        bench.one.refused("create_table_tag", errors.InvalidInputError, id=bench.at("t"), tag=name, version=1)


@behaviour("tags/move", "UpdateTableTag: Update an existing tag for table `id` to point to a different version.", TAGS)
def _move_tag(bench: Bench) -> None:
    location = two_versions(bench)
    bench.one.ask("create_table_tag", id=bench.at("t"), tag="x", version=1)
    bench.other.ask("update_table_tag", id=bench.at("t"), tag="x", version=2)
    claim(bench.one.ask("get_table_tag_version", id=bench.at("t"), tag="x").version == 2, "the tag has not moved")
    claim(lance.dataset(location, version="x").to_table()["a"].to_pylist() == [4], "Lance reads other rows")
    absent = errors.TableVersionNotFoundError
    bench.one.refused("update_table_tag", absent, id=bench.at("t"), tag="x", version=9)


@behaviour("tags/delete", "DeleteTableTag: Delete an existing tag from table `id`.", TAGS)
def _delete_tag(bench: Bench) -> None:
    location = two_versions(bench)
    bench.one.ask("create_table_tag", id=bench.at("t"), tag="x", version=1)
    bench.other.ask("delete_table_tag", id=bench.at("t"), tag="x")
    claim(lance.dataset(location).tags.list() == {}, "Lance still finds the tag")
    claim(bench.rows("t") == [4], "the table has other rows")


@behaviour("tags/missing", "GetTableTagVersion, UpdateTableTag, DeleteTableTag: 8 (TableTagNotFound).", TAGS)
def _missing_tag(bench: Bench) -> None:
    two_versions(bench)
    for operation, fields in (
        ("get_table_tag_version", {}),
        ("update_table_tag", {"version": 1}),
        ("delete_table_tag", {}),
    ):
        absent = errors.TableTagNotFoundError
        bench.one.refused(operation, absent, id=bench.at("t"), tag="missing", **fields)


@behaviour("tags/pages", "ListTableTags: List all tags that have been created for table `id`.", TAGS)
def _list_tags(bench: Bench) -> None:
    two_versions(bench)
    for number, name in enumerate(("b", "a", "c")):
        bench.one.ask("create_table_tag", id=bench.at("t"), tag=name, version=1 + number % 2)
    tags = bench.other.ask("list_table_tags", id=bench.at("t")).tags
    claim({name: tag.version for name, tag in tags.items()} == {"a": 2, "b": 1, "c": 1}, "not the tags")
    claim(all(tag.manifest_size > 0 for tag in tags.values()), "a tag has no size of its manifest")
    page = bench.other.ask("list_table_tags", id=bench.at("t"), limit=2)
    claim(len(page.tags) == 2 and page.page_token, "not the limit, or no page token")
    rest = bench.other.ask("list_table_tags", id=bench.at("t"), limit=2, page_token=page.page_token)
    claim({*page.tags, *rest.tags} == {"a", "b", "c"} and not rest.page_token, "the pages are not the whole")


def _missing_tables(capability: Capability, calls: dict[str, dict[str, object]]) -> None:
    for operation, fields in calls.items():

        @behaviour(f"{capability}/no-table-{operation.replace('_', '-')}", OPERATION_404, capability)
        def _missing(bench: Bench, operation: str = operation, fields: dict[str, object] = fields) -> None:
            bench.create("t")
            bench.one.refused(operation, errors.TableNotFoundError, id=bench.at("missing"), **fields)


_missing_tables(
    TAGS,
    {
        "list_table_tags": {},
        "get_table_tag_version": {"tag": "x"},
        "create_table_tag": {"tag": "x", "version": 1},
        "update_table_tag": {"tag": "x", "version": 1},
        "delete_table_tag": {"tag": "x"},
    },
)
_missing_tables(
    BRANCHES, {"list_table_branches": {}, "create_table_branch": {"name": "b"}, "delete_table_branch": {"name": "b"}}
)


@behaviour("branches/create", "CreateTableBranch: Create a new branch for table `id`.", BRANCHES)
def _create_branch(bench: Bench) -> None:
    location = two_versions(bench)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="latest")
    bench.one.ask("create_table_branch", id=bench.at("t"), name="first", from_version=1)
    branches = bench.other.ask("list_table_branches", id=bench.at("t")).branches
    claim({name: each.parent_version for name, each in branches.items()} == {"latest": 2, "first": 1}, "not these")
    for name, rows in (("latest", [4]), ("first", [1, 2, 3])):
        branch = lance.dataset(location).checkout_version((name, None))
        claim(branch.to_table()["a"].to_pylist() == rows, "Lance reads other rows on a branch")


@behaviour("branches/create-from-branch", "CreateTableBranchRequest.from_branch: Source branch to create the new "
           "branch from.", BRANCHES)  # fmt: skip
def _create_branch_from_branch(bench: Bench) -> None:
    two_versions(bench)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="b", from_version=1)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="c", from_branch="b")
    branch = bench.other.ask("list_table_branches", id=bench.at("t")).branches["c"]
    claim((branch.parent_branch, branch.parent_version) == ("b", 1), "it has another parent")


@behaviour("branches/create-taken", "CreateTableBranch: 23 (TableBranchAlreadyExists).", BRANCHES)
def _create_branch_taken(bench: Bench) -> None:
    two_versions(bench)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="b")
    taken = errors.TableBranchAlreadyExistsError
    bench.other.refused("create_table_branch", taken, id=bench.at("t"), name="b", from_version=1)


@behaviour("branches/create-from-missing", "CreateTableBranch: 11 (TableVersionNotFound), 22 (TableBranchNotFound).",
           BRANCHES)  # fmt: skip
def _create_branch_from_missing(bench: Bench) -> None:
    two_versions(bench)
    absent, no_branch = errors.TableVersionNotFoundError, errors.TableBranchNotFoundError
    bench.one.refused("create_table_branch", absent, id=bench.at("t"), name="b", from_version=9)
    bench.one.refused("create_table_branch", no_branch, id=bench.at("t"), name="b", from_branch="missing")
    claim(bench.one.ask("list_table_branches", id=bench.at("t")).branches == {}, "it is created all the same")


@behaviour("branches/delete", "DeleteTableBranch: Delete an existing branch from table `id`.", BRANCHES)
def _delete_branch(bench: Bench) -> None:
    two_versions(bench)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="b", from_version=1)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="c", from_version=1)
    bench.other.ask("delete_table_branch", id=bench.at("t"), name="b")
    claim(set(bench.one.ask("list_table_branches", id=bench.at("t")).branches) == {"c"}, "not the other branch")
    claim(bench.rows("t") == [4], "the table has other rows")
    bench.one.refused("delete_table_branch", errors.TableBranchNotFoundError, id=bench.at("t"), name="b")
    bench.one.ask("create_table_branch", id=bench.at("t"), name="b", from_version=2)
    again = bench.other.ask("list_table_branches", id=bench.at("t")).branches["b"]
    claim(again.parent_version == 2, "the branch cannot be created again")


@behaviour("branches/tag", "CreateTableTagRequest.branch: Branch to target.", BRANCHES, TAGS)
def _tag_on_branch(bench: Bench) -> None:
    two_versions(bench)
    bench.one.ask("create_table_branch", id=bench.at("t"), name="b", from_version=1)
    bench.one.ask("create_table_tag", id=bench.at("t"), tag="x", version=1, branch="b")
    found = bench.other.ask("get_table_tag_version", id=bench.at("t"), tag="x")
    claim((found.version, found.branch) == (1, "b"), "the tag points elsewhere")
    absent = errors.TableBranchNotFoundError
    bench.one.refused("create_table_tag", absent, id=bench.at("t"), tag="y", version=1, branch="missing")
