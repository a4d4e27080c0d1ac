"""Committers that one host's processes choose by locks and reach by sockets.

A directory that only one user can enter holds a socket for each process, and a file for each table. The process that
commits the appends of a table has a lock on the table's file, in which it has written the name of its socket. The
kernel releases the lock if the process ends in any way.

A process that waits for replies must learn whether an append can still be committed, although the committer may be
stopped, and continue later. The fence is the kernel's: after ``shutdown(SHUT_RD)`` of the waiting process, each send of
the committer fails, and what was sent before can be read up to the end. A committer sends the token of each attempt
first, and drops the appends of a process to which the send fails. So an append without a token was not committed, and
will not be. Linux keeps what was sent before the shutdown; other systems discard it, and have no committers.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final
from uuid import uuid4
from weakref import WeakSet

import attrs

from lancekeep.adapters.committers.asked import Asked
from lancekeep.adapters.committers.askers import PART, AskerConnection, Taken
from lancekeep.adapters.committers.frames import Incoming, append_frame, append_of, frame
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.committers import Received, Reply, SentUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts

FORMAT: Final = "3-"
"""How the names of sockets begin. A process ignores committers of another format."""
SILENCE: Final = 1.0
"""Seconds without a byte after which a process asks whether its committer still runs."""
PATIENCE: Final = 3
"""How often it asks before it gives up."""
AVOIDED: Final = 10.0
"""Seconds for which it sends nothing to a committer that was silent."""
UNUSED: Final = 2.0
"""Seconds without an append by its own callers after which a process leaves a table to the next process that asks."""
MOST_TABLES: Final = 256
"""The number of tables for which a process is the committer."""
OVERHEAD: Final = 1 << 10
"""The bytes that an append takes apart from its rows."""
_BACKLOG: Final = 128

_OPEN: WeakSet[UnixCommitters] = WeakSet()


def _after_fork() -> None:
    for committers in _OPEN:
        committers.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class UnixCommitters:
    """A `Committers` over Unix sockets; see the module.

    Args:
        directory: The directory, which all processes share and other users cannot enter.
        clock: Returns monotonic seconds.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = f"{FORMAT}{uuid4().hex}"
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock = Lock()
        self._finding = Lock()
        self._held: OrderedDict[ObjectId, _Held] = OrderedDict()
        self._found: dict[ObjectId, _Committer] = {}
        self._committers: dict[str, _Committer] = {}
        self._avoided: dict[str, float] = {}
        self._askers: set[AskerConnection] = set()
        self._taken = Taken()
        self._listener: socket.socket | None = None
        self._is_open, self._is_closed = True, False
        _OPEN.add(self)

    def begin(
        self,
        receive: Callable[[Received], None],
        counted: Callable[[Sequence[int], Sequence[MergeCounts]], None],
        answered: Callable[[Sequence[int], Reply], None],
    ) -> None:
        self._receive = receive
        self._counted = counted
        self._answered = answered
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(self._path(self._name))
            listener.listen(_BACKLOG)
        except OSError:  # this process then commits what it is asked for
            listener.close()
            self._is_open = False
            return
        self._listener = listener
        Thread(target=self._accept, args=(listener,), name="lancekeep-askers", daemon=True).start()

    def send(
        self, table: ObjectId, number: int, rows: Rows, key: SharedKey | None, upsert: SentUpsert | None = None
    ) -> bool:
        committer = self._committer_of(table)
        if committer is None:
            return False
        content = append_frame(table, number, rows, key, upsert)
        return content is not None and committer.send(number, content)

    def lost(self, table: ObjectId) -> None:
        """Do nothing: the processes of this host have one committer of each table."""

    def is_elsewhere(self, table: ObjectId) -> bool:
        """Return False.

        What waits for the committer of this process was sent to it, or is its own.
        """
        return False

    def give_up(self, number: int) -> None:
        with self._lock:
            committers = list(self._committers.values())
        for each in committers:
            each.give_up(number)

    def leave(self, seconds: float) -> bool:
        with self._lock:
            self._is_open = False
            for each in self._held.values():
                os.close(each.file)
            self._held.clear()
        return self._taken.wait(seconds)

    def close(self) -> None:
        self.leave(0)
        with self._finding, self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            committers, askers = list(self._committers.values()), list(self._askers)
            if self._listener is not None:
                with suppress(OSError):
                    os.unlink(self._name, dir_fd=self._directory)
                with suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
                self._listener.close()
            os.close(self._directory)
        for committer in committers:
            committer.end()
        for asker in askers:
            asker.end()

    def after_fork(self) -> None:
        """Forget the locks and connections of the parent; this process commits itself."""
        self._lock, self._finding, self._is_open = Lock(), Lock(), False
        for held in self._held.values():
            os.close(held.file)
        self._held.clear()
        connections: list[_Committer | AskerConnection] = [*self._committers.values(), *self._askers]
        for each in connections:
            each.forget()
        self._committers.clear()
        self._askers.clear()
        if self._listener is not None:
            self._listener.close()
        if not self._is_closed:
            os.close(self._directory)
        self._is_closed = True

    # -- the committer of a table -------------------------------------------------------------------------------

    def _committer_of(self, table: ObjectId) -> _Committer | None:
        """Return the process that commits the appends of a table; None if this process has to."""
        is_known, found = self._known(table)
        if is_known:
            return found
        with self._finding:
            is_known, found = self._known(table)  # another thread may have found it
            try:
                return found if is_known else self._find(table)
            except OSError:
                return None

    def _known(self, table: ObjectId) -> tuple[bool, _Committer | None]:
        """Return whether the process that commits for a table is known, and which one; None for this process."""
        with self._lock:
            if not self._is_open:
                return True, None
            held, found = self._held.get(table), self._found.get(table)
            if held is not None:
                held.used = self._clock()
                self._held.move_to_end(table)
                return True, None
        return found is not None and found.is_used, found

    def _find(self, table: ObjectId) -> _Committer | None:
        name = sha256(table.key.encode()).hexdigest()[:32]
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(name, flags, 0o600, dir_fd=self._directory)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return self._connected(table, os.pread(file, 100, 0).decode("ascii", "replace"))
            os.ftruncate(file, 0)
            os.pwrite(file, self._name.encode(), 0)
            with self._lock:
                self._found.pop(table, None)
                if self._is_open:
                    self._held[table] = _Held(file, self._clock())
                    file = -1
                    if len(self._held) > MOST_TABLES:
                        os.close(self._held.popitem(last=False)[1].file)
            return None
        finally:
            if file >= 0:
                os.close(file)

    def _connected(self, table: ObjectId, name: str) -> _Committer | None:
        if not name.startswith(FORMAT) or not name.removeprefix(FORMAT).isalnum() or name == self._name:
            return None
        if self._clock() < self._avoided.get(name, 0.0):
            return None
        committer = self._committers.get(name)
        if committer is None or not committer.is_used:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(SILENCE)
                connection.connect(self._path(name))
            except OSError as error:
                connection.close()
                if isinstance(error, TimeoutError):
                    self._avoided = {name: self._clock() + AVOIDED}
                return None
            committer = _Committer(name, connection, self._counted, self._answered, self._declined, self._ended)
            with self._lock:
                self._committers[name] = committer
            committer.begin()
        with self._lock:
            if len(self._found) == MOST_TABLES:
                self._found.clear()
            self._found[table] = committer
        return committer

    def _declined(self, committer: _Committer) -> None:
        with self._lock:
            self._found = {table: found for table, found in self._found.items() if found is not committer}

    def _ended(self, committer: _Committer, is_silent: bool) -> None:
        self._declined(committer)
        with self._lock:
            if self._committers.get(committer.name) is committer:
                del self._committers[committer.name]
            if is_silent:
                self._avoided = {committer.name: self._clock() + AVOIDED}

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self._directory}/{name}"  # the path of a socket has at most 107 bytes

    # -- appends of other processes -----------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(SILENCE)  # without a free file number; the others wait, or give up
                continue
            asker = AskerConnection(connection, self._take, self._taken)
            with self._lock:
                self._askers = {each for each in self._askers if not each.is_gone} | {asker}
            Thread(target=asker.read, name="lancekeep-asker", daemon=True).start()

    def _take(self, asker: AskerConnection, number: int, message: Mapping[str, Any], content: bytes) -> None:
        """Take an append, or decline it: then its process finds another committer, or commits it itself."""
        try:
            table, rows, key, upsert = append_of(message, content)
        except InvalidInput:
            asker.decline(number)
            return
        with self._lock:
            held = self._held.get(table)
            if held is not None and self._clock() - held.used > UNUSED:
                os.close(self._held.pop(table).file)
                held = None
        if held is None or not self._taken.add(asker, number, rows.size + OVERHEAD):
            asker.decline(number)
            return
        self._receive(Received(table, rows, key, asker, number, upsert))


@attrs.define
class _Held:
    """The lock of a table, and when a caller of this process last appended to the table."""

    file: int
    used: float


class _Committer:
    """The connection to a process that commits appends of this one.

    Args:
        name: The name of its socket.
        connection: The socket.
        counted: Takes the counts of announced upserts.
        answered: Takes the replies.
        declined: Is called if the process declines an append.
        ended: Is called when the connection ends, with whether the process was silent.
    """

    def __init__(
        self,
        name: str,
        connection: socket.socket,
        counted: Callable[[Sequence[int], Sequence[MergeCounts]], None],
        answered: Callable[[Sequence[int], Reply], None],
        declined: Callable[[_Committer], None],
        ended: Callable[[_Committer, bool], None],
    ) -> None:
        self.name = name
        self._connection = connection
        self._connection.settimeout(SILENCE)
        self._outgoing = connection.dup()
        self._outgoing.settimeout(SILENCE * PATIENCE)
        self._ended = ended
        self._incoming = Incoming(0)
        self._sending = Lock()
        self._asked = Asked(counted, answered, lambda: declined(self))
        self.is_used = True
        self._is_given_up = False

    def begin(self) -> None:
        """Begin to read replies."""
        Thread(target=self._read, name="lancekeep-committer", daemon=True).start()

    def send(self, number: int, content: bytes) -> bool:
        """Send an append; return False if the connection has ended."""
        if not self._asked.add(number):
            return False
        self._send(content)
        return True

    def end(self) -> None:
        """End the connection. What waits is answered."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def give_up(self, number: int) -> None:
        """End the connection, and avoid the process, if it has not answered what was sent by a number."""
        self._is_given_up = self._is_given_up or number in self._asked
        if self._is_given_up:
            self.end()

    def forget(self) -> None:
        """Close a connection of the parent process."""
        self.is_used = False
        self._connection.close()
        self._outgoing.close()

    def _send(self, content: bytes) -> None:
        with self._sending:
            try:
                self._outgoing.sendall(content)
            except OSError:  # perhaps a part was sent
                self.end()

    def _read(self) -> None:
        unanswered, fault = 0, ""
        try:
            while unanswered < PATIENCE:
                try:
                    part = self._connection.recv(PART)
                except TimeoutError:
                    if not self._asked:
                        continue
                    unanswered += 1
                    self._send(frame({"ping": True}))
                    continue
                if not part:
                    break
                unanswered = 0
                self._incoming.add(part)
                self._take_all()
        except OSError:
            pass
        except Exception as error:  # whatever it is, the appends get their answers
            fault = str(error) or repr(error)
        self._fence(fault, is_silent=unanswered == PATIENCE or self._is_given_up)

    def _take_all(self) -> None:
        while (found := self._incoming.next()) is not None:
            self._asked.take(found[0])

    def _fence(self, fault: str, *, is_silent: bool) -> None:
        """End the connection so that no append of it can be committed without a token that was read here."""
        self.is_used = False
        self._asked.stop()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)
        with suppress(OSError):  # of the other end; everything that it had sent was read
            while part := self._connection.recv(PART):
                self._incoming.add(part)
        try:
            if not fault:
                self._take_all()
        except Exception as error:
            fault = str(error) or repr(error)
        with self._sending:
            self._connection.close()
            self._outgoing.close()
        self._ended(self, is_silent)
        self._asked.end(fault)
