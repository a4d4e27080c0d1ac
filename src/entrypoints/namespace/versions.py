"""The operations on versions of tables.

`CallbackNamespace` answers the requests of native code; the methods here answer the requests of callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import lance_namespace as api

from lancekeep.adapters.lance.callbacks import check_staged, page, signed
from lancekeep.application.rows.versions import NewVersion, raise_unless_committed
from lancekeep.domain import errors
from lancekeep.domain.bounds import require_few
from lancekeep.domain.commit import Committed
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import VersionRow
from lancekeep.entrypoints.namespace.boundary import native_operation, version_operation
from lancekeep.entrypoints.namespace.operations import Operations, id_of, members_of


class DescribedVersion(api.DescribeTableVersionResponse):
    """A described version.

    It is also read like the dict of the native namespace.
    """

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field of the answer as plain values."""
        return self.model_dump().get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.model_dump()[name]


VersionRequest = api.CreateTableVersionRequest | api.CreateTableVersionEntry


class VersionOperations(Operations):
    """Create, describe, list and delete versions."""

    @native_operation
    def create_table_version(self, request: api.CreateTableVersionRequest) -> api.CreateTableVersionResponse:
        """Commit a staged manifest.

        ``e_tag`` is not stored: a copy may have another ETag, so an ETag is no identity.
        """
        table = id_of(request)
        check_staged(request.manifest_path, request.naming_scheme, request.metadata)
        outcome = self._parts.versions.commit_to(
            table, request.branch, request.version, request.manifest_path, request.manifest_size
        )
        return api.CreateTableVersionResponse(version=_version(raise_unless_committed(outcome, str(table))))

    @version_operation
    def batch_create_table_versions(
        self, request: api.BatchCreateTableVersionsRequest
    ) -> api.BatchCreateTableVersionsResponse:
        """Commit all of the versions or none.

        Unsupported unless the commit store reserves several versions in one step.
        """
        return api.BatchCreateTableVersionsResponse(versions=self._create_versions(members_of(request, "entries")))

    @native_operation
    def describe_table_version(self, request: api.DescribeTableVersionRequest) -> api.DescribeTableVersionResponse:
        """Describe one version, by default the latest."""
        table = self._catalog.find_table(id_of(request))
        version = self._chosen(request, request.version, request.branch)
        root = self._root(table, request.branch)
        row = self._parts.commits.latest(root) if version is None else self._parts.commits.get(root, version)
        if row is None:
            self._require_branch(table, request.branch)
            raise errors.VersionNotFound(f"{root.base_uri} has no version {'yet' if version is None else version}")
        described = self._versions(root, [row])
        if not described:
            raise errors.VersionNotFound(f"{root.base_uri} has no version {version}: a clean-up has removed it")
        return DescribedVersion(version=described[0])

    @native_operation
    def list_table_versions(self, request: api.ListTableVersionsRequest) -> api.ListTableVersionsResponse:
        """List versions, the latest first unless ``descending`` is false."""
        table = self._catalog.find_table(id_of(request))
        root = self._root(table, request.branch)
        rows, token = page(self._parts.versions, root, request.limit, request.page_token, request.descending)
        if not rows:
            self._require_branch(table, request.branch)
        return api.ListTableVersionsResponse(versions=self._versions(root, rows), page_token=token)

    @version_operation
    def batch_delete_table_versions(
        self, request: api.BatchDeleteTableVersionsRequest
    ) -> api.BatchDeleteTableVersionsResponse:
        """Delete versions, rows and manifests; the latest version is refused."""
        require_few("ranges", request.ranges)
        table = self._catalog.find_table(id_of(request))
        root = self._root(table, request.branch)
        latest = self._parts.commits.latest(root)
        if latest is None:
            self._require_branch(table, request.branch)
        end = latest.version + 1 if latest else 0
        doomed: set[int] = set()
        for span in request.ranges:
            start, stop = span.start_version, span.end_version
            if start < 0 or stop < -1:
                raise errors.InvalidInput(f"{start}..{stop} is not a range of versions")
            doomed.update(range(start, end if stop == -1 else min(stop, end)))
        return api.BatchDeleteTableVersionsResponse(deleted_count=self._parts.versions.delete_versions(root, doomed))

    def _create_versions(self, requests: Sequence[VersionRequest]) -> list[api.TableVersion]:
        candidates = []
        for each in requests:
            table = self._catalog.find_table(id_of(each))
            check_staged(each.manifest_path, each.naming_scheme, each.metadata)
            candidates.append(NewVersion(table, each.version, each.manifest_path, each.manifest_size, each.branch))
        names = ", ".join(str(each.table.id) for each in candidates)
        committed = raise_unless_committed(self._parts.versions.commit_versions(candidates), names)
        return [_version(each) for each in committed.versions]

    def _versions(self, root: DatasetRoot, rows: Sequence[VersionRow]) -> list[api.TableVersion]:
        """Return the versions that exist, with their times, which cost one request."""
        dated = self._parts.commits.dated(root, rows)
        return [_version(row, None if moment is None else _millis(moment)) for row, moment in dated]


def _version(row: VersionRow | Committed, timestamp_millis: int | None = None) -> api.TableVersion:
    return api.TableVersion(
        version=signed(row.version), manifest_path=row.path, manifest_size=row.size, timestamp_millis=timestamp_millis
    )


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
