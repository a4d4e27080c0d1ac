"""What identifies a commit whose outcome is unknown: its staged manifests, as text that any process can resolve."""

from __future__ import annotations

import json
import re

import attrs

from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.version_row import VersionRow, names_version

HIGHEST = 2**63 - 1
"""The highest version, and size, that every commit store keeps."""
_DIGEST = re.compile("[0-9a-f]{64}")


@attrs.frozen
class StagedManifest:
    """A manifest that wants to become a version.

    path: its key, ending in ``.manifest-{uuid}``: the identity by which a writer recognises its own commit.
    size: in bytes. digest: SHA-256 of the content in hexadecimal, by which whoever has not got the content recognises
    it under the final name: only a token needs it.
    begins: the history may begin with this version: version 1, or the first of a branch.
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
        return VersionRow(self.base_uri, self.version, self.path, self.size, self.committer)


@attrs.frozen
class CommitToken:
    """What ``resolve`` needs to settle an unknown commit, in this process or another: it has a text form.

    others: what was to be committed together with ``staged``, by a transaction.
    """

    staged: StagedManifest
    others: tuple[StagedManifest, ...] = ()

    @property
    def members(self) -> tuple[StagedManifest, ...]:
        """Everything that the commit is about."""
        return self.staged, *self.others

    def __str__(self) -> str:
        members = [attrs.asdict(staged) for staged in self.members]
        return json.dumps(members if self.others else members[0], separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> CommitToken:
        """Parse the text of a token; the inverse of ``str(token)``.

        A token is input: its paths are confined to the datasets that it names.

        Raises:
            InvalidInput: the text is no token, or a part of it cannot be a commit to its dataset.
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
            raise InvalidInput("not a token that Lancekeep made: it names one dataset twice; nothing was done")
        return token


class CommitUnknown(LancekeepError):
    """A commit whose outcome could not be learnt. ``token`` settles it: ``catalog.resolve(error.token)``."""

    def __init__(self, message: str, token: CommitToken) -> None:
        super().__init__(message, token)
        self.token = token

    def __str__(self) -> str:
        return str(self.args[0])


def _fault(staged: StagedManifest) -> str:
    """Return why nothing can be committed as a part of a token says; empty if it can."""
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
