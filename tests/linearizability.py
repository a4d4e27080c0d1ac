"""Whether a history of calls has an order that explains each result: within each call's time, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

State = str | None
Step = Callable[[State], tuple[bool, State]]


@attrs.frozen(eq=False)
class Call:
    """One call of a history.

    Attributes:
        began: When the call began.
        ended: When it ended, or the latest moment of its effect; infinity if there is none.
        step: Returns whether its result is possible in a state, and the state after it.
        text: How a failure shows it.
        certain: Whether it had an effect for certain.
    """

    began: float
    ended: float
    step: Step
    text: str
    certain: bool = True


def unexplained(history: Sequence[Call], state: State = None) -> Sequence[str]:
    """Return the calls up to the first one that no order explains; nothing if the history is linearizable."""
    moments = [(call.began, 0, call) for call in history]
    moments += [(call.ended, 1, call) for call in history if call.ended != float("inf")]
    moments.sort(key=lambda moment: moment[:2])
    open_calls: list[Call] = []
    possible: set[tuple[State, frozenset[Call]]] = {(state, frozenset())}
    shown = []
    for _, is_end, call in moments:
        if not is_end:
            open_calls.append(call)
            continue
        shown.append(call.text)
        extended = _extended(possible, open_calls)
        possible = {(after, made - {call}) for after, made in extended if call in made or not call.certain}
        open_calls.remove(call)
        if not possible:
            return [*shown, *(f"{other.text} (not ended)" for other in open_calls)]
    return []


def _extended(
    possible: Iterable[tuple[State, frozenset[Call]]], open_calls: Sequence[Call]
) -> set[tuple[State, frozenset[Call]]]:
    """Return the states that any open calls lead to, in any order."""
    found = set(possible)
    rest = list(found)
    while rest:
        state, made = rest.pop()
        for call in open_calls:
            if call in made:
                continue
            is_possible, after = call.step(state)
            reached = after, made | {call}
            if is_possible and reached not in found:
                found.add(reached)
                rest.append(reached)
    return found
