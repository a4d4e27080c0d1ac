"""Tag files of a dataset (storage layout specification, ``_refs/tags/*.json``)."""

from __future__ import annotations

import json
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged

DIRECTORY = "_refs/tags/"
SUFFIX = ".json"


@attrs.frozen
class Tag:
    """The content of a tag file.

    Attributes:
        version: the version that the tag points at.
        branch: the branch of the version; None for the main history.
        manifest_size: the bytes of the version's manifest.
        others: the other members of the file, such as its times and metadata.
    """

    version: int
    branch: str | None
    manifest_size: int
    others: dict[str, Any] = attrs.field(factory=dict)

    @staticmethod
    def parse(content: bytes, key: str) -> Tag:
        """Return the tag of a file. Raises `Damaged` if it is malformed."""
        try:
            found = json.loads(content)
            others = {name: value for name, value in found.items() if name not in ("version", "branch", "manifestSize")}
            branch = found.get("branch")
            if branch is not None and not isinstance(branch, str):
                raise TypeError(f"branch is {branch!r}")
            version, size = found["version"], found.get("manifestSize") or 0
            if not isinstance(version, int) or not isinstance(size, int):
                raise TypeError(f"version is {version!r} and manifestSize {size!r}, and both are numbers")
            return Tag(version, branch, size, others)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Damaged(f"{key} is no tag: {error!r}. Delete the file, and create the tag again") from error

    def content(self) -> bytes:
        """Return the content of the tag's file."""
        members = {"branch": self.branch, "version": self.version, "manifestSize": self.manifest_size}
        return json.dumps(members | self.others).encode()
