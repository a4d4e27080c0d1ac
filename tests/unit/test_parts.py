"""Test the parts of a catalog, which are made when they are first read."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest
from memory_catalogs import World

from lancekeep.application.bootstrap import DirectoryServices
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.parts import part
from lancekeep.application.upkeep.directory import Directory


def parts_of(owner: type) -> list[str]:
    return [name for name, value in vars(owner).items() if isinstance(value, part)]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner in (Directory, DirectoryServices, TableCommits) for name in parts_of(owner)],
)
def test_each_part_can_be_the_first(owner: type, name: str) -> None:
    catalog = World().catalog
    directory = directory_of(catalog)
    services: Any = services_of(catalog)
    holder: Any = {Directory: directory, DirectoryServices: services, TableCommits: directory.commits}[owner]
    assert vars(owner)[name].made(holder) is None
    made = getattr(holder, name)
    assert made is not None
    assert getattr(holder, name) is made is vars(owner)[name].made(holder)


def test_threads_get_one_part() -> None:
    together = Barrier(8)

    class Holder:
        @part
        def numbers(self) -> list[int]:
            """Made by all threads at once."""
            together.wait(10)
            return []

    holder = Holder()
    found: list[list[int]] = []
    threads = [Thread(target=lambda: found.append(holder.numbers)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert len(found) == 8


def test_closing_an_unused_catalog_makes_no_part() -> None:
    catalog = World().catalog
    directory = directory_of(catalog)
    catalog.close()
    assert [name for name in parts_of(Directory) if vars(Directory)[name].made(directory) is not None] == []
