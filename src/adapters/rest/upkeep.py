"""The maintenance of a served catalog, which the protocol does not have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.application.upkeep.service import Upkeep

P = ParamSpec("P")
Result = TypeVar("Result")


def _refused(method: Callable[Concatenate[Upkeep, P], Result]) -> Callable[Concatenate[RestUpkeep, P], Result]:
    """Return a method with the same signature that names its operation."""

    @functools.wraps(method)
    def refuse(self: RestUpkeep, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        raise NoDirectory.at(self._uri, method.__name__)

    return refuse


class RestUpkeep:
    """Refuses each operation: maintenance works on the files of a catalog.

    Args:
        uri: The server.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    fsck = _refused(Upkeep.fsck)
    cleanup = _refused(Upkeep.cleanup)
    relocate = _refused(Upkeep.relocate)
    move_fragments = _refused(Upkeep.move_fragments)
    identity = _refused(Upkeep.identity)
    adopt_identity = _refused(Upkeep.adopt_identity)
    maintain = _refused(Upkeep.maintain)
    migrate = _refused(Upkeep.migrate)
    migrate_manifest_names = _refused(Upkeep.migrate_manifest_names)
    optimize = _refused(Upkeep.optimize)
    change_commit_store = _refused(Upkeep.change_commit_store)
