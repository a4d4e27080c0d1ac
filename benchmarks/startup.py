"""Measure the CPU time of ``import lancekeep`` and of ``lancekeep --help``.

    python benchmarks/startup.py [--runs 15]

Every run is a process of its own. Each figure is the least CPU time, user plus system, of all runs: other load on the
machine can only add to it. The first line is the bare interpreter, which the other figures include.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from results import record

PROGRAMS = {
    "python": ["-c", "pass"],
    "import lancekeep": ["-c", "import lancekeep"],
    "lancekeep --help": ["-m", "lancekeep", "--help"],
    "lancekeep.connect": ["-c", "import lancekeep; lancekeep.connect"],
    "lancekeep fsck --help": ["-m", "lancekeep", "fsck", "--help"],
}
LIMITS = {"import lancekeep": 60, "lancekeep --help": 150}


def cpu_milliseconds(arguments: list[str]) -> float:
    """Run the interpreter once and return its CPU time."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python {' '.join(arguments)} failed with exit code {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    print(f"CPU time, least of {runs} runs\n")
    for name, arguments in PROGRAMS.items():
        least = min(cpu_milliseconds(arguments) for _ in range(runs))
        limit = f"  (at most {LIMITS[name]} ms)" if name in LIMITS else ""
        print(f"{name:<24}{least:6.0f} ms{limit}")
        record("startup", name, "ms CPU", least)


if __name__ == "__main__":
    main()
