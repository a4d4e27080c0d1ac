"""Measure the memory and the time of checks and clean-ups of large tables beside pylance.

    python benchmarks/upkeep.py [--versions 20000] [--fragments 100000] [--only NAME ...]

One table has many versions, of up to 50 fragments each. The other has two versions of many fragments. Their manifests
are built with `lancekeep.format`, their data files are links to one file, and pylance reads both. Every measurement is
a process of its own. "memory" is its peak above the memory after its imports and the opening of the catalog. "child" is
the peak of a child process that it starts, above the memory of a child that reads a small table. Seconds are CPU time
of all processes, which other load on the machine can only add to. The ratios compare with pylance in the same run:
`cleanup_old_versions` for clean-ups, and the opening of a version with the validation of its fragments for checks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
from lance_namespace import DescribeTableRequest, ListTableVersionsRequest

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.domain.dataset_files import data_file_name
from lancekeep.domain.manifest import Fragment, Manifest, Timestamp
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.operations import Append, Transaction
from lancekeep.format.table_version import TableVersion, serialize_transaction

MOST_FRAGMENTS = 50
"""The fragments of a version in the table of many versions, before an overwrite begins again."""
MOST_LINKS = 30_000
"""The most links to one file; ext4 permits 65,000."""


# -- tables ---------------------------------------------------------------------------------------------------------


@attrs.define
class Template:
    """A table of one fragment, whose version and data file others repeat."""

    root: Path
    version: TableVersion
    file: Path

    @staticmethod
    def of(directory: str, name: str) -> Template:
        catalog = lancekeep.connect(directory)
        catalog.write(name, pa.table({"a": [1, 2]}))
        root = Path(services_of(catalog).uri(catalog.find_table(name)).removeprefix("file://"))
        content = Path(root, catalog.inspect(name)["file"]).read_bytes()
        [file] = (root / "data").iterdir()
        return Template(root, TableVersion.parse(content, name), file)

    def fragment(self, number: int) -> Fragment:
        """Return a fragment with a data file of its own, which is a link."""
        [fragment] = self.version.manifest.fragments
        name = data_file_name(os.urandom(16))
        if number % MOST_LINKS:
            os.link(self.file, self.root / "data" / name)
        else:
            self.file = Path(shutil.copy(self.file, self.root / "data" / name))
        [file] = fragment.files
        return attrs.evolve(fragment, id=number, files=(attrs.evolve(file, path=name),))

    def publish(self, number: int, fragments: list[Fragment], new: tuple[Fragment, ...]) -> None:
        transaction = Transaction(number - 1, str(uuid4()), operation=Append(new))
        name = f"{number - 1}-{transaction.uuid}.txn"
        manifest: Manifest = attrs.evolve(
            self.version.manifest,
            version=number,
            fragments=tuple(fragments),
            max_fragment_id=fragments[-1].id,
            transaction_file=name,
            timestamp=Timestamp(1_700_000_000 + number, 0),
        )
        (self.root / "_transactions" / name).write_bytes(serialize_transaction(transaction))
        content = attrs.evolve(self.version, manifest=manifest, transaction=transaction).serialize()
        (self.root / "_versions" / NamingScheme.V2.final_name(number)).write_bytes(content)


def make_versions(directory: str, count: int) -> None:
    """Make a table of many versions."""
    template = Template.of(directory, "versions")
    kept = list(template.version.manifest.fragments)
    for number in range(2, count + 1):
        new = template.fragment(number - 1)
        kept = [*kept[-MOST_FRAGMENTS + 1 :], new] if len(kept) < MOST_FRAGMENTS else [new]
        template.publish(number, kept, (new,))


def make_fragments(directory: str, count: int) -> None:
    """Make a table of many fragments, one for each version; a clean-up has removed all versions but two."""
    template = Template.of(directory, "fragments")
    every = [*template.version.manifest.fragments, *map(template.fragment, range(1, count))]
    for number in (count - 1, count):
        template.publish(number, every[:number], (every[number - 1],))
    (template.root / "_versions" / NamingScheme.V2.final_name(1)).unlink()


# -- measurements ---------------------------------------------------------------------------------------------------


def _uri(catalog: lancekeep.Catalog, name: str) -> str:
    return services_of(catalog).uri(catalog.find_table(name)).removeprefix("file://")


def _cleanup(catalog: lancekeep.Catalog, *, dry_run: bool) -> object:
    report = catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["versions"], dry_run=dry_run)
    return f"{sum(len(table.versions) for table in report.tables):,} versions"


def _native_cleanup(catalog: lancekeep.Catalog) -> object:
    dataset = lance.dataset(_uri(catalog, "versions"))
    return f"{dataset.cleanup_old_versions(timedelta(days=1), delete_unverified=True).old_versions:,} versions"


def _native_validation(catalog: lancekeep.Catalog) -> object:
    dataset = lance.dataset(_uri(catalog, "fragments"))
    dataset.validate()
    return f"{sum(fragment.count_rows() for fragment in dataset.get_fragments()):,} rows"


def _opening(catalog: lancekeep.Catalog, name: str) -> object:
    return lance.dataset(_uri(catalog, name), metadata_cache_size_bytes=0).version


def _versions_page(catalog: lancekeep.Catalog) -> object:
    namespace = lancekeep.DirectoryNamespace(root=catalog.root_uri)
    return len(namespace.list_table_versions(ListTableVersionsRequest(id=["versions"], limit=10)).versions)


def _description(catalog: lancekeep.Catalog) -> object:
    namespace = lancekeep.DirectoryNamespace(root=catalog.root_uri)
    return namespace.describe_table(DescribeTableRequest(id=["versions"], load_detailed_metadata=True)).version


def _verify(catalog: lancekeep.Catalog, table: str) -> object:
    report = lancekeep.verify(catalog, [table])
    return f"{report}, {sum(each.digests for each in report.tables):,} digests"


Measure = Callable[[lancekeep.Catalog], object]
MEASUREMENTS: dict[str, tuple[Measure, str]] = {
    "history(limit=10)": (lambda catalog: len(catalog.versions.history("versions", limit=10)), ""),
    "list_table_versions(limit=10)": (_versions_page, ""),
    "describe_table": (_description, ""),
    "lance: open versions": (lambda catalog: _opening(catalog, "versions"), ""),
    "cleanup, planned": (lambda catalog: _cleanup(catalog, dry_run=True), ""),
    "fsck --deep, versions": (lambda catalog: len(catalog.upkeep.fsck(tables=["versions"]).findings), ""),
    "cleanup": (lambda catalog: _cleanup(catalog, dry_run=False), "lance: clean-up"),
    "lance: clean-up": (_native_cleanup, ""),
    "lance: open fragments": (lambda catalog: _opening(catalog, "fragments"), ""),
    "inspect": (lambda catalog: catalog.inspect("fragments")["version"], "lance: open fragments"),
    "fsck --deep, fragments": (
        lambda catalog: len(catalog.upkeep.fsck(tables=["fragments"]).findings),
        "lance: validation",
    ),
    "verify": (lambda catalog: _verify(catalog, "fragments"), "lance: validation"),
    "digest": (lambda catalog: str(lancekeep.digest(catalog, ["fragments"])), ""),
    "verify with digests": (lambda catalog: _verify(catalog, "fragments"), "lance: validation"),
    "lance: validation": (_native_validation, ""),
}
OF_VERSIONS = frozenset(list(MEASUREMENTS)[:8])


def _cpu() -> float:
    """Return the CPU time of this process and of its ended children in seconds."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _peak(process: int | str = "self") -> int:
    """Return the peak memory of a process in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Yield the peak memory of child processes, which a thread observes."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for task in Path("/proc/self/task").iterdir():
                for child in (task / "children").read_text().split():
                    try:
                        peak[0] = max(peak[0], _peak(child))
                    except OSError:  # it has ended
                        continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def measured(directory: str, name: str) -> dict[str, Any]:
    """Perform a measurement in this process."""
    catalog = lancekeep.connect(directory)
    catalog.upkeep.fsck(tables=["small"])  # imports what is imported late
    catalog.inspect("small")
    with _watched() as small:
        _verify(catalog, "small")
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = _peak()
    began = _cpu()
    with _watched() as child:
        result = MEASUREMENTS[name][0](catalog)
        seconds = _cpu() - began
    return {
        "seconds": seconds,
        "memory": _peak() - before,
        "child": max(0, child[0] - small[0]) if child[0] else 0,
        "result": str(result),
    }


def _in_a_process(directory: str, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", name, "--directory", directory]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--versions", type=int, default=20_000)
    parser.add_argument("--fragments", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=list(MEASUREMENTS), choices=list(MEASUREMENTS))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measured(chosen.directory, chosen.measure)))
        return
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        lancekeep.connect(directory).write("small", pa.table({"a": [1, 2]}))
        if not OF_VERSIONS.isdisjoint(chosen.only):
            make_versions(directory, chosen.versions)
        if not OF_VERSIONS.issuperset(chosen.only):
            make_fragments(directory, chosen.fragments)
        print(f"{'':<32}{'seconds':>9}{'memory':>10}{'child':>10}")
        for name in (each for each in MEASUREMENTS if each in chosen.only):
            if name == "lance: clean-up":  # the clean-up before it has removed the versions
                with tempfile.TemporaryDirectory() as again:
                    lancekeep.connect(again).write("small", pa.table({"a": [1, 2]}))
                    make_versions(again, chosen.versions)
                    one = _in_a_process(again, name)
            else:
                one = _in_a_process(directory, name)
            found[name] = one
            memory, child = (f"{one[part] / 1e6:.0f} MB" for part in ("memory", "child"))
            print(f"{name:<32}{one['seconds']:>9.2f}{memory:>10}{child:>10}   {one['result']}", flush=True)
    print("\nratios of seconds to pylance")
    for name, (_, peer) in MEASUREMENTS.items():
        if peer in found and name in found:
            print(f"{name:<32}{found[name]['seconds'] / found[peer]['seconds']:>9.2f}")


if __name__ == "__main__":
    main()
