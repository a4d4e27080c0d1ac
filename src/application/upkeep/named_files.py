"""The files that versions of a table need, as records of digests name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

import attrs

from lancekeep.application.upkeep.examination import Kept
from lancekeep.application.upkeep.file_checks import FileChecks
from lancekeep.domain.dataset_files import INDICES, TRANSACTIONS
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.layout import DatasetRoot
from lancekeep.format.manifest import message_at, transaction_name
from lancekeep.ports.object_store import ObjectInfo


@attrs.frozen
class NamedFile:
    """A file that a version needs.

    Attributes:
        history: The key of the root of the history whose records name it.
        name: Its name in these records: its path below ``history``, or a URI.
        key: Its key; a URI for a file in another object store.
        size: Its size in bytes.
    """

    history: str
    name: str
    key: str
    size: int


def named_files(
    checks: FileChecks, root: DatasetRoot, kept: Iterable[Kept], listed: Iterable[ObjectInfo]
) -> Iterator[NamedFile]:
    """Yield the files of versions that exist, each once.

    These are data, deletion, index, manifest and transaction files.

    Args:
        checks: Finds the files of versions.
        root: The root of the table.
        kept: The versions.
        listed: The objects of the table.
    """
    wanted, directories, elsewhere = dict[str, str](), dict[str, str](), dict[str, int]()
    versions = [each.version for each in kept]
    for version in versions:
        wanted[version.key] = version.root.key
        with suppress(LancekeepError, ValueError):
            message = message_at(checks.clones.retry.call(partial(checks.clones.objects.get, version.key)))
            if name := transaction_name(message):
                wanted[f"{version.root.key}/{TRANSACTIONS}/{name}"] = version.root.key
    for version, key, reference in checks.references(versions, {}):
        if not key.startswith(f"{root.key}/"):
            if reference.size is not None:
                elsewhere[key] = reference.size
        else:
            own = version.root.key if key.startswith(f"{version.root.key}/") else root.key
            (directories if key.endswith("/") else wanted)[key] = own
    for info in listed:
        history = wanted.get(info.key) or directories.get(_directory(info.key))
        if history is not None:
            yield NamedFile(history, info.key.removeprefix(f"{history}/"), info.key, info.size)
    for key, size in elsewhere.items():
        uri = key if "://" in key else checks.clones.objects.root_uri + key
        yield NamedFile(root.key, uri, uri, size)


def _directory(key: str) -> str:
    """Return the directory of an index that a file lies in."""
    above, found, below = key.rpartition(f"/{INDICES}/")
    return f"{above}{found}{below.partition('/')[0]}/"
