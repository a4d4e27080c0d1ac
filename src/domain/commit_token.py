"""Commit tokens: the identity of an unknown commit, for any process to resolve."""

from __future__ import annotations

import json
import re

import attrs

from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.version_row import VersionRow, names_version

HIGHEST = 2**63 - 1
"""The highest version, and the largest size, that every commit store can keep."""
_DIGEST = re.compile("[0-9a-f]{64}")


@attrs.frozen
class StagedManifest:
    """A manifest that a writer staged for a version.

    Attributes:
        base_uri: the dataset root, with scheme and bucket.
        version: the version to commit.
        path: the key, ending in ``.manifest-{uuid}``, which identifies the commit.
        size: the size in bytes.
        begins: whether the history may begin with this version: version 1, or the first of a branch.
        committer: the writer, for people to read.
        digest: the SHA-256 of the content in hexadecimal. Only a token needs it: a process without the content
            compares it with the final manifest.
    """

    base_uri: str
    version: int
    path: str
    size: int
    begins: bool = False
    committer: str = ""
    digest: str = ""

    @property
    def row(self) -> VersionRow:
        """The row that reserves the version."""
        return VersionRow(self.base_uri, self.version, self.path, self.size, self.committer)


@attrs.frozen
class CommitToken:
    """Identifies an unknown commit for ``resolve``, in this process or another.

    ``str(token)`` is its text form, which `parse` reads.

    Attributes:
        staged: the staged manifest.
        others: the other members of the transaction, if the commit was one.
    """

    staged: StagedManifest
    others: tuple[StagedManifest, ...] = ()

    @property
    def members(self) -> tuple[StagedManifest, ...]:
        """Every staged manifest of the commit."""
        return self.staged, *self.others

    def __str__(self) -> str:
        members = [attrs.asdict(staged) for staged in self.members]
        return json.dumps(members if self.others else members[0], separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> CommitToken:
        """Parse the text form of a token.

        A token is input: its paths must lie in the datasets that it names.

        Raises:
            InvalidInput: the text is not a token, or a member cannot be a commit to its dataset.
        """
        try:
            found = json.loads(text)
            members = [StagedManifest(**member) for member in (found if isinstance(found, list) else [found])]
            for member in members:
                if [type(value) for value in attrs.astuple(member)] != [str, int, str, int, bool, str, str]:
                    raise TypeError("a field is of another type")
            token = CommitToken(members[0], tuple(members[1:]))
        except (TypeError, ValueError, IndexError, RecursionError) as error:
            raise InvalidInput(
                f"not a commit token, which is the JSON text that str(token) gives: {text[:500]!r}"
            ) from error
        if fault := next(filter(None, map(_fault, members)), ""):
            raise InvalidInput(f"not a token that Lancekeep made: {fault}; nothing was done")
        if len({member.base_uri for member in members}) < len(members):
            raise InvalidInput("not a token that Lancekeep made: the token names one dataset twice; nothing was done")
        return token


class CommitUnknown(LancekeepError):
    """A commit's outcome is unknown; ``catalog.resolve(error.token)`` settles it."""

    def __init__(self, message: str, token: CommitToken) -> None:
        super().__init__(message, token)
        self.token = token

    def __str__(self) -> str:
        return str(self.args[0])


def _fault(staged: StagedManifest) -> str:
    """Return why a member of a token cannot be committed; empty if it can."""
    name = ManifestName.parse(staged.path.rpartition("/")[2])
    key = staged.path.rpartition(f"/{VERSIONS}/")[0]
    if not 0 < staged.version <= HIGHEST or not 0 < staged.size <= HIGHEST:
        return f"version {staged.version} of {staged.size} bytes cannot be"
    if name is None or not name.is_staged or not names_version(staged.path, key, staged.version):
        return f"{staged.path!r:.200} is not the path of a staged manifest of version {staged.version}"
    if not key or not staged.base_uri.endswith(f"/{key}"):
        return f"{staged.path!r:.200} does not lie in {staged.base_uri!r:.200}"
    if staged.digest and not _DIGEST.fullmatch(staged.digest):
        return f"{staged.digest!r:.200} is not a SHA-256 digest"
    return ""
