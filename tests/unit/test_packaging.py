"""What a user installs: the whole package, at versions that name no server, loading only what is asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
PACKAGES = {"src": "lancekeep", "pyspark_lancekeep": "pyspark_lancekeep", "pytest_lancekeep": "pytest_lancekeep"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in the wheel, built from a copy: what an earlier build left behind must not help."""
    copy, built = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, copy)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*build, "--wheel-dir", built, copy], check=True)
    with zipfile.ZipFile(next(built.glob("lancekeep-*.whl"))) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_the_source(wheel: set[str]) -> None:
    names = {
        f"{package}/{path.relative_to(REPOSITORY / directory).as_posix()}"
        for directory, package in PACKAGES.items()
        for path in (REPOSITORY / directory).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names - wheel == set(), "data files need an entry in pyproject.toml, [tool.setuptools.package-data]"
    assert "lancekeep/py.typed" in names


def test_the_wheel_holds_nothing_else(wheel: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == set(PACKAGES.values())


def test_every_directory_of_the_source_is_a_package() -> None:
    directories = {path.parent for path in (REPOSITORY / "src").rglob("*.py")}
    assert [str(path) for path in directories if not (path / "__init__.py").exists()] == []


LOCK = (REPOSITORY / "requirements.lock").read_text().splitlines()


def test_the_lock_pins_versions_and_names_no_server() -> None:
    pin = re.compile(r"[a-z0-9.-]+==[a-z0-9.+]+( ; [^/@]+)?")
    assert [line for line in LOCK if not pin.fullmatch(line)] == []


def test_the_lock_satisfies_every_requirement() -> None:
    locked = {pin.name: next(iter(pin.specifier)).version for pin in map(Requirement, LOCK)}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    wanted = [requirement for requirement in map(Requirement, asked) if requirement.name != "lancekeep"]
    assert [str(want) for want in wanted if not want.specifier.contains(locked.get(want.name, "0"))] == []


@pytest.mark.parametrize("extra", ["boto3", "redis", "pyspark"])
def test_importing_lancekeep_loads_no_extra(extra: str) -> None:
    program = f"import lancekeep, sys; sys.exit({extra!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_loaded_from_its_home_and_listed() -> None:
    import lancekeep

    for name in lancekeep.__all__:
        assert getattr(lancekeep, name).__module__.startswith("lancekeep.") or name == "Outcome"
    assert {"__version__", "connect", "jobs", *lancekeep.__all__} <= set(dir(lancekeep))
    assert lancekeep.__version__ == tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("heavy", ["attr", "lance", "numpy", "pyarrow"])
def test_importing_lancekeep_is_lazy(heavy: str) -> None:
    program = f"import lancekeep, sys; sys.exit({heavy!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_pytest_of_another_project_loads_nothing_of_lancekeep(tmp_path: Path) -> None:
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
