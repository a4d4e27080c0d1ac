"""Check the log of events and the state of its subscribers, for `Upkeep.fsck`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from lancekeep.application.concurrency import at_once, is_remote
from lancekeep.application.events.log import EventLog
from lancekeep.application.events.subscriptions import (
    LETTER,
    POSITION,
    PROBLEM,
    SUBSCRIBERS,
    decode_letter,
    decode_position,
)
from lancekeep.application.upkeep.directory import Directory
from lancekeep.domain.errors import Damaged, ObjectNotFound
from lancekeep.domain.table import EVENTS_DIRECTORY
from lancekeep.format.event_log import decode_batch, decode_checkpoint

_BATCH = re.compile(r"log/([0-9]{20})")
_CHECKPOINT = re.compile(r"checkpoints/([0-9]{20})-.+")
_TOGETHER = 64
_SUBSCRIBER = re.compile(rf"{SUBSCRIBERS}/[^/]+/(positions|dead-letters)/([^/]+)|{SUBSCRIBERS}/[^/]+/{PROBLEM}")

_ADVICE = (
    "Stop the servers that record events, remove the directory of the log, and start them again: subscribers then list "
    "the catalog, and begin again"
)

Defect = tuple[str, str]
"""A path relative to the root, and what is wrong with the object."""


def event_defects(own: Directory, *, deep: bool) -> Iterator[Defect]:
    """Yield damaged, missing and foreign objects of the log of events, each once.

    Args:
        own: The catalog.
        deep: Read all batches, and not only those after the newest checkpoint, which each recorder reads.
    """
    above = f"{own.places.prefix}{EVENTS_DIRECTORY}/"
    objects, retry = own.places.objects, own.commits.retry
    paths = [info.key.removeprefix(above) for info in retry.call(lambda: list(objects.list(above)))]
    if not paths:
        return
    numbers = sorted(int(found[1]) for path in paths if (found := _BATCH.fullmatch(path)))
    checkpoints = sorted(path for path in paths if _CHECKPOINT.fullmatch(path))
    newest = _CHECKPOINT.fullmatch(checkpoints[-1]) if checkpoints else None
    read_from = int(newest[1]) if newest is not None and not deep else 0

    def defect_of(path: str) -> Defect | None:
        check = _check_of(path, read_from)
        if check is None:
            return None
        name = f"{EVENTS_DIRECTORY}/{path}"
        try:
            check(retry.call(partial(objects.get, above + path)), name)
        except ObjectNotFound:
            return None  # removed since the listing
        except Damaged as error:
            return name, str(error)
        return None

    remote = is_remote(objects)
    remaining = iter(paths)
    while some := list(islice(remaining, _TOGETHER)):
        checked = at_once(defect_of, some) if remote else map(defect_of, some)
        yield from (each for each in checked if each is not None)
    log = EventLog.of(own)
    yield from _gaps(numbers, log)
    if numbers and not checkpoints and log.checkpoint() is None:
        yield f"{EVENTS_DIRECTORY}/checkpoints", f"the log has no checkpoint, so events cannot be recorded. {_ADVICE}"


def _check_of(path: str, read_from: int) -> Callable[[bytes, str], object] | None:
    """Return what reads an object of the log; None if it is not read."""
    if batch := _BATCH.fullmatch(path):
        number = int(batch[1])
        return partial(decode_batch, number=number) if number >= read_from else None
    if _CHECKPOINT.fullmatch(path):
        return decode_checkpoint
    found = _SUBSCRIBER.fullmatch(path)
    if found is not None and found[1] is None:
        return None  # why deliveries fail: the next attempt replaces it
    if found is not None and found[1] == "positions" and POSITION.fullmatch(found[2]):
        return decode_position
    if found is not None and found[1] == "dead-letters" and LETTER.fullmatch(found[2]):
        return decode_letter
    return _refuse


def _refuse(_: bytes, name: str) -> object:
    raise Damaged(f"{name} is no part of a log of events: Lancekeep did not write it; remove it")


def _gaps(numbers: Sequence[int], log: EventLog) -> Iterator[Defect]:
    """Yield the first missing batch of each gap.

    Single batches before the others are no gap: a late process may be about to take its batch back.
    """
    begin = next((at for at in range(len(numbers) - 1) if numbers[at + 1] == numbers[at] + 1), len(numbers))
    for before, after in zip(numbers[begin:], numbers[begin + 1 :], strict=False):
        if after != before + 1 and log.batch(before + 1) is None and log.batch(before) is not None:
            yield (
                f"{EVENTS_DIRECTORY}/log/{before + 1:020}",
                f"the log lacks {after - before - 1} batches from here on, so readers end before them. {_ADVICE}",
            )
