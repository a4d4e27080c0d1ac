"""Runs the examples of a page as a reader would: in order, in one directory, and compares the documented output."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner
from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command

ROOT = Path(__file__).parents[1]
STUBS = (
    "pip() { :; }; vault() { :; }; make() { command make --dry-run --directory "
    + shlex.quote(str(ROOT))
    + ' "$@" >/dev/null; }\n'
)
"""What a shell does in place of an installation, of a secret store, and of a target of the Makefile."""


@attrs.define
class Reader:
    """A reader of a page, at a machine of their own.

    Attributes:
        places: what a place of the page, such as a bucket, is here. They are replaced in their order.
        names: the names that the page's Python examples expect.
        before: called with each line of the command line before it runs, to prepare what it changes.
        apart: commands that run in a process of their own, because this one would remember what they did.
        settings: called with each example of a TOML file.
        documents: called with each example in JSON.
        statements: called with each example in SQL.
    """

    places: dict[str, str] = attrs.field(factory=dict)
    names: dict[str, Any] = attrs.field(factory=dict)
    before: Callable[[str], object] = attrs.field(default=lambda _: None)
    apart: frozenset[str] = frozenset()
    settings: Callable[[Mapping[str, Any]], object] = attrs.field(default=lambda _: None)
    documents: Callable[[Any], object] = attrs.field(default=lambda _: None)
    statements: Callable[[str], object] = attrs.field(default=lambda _: None)
    _printed: io.StringIO = attrs.field(init=False, factory=io.StringIO)
    _started: list[subprocess.Popen[bytes]] = attrs.field(init=False, factory=list)
    _outputs: list[Path] = attrs.field(init=False, factory=list)

    def read(self, page: Path) -> int:
        """Run all examples of a page, and return their number."""
        text = page.read_text()
        for place, own in self.places.items():
            text = text.replace(place, own)
        document = Document(text, str(page))
        kinds = {
            "python": self._python,
            "sh": self._shell,
            "text": self._output,
            "toml": self._toml,
            "sql": self._sql,
            "json": self._json,
        }
        for language, evaluate in kinds.items():
            for region in CodeBlockParser(language, evaluate)(document):
                document.add(region)
        document.namespace.update(self.names)
        try:
            examples = list(document.examples())
            for example in examples:
                example.evaluate()
            self.names.update(document.namespace)
        finally:
            for process in self._started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        return len(examples)

    def _toml(self, example: Example) -> None:
        self.settings(tomllib.loads(example.parsed))

    def _sql(self, example: Example) -> None:
        self.statements(example.parsed)

    def _json(self, example: Example) -> None:
        self.documents(json.loads(example.parsed))

    def _python(self, example: Example) -> None:
        with contextlib.redirect_stdout(self._printed):
            PythonEvaluator()(example)

    def _shell(self, example: Example) -> None:
        lines = [line for line in example.parsed.replace("\\\n", " ").splitlines() if line.strip()]
        if all(re.match(r"lancekeep [^|&]*(#.*)?$", line) and not line.startswith("lancekeep serve") for line in lines):
            for line in lines:
                self.before(line)
                if line.split()[1] in self.apart:
                    self._bash(line)
                else:
                    self._command(line)
        else:
            self._bash(example.parsed)

    def _command(self, line: str) -> None:
        done = CliRunner().invoke(command, shlex.split(line, comments=True)[1:], obj=lancekeep)
        self._printed.write(done.stdout)
        assert done.exit_code == 0 or (done.exit_code == 1 and "exit code 1" in line), f"{line}\n{done.output}"

    def _bash(self, program: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        output = Path(f"output-{len(self._outputs)}.txt").absolute()
        self._outputs.append(output)
        # In a session of its own, whose processes in the background end with the page; output goes to a file, because
        # these processes keep it open.
        with output.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", STUBS + program],
                env={**os.environ, "PATH": path},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        assert process.wait(timeout=120) == 0, f"{program}\n{output.read_text()}"

    def _output(self, example: Example) -> None:
        """Wait until the documented output is printed; … stands for any characters."""
        expected = ".*".join(map(re.escape, example.parsed.strip().split("…")))
        deadline = time.monotonic() + 60
        while True:
            printed = "\n".join([self._printed.getvalue(), *(output.read_text() for output in self._outputs)])
            if re.search(expected, printed):
                return
            assert time.monotonic() < deadline, f"{example.parsed}\n{printed}"
            time.sleep(0.1)  # a server in the background is starting


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


def server_at(home: Path, port: int) -> dict[str, str]:
    """Let the servers of a page listen on a port, and return the places to replace."""
    (home / "lancekeep.toml").write_text(f"[server]\nport = {port}\nlog_level = 'error'\n")
    return {"127.0.0.1:2333": f"127.0.0.1:{port}", "/home/ada": str(home)}


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the language of each code block of a page."""
    opened = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence := re.match(r" *```(.*)", line):
            if not opened:
                yield number, fence[1]
            opened = not opened
