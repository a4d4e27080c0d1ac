"""A place of a backup: the root of the catalog that is copied, or of its copy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.pieces import copy_in_pieces
from lancekeep.application.retry import Retry
from lancekeep.domain.backup import (
    FILES,
    RECORD,
    BackedUpFile,
    BackupRecord,
    digest_of_contents,
    encoded_sizes,
    is_of_backup,
)
from lancekeep.domain.errors import Damaged, ObjectNotFound
from lancekeep.ports.object_store import ObjectInfo

_SHOWN = 20
"""How many lost files an error names."""
_ACCEPT = "copy what is left with --accept-loss (accept_loss=True)"


@attrs.frozen
class BackupPlace:
    """Files by their paths below a root. Requests are retried.

    Attributes:
        directory: The root.
        retry: Retries requests.
    """

    directory: OutsideDirectory
    retry: Retry

    @property
    def uri(self) -> str:
        """The URI of the root."""
        return self.directory.uri

    def key(self, path: str) -> str:
        """Return the key of a file."""
        return f"{self.directory.key}/{path}" if self.directory.key else path

    def list(self, below: str = "") -> dict[str, ObjectInfo]:
        """Return the files below a directory, which ends in a slash.

        Files about the backup itself are left out.
        """
        start, root = self.key(below), self.key("")
        listed = self.retry.call(lambda: [*self.directory.objects.list(start)])
        infos = {info.key.removeprefix(root): info for info in listed}
        return {path: info for path, info in infos.items() if not is_of_backup(path)}

    def head(self, path: str) -> ObjectInfo | None:
        """Return the size of a file; None if it does not exist."""
        return self.retry.call(partial(self.directory.objects.head, self.key(path)))

    def get(self, path: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            return self.retry.call(partial(self.directory.objects.get, self.key(path)))
        except ObjectNotFound:
            return None

    def put(self, path: str, content: bytes) -> None:
        """Write a file, or replace it."""
        self.retry.call(partial(self.directory.objects.put, self.key(path), content))

    def copy_in_pieces(self, path: str, target: BackupPlace) -> int | None:
        """Copy a file to another place, and return its size; None if it does not exist.

        Raises:
            ConcurrentModification: The file was changed while it was copied.
        """
        one, other = self.directory.objects, target.directory.objects
        try:
            return copy_in_pieces(one, self.key(path), other, target.key(path), self.retry)
        except ObjectNotFound:
            return None

    def delete(self, path: str) -> None:
        """Remove a file if it exists."""
        self.retry.call(partial(self.directory.objects.delete, self.key(path)))

    def remove_unfinished(self) -> None:
        """Remove incomplete uploads."""
        objects = self.directory.objects
        for left in self.retry.call(lambda: [*objects.unfinished(self.key(""))]):
            self.retry.call(partial(objects.delete, left.key))

    # -- the record ---------------------------------------------------------------------------------------------

    def record(self) -> BackupRecord | None:
        """Return the record of a backup or of a restored root; None without one."""
        content = self.get(RECORD)
        return None if content is None else BackupRecord.decode(content, f"{self.uri}/{RECORD}")

    def record_to_read(self, accept_loss: bool) -> BackupRecord | None:
        """Return the record of the place to copy.

        With ``accept_loss``, a damaged record is None.
        """
        try:
            return self.record()
        except Damaged as error:
            if accept_loss:
                return None
            raise Damaged(f"{error}, or {_ACCEPT}") from error

    def begin(self, source: str) -> None:
        """Record that the place is an unfinished backup."""
        self.put(RECORD, BackupRecord(source, self.uri).encode())

    def complete(self, source: str, sizes: Mapping[str, int]) -> None:
        """Record that the place is a backup with these files."""
        self.put(FILES, encoded_sizes(sizes))
        self.put(RECORD, BackupRecord(source, self.uri, digest_of_contents(sizes)).encode())

    def is_backup(self, own: BackupRecord, sizes: Mapping[str, int], accept_loss: bool) -> bool:
        """Return whether the place is a backup to which nothing was committed.

        Args:
            own: Its record.
            sizes: The files that are there.
            accept_loss: Return True although files were lost.

        Raises:
            Damaged: It lacks files that it had when it was complete.
        """
        if own.contents == digest_of_contents(sizes):
            return True
        content = self.get(FILES)
        recorded = None if content is None else own.sizes(content)
        if recorded is None:
            lost = f"files were lost or changed since the backup in {self.uri} was complete, {FILES} included"
        elif any(BackedUpFile.of(path).version is not None for path in sizes.keys() - recorded.keys()):
            return False
        else:
            lost = self._described_losses(recorded, sizes)
        if lost and not accept_loss:
            raise Damaged(f"{lost}. Nothing was changed. Choose another backup, or {_ACCEPT}")
        return True

    def _described_losses(self, recorded: Mapping[str, int], sizes: Mapping[str, int]) -> str:
        """Describe the files that do not have their recorded sizes; empty if all have them."""
        lost = [
            f"{path} ({'missing' if path not in sizes else f'{sizes[path]:,} of {size:,} bytes'})"
            for path, size in sorted(recorded.items())
            if sizes.get(path) != size
        ]
        more = f", and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        what = f"{self.uri} has lost {len(lost):,} files since it was a complete backup: {', '.join(lost[:_SHOWN])}"
        return what + more if lost else ""
