"""Complete the metadata of pyproject.toml: the README as the long description, and the manual page.

README.md links to files of the repository by relative paths, which a package index cannot follow. If ``project.urls``
has a ``Repository``, the long description links to the files there.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import tomllib
from importlib import import_module
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


def manual() -> list[tuple[str, list[str]]]:
    """Return the manual page as a file of the distribution.

    It is written from the commands of this source if their dependencies are installed. A source distribution has it
    already.
    """
    page, sys.dont_write_bytecode = ROOT / "build" / "lancekeep.1", True
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ImportError, OSError):
        Path(folder, "lancekeep").symlink_to(ROOT / "src")
        sys.path.insert(0, folder)
        cli, reference = (import_module(f"lancekeep.entrypoints.cli{name}") for name in ("", ".reference"))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        page.parent.mkdir(exist_ok=True)
        page.write_text(reference.manual(cli.lancekeep, cli.SECTIONS, project["version"]))
    return [("share/man/man1", [str(page.relative_to(ROOT))])] if page.exists() else []


if __name__ == "__main__":
    readme, url = (ROOT / "README.md").read_text(), repository()
    setup(
        long_description=absolute(readme, url) if url else readme,
        long_description_content_type="text/markdown",
        data_files=manual(),
    )
