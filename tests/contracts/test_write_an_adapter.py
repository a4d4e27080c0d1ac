"""The commit store of docs/write-an-adapter.md, registered as the guide says and run against the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.errors import InvalidInput

GUIDE = Path(__file__).parents[2] / "docs" / "write-an-adapter.md"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files of the guide, installed: a directory with modules and the metadata of their distribution."""
    blocks = re.findall(r"```(python|toml)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    store, test, use = (code for language, code in blocks if language == "python")
    (metadata,) = (tomllib.loads(code)["project"] for language, code in blocks if language == "toml")
    (tmp_path / "json_commit_store.py").write_text(store)
    (tmp_path / "test_json_commit_store.py").write_text(test)
    (tmp_path / "use.py").write_text(use.replace("/var/lib/lake", str(tmp_path)))
    register(tmp_path, metadata["name"], metadata["entry-points"]["lancekeep.commit_stores"])
    return tmp_path


def register(directory: Path, name: str, adapters: dict[str, str]) -> None:
    """Write the metadata of an installed distribution."""
    installed = directory / f"{name.replace('-', '_')}-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = (f"{scheme} = {adapter}\n" for scheme, adapter in adapters.items())
    (installed / "entry_points.txt").write_text(f"[lancekeep.commit_stores]\n{''.join(lines)}")


def python(project: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(project), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def url_of(url: str) -> str:
    return open_commit_store(url, {}, MemoryObjectStore()).url


def test_store_of_the_guide_passes_the_contract(project: Path) -> None:
    assert re.search(r"^\d{2} passed", python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider"), re.MULTILINE)


def test_store_of_the_guide_commits_the_versions_of_a_table(project: Path) -> None:
    assert python(project, "use.py") == "4\n"
    assert "numbers.lance" in (project / "commits.json").read_text()


def test_registered_scheme_is_opened_and_listed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project)
    assert url_of("json:///lake//commits.json") == "json:///lake/commits.json"
    with pytest.raises(InvalidInput, match=r"jsno://.*did you mean 'json'.*conditional-put://, json://"):
        url_of("jsno:///lake/commits.json")
    with pytest.raises(InvalidInput, match=r"unknown option 'fsync'"):
        url_of("json:///lake/commits.json?fsync=false")


def test_scheme_of_two_adapters_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(project, "another", {"json": "another:Store"})
    monkeypatch.syspath_prepend(project)
    with pytest.raises(InvalidInput, match="another:Store, json_commit_store:JsonCommitStore"):
        url_of("json:///lake/commits.json")


def test_built_in_scheme_takes_precedence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(project, "another", {"memory": "another:Store"})
    monkeypatch.syspath_prepend(project)
    assert url_of("memory://lake") == "memory://lake"
