"""``lancekeep webhooks``: the subscribers of the events of a catalog."""

from __future__ import annotations

import os
import time
from uuid import uuid4

import attrs
import click

from lancekeep.application.catalog import directory_of
from lancekeep.application.events.delivery_status import DeliveryStatus, status_of
from lancekeep.application.events.log import EventLog
from lancekeep.application.events.subscriptions import Subscription
from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.event_delivery import Attempt, Delivery, Result, Subscriber
from lancekeep.domain.events import PREFIX, Event
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.cells import plain
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, print_table
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, chosen_name, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode
from lancekeep.entrypoints.subscribers import ConfiguredSubscriber, configured_subscribers
from lancekeep.ports.event_sink import EventSink

COLUMNS = ("name", "to", "cursor", "behind", "since", "dead letters", "problem")


@command()
@click.option("--test", metavar="NAME", help="Post a test event to a webhook, and show its answer.")
@click.option("--replay", metavar="NAME", help="Deliver the dead letters of a webhook, and remove what it takes.")
@as_json
@mode
@stores
@click.pass_obj
def webhooks(
    functions: PublicFunctions,
    chosen: Stores,
    mode: str | None,
    test: str | None,
    replay: str | None,
    as_json: bool,
) -> None:
    """Show how far subscribers of events are, test them, and replay dead letters.

    The subscribers are [[webhooks]] and [[event_files]] of lancekeep.toml, or of its table [catalogs.NAME]. "behind" is
    the number of batches in the log that a subscriber has not completely. The exit code is 1 if a webhook does not
    take what is tested or replayed.
    """
    if test is not None and replay is not None:
        raise InvalidInput("--test and --replay are two actions; give one of them")
    with chosen.catalog(functions, mode=mode) as catalog:
        own = directory_of(catalog, "webhooks")
        subscribers = {each.subscriber.name: each for each in configured_subscribers(catalog=chosen_name())}
        log = EventLog.of(own)
        named = test if test is not None else replay
        if named is None:
            found = {
                name: status_of(each.subscriber, log, Subscription.of(own, name)) for name, each in subscribers.items()
            }
            _show(subscribers, found, as_json=as_json)
            return
        subscriber = subscribers.get(named)
        if subscriber is None or not subscriber.is_webhook:
            known = ", ".join(name for name, each in subscribers.items() if each.is_webhook)
            raise InvalidInput(f"lancekeep.toml has no webhook {named!r}; it has {known or 'none'}")
        sink = subscriber.open(ConnectionConfig())
        if test is not None:
            latest = log.latest()
            event = Event(
                f"test-{uuid4().hex}",
                f"{PREFIX}webhook.test",
                ObjectId(),
                time.time_ns() // 1000,
                {"id": []},
                str(latest),
            )
            attempt = sink.deliver(Delivery(0, log.read(latest, 1).source, [event], str(latest)))
            _require_taken(attempt, f"{named} at {subscriber.place} took the test event")
        else:
            _replay(subscriber.subscriber, sink, Subscription.of(own, named))


def _replay(subscriber: Subscriber, sink: EventSink, subscription: Subscription) -> None:
    """Deliver dead letters in their order, until one of them is not taken.

    The settings may have changed since a delivery was given up; events that they exclude now are not delivered.
    """
    name = subscriber.name
    for key in subscription.letters():
        letter = subscription.letter(key)
        if letter is None:  # another process has replayed it
            continue
        events, file = letter.delivery.events, os.path.basename(key)
        wanted = subscriber.wanted(events)
        if wanted:
            attempt = sink.deliver(attrs.evolve(letter.delivery, events=wanted))
            _require_taken(attempt, f"{name} took {len(wanted)} of the {len(events)} events of {file}")
        if len(wanted) < len(events):
            message(f"Not sent: {len(events) - len(wanted)} events of {file}, which the settings of {name} exclude.")
        subscription.remove(key)
    message(f"{name} has no dead letters.")


def _require_taken(attempt: Attempt, done: str) -> None:
    if attempt.result is Result.TAKEN:
        message(f"{done}.")
        return
    message(f"Not taken: {plain(attempt.problem)}")
    click.get_current_context().exit(1)


def _show(subscribers: dict[str, ConfiguredSubscriber], found: dict[str, DeliveryStatus], *, as_json: bool) -> None:
    documents = [
        {
            "name": name,
            "to": subscribers[name].place,
            "cursor": status.cursor,
            "behind": status.behind,
            "since": status.since,
            "dead_letters": status.dead_letters,
            "problem": _problem(status),
        }
        for name, status in found.items()
    ]
    if as_json:
        print_report(documents)
        return
    rows = [tuple(plain(str(cell)) for cell in each.values()) for each in documents]
    print_table("Subscribers of events", COLUMNS, rows)
    if not rows:
        message("lancekeep.toml has neither [[webhooks]] nor [[event_files]].")


def _problem(status: DeliveryStatus) -> str:
    if status.defect:
        return status.defect
    if status.is_expired:
        return "events were removed from the log before they were delivered"
    if not status.cursor:
        return "no delivery has begun"
    if status.problem is None:
        return ""
    stopped = "; deliveries have stopped" if status.problem.is_stopped else ""
    return f"{status.problem.text} ({status.problem.at}, attempt {status.problem.attempts}{stopped})"
