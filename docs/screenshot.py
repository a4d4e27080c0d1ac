"""Write docs/images/command-line.svg from real output of the command line: ``python docs/screenshot.py``.

The commands run in a temporary directory, on a catalog whose commit store has lost a row.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

import lancekeep

PICTURE = Path(__file__).parent / "images" / "command-line.svg"
WIDTH = 100
SHOWN = "srv/data/lakes1"  # as long as the name of the temporary directory, so that lines break at the same places
COMMANDS = ("lancekeep --help", "lancekeep fsck lake --deep", "lancekeep repair lake --deep --yes")
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
    """Return the commands and their output as SVG."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder, open(os.devnull, "w") as nowhere:
        store = make_catalog(Path(folder))
        screen = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        surroundings = {**os.environ, "COLUMNS": str(WIDTH), "LANCEKEEP_COMMIT_STORE": store}
        for command in COMMANDS:
            screen.print(Text(f"$ {command}", "bold"))
            program = [sys.executable, "-m", "lancekeep", *command.split()[1:]]
            done = subprocess.run(program, capture_output=True, text=True, cwd=folder, env=surroundings, check=False)
            if done.stderr:
                raise RuntimeError(f"{command}: {done.stderr}")
            screen.print(Text(done.stdout.replace(folder[1:], SHOWN)), soft_wrap=True)
    return screen.export_svg(title="lancekeep", code_format=FORMAT, unique_id="lancekeep")


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture())
