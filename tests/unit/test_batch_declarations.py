"""Remote storage reserves the directories of a batch of declarations several at a time."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest
from memory_catalogs import World

from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.tables import Declaration
from lancekeep.domain.catalog import ManifestStoreGuarantees
from lancekeep.domain.errors import TableAlreadyExists
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import RESERVED_MARKER

NAMES = [f"t{number}" for number in range(8)]


class Remote(MemoryObjectStore):
    def __init__(self, **settings: Any) -> None:
        super().__init__("s3://somewhere/", **settings)


class Meeting(Remote):
    """Answers no reservation before eight have been asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.barrier = Barrier(len(NAMES))

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if key.endswith(RESERVED_MARKER):
            self.barrier.wait(60)
        return super().put_if_absent(key, content)


class Racing(Remote):
    """Lets another writer reserve the directory of one table first."""

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if key.endswith(f"_{NAMES[3]}/{RESERVED_MARKER}"):
            super().put_if_absent(key, b"another writer")
        return super().put_if_absent(key, content)


def declare(world: World) -> list[str]:
    tables = directory_of(world.catalog).tables
    declared, _ = tables.declare_and_deregister([Declaration(ObjectId.of(name)) for name in NAMES], [])
    return [str(each.id) for each in declared]


def test_directories_of_a_batch_are_reserved_at_the_same_time_and_answered_in_order() -> None:
    world = World(ManifestStoreGuarantees(), store=Meeting)
    assert declare(world) == NAMES
    assert world.tables() == NAMES


def test_a_batch_that_loses_one_directory_releases_the_others() -> None:
    world = World(ManifestStoreGuarantees(), store=Racing)
    with pytest.raises(TableAlreadyExists, match=f"another writer has just taken .*_{NAMES[3]}'"):
        declare(world)
    assert world.tables() == []
    (left,) = world.stored()
    assert left.endswith(f"_{NAMES[3]}/{RESERVED_MARKER}")
