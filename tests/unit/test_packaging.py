"""What a user installs: complete distributions, a lock without servers, and imports that load only what they need."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
PACKAGES = {"src": "lancekeep", "pyspark_lancekeep": "pyspark_lancekeep", "pytest_lancekeep": "pytest_lancekeep"}


GENERATED = shutil.ignore_patterns(".*", "__pycache__", "typings", "build", "dist", "site", "demo-lake", "*.egg-info")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the sdist, and the wheel from it, from a copy: leftovers of an earlier build must not help."""
    copy, built = tmp_path_factory.mktemp("copy") / "lancekeep", tmp_path_factory.mktemp("dist")
    shutil.copytree(REPOSITORY, copy, ignore=GENERATED)
    shutil.copytree(REPOSITORY / ".ci", copy / ".ci")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(built.iterdir())


@pytest.fixture(scope="module")
def wheel(distributions: list[Path]) -> set[str]:
    with zipfile.ZipFile(next(path for path in distributions if path.suffix == ".whl")) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(distributions: list[Path]) -> Message:
    with zipfile.ZipFile(next(path for path in distributions if path.suffix == ".whl")) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_twine_accepts_both_distributions(distributions: list[Path]) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_sdist_holds_what_check_test_and_docs_need(distributions: list[Path]) -> None:
    with tarfile.open(next(path for path in distributions if path.name.endswith(".tar.gz"))) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    single = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "requirements.lock"}
    assert single - files == set()
    for directory in (".ci", "benchmarks", "docs", "examples", "pyspark_lancekeep", "src", "tests"):
        paths = (path for path in (REPOSITORY / directory).rglob("*") if path.is_file() and path.suffix != ".pyc")
        names = {path.relative_to(REPOSITORY).as_posix() for path in paths}
        assert names - files == set(), "name missing files in MANIFEST.in"


def test_metadata_names_licence_classifiers_and_keywords(metadata: Message) -> None:
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    assert "lance" in metadata["Keywords"].split(",")


def test_wheel_holds_the_licence_text(wheel: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_description_links_to_the_repository_that_the_metadata_names(metadata: Message) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert metadata["Description-Content-Type"] == "text/markdown"
    described = metadata.get_payload(decode=True)
    assert isinstance(described, bytes)
    assert described.decode().strip() == readme.strip()  # the metadata names no repository
    linked = runpy.run_path(str(REPOSITORY / "setup.py"))["absolute"](readme, "https://host/project")
    targets = re.findall(r"\]\(([^)\s]+)\)", linked)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "](https://host/project/raw/main/docs/images/commit.svg)" in linked
    assert "(https://host/project/blob/main/docs/server.md)" in linked


def test_wheel_contains_every_source_file(wheel: set[str]) -> None:
    names = {
        f"{package}/{path.relative_to(REPOSITORY / directory).as_posix()}"
        for directory, package in PACKAGES.items()
        for path in (REPOSITORY / directory).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names - wheel == set(), "data files need an entry in pyproject.toml, [tool.setuptools.package-data]"
    assert "lancekeep/py.typed" in names


def test_wheel_contains_only_the_packages(wheel: set[str]) -> None:
    outside = {name for name in wheel if ".data/" in name}
    assert {name.split("/")[0] for name in wheel - outside if ".dist-info/" not in name} == set(PACKAGES.values())
    assert {name.partition(".data/")[2] for name in outside} == {"data/share/man/man1/lancekeep.1"}


def test_every_directory_of_the_source_is_a_package() -> None:
    directories = {path.parent for path in (REPOSITORY / "src").rglob("*.py")}
    assert [str(path) for path in directories if not (path / "__init__.py").exists()] == []


def code_lines(path: Path) -> int:
    """Return the lines of a module without docstrings: the facade documents every operation of the catalog."""
    source = path.read_text()
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    docstrings = (text for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))
    return len(source.splitlines()) - sum(text.end_lineno - text.lineno + 1 for text in docstrings if text.end_lineno)


def test_no_module_of_the_source_has_more_than_500_lines_of_code() -> None:
    lengths = {path: code_lines(path) for path in (REPOSITORY / "src").rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > 500} == {}


LOCK = (REPOSITORY / "requirements.lock").read_text().splitlines()


def test_lock_file_pins_versions_without_a_server() -> None:
    pin = re.compile(r"[a-z0-9.-]+==[a-z0-9.+]+( ; [^/@]+)?")
    assert [line for line in LOCK if not pin.fullmatch(line)] == []


def test_lock_file_satisfies_every_requirement() -> None:
    locked = {pin.name: next(iter(pin.specifier)).version for pin in map(Requirement, LOCK)}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    built = {"lancekeep", "gssapi"}  # gssapi needs the headers of Kerberos, so it is in no environment of tests
    wanted = [requirement for requirement in map(Requirement, asked) if requirement.name not in built]
    assert [str(want) for want in wanted if not want.specifier.contains(locked.get(want.name, "0"))] == []


def test_every_public_name_is_loaded_from_its_home_and_listed() -> None:
    import lancekeep

    for name in lancekeep.__all__:
        assert getattr(lancekeep, name).__module__.startswith("lancekeep.") or name == "Outcome"
    assert {"__version__", "connect", "jobs", *lancekeep.__all__} <= set(dir(lancekeep))
    assert lancekeep.__version__ == tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


def test_importing_lancekeep_loads_no_dependency() -> None:
    dependencies = {"attr", "boto3", "lance", "numpy", "psycopg", "pyarrow", "pyspark", "redis"}
    program = f"import lancekeep, sys; sys.exit(str({dependencies!r} & set(sys.modules) or '') or 0)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_pytest_plugin_loads_no_module_of_lancekeep(tmp_path: Path) -> None:
    test = """
import sys

def test_modules(pytestconfig):
    assert pytestconfig.getoption("--lance-namespace") is None  # the plugin is loaded
    assert {"pytest_lancekeep"} == {name for name in sys.modules if "lancekeep" in name and "editable" not in name}
    assert not {"attr", "lance", "numpy", "pyarrow"} & set(sys.modules)
"""
    (tmp_path / "test_modules.py").write_text(test)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
