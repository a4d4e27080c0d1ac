"""The program of a worker of `lancekeep serve`.

`lancekeep.entrypoints.supervised_worker` has the worker.
"""

from __future__ import annotations

import sys

from lancekeep.entrypoints.deferred_package import MODELS, defer

if __name__ == "__main__":
    defer(MODELS)
    from lancekeep.entrypoints.supervised_worker import main

    main(*map(int, sys.argv[1:]))
