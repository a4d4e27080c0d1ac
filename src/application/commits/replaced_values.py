"""Keep indexes right whose values a change replaces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lancekeep.application.commits.keyed_requests import performing
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.table_structure import StructureEngine

_LOG = logging.getLogger(__name__)


class WatchedChange:
    """A native change that notes which indexes have entries of replaced values.

    The commit empties these indexes, so that searches scan the rows until `settle` has filled the indexes again.

    Attributes:
        outdated: The names of the indexes, after the change.
        read: The version that the change read.
        is_overtaken: Whether the change creates indexes, and other writers have committed versions during the build.
    """

    def __init__(self, engine: StructureEngine, act: Callable[[Any], Any], *, indexes: bool = False) -> None:
        self._engine = engine
        self._act = act
        self._indexes = indexes
        self.outdated: Sequence[str] = ()
        self.read = 0
        self.is_overtaken = False

    def __call__(self, dataset: Any) -> Any:
        self.read, before = dataset.version, self._engine.coverage(dataset)
        changed = self._act(dataset)
        self.outdated = self._engine.outdated(before, changed)
        self.is_overtaken = self._indexes and changed.version > self.read + 1
        return changed

    def settle(self, object_id: ObjectId, commit: Callable[[Callable[[Any], Any]], object]) -> None:
        """Fill the indexes.

        If that fails, the change stays committed, and `Upkeep.maintain` fills them later.

        Args:
            object_id: The table.
            commit: Commits a native change.
        """
        if not self.outdated and not self.is_overtaken:
            return
        try:
            with performing(None):  # it is not the effect of a request
                commit(self._fill)
        except LancekeepError as error:
            _LOG.warning("%s: indexes stay empty until `maintain` has run: %s", object_id, error)

    def _fill(self, dataset: Any) -> Any:
        names = {*self.outdated, *self._engine.emptied_indexes(dataset)}
        return self._engine.merge_indexes(dataset, sorted(names)) if names else dataset
