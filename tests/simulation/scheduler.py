"""Threads that take turns: exactly one runs at a time, and a seed decides which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from threading import Semaphore, Thread


class Stop(BaseException):
    """The simulation is over: nothing may catch this."""


class Scheduler:
    """Runs some bodies, each in a thread of its own, that hand over the turn wherever they call `pass_turn`.

    Now and then one is left asleep for a while, so that others get far ahead of it in the middle of what it does.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keep = random.choice([0.2, 0.6, 0.9])
        self._asleep: dict[int, int] = {}
        self._alive: list[int] = []
        self._turns: list[Semaphore] = []
        self._over = Semaphore(0)
        self.step = 0
        self.failure: BaseException | None = None

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run all to their ends. Raises what the first that failed raised; the others end at their next turn."""
        self._alive = list(range(len(bodies)))
        self._turns = [Semaphore(0) for _ in bodies]
        threads = [Thread(target=self._run, args=(me, body), daemon=True) for me, body in enumerate(bodies)]
        for thread in threads:
            thread.start()
        self._turns[self._chosen()].release()
        self._over.acquire()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def pass_turn(self, me: int) -> None:
        """Let others run, as the seed has it."""
        self.step += 1
        if self._random.random() < 0.01:
            self._asleep[me] = self.step + self._random.choice([5, 30, 200])
        elif self._random.random() < self._keep:
            return
        chosen = self._chosen()
        if chosen != me:
            self._turns[chosen].release()
            self._turns[me].acquire()
        if self.failure is not None:
            raise Stop

    def _chosen(self) -> int:
        awake = [one for one in self._alive if self._asleep.get(one, 0) <= self.step]
        return self._random.choice(awake or self._alive)

    def _run(self, me: int, body: Callable[[], None]) -> None:
        self._turns[me].acquire()
        try:
            if self.failure is None:
                body()
        except Stop:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        self._alive.remove(me)
        if self._alive:
            self._turns[self._chosen()].release()
        else:
            self._over.release()
