"""Checks and clean-ups of large tables use bounded memory, and report their progress."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from peaks import peak

import lancekeep
from lancekeep.domain.dataset_files import data_file_name
from lancekeep.domain.manifest import Fragment
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.operations import Append, Transaction
from lancekeep.format.table_version import TableVersion
from lancekeep.format.witnesses import contradictions

NOW = timedelta(0)


@attrs.define
class Large:
    """The table ``t`` of a catalog, of which versions are added without the engine.

    All data files are links to one file.
    """

    catalog: lancekeep.Catalog
    root: Path
    version: TableVersion
    fragments: list[Fragment]

    @staticmethod
    def of(directory: Path) -> Large:
        catalog = lancekeep.connect(str(directory))
        catalog.write("t", pa.table({"a": [1, 2]}))
        root = directory / "t.lance"
        content = (root / "_versions" / NamingScheme.V2.final_name(1)).read_bytes()
        version = TableVersion.parse(content, "t")
        return Large(catalog, root, version, list(version.manifest.fragments))

    def add(self, fragments: int) -> Large:
        """Add a version with more fragments; its transaction names the last one."""
        first, number = self.fragments[0], self.version.manifest.version + 1
        for _ in range(fragments):
            name = data_file_name(os.urandom(16))
            os.link(self.root / "data" / first.files[0].path, self.root / "data" / name)
            file = attrs.evolve(first.files[0], path=name)
            self.fragments.append(attrs.evolve(first, id=len(self.fragments), files=(file,)))
        transaction = Transaction(number - 1, str(uuid4()), operation=Append((self.fragments[-1],)))
        manifest = attrs.evolve(
            self.version.manifest,
            version=number,
            fragments=tuple(self.fragments),
            max_fragment_id=len(self.fragments) - 1,
            transaction_file=f"{transaction.read_version}-{transaction.uuid}.txn",
        )
        self.version = attrs.evolve(self.version, manifest=manifest, transaction=transaction)
        (self.root / "_versions" / NamingScheme.V2.final_name(number)).write_bytes(self.version.serialize())
        return self


def test_memory_of_a_clean_up_depends_on_files_instead_of_names_in_versions(tmp_path: Path) -> None:
    used = []
    for versions in (50, 250):
        table = Large.of(tmp_path / str(versions)).add(400)
        for _ in range(versions):
            table.add(0)
        used.append(peak(lambda table=table: table.catalog.upkeep.cleanup(NOW, grace=NOW, dry_run=True)))  # type: ignore[misc]
    assert used[1] - used[0] < 200 * 400 * 50 / 4, used  # a name has 50 characters


def test_comparison_of_two_versions_decodes_only_what_differs(tmp_path: Path) -> None:
    table = Large.of(tmp_path)
    first, second = table.add(3000).version.serialize(), table.add(1).version.serialize()
    assert lance.dataset(str(table.root)).count_rows() == 2 * 3002
    before, after = TableVersion.parse(first, "t"), TableVersion.parse(second, "t")
    decoded = peak(lambda: list(after.manifest.fragments))
    used = peak(lambda: list(contradictions(after, before, None)))
    assert used < decoded / 3, (used, decoded)
    assert list(contradictions(after, before, None)) == []


def test_clean_up_reports_each_manifest_and_file(tmp_path: Path) -> None:
    table = Large.of(tmp_path)
    for _ in range(9):
        table.add(1)
    steps: dict[str, list[tuple[int, int]]] = {}

    def step(done: int, total: int, name: str) -> None:
        steps.setdefault(name, []).append((done, total))

    table.catalog.upkeep.cleanup(NOW, grace=NOW, progress=step)
    assert steps["reading the manifests of t"][:10] == [(number, 10) for number in range(1, 11)]
    assert steps["removing manifests of t"] == [(number, 9) for number in range(9)]
    assert all(done <= total for each in steps.values() for done, total in each)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["cleanup", "--older-than", "0s"], "reading the manifests of t"),
        (["verify"], "examining t"),
        (["fsck", "--deep"], "fsck"),
    ],
    ids=["cleanup", "verify", "fsck"],
)
def test_progress_is_shown_on_a_terminal_only(tmp_path: Path, command: list[str], shown: str) -> None:
    lancekeep.connect(str(tmp_path)).write("t", pa.table({"a": [1]}))
    arguments = [sys.executable, "-m", "lancekeep", command[0], str(tmp_path), *command[1:]]
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 1 << 16):
                seen += part
        except OSError:  # the process has closed the terminal
            os.close(ours)
        assert process.stdout is not None
        results = process.stdout.read()
    assert shown in seen.decode()
    quiet = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert quiet.stderr == ""
    assert quiet.stdout.splitlines()[-1][:8] == results.splitlines()[-1][:8]
