"""Keep words and docstrings that read badly out of the repository.

`make check` runs this.

    python docs/check_language.py            # report the findings of all files
    python docs/check_language.py FILE...    # report the findings of these files
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "pyspark_lancekeep", "tests", "docs", "examples", "benchmarks")
SUFFIXES = {".py", ".md"}
EXEMPT = {"docs/check_language.py"}  # it has to name the words
LONGEST_SUMMARY = 79

# A regular expression, and what to write instead. A space matches line breaks, underscores and comment signs, too.
WORDS = {
    "meanwhile": "since, concurrently, in between",
    "whoever|whosoever": "name the component or the role",
    "(no|any|some)body|no one": "name the component or the role",
    "he|him|his|himself": "the writer, the caller, its",
    "on wish": "optionally",
    "mend(s|ed|ing)?": "fix, repair",
    "under way": "in progress",
    r"for good(?! (reason|measure))": "permanently",
    r"as it is(?=[.,:;)]|$)": "unchanged",
    "what is there": "name it: the files, the table, the row",
    "(is|are|was|were)( not)? told": "is reported, raises, learns",
    "so far as": "as far as; where",
    "anew": "again",
    "let in": "accept, admit",
    "held? against": "compare with, check against",
    "long ago": "earlier",
    "without a word": "without notifying ...",
    "(final|recogn|serial|normal|initial|synchron|optim|author)is(e|ed|es|ing|able|ation)": "-ize, -ization",
}

# The same for texts that users and callers read: all but tests and ADRs. The noun that a pronoun stands for is named.
NOUNS = {
    "(those|that) of": "name the noun: the rows of, the time of",
    "another one": "name the noun: another table",
    "such a one": "name the noun: such a table",
    "the latter": "name the noun",
    "of ours": "of Lancekeep",
}
UNCHECKED_NOUNS = ("tests/", "docs/adr/")

_BREAK = r"[\s_#]+"


def _compiled(replacements: dict[str, str], break_: str) -> dict[re.Pattern[str], str]:
    return {
        re.compile(rf"(?<![^\W_])({words.replace(' ', break_)})(?![^\W_])", re.IGNORECASE): advice
        for words, advice in replacements.items()
    }


_WORDS, _NOUNS = _compiled(WORDS, _BREAK), _compiled(NOUNS, _BREAK.replace("_", ""))


class Finding(NamedTuple):
    """A line that reads badly, and how to change it."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def words(path: str, text: str) -> Iterator[Finding]:
    """Yield each use of a word that `WORDS` or `NOUNS` replaces."""
    nouns = {} if path.startswith(UNCHECKED_NOUNS) else _NOUNS
    for pattern, advice in {**_WORDS, **nouns}.items():
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Finding(path, line, f"{' '.join(found[0].split())!r}: write {advice}")


def summaries(path: str, text: str) -> Iterator[Finding]:
    """Yield each public docstring whose summary is not one line of at most 79 characters."""
    public: list[ast.AST] = [ast.parse(text)]
    while public:
        node = public.pop()
        if isinstance(node, ast.Module | ast.ClassDef):
            public += [
                child
                for child in node.body
                if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and not child.name.startswith("_")
            ]
        assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        first, _, rest = (ast.get_docstring(node) or "").partition("\n")
        line = getattr(node, "lineno", 1)
        if len(first) > LONGEST_SUMMARY:
            yield Finding(path, line, f"the summary has {len(first)} characters; at most {LONGEST_SUMMARY} fit")
        elif rest and not rest.startswith("\n"):
            yield Finding(path, line, "leave a blank line after the summary")


def conflict_markers(path: str, text: str) -> Iterator[Finding]:
    """Yield each line that git left in an unresolved conflict."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("<" * 7 + " ", ">" * 7 + " ")):
            yield Finding(path, number, "resolve the conflict")


def findings(path: str, text: str) -> list[Finding]:
    """Return what reads badly in a file, in the order of its lines."""
    found = [*words(path, text), *conflict_markers(path, text)]
    if path.startswith("src/") and path.endswith(".py"):
        found += summaries(path, text)
    return sorted(found)


def main(arguments: list[str]) -> int:
    """Check the repository, or only the named files."""
    paths = [
        *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES),
        *(path for path in ROOT.iterdir() if path.suffix in SUFFIXES or path.name == "Makefile"),
    ]
    files = {path.relative_to(ROOT).as_posix(): path for path in paths}
    chosen = arguments or sorted(files.keys() - EXEMPT)
    report = [finding for name in chosen for finding in findings(name, files[name].read_text())]
    for finding in report:
        print(finding)
    if report:
        print("CONTRIBUTING.md explains this check.")
    return bool(report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
