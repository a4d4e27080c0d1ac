"""The namespace that pylance calls back for tables of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lancekeep.adapters.lance.callbacks import Answer, Described, Request, callback
from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.domain.commit_token import CommitToken, CommitUnknown, StagedManifest
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.ports.catalog_server import CatalogServer


class ServedNamespace:
    """The operations that pylance needs for a table of a server.

    Each commit carries the idempotency key of its staged manifest, so a retry of any process is the same commit.

    Args:
        server: The server.
        describe: Describes a table, with the storage options that the server vends.
        commit_key: Returns the idempotency key of the commit of a staged manifest, by its path.
    """

    def __init__(
        self,
        server: CatalogServer,
        describe: Callable[[Mapping[str, Any]], dict[str, Any]],
        commit_key: Callable[[str], str],
    ) -> None:
        self._server = server
        self._describe = describe
        self._commit_key = commit_key

    def namespace_id(self) -> str:
        return f"lancekeep {self._server.uri}"

    @translating
    def describe_table(self, request: Any) -> Described:
        """Return where a table is, with the storage options that the server vends for it."""
        fields: Request = request if isinstance(request, Mapping) else vars(request)
        found = self._describe({"id": fields["id"], "version": fields.get("version")})
        return Described(found.get("location"), found.get("storage_options"), found.get("managed_versioning"))

    @callback
    def create_table_version(self, request: Request) -> Answer:
        """Commit a staged manifest.

        Native code ignores the answer: no exception means committed.
        """
        fields = {name: request.get(name) for name in _COMMIT_FIELDS}
        try:
            found = self._server.call("create_table_version", fields, key=self._commit_key(request["manifest_path"]))
        except StoreUnavailable as error:
            token = self._token(request)
            raise error if token is None else CommitUnknown(f"{error}", token) from error
        version = found.get("version") or {}
        return {
            "version": {
                "version": int(version.get("version") or request["version"]),
                "manifest_path": str(version.get("manifest_path") or request["manifest_path"]),
                "manifest_size": int(version.get("manifest_size") or request.get("manifest_size") or 0),
            }
        }

    @callback
    def describe_table_version(self, request: Request) -> Answer:
        """Return one version, by default the latest."""
        return self._server.call("describe_table_version", _given(request))

    @callback
    def list_table_versions(self, request: Request) -> Answer:
        """List versions."""
        return self._server.call("list_table_versions", _given(request))

    def _token(self, request: Request) -> CommitToken | None:
        """Return the token of a commit of unknown outcome; None without a location of the table."""
        try:
            location = str(self._server.call("describe_table", {"id": request["id"]})["location"])
        except (LancekeepError, KeyError):
            return None
        uri = location.rstrip("/") if "://" in location else f"file://{location.rstrip('/')}"
        path, branch = str(request["manifest_path"]), request.get("branch")
        key = path.rpartition(f"/{VERSIONS}/")[0]
        base = f"{uri}/{BRANCHES}/{branch}" if branch else uri
        if not unquote(urlsplit(base).path).endswith(f"/{key}"):
            return None
        begins = branch is not None or request["version"] == 1
        return CommitToken(StagedManifest(base, request["version"], path, request.get("manifest_size") or 1, begins))


_COMMIT_FIELDS = ("id", "version", "manifest_path", "manifest_size", "e_tag", "naming_scheme", "branch")


def _given(request: Request) -> dict[str, Any]:
    return {name: value for name, value in request.items() if value is not None}
