"""Hooks of MkDocs: complete the navigation, use README.md as the home page, and link to the repository.

Pages link to files outside docs/ by relative paths, which work in the repository. On the site these links lead to the
repository. A link to a file that does not exist fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(\]\()(\.\./[^)#\s]+)")


def on_config(config: Any) -> Any:
    """Add the ADRs and the pages that the navigation does not name."""
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    sections["Internals"] += sorted(path.name for path in DOCS.glob("*.md") if path.name not in named)
    sections["Decisions"] += sorted(f"adr/{path.name}" for path in (DOCS / "adr").glob("*.md"))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add README.md as index.md, with links that stay within the site where they lead to its pages."""
    readme = (ROOT / "README.md").read_text()
    pages = f"{config.repo_url}/blob/main/docs/"
    readme = re.sub(re.escape(f"]({pages}") + r"([\w/.-]+\.md)", r"](\1", readme)
    readme = readme.replace(f"({config.repo_url}/raw/main/docs/", "(")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that leave docs/ into links to the repository."""
    folder = (DOCS / page.file.src_uri).parent

    def outside(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which does not exist")
        return f"{link[1]}{config.repo_url}/blob/main/{target.relative_to(ROOT).as_posix()}"

    return _LINK.sub(outside, markdown)
