"""What a catalog requires of a manifest before it is committed."""

from __future__ import annotations

from lancekeep.application.entries.base_paths import BasePaths
from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.protection import Protection
from lancekeep.application.entries.quotas import Quotas
from lancekeep.domain.layout import BRANCHES, DatasetRoot


class StagedChecks:
    """Checks the manifests of tables, and records tables as clones.

    Args:
        base_paths: The base paths that the caller may read.
        mem_wal: The LSM writes that tables permit.
        protection: The tables that are protected.
        quotas: The quotas of the caller.
        clones: The records of clones.
    """

    def __init__(
        self, base_paths: BasePaths, mem_wal: MemWal, protection: Protection, quotas: Quotas, clones: Clones
    ) -> None:
        self._base_paths = base_paths
        self._mem_wal = mem_wal
        self._protection = protection
        self._quotas = quotas
        self._clones = clones

    def __call__(self, root: DatasetRoot, content: bytes) -> None:
        """Check a manifest.

        Args:
            root: The dataset or branch.
            content: The manifest.

        Raises:
            AccessDenied: The caller may not read one of its base paths.
            LsmRefused: It sets up LSM writes, which its table does not permit.
            CommitRefused: It replaces the rows of a protected table.
            QuotaExceeded: It adds bytes to a subtree whose quota is full.
            Damaged: It cannot be read.
        """
        self._base_paths.require_staged(root, content)
        self._mem_wal.require_permitted(root, content)
        self._protection.require_kept(root, content)
        self._quotas.require_kept(root, content)
        key = root.key.partition(f"/{BRANCHES}/")[0] if root.is_branch else root.key
        self._clones.record(key, content, root.base_uri)
