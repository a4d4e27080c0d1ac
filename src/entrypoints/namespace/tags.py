"""The operations on tags and branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import lance_namespace as api
from lance_namespace_urllib3_client.models.branch_contents import BranchContents
from lance_namespace_urllib3_client.models.tag_contents import TagContents

from lancekeep.adapters.lance.callbacks import checked_limit
from lancekeep.domain.catalog import page
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import MAIN, Operations, branch_of, id_of

Value = TypeVar("Value")


class TagOperations(Operations):
    """Create, move, list and delete tags; create, list and delete branches.

    Neither is a version, so the optional ``transaction_id`` of a response is left out.
    """

    @operation
    def list_table_tags(self, request: api.ListTableTagsRequest) -> api.ListTableTagsResponse:
        """List tags by name; the page token is the last name of a page."""
        tags, token = _page(self._catalog.tags.list(id_of(request)), request)
        return api.ListTableTagsResponse(
            tags={
                name: TagContents(branch=tag.branch, version=tag.version, manifestSize=tag.manifest_size)
                for name, tag in tags.items()
            },
            page_token=token,
        )

    @operation
    def get_table_tag_version(self, request: api.GetTableTagVersionRequest) -> api.GetTableTagVersionResponse:
        tag = self._catalog.tags.get(id_of(request), request.tag)
        return api.GetTableTagVersionResponse(version=tag.version, branch=tag.branch)

    @operation
    def create_table_tag(self, request: api.CreateTableTagRequest) -> api.CreateTableTagResponse:
        self._catalog.tags.create(id_of(request), request.tag, request.version, branch_of(request))
        return api.CreateTableTagResponse()

    @operation
    def update_table_tag(self, request: api.UpdateTableTagRequest) -> api.UpdateTableTagResponse:
        self._catalog.tags.update(id_of(request), request.tag, request.version, branch_of(request))
        return api.UpdateTableTagResponse()

    @operation
    def delete_table_tag(self, request: api.DeleteTableTagRequest) -> api.DeleteTableTagResponse:
        self._catalog.tags.delete(id_of(request), request.tag)
        return api.DeleteTableTagResponse()

    @operation
    def list_table_branches(self, request: api.ListTableBranchesRequest) -> api.ListTableBranchesResponse:
        """List branches by name; the page token is the last name of a page."""
        branches, token = _page(self._catalog.branches.list(id_of(request)), request)
        return api.ListTableBranchesResponse(
            branches={
                name: BranchContents(
                    parentBranch=branch.parent,
                    parentVersion=branch.version,
                    createAt=branch.created,
                    manifestSize=branch.manifest_size,
                    metadata=dict(branch.metadata) or None,
                )
                for name, branch in branches.items()
            },
            page_token=token,
        )

    @operation
    def create_table_branch(self, request: api.CreateTableBranchRequest) -> api.CreateTableBranchResponse:
        if request.name in ("", MAIN):
            raise InvalidInput(f"{request.name!r} is no name of a branch; {MAIN!r} is the main history")
        source = None if request.from_branch in (None, "", MAIN) else request.from_branch
        self._catalog.branches.create(id_of(request), request.name, source, request.from_version)
        return api.CreateTableBranchResponse()

    @operation
    def delete_table_branch(self, request: api.DeleteTableBranchRequest) -> api.DeleteTableBranchResponse:
        self._catalog.branches.delete(id_of(request), request.name)
        return api.DeleteTableBranchResponse()


def _page(found: Mapping[str, Value], request: Any) -> tuple[dict[str, Value], str | None]:
    names, token = page(sorted(found), request.page_token or None, checked_limit(request.limit))
    return {name: found[name] for name in names}, token
