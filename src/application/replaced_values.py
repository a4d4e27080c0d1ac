"""Keep indexes right whose values a change replaces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lancekeep.application.keyed_requests import performing
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.table_structure import StructureEngine

_LOG = logging.getLogger(__name__)


class WatchedChange:
    """A native change that notes which indexes have entries of replaced values.

    Readers ignore such entries, until another segment of the index covers the new values.

    Attributes:
        outdated: The names of the indexes, after the change.
        read: The version that the change read.
    """

    def __init__(self, engine: StructureEngine, act: Callable[[Any], Any]) -> None:
        self._engine = engine
        self._act = act
        self.outdated: Sequence[str] = ()
        self.read = 0

    def __call__(self, dataset: Any) -> Any:
        self.read, before = dataset.version, self._engine.coverage(dataset)
        changed = self._act(dataset)
        self.outdated = self._engine.outdated(before, changed)
        return changed

    def settle(self, object_id: ObjectId, commit: Callable[[Callable[[Any], Any]], object]) -> None:
        """Merge the indexes.

        If that fails, the change stays committed, and `Catalog.maintain` merges them later.

        Args:
            object_id: The table.
            commit: Commits a native change.
        """
        if not self.outdated:
            return
        try:
            with performing(None):  # it is not the effect of a request
                commit(lambda dataset: self._engine.merge_indexes(dataset, self.outdated))
        except LancekeepError as error:
            names = ", ".join(self.outdated)
            _LOG.warning("%s: the indexes %s keep entries of replaced values: %s", object_id, names, error)
