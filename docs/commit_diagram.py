"""Write docs/images/commit.svg, the commit of a version as a sequence diagram: ``python docs/commit_diagram.py``.

The steps are the shortest path from RESERVE to COMMITTED in the transition table that runs.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from lancekeep.domain.commit_transitions import TRANSITIONS, Reply, State

PICTURE = Path(__file__).parent / "images" / "commit.svg"

WIDTH, TOP, STEP = 890, 96, 74
LANES = {"writer": 300, "commit store": 614, "object store": 790}
STAGE = ("object store", "stage the manifest", "an orphan file is left over")
# For each state on the path: the store, the request, and what holds after a crash.
CAPTIONS = {
    State.RESERVE: ("commit store", "put row if absent: decides the winner", "the next participant rolls forward"),
    State.COPY: ("object store", "copy to the final name, create-only", "every reader sees the version"),
    State.PUBLISH: ("commit store", "update row: final path", "one staged file is left over"),
    State.CLEAN: ("object store", "delete the staged manifest", ""),
}


def path() -> list[State]:
    """Return the states of a commit without conflict or fault."""
    states = [State.RESERVE]
    while (state := states[-1]) is not State.COMMITTED:
        states.append(TRANSITIONS.get((state, Reply.RESERVED)) or TRANSITIONS[state, Reply.DONE])
    return states[:-1]


def text(x: int, y: int, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def picture() -> str:
    """Return the diagram as SVG."""
    steps = [STAGE, *(CAPTIONS[state] for state in path())]
    bottom = TOP + STEP * len(steps)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 62}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="14">',
        "<title>The commit of a table version</title>",
        "<style>.head{font-weight:600;fill:#fff}.call{fill:#1f2937}.crash{fill:#b45309;font-size:12.5px}"
        ".done{font-weight:600;fill:#15803d}line{stroke:#9ca3af}.arrow{stroke:#1d4ed8;stroke-width:1.6}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#1d4ed8"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{bottom + 62}" fill="#fff"/>',
        text(28, 46, "after a crash …", "crash", "start"),
    ]
    for name, x in LANES.items():
        parts += [
            f'<line x1="{x}" y1="60" x2="{x}" y2="{bottom + 4}" stroke-dasharray="4 4"/>',
            f'<rect x="{x - 72}" y="24" width="144" height="36" rx="6" fill="#1e3a8a"/>',
            text(x, 47, name, "head"),
        ]
    start = LANES["writer"]
    for number, (target, call, crash) in enumerate(steps):
        y, x = TOP + STEP * number + 26, LANES[target]
        parts += [
            f'<line class="arrow" x1="{start}" y1="{y}" x2="{x}" y2="{y}" marker-end="url(#tip)"/>',
            f'<rect x="{start + 8}" y="{y - 24}" width="{len(call) * 7 + 32}" height="19" fill="#fff"/>',
            text(start + 12, y - 9, f"{number + 1}. {call}", "call", "start"),
        ]
        if crash:
            parts.append(text(28, y + 30, crash, "crash", "start"))
    parts += [
        f'<rect x="{start - 72}" y="{bottom + 10}" width="144" height="32" rx="16" fill="#dcfce7"/>',
        text(start, bottom + 31, "committed", "done"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture())
