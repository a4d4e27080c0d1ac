"""What a backup did."""

from __future__ import annotations

import attrs

from lancekeep.domain.notebook import Shown


@attrs.frozen
class BackupReport(Shown):
    """What a backup did.

    Attributes:
        source: The root of the catalog.
        target: The place of the backup.
        files: The number of files in the backup.
        size: Their bytes.
        copied: The number of files that this call copied.
        copied_size: Their bytes.
        removed: The number of files of an earlier backup that the catalog has no longer.
        versions: The number of versions of tables, branches included.
        changed: Directories of tables that were dropped, moved or cleaned up in each attempt. Check them in the backup.
        left_out: Files that no table has, and that a process kept changing while they were copied.
    """

    source: str
    target: str
    files: int
    size: int
    copied: int
    copied_size: int
    removed: int
    versions: int
    changed: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.target} is a backup of {self.source}: {self.versions:,} versions in {self.files:,} files of "
            f"{self.size:,} bytes; {self.copied:,} files of {self.copied_size:,} bytes were copied, {self.removed:,} "
            "removed"
        ]
        if self.changed:
            lines.append(
                f"  dropped, moved or cleaned up in the meantime: {', '.join(self.changed)}. Run it again, or check "
                "the backup with fsck"
            )
        if self.left_out:
            lines.append(
                f"  left out, since a process kept changing them: {', '.join(self.left_out)}. No table has these files"
            )
        return "\n".join(lines)
