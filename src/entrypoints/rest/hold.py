"""What abandoned operations leave of the threads of a process.

The supervisor of the workers imports it, and as little else as possible.
"""

from __future__ import annotations

from enum import IntEnum


class Hold(IntEnum):
    """What abandoned acts leave of the threads.

    Attributes:
        NONE: Enough for all callers.
        SOME: Too few for the callers that have abandoned the acts; a known caller cannot do more harm.
        ALL: Too few for other callers, too.
    """

    NONE = 0
    SOME = 1
    ALL = 2
