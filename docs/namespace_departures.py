"""Write docs/namespace-departures.md from a run of `lancekeep.testing`: ``python docs/namespace_departures.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from lance.namespace import DirectoryNamespace as NativeNamespace
from lance_namespace import LanceNamespace

from lancekeep.testing.behaviours import BEHAVIOURS, Capability, Contents, Open, Outcome, Result, run_all

PAGE = Path(__file__).with_name("namespace-departures.md")

MODES: Mapping[str, Mapping[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "compatible": {},
    "manifest first": {"dir_listing_to_manifest_migration_enabled": "true"},
    "V2": {"dir_listing_enabled": "false"},
}
"""The modes by their native properties. The second and third are one mode of Lancekeep."""

ABSENT_IN_V1 = {
    Capability.NAMESPACES,
    Capability.PROPERTIES,
    Capability.LOCATIONS,
    Capability.RENAME,
    Capability.TRANSACTIONS,
}
CAPABILITIES = {mode: tuple(Capability) for mode in MODES} | {"V1": tuple(set(Capability) - ABSENT_IN_V1)}
"""What a mode can hold: V1 has one level, no properties, and directories named after their tables."""

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""The native namespace waits for the disk at every write, which dominates the run."""

CHILD = "@child"
DETERMINISTIC = [each for each in BEHAVIOURS if not each.id.startswith("races/")]
"""The behaviours whose outcome does not depend on a race."""

HEAD = """# Where the native directory namespace departs from the specification

`docs/namespace_departures.py` generates this page from a run of `lancekeep.testing` against pylance {pylance}, and a
test compares the two. Each row shows a behaviour of the suite, the sentence of the specification that it tests, and the
reply of the native namespace if it departs. An empty cell means that the native namespace conforms, or that the
behaviour does not apply to the mode. [interoperability.md](interoperability.md) defines the modes and explains the
consequences for shared directories. `lancekeep.DirectoryNamespace` passes every behaviour that applies to its mode.

Test your own namespace (see the docstring of `lancekeep.testing`):

    pytest --pyargs lancekeep.testing --lance-namespace lancekeep.DirectoryNamespace
"""

Answers = Mapping[str, Result]


def native(root: str, mode: str) -> LanceNamespace:
    opened: LanceNamespace = NativeNamespace(root=root, **MODES[mode])
    return opened


def answers(mode: str) -> Answers:
    """Return the results of the native namespace in a mode, each in a new directory."""
    with TemporaryDirectory(dir=MEMORY) as directory:

        def place() -> tuple[Open, Contents]:
            root = Path(directory, uuid4().hex)
            return partial(native, str(root), mode), partial(files, root)

        return run_all(DETERMINISTIC, place, CAPABILITIES[mode])


def files(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*"))


def cell(name: str, of_mode: Answers) -> str:
    """Return the departures in the root and in a child namespace, once if they are equal."""
    places = {"": of_mode.get(name), "in a namespace": of_mode.get(name + CHILD)}
    found = {where: departure(result) for where, result in places.items() if result is not None and departure(result)}
    tried = [result for result in places.values() if result is not None and not undeclared(result)]
    if len(set(found.values())) == 1 and len(found) == len(tried):
        return next(iter(found.values()))
    return "; ".join(f"{where or 'in the root'}: {text}" for where, text in found.items())


def departure(result: Result) -> str:
    if result.outcome is Outcome.PASSED or undeclared(result):
        return ""
    return f"not offered: {result.answer}" if result.outcome is Outcome.NOT_OFFERED else result.answer


def undeclared(result: Result) -> bool:
    return result.outcome is Outcome.NOT_OFFERED and result.answer.startswith("no ")


def page() -> str:
    with ThreadPoolExecutor() as threads:
        found = dict(zip(MODES, threads.map(answers, MODES), strict=True))
    lines = [HEAD.format(pylance=version("pylance")), "| | " + " | ".join(MODES) + " |", "|---|" + "---|" * len(MODES)]
    for outcome in Outcome:
        counts = (sum(result.outcome is outcome for result in of_mode.values()) for of_mode in found.values())
        lines.append(f"| {outcome} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", f"| behaviour | the specification | {' | '.join(MODES)} |", "|---|---|" + "---|" * len(MODES)]
    for behaviour in DETERMINISTIC:
        cells = [cell(behaviour.id, of_mode) for of_mode in found.values()]
        if not behaviour.id.endswith(CHILD) and any(cells):
            lines.append(f"| {behaviour.id} | {behaviour.sentence} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
