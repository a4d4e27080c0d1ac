"""Run the command line: ``lancekeep`` or ``python -m lancekeep``."""

from __future__ import annotations

import lancekeep
from lancekeep.entrypoints.cli import main as run


def main() -> None:
    """Run the command line with the public functions of this package."""
    run(lancekeep)  # type: ignore[arg-type]  # `jobs` is a submodule that loads on first use


if __name__ == "__main__":
    main()
