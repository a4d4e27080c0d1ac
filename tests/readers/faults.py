"""Deliberate faults, each with a short sequence of the machine's rules that finds it.

A fault switches one protection off where the product has it. ``steps`` are rules with their arguments. Each example
begins with the tables ``a`` and ``b``, and a handle of each in the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import attrs


@attrs.frozen
class Fault:
    """A protection that is off, and where the machine shows that it is missed.

    patches: attributes by their dotted names, and what takes their place. section: of the machine's ``AWAITED``.
    """

    section: str
    mode: str
    kind: str
    steps: tuple[str, ...]
    patches: Mapping[str, Any]
    foreign: bool = False

    @contextmanager
    def reintroduced(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, replacement in self.patches.items():
                stack.enter_context(patch(name, replacement))
            yield


def _nothing(*_: Any, **__: Any) -> tuple[()]:
    return ()


def _by_position(written: Any, manifest: Any, content: bytes) -> Any:
    """As ``table_data._message``, but columns are numbered in the order in which they were written."""
    file = type(written.fragments[0].files[0])()
    file.CopyFrom(written.fragments[0].files[0])
    file.file_size_bytes = len(content)
    return file


_CLONES = "lancekeep.application.clones.Clones"
_CLONE_IN_ROOT, _CLONE_BELOW = "clone at=0 into=0 place=0 version=0", "clone at=0 into=0 place=1 version=0"

FAULTS: Mapping[str, Fault] = {
    "drop does not look for clones": Fault(
        "B1",
        "v2",
        "sqlite",
        (_CLONE_IN_ROOT, "drop at=0"),
        {f"{_CLONES}.recorded_readers": _nothing},
    ),
    "rename does not look for clones": Fault(
        "B1",
        "compatible",
        "file",
        (_CLONE_IN_ROOT, "rename at=0 into=1"),
        {f"{_CLONES}.recorded_readers": _nothing},
    ),
    "clean-up does not look for deregistered clones below other directories": Fault(
        "B1",
        "v2",
        "memory",
        (_CLONE_BELOW, "deregister at=2", "write at=0 mode=overwrite value=0", "cleanup at=0"),
        {f"{_CLONES}.unowned_datasets": _nothing},
    ),
    "repair removes what a clone reads": Fault(
        "B1",
        "v2",
        "none",
        (_CLONE_IN_ROOT, "deregister at=0", "repair at=1 remove_tables=True"),
        {f"{_CLONES}.protected": lambda *_: {}, f"{_CLONES}.recorded_readers": _nothing},
    ),
    "repair removes foreign files": Fault(
        "B4",
        "v2",
        "sqlite",
        ("put_foreign_file at=2", "repair at=0"),
        {
            "lancekeep.application.maintenance.foreign_files": _nothing,
            "lancekeep.application.catalog.foreign_files": _nothing,
            "lancekeep.application.maintenance.is_mark": lambda name: True,
        },
    ),
    "columns of the manifest table are mapped by position": Fault(
        "C1",
        "v2",
        "conditional-put",
        ("create at=3 value=0 native=False",),
        {"lancekeep.adapters.manifest_stores.table_data._message": _by_position},
        foreign=True,
    ),
}
