"""The operations on namespaces."""

from __future__ import annotations

import lance_namespace as api

from lancekeep.adapters.lance.callbacks import checked_limit
from lancekeep.domain import errors
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import Operations, choice, id_of, keep_of, namespace_mode


class NamespaceOperations(Operations):
    """Create, describe, list and drop namespaces."""

    @operation
    def create_namespace(self, request: api.CreateNamespaceRequest) -> api.CreateNamespaceResponse:
        """Create a namespace; ``overwrite`` replaces an empty one and refuses any other."""
        mode = namespace_mode(request.mode)
        namespace = self._catalog.create_namespace(
            id_of(request), request.properties, exist_ok=mode == "exist_ok", overwrite=mode == "overwrite"
        )
        return api.CreateNamespaceResponse(properties=dict(namespace.properties))

    @operation
    def describe_namespace(self, request: api.DescribeNamespaceRequest) -> api.DescribeNamespaceResponse:
        return api.DescribeNamespaceResponse(
            properties=dict(self._catalog.describe_namespace(id_of(request)).properties)
        )

    @operation
    def namespace_exists(self, request: api.NamespaceExistsRequest) -> api.NamespaceExistsResponse:
        self._catalog.describe_namespace(id_of(request))
        return api.NamespaceExistsResponse()

    @operation
    def list_namespaces(self, request: api.ListNamespacesRequest) -> api.ListNamespacesResponse:
        names, token = self._parts.namespaces.page(
            id_of(request), NAMESPACE, request.page_token, checked_limit(request.limit)
        )
        return api.ListNamespacesResponse(namespaces=names, page_token=token)

    @operation
    def drop_namespace(self, request: api.DropNamespaceRequest) -> api.DropNamespaceResponse:
        skip = choice(request.mode, "mode", "fail", "skip") == "skip"
        cascade = choice(request.behavior, "behavior", "restrict", "cascade") == "cascade"
        try:
            dropped = self._catalog.drop_namespace(id_of(request), cascade=cascade, keep=keep_of(request))
        except errors.NamespaceNotFound:
            if not skip:
                raise
            return api.DropNamespaceResponse()
        return api.DropNamespaceResponse(properties=dict(dropped.properties))
