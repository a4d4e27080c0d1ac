"""Hooks of MkDocs: complete the navigation, use README.md as the home page, and link to the repository.

Pages link to files outside docs/ by relative paths, which work in the repository. On the site these links lead to the
repository that pyproject.toml names; without one, their text remains. A link to a file that does not exist fails the
build.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_RELATIVE = re.compile(r"(\]\()(?![a-z]+:|#)")
_OUTSIDE = re.compile(r"(!?\[)((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Name the repository, and add the ADRs and the pages that the navigation does not name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    sections["Internals"] += sorted(path.name for path in DOCS.glob("*.md") if path.name not in named)
    sections["Decisions"] += sorted(f"adr/{path.name}" for path in (DOCS / "adr").glob("*.md"))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add README.md as index.md. It links from the root of the repository, and pages link from docs/."""
    readme = _RELATIVE.sub(r"\1../", (ROOT / "README.md").read_text()).replace("](../docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that leave docs/ into links to the repository, or into their text."""
    folder = (DOCS / page.file.src_uri).parent

    def outside(link: re.Match[str]) -> str:
        target = (folder / link[3]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[3]}, which does not exist")
        if config.repo_url is None:
            return link[2]
        return f"{link[1]}{link[2]}]({config.repo_url}/blob/main/{target.relative_to(ROOT).as_posix()}{link[4] or ''})"

    return _OUTSIDE.sub(outside, markdown)
