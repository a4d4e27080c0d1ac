"""Complete the metadata of pyproject.toml: the README as the long description.

README.md links to files of the repository by relative paths, which a package index cannot follow. If ``project.urls``
has a ``Repository``, the long description links to the files there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
_RELATIVE = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)")


def repository() -> str | None:
    """Return the URL of the repository, if pyproject.toml names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    url: str | None = project.get("urls", {}).get("Repository")
    return url and url.rstrip("/")


def absolute(markdown: str, url: str) -> str:
    """Return a page of the root with links to the files of a repository: images as bytes, all else as pages."""
    return _RELATIVE.sub(lambda link: f"{link[1]}{link[2]}{url}/{'raw' if link[1] else 'blob'}/main/", markdown)


if __name__ == "__main__":
    readme, url = (ROOT / "README.md").read_text(), repository()
    setup(
        long_description=absolute(readme, url) if url else readme,
        long_description_content_type="text/markdown",
    )
