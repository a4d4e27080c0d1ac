"""The maintenance of a served catalog, which the protocol does not have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.application.upkeep.service import Upkeep
from lancekeep.domain.authorization import Quota
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.ports.catalog_server import CatalogServer

P = ParamSpec("P")
Result = TypeVar("Result")


def _refused(method: Callable[Concatenate[Upkeep, P], Result]) -> Callable[Concatenate[RestUpkeep, P], Result]:
    """Return a method with the same signature that names its operation."""

    @functools.wraps(method)
    def refuse(self: RestUpkeep, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        raise NoDirectory.at(self._server.uri, method.__name__)

    return refuse


class RestUpkeep:
    """Compacts tables, lists quotas, and refuses what works on files.

    Args:
        server: The server.
        compactions: Compacts tables with the engine of this process.
    """

    def __init__(self, server: CatalogServer, compactions: Compactions) -> None:
        self._server = server
        self._compactions = compactions

    def quotas(self, policy: Sequence[Quota] | None = None) -> list[QuotaUsage]:
        """Return the quotas of the server; see `Upkeep.quotas`."""
        if policy is not None:
            raise InvalidInput(
                f"{self._server.uri} has a policy of its own; leave out the policy, to see how much of its quotas is "
                "used, or measure where the catalog's storage is configured"
            )
        return [QuotaUsage.parse(each) for each in self._server.call("list_quotas", {})["quotas"]]

    def compact(self, identifier: Identifier, *, target_rows: int = 1 << 20) -> Committed | None:
        """Compact a table; see `Upkeep.compact`."""
        return self._compactions.compact(ObjectId.of(identifier), target_rows)

    def commit_compaction(self, identifier: Identifier, rewritten: Sequence[Any]) -> Committed:
        """Commit rewritten fragments; see `Upkeep.commit_compaction`."""
        return self._compactions.commit(ObjectId.of(identifier), rewritten)

    fsck = _refused(Upkeep.fsck)
    cleanup = _refused(Upkeep.cleanup)
    direct_commits = _refused(Upkeep.direct_commits)
    relocate = _refused(Upkeep.relocate)
    move_fragments = _refused(Upkeep.move_fragments)
    identity = _refused(Upkeep.identity)
    adopt_identity = _refused(Upkeep.adopt_identity)
    maintain = _refused(Upkeep.maintain)
    migrate = _refused(Upkeep.migrate)
    migrate_manifest_names = _refused(Upkeep.migrate_manifest_names)
    materialize = _refused(Upkeep.materialize)
    export_manifest = _refused(Upkeep.export_manifest)
    optimize = _refused(Upkeep.optimize)
    change_commit_store = _refused(Upkeep.change_commit_store)
