"""Completion in a real shell: commands, options and the names of a catalog."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

import lancekeep
from lancekeep.entrypoints.cli.completion import LOOKUP, REQUEST, VARIABLE

HOSTILE = ["`touch pwned`", "a;touch pwned", "*", "sp ace", "'quote"]
SAFE = "ünïcode"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("completion")
    with lancekeep.connect(str(home / "lake")) as catalog:
        catalog.initialize()
        catalog.create_namespace("ml")
        catalog.create_namespace("media")
        catalog.write("ml.features", pa.table({"id": [1], "image": [b"1"], "index": [1], "i$(touch pwned)": [1]}))
        catalog.write("ml.old", pa.table({"id": [1]}))
        catalog.drop_table("ml.old")
        catalog.tags.create("ml.features", "stable", 1)
        catalog.branches.create("ml.features", "trial")
        for name in (*HOSTILE, SAFE):
            catalog.declare_table(["ml", name])
    (home / "lancekeep.toml").write_text('[catalogs.prod]\nroot = "lake"\n')
    return home


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(home / "cache"), "XDG_CONFIG_HOME": str(home / "user")}


PROGRAM = """
eval "$(lancekeep completion bash)"
compopt() { :; }  # bash knows it in a completion only
press() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _lancekeep_completion lancekeep
}
until_answered() {  # on a busy machine, the first press is too early for the lookup
    for attempt in {1..60}; do
        press "$@"
        test ${#COMPREPLY[@]} -eq 0 || return 0
    done
}
show() { (IFS=' '; echo "${COMPREPLY[*]}"); }
"""


def in_bash(home: Path, lines: Iterable[str], place: str = ".", wait: bool = True) -> list[str]:
    """Complete the last word of each line in bash; return what it offers for each."""
    key = "until_answered" if wait else "press"
    presses = (f"{key} {' '.join(map(shlex.quote, ['lancekeep', *line.split()]))}; show" for line in lines)
    program = "\n".join([PROGRAM, *presses])
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, cwd=home / place, env=environment(home), check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert not list(home.rglob("pwned"))
    return done.stdout.splitlines()


def test_words_are_completed_in_bash(home: Path) -> None:
    expected = {
        "hea": "head",
        "config in": "init",
        "head lake t --whe": "--where",
        "head lake t -o js": "json jsonl",
        "ls pr": "prod",
        "head lake m": "media. ml.",
        "ls lake me": "media",
        "head lake ml.f": "ml.features",
        "head prod ml.": f"ml.features ml.{SAFE}",
        "head lake ml.features --column i": "id image index",
        "head --column id --column im lake ml.features --column im": "image",
        "show lake ml.features s": "stable",
        "undrop lake ml": "ml.old",
    }
    assert dict(zip(expected, in_bash(home, expected), strict=True)) == expected


def test_mistake_completes_nothing_and_says_nothing(home: Path) -> None:
    lines = ["head nowhere x", "nonsense x", "create lake ml.x --property m", "head lake t --limit"]
    assert in_bash(home, lines, wait=False) == [""] * 4


def test_default_catalog_is_completed_without_its_name(home: Path) -> None:
    (home / "project").mkdir()
    (home / "project" / "lancekeep.toml").write_text('root = "../lake"\n')
    assert in_bash(home, ["head ml.f"], "project") == ["ml.features"]


def test_key_press_imports_no_engine(home: Path) -> None:
    words = "lancekeep head lake ml.f"
    assert in_bash(home, ["head lake ml.f"]) == ["ml.features"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lancekeep"],
        env={**environment(home), VARIABLE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,ml.features\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "lancekeep.config" in imported
    assert not imported & {"lance", "pyarrow", "numpy", "rich", "lancekeep.application.catalog"}


def test_cache_is_private(home: Path) -> None:
    assert in_bash(home, ["head lake ml.f"]) == ["ml.features"]
    cache = home / "cache" / "lancekeep"
    files = [cache, *cache.glob("names-*.json")]
    assert len(files) > 1
    assert {file.stat().st_mode & 0o077 for file in files} == {0}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_names_in_their_form(home: Path, shell: str) -> None:
    assert in_bash(home, ["head lake ml.f"]) == ["ml.features"]
    words = {"zsh": "lancekeep head lake ml.f", "fish": "lancekeep head lake"}[shell]
    done = subprocess.run(
        [sys.executable, "-m", "lancekeep"],
        env={
            **environment(home),
            VARIABLE: f"{shell}_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": "3" if shell == "zsh" else "ml.f",
        },
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ml.features" in done.stdout
    assert done.stderr == ""


def pressed(home: Path, words: str, **variables: str) -> str:
    """Return what bash's program gets for the last word."""
    done = subprocess.run(
        [sys.executable, "-m", "lancekeep"],
        env={
            **environment(home),
            VARIABLE: "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            **variables,
        },
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_hostile_names_of_catalogs_are_not_offered(home: Path) -> None:
    file = home / "hostile.toml"
    names = ("$(touch pwned)", r"a\nplain,$(touch pwned)", "prod")
    file.write_text("".join(f'[catalogs."{name}"]\nroot = "lake"\n' for name in names))
    assert pressed(home, "lancekeep ls ", LANCEKEEP_CONFIG=str(file)) == "dir,\nplain,prod\n"


@pytest.mark.parametrize("cache", ["relative", "{home}/lancekeep.toml"])
def test_without_a_cache_commands_are_completed(home: Path, cache: str) -> None:
    assert pressed(home, "lancekeep optim", XDG_CACHE_HOME=cache.format(home=home)) == "plain,optimize\n"
    assert not (home / "relative").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_cache_of_another_user_is_not_used(home: Path) -> None:
    cache = home / "shared" / "lancekeep"
    cache.mkdir(parents=True)
    os.chown(cache, 12345, 12345)
    assert pressed(home, "lancekeep optim", XDG_CACHE_HOME=str(home / "shared")) == "plain,optimize\n"
    assert list(cache.iterdir()) == []


def test_names_that_were_not_used_for_a_month_leave_the_cache(home: Path) -> None:
    old, recent = (home / "aged" / "lancekeep" / f"names-{name}.json" for name in ("old", "recent"))
    old.parent.mkdir(parents=True)
    for file in (old, recent):
        file.write_text("{}")
    os.utime(old, (0, 0))
    request = {"root": str(home / "lake"), "kind": "tables", "of": "", "commit_store": None, "mode": None, "prefix": ""}
    subprocess.run(
        [sys.executable, "-m", "lancekeep"],
        env={
            **environment(home),
            VARIABLE: LOOKUP,
            REQUEST: json.dumps(request),
            "XDG_CACHE_HOME": str(home / "aged"),
        },
        cwd=home,
        check=True,
    )
    assert (old.exists(), recent.exists(), len(list(old.parent.iterdir()))) == (False, True, 2)
