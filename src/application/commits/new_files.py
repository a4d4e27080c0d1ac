"""Read the facts of new files for the judge of versions.

Other processes may have written the files. The requests begin before the transaction is compared with others, and end
while that is done. Some of many files are read, and of each only a part (`lancekeep.format.file_facts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.domain.dataset_files import DATA, DELETIONS, deletion_file_name
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest import DeletionFileType, Fragment
from lancekeep.domain.operations import Delete, Transaction, Update
from lancekeep.format.data_footer import TooShort
from lancekeep.format.file_facts import (
    DataFileFacts,
    DeletionFileFacts,
    Facts,
    data_file_facts,
    deletion_file_facts,
)
from lancekeep.format.judged_fragments import path_problem

_LOOKED_AT = 16
"""About how many files of a kind are read."""
_TAIL = 1 << 16
_MOST_BYTES = 4 << 20
"""A file that needs a longer part is looked for, but not decoded."""

T = TypeVar("T")
_Read = Callable[[], DataFileFacts | DeletionFileFacts | None]


def begin_facts(
    commits: TableCommits, root: DatasetRoot, transaction: Transaction, *, deletions: bool = True
) -> Callable[[], Facts]:
    """Begin to read the facts of the files that a transaction names.

    Args:
        commits: The commits of the catalog.
        root: The table.
        transaction: The transaction.
        deletions: Also read deletion files.

    Returns:
        What waits for the facts and returns them.
    """
    reads: dict[str, _Read] = {}
    for path in _some([path for each in transaction.new_fragments for path in _data_files(each)]):
        reads[path] = partial(_of_data_file, commits, f"{root.key}/{path}", path)
    updated = transaction.operation.updated_fragments if isinstance(transaction.operation, Delete | Update) else ()
    for fragment in _some([each for each in updated if deletions and _own_deletions(each)]):
        path = _deletion_file(fragment)
        reads[path] = partial(_of_deletion_file, commits, f"{root.key}/{path}", path, fragment)
    if not is_remote(commits.objects):
        return lambda: {path: read() for path, read in reads.items()}
    found = all_alongside(_call, reads.values())
    return lambda: dict(zip(reads, found, strict=True))


def _call(read: _Read) -> DataFileFacts | DeletionFileFacts | None:
    return read()


def _some(items: Sequence[T]) -> Sequence[T]:
    return items[:: 1 + len(items) // _LOOKED_AT]


def _data_files(fragment: Fragment) -> Iterator[str]:
    """Yield the paths of data files in the table's own directory; the judge refuses names that are no paths."""
    for file in fragment.files:
        if file.base_id is None and not any(path_problem("", file.path)):
            yield f"{DATA}/{file.path}"


def _own_deletions(fragment: Fragment) -> bool:
    return fragment.deletion_file is not None and fragment.deletion_file.base_id is None


def _deletion_file(fragment: Fragment) -> str:
    file = fragment.deletion_file
    assert file is not None
    bitmap = file.file_type is DeletionFileType.BITMAP
    return f"{DELETIONS}/{deletion_file_name(fragment.id, file.read_version, file.id, bitmap=bitmap)}"


def _of_data_file(commits: TableCommits, key: str, name: str) -> DataFileFacts | None:
    most = _TAIL
    while (tail := commits.retry.call(partial(commits.objects.tail, key, most))) is not None:
        found = data_file_facts(tail.content, tail.size, name)
        if not isinstance(found, TooShort):
            return found
        if not most < found.needed <= _MOST_BYTES:
            return DataFileFacts(tail.size)
        most = found.needed
    return None


def _of_deletion_file(commits: TableCommits, key: str, name: str, fragment: Fragment) -> DeletionFileFacts | None:
    tail = commits.retry.call(partial(commits.objects.tail, key, _MOST_BYTES))
    file = fragment.deletion_file
    if tail is None or file is None:
        return None
    if len(tail.content) < tail.size:
        return DeletionFileFacts(file.num_deleted_rows)
    return deletion_file_facts(tail.content, file, fragment.physical_rows, name)
