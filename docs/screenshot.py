"""Write pictures from real output of the command line: ``python docs/screenshot.py``.

The commands run in a temporary directory. `command-line.svg` shows the help, and the repair of a catalog whose commit
store has lost a row. `session.svg` shows a session with a new catalog.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command

IMAGES = Path(__file__).parent / "images"
WIDTH = 100
SHOWN = "srv/data/lakes1"  # as long as the name of the temporary directory, so that lines break at the same places
COMMANDS = ("lancekeep --help", "lancekeep fsck lake --deep", "lancekeep repair lake --deep --yes")
SESSION = (
    "lancekeep init lake",
    "lancekeep create lake flights --namespace",
    "lancekeep import lake flights.daily monday.csv",
    "lancekeep import lake flights.daily tuesday.csv",
    "lancekeep ls lake -l -r",
    "lancekeep head lake flights.daily -n 2",
    "lancekeep history lake flights.daily",
    "lancekeep diff lake flights.daily 1 --key flight",
    "lancekeep drop lake flights.daily --yes",
    "lancekeep undrop lake flights.daily",
)
DAYS = {
    "monday.csv": "flight,origin,delay\nLH 400,FRA,12\nAF 22,CDG,-3\n",
    "tuesday.csv": "flight,origin,delay\nBA 117,LHR,41\n",
}
# Rich's template without the fonts that it loads from a server.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def make_catalog(root: Path) -> str:
    """Create a table of two versions, remove the row of the second, and return the URL of the commit store."""
    store = f"sqlite://{root}/commits.db"
    with lancekeep.connect(str(root / "lake"), commit_store=store) as catalog:
        catalog.write("features", pa.table({"id": [1, 2]}))
        catalog.write("features", pa.table({"id": [3]}), "append")
    with sqlite3.connect(root / "commits.db") as database:
        [name] = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        database.execute(f"DELETE FROM {name} WHERE version = 2 AND base_uri LIKE '%features%'")
    return store


def picture() -> str:
    """Return the help, a check and a repair as SVG."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder:
        store = make_catalog(Path(folder))
        return drawn(folder, COMMANDS, LANCEKEEP_COMMIT_STORE=store)


def session() -> str:
    """Return a session with a new catalog as SVG."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder:
        for name, content in DAYS.items():
            Path(folder, name).write_text(content)
        store = f"sqlite://{folder}/commits.db"
        return drawn(folder, SESSION, LANCEKEEP_COMMIT_STORE=store, LANCEKEEP_COMMITTER="ada")


def drawn(folder: str, commands: Sequence[str], **settings: str) -> str:
    """Run commands in a folder, and return them with their output as SVG."""
    runner = CliRunner(env={"COLUMNS": str(WIDTH), **settings})
    with open(os.devnull, "w") as nowhere, contextlib.chdir(folder):
        screen = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        for command in commands:
            screen.print(Text(f"$ {command}", "bold"))
            arguments = command.split()[1:]
            done = runner.invoke(
                lancekeep_command, arguments, obj=lancekeep, prog_name="lancekeep", terminal_width=WIDTH - 2
            )
            if done.exit_code not in (0, 1):
                raise RuntimeError(f"{command}: {done.output}")
            text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-11-24 09:00:00", done.output)
            screen.print(Text(text.replace(folder[1:], SHOWN)), soft_wrap=True)
    return screen.export_svg(title="lancekeep", code_format=FORMAT, unique_id="lancekeep")


PICTURES: Mapping[str, Callable[[], str]] = {"command-line": picture, "session": session}

if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw())
