"""Commits of manifests that belong to no catalog."""

from __future__ import annotations

from lancekeep.domain.layout import DatasetRoot


def unchecked(root: DatasetRoot, content: bytes) -> None:
    """Accept a manifest."""
