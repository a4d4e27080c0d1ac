"""README.md is true, the screenshot is current, and the documentation site builds."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import lancekeep
from lancekeep.entrypoints.cli import SECTIONS
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.cli.reference import manual

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["command-line", "session"])
def test_picture_shows_the_output_of_the_commands(name: str) -> None:
    drawn = runpy.run_path(str(DOCS / "screenshot.py"))["PICTURES"][name]()
    assert (DOCS / "images" / f"{name}.svg").read_text() == drawn, "run: python docs/screenshot.py"


def test_manual_describes_every_command_without_warnings_of_groff(tmp_path: Path) -> None:
    page = tmp_path / "lancekeep.1"
    page.write_text(manual(command, SECTIONS, "1.2.3"))
    described = re.findall(r"^\.SS (.*)$", page.read_text(), re.MULTILINE)
    assert {each.replace("\\-", "-") for each in described} >= {
        f"lancekeep {entry.name}" for entries in SECTIONS.values() for entry in entries
    }
    if shutil.which("groff"):  # the page is installed everywhere, groff is not
        check = ["groff", "-man", "-ww", "-Tutf8", str(page)]
        shown = subprocess.run(check, capture_output=True, text=True, check=True, encoding="utf-8")
        assert shown.stderr == ""
        assert "--older-than" in re.sub(".\b", "", shown.stdout)  # bold letters are printed twice


def test_each_row_of_the_comparison_names_existing_tests() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("| native | Lancekeep | test |\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(table) > 5
    for row in table:
        named = re.findall(r"\[`(test_\w+)`\]\((tests/[\w/]+\.py)\)", row)
        assert named, f"name a test: {row}"
        for name, file in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"


PAGES = [*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *DOCS.rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_files_are_relative_and_lead_to_existing_files(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match("[a-z]+:|#", target)]
    assert [target for target in targets if not (page.parent / target.partition("#")[0]).exists()] == []
    assert not re.search(r"\]\(https?://[^)\s]*/(blob|raw)/main/", text)


def test_files_of_typical_changes_exist() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("Ten typical changes")[2].partition("## Tests")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(table) == 10
    for row in table:
        paths = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", row)
        assert paths, row
        places = [ROOT / (path if path.startswith("tests/") else f"src/{path}") for path in paths]
        assert [place for place in places if not place.exists()] == []


def test_api_page_names_every_public_name_once() -> None:
    named = re.findall(r"^::: lancekeep\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted([*lancekeep.__all__, "jobs", "spark"])


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    build = ["make", "docs", f"SITE={tmp_path / 'site'}"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Documentation built" in done.stderr  # a quiet build counts no warnings
    assert "WARNING" not in done.stderr
    assert 'id="lancekeep.Catalog.write"' in (tmp_path / "site" / "api" / "index.html").read_text()
    assert "lancekeep keys revoke" in (tmp_path / "site" / "command-line" / "index.html").read_text()
    index = (tmp_path / "site" / "adr" / "index.html").read_text()
    assert all(f'href="{path.stem}/"' in index for path in (DOCS / "adr").glob("0*.md"))
