"""``lancekeep``, or ``python -m lancekeep``: the command line on top of the public functions."""

from __future__ import annotations

import lancekeep
from lancekeep.entrypoints.cli import main as run


def main() -> None:
    run(lancekeep)  # type: ignore[arg-type]  # `jobs` is a submodule, which is not loaded before it is asked for


if __name__ == "__main__":
    main()
