"""Hooks of MkDocs: write pages that are derived, use README.md as the home page, and link to the repository.

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

from lancekeep.entrypoints.cli import SECTIONS, lancekeep
from lancekeep.entrypoints.cli.reference import commands_of, help_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_RELATIVE = re.compile(r"(\]\()(?![a-z]+:|#)")
_OUTSIDE = re.compile(r"(!?\[)((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Name the repository that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are derived from other files."""
    for path, content in (("index.md", home()), ("command-line.md", commands()), ("adr/index.md", decisions())):
        files.append(File.generated(config, path, content=content))
    return files


def home() -> str:
    """Return README.md as a page. README.md links from the root of the repository, and pages link from docs/."""
    return (
        _RELATIVE.sub(r"\1../", (ROOT / "README.md").read_text())
        .replace("](../docs/adr/)", "](adr/index.md)")
        .replace("](../docs/", "](")
    )


def commands() -> str:
    """Return the reference of the command line: the help of each command."""
    parts, before = ["# Command line", f"```text\n{help_of(lancekeep, 'lancekeep')}```"], ""
    for section, path, command in commands_of(lancekeep, SECTIONS):
        parts += [] if section == before else [f"## {section}"]
        parts += [f"### {path}", f"```text\n{help_of(command, path)}```"]
        before = section
    return "\n\n".join(parts)


def decisions() -> str:
    """Return the index of the ADRs, with the status of each."""
    rows = []
    for path in sorted((DOCS / "adr").glob("0*.md")):
        title, status = re.findall(r"\A# (.*?)\n.*?^Status: (.*?)\n\n", path.read_text(), re.DOTALL | re.MULTILINE)[0]
        number, _, decision = title.partition(". ")
        rows.append(f"| {number} | [{decision}]({path.name}) | {' '.join(status.split())} |")
    head = ["# Decisions", "", "New decisions begin as a copy of `docs/adr/template.md`.", ""]
    return "\n".join([*head, "| ADR | decision | status |", "| --- | --- | --- |", *rows])


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
