"""Links between processes on several hosts, over TLS.

Each process has a certificate of one authority, which exists for these processes alone: that is their key to each
other. A process that connects names the process that it expects, and leaves a challenge of it in the storage of the
catalog. So two catalogs whose leases were copied with their files do not meet.

A fence like the one of Unix sockets is missing, so a committer waits until the asker has acknowledged each token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, Final, TypeVar
from uuid import uuid4

from lancekeep.adapters.committers.askers import Taken
from lancekeep.adapters.committers.frames import (
    MOST_ROWS_BYTES,
    Incoming,
    Malformed,
    append_frame,
    append_of,
    frame,
)
from lancekeep.adapters.committers.tls_connections import TlsAsker, TlsLink, received, soon
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.committers import LinkedTables, Received, SentUpsert
from lancekeep.ports.data_files import Rows

T = TypeVar("T")

FORMAT: Final = "lancekeep-1"
"""The protocol of a link. A process accepts no other one."""
LINKED_WITHIN: Final = 4.0
"""Seconds in which two processes prove to each other that they use the same storage."""
AVOIDED: Final = 10.0
"""Seconds for which nothing is sent to a process that was silent, or to which no link could be made."""
MOST_LINKS: Final = 256
"""The number of processes whose appends a process takes."""
MOST_ENTERING: Final = 64
"""The connections that have not proven their storage; further ones wait to be accepted."""
MOST_PROOFS: Final = 16
"""The requests for proofs and for the addresses of hosts, each in a thread of its own."""
MOST_UNREAD: Final = 256 << 20
"""The bytes of frames that are not complete, of all processes."""
OVERHEAD: Final = 1 << 10
"""The bytes that an append takes apart from its rows."""
_PAUSE: Final = 1.0
"""Seconds without a free file number."""
_READ_AHEAD: Final = 1 << 20
_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""When the system asks whether a silent host still runs: after some seconds, how often, and how many times."""
_LOG = logging.getLogger(__name__)


class TlsLinks:
    """The `Links` of one process; see the module.

    Args:
        host: The name or address at which other hosts reach this one; it is also listened on.
        ports: The ports to listen on, of which the first free one is taken; empty for any.
        certificate: The file of the certificate of this process.
        private_key: The file of its private key.
        authority: The file of the certificate of the authority.
        clock: Returns monotonic seconds.

    Raises:
        InvalidInput: A file cannot be used, or the address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        certificate: str,
        private_key: str,
        authority: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accepting = _context(ssl.PROTOCOL_TLS_SERVER, certificate, private_key, authority)
        self._connecting = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, private_key, authority)
        self._clock = clock
        self._listener = _listener(host, ports)
        self._name = uuid4().hex
        self._address = f"{host}:{self._listener.getsockname()[1]}/{self._name}"
        self._lock = Lock()
        self._links: dict[str, TlsLink] = {}
        self._avoided: dict[str, float] = {}
        self._askers: set[TlsAsker] = set()
        self._taken = Taken()
        self._proofs = BoundedSemaphore(MOST_PROOFS)
        self._linking: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._entering: set[asyncio.Task[None]] = set()
        self._process = os.getpid()
        self._takes = True
        self._has_begun = self._is_closed = False

    @property
    def address(self) -> str:
        return self._address

    def begin(self, tables: LinkedTables) -> None:
        self._tables = tables
        with suppress(RuntimeError):  # without a thread, this process competes
            Thread(target=self._run, name="lancekeep-links", daemon=True).start()
            self._has_begun = True

    def link(self, address: str) -> bool:
        if not self._is_usable or self._clock() < self._avoided.get(address, 0.0):
            return False
        with self._lock:
            link = self._links.get(address)
            if link is not None and link.is_used:
                return True
            if address in self._linking:
                return False
            self._linking.add(address)
        linking = self._link(address)
        try:
            made = asyncio.run_coroutine_threadsafe(linking, self._loop)
            return made.result(2 * LINKED_WITHIN)
        except NotInTime:
            made.cancel()
            return False
        except RuntimeError:  # the loop has ended
            linking.close()
            return False
        finally:
            with self._lock:
                self._linking.discard(address)

    def send(
        self,
        address: str,
        table: ObjectId,
        number: int,
        rows: Rows,
        key: SharedKey | None,
        upsert: SentUpsert | None = None,
    ) -> bool:
        link = self._links.get(address)
        if link is None or not self._is_usable:
            return False
        content = append_frame(table, number, rows, key, upsert)
        return content is not None and link.send(number, content)

    def give_up(self, number: int) -> None:
        with self._lock:
            links = list(self._links.values())
        for each in links:
            each.give_up(number)

    def leave(self, seconds: float) -> bool:
        self._takes = False
        return self._taken.wait(seconds)

    def close(self) -> None:
        self.leave(0)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if not self._has_begun:
            self._listener.close()
            self._loop.close()
        elif self._process == os.getpid():
            with suppress(NotInTime, RuntimeError):  # it did not begin
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LINKED_WITHIN)
            soon(self._loop, self._loop.stop)

    @property
    def _is_usable(self) -> bool:
        """Whether this process has the thread of the links; a forked child has not."""
        return self._has_begun and not self._is_closed and self._process == os.getpid()

    # -- the thread of the links --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._listener.setblocking(False)
        self._server = self._loop.create_task(self._accept())
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        self._server.cancel()
        await asyncio.wait({self._server})
        self._listener.close()
        with self._lock:
            ending: list[TlsLink | TlsAsker] = [*self._links.values(), *self._askers]
        for each in ending:
            each.end()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=LINKED_WITHIN / 2)

    async def _link(self, address: str) -> bool:
        where, _, name = address.partition("/")
        host, _, port = where.rpartition(":")
        if not port.isdecimal() or not name.isalnum():
            return False
        writer, challenge = None, ""
        try:
            async with asyncio.timeout(LINKED_WITHIN):
                reader, writer = await self._connection(host, int(port))
                _keep_alive(writer.get_extra_info("socket"))
                incoming = Incoming(0)
                writer.write(frame({"hello": FORMAT, "process": name}))
                given = (await received(reader, incoming)).get("challenge")
                if type(given) is not str:
                    raise Malformed("no challenge")
                challenge = given
                await self._apart(partial(self._tables.prove, challenge))
                writer.write(frame({"proven": challenge}))
                if (await received(reader, incoming)).get("welcome") is not True:
                    raise Malformed("no welcome")
        except (OSError, ValueError, OverflowError, Malformed, LancekeepError) as error:
            # An address in a lease is input: its port may be too large, and its host no name.
            if writer is not None:
                writer.transport.abort()
            self._avoid(address)
            _LOG.warning(
                "no link to the process of the cluster at %.300r: %s", where, str(error) or "it does not answer in time"
            )
            if challenge:
                with suppress(Malformed, LancekeepError):  # else a small object is left
                    await self._apart(partial(self._tables.is_proven, challenge))
            return False
        link = TlsLink(address, self._loop, writer, self._tables, self._ended)
        with self._lock:
            self._links[address] = link
        self._loop.create_task(link.read(reader, incoming))
        return True

    async def _connection(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failed = OSError(f"{host} has no address")
        found = await self._apart(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        for address in dict.fromkeys(str(each[4][0]) for each in found):
            try:
                return await asyncio.open_connection(address, port, ssl=self._connecting, limit=_READ_AHEAD)
            except OSError as error:
                failed = error
        raise failed

    def _ended(self, link: TlsLink, is_silent: bool) -> None:
        with self._lock:
            if self._links.get(link.address) is link:
                del self._links[link.address]
        if is_silent:
            self._avoid(link.address)
        self._tables.unlinked(link.address)

    def _avoid(self, address: str) -> None:
        """Send nothing to a process for some seconds."""
        now = self._clock()
        avoided = {each: until for each, until in self._avoided.items() if until > now}
        self._avoided = {**avoided, address: now + AVOIDED}

    # -- appends of other processes -----------------------------------------------------------------------------

    async def _accept(self) -> None:
        entering = asyncio.Semaphore(MOST_ENTERING)
        while True:
            await entering.acquire()
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # without a free file number
                entering.release()
                await asyncio.sleep(_PAUSE)
                continue
            task = self._loop.create_task(self._enter(connection))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)
            task.add_done_callback(lambda _: entering.release())

    async def _enter(self, connection: socket.socket) -> None:
        """Take the appends of a process from now on, if it proves that it uses the same storage."""
        incoming, writer = Incoming(MOST_ROWS_BYTES), None
        try:
            async with asyncio.timeout(LINKED_WITHIN):
                reader, writer = await self._accepted(connection)
                hello = await received(reader, incoming)
                if hello.get("hello") != FORMAT or hello.get("process") != self._name:
                    raise Malformed("a process that looks for another process")
                challenge = secrets.token_hex(32)
                writer.write(frame({"challenge": challenge}))
                await received(reader, incoming)
                if not await self._apart(partial(self._tables.is_proven, challenge)):
                    raise Malformed("a process that uses another storage")
                writer.write(frame({"welcome": True}))
        except (OSError, Malformed, LancekeepError):
            if writer is not None:
                writer.transport.abort()
            return
        asker = TlsAsker(self._loop, writer, self._taken, incoming)
        with self._lock:
            is_accepted = len(self._askers) < MOST_LINKS
            if is_accepted:
                self._askers.add(asker)
        if not is_accepted:
            asker.end()
            return
        reading = self._loop.create_task(self._read(asker, reader))
        self._entering.add(reading)
        reading.add_done_callback(self._entering.discard)

    async def _accepted(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an accepted connection after its handshake."""
        _keep_alive(connection)
        reader = asyncio.StreamReader(_READ_AHEAD, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._accepting, ssl_handshake_timeout=LINKED_WITHIN
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _read(self, asker: TlsAsker, reader: asyncio.StreamReader) -> None:
        try:
            await asker.read(reader, self._take, self._has_room)
        finally:
            with self._lock:
                self._askers.discard(asker)
            asker.end()

    def _has_room(self) -> bool:
        """Return whether the frames that are not complete are small together."""
        with self._lock:
            return sum(each.unread for each in self._askers) <= MOST_UNREAD

    async def _apart(self, act: Callable[[], T]) -> T:
        """Call a function that may wait long, in a thread that delays neither appends nor the end of the process.

        Raises:
            Malformed: Too many such threads wait.
        """
        if not self._proofs.acquire(blocking=False):
            raise Malformed("too many requests wait for the storage or for the address of a host")
        done = Future[T]()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)
            finally:
                self._proofs.release()

        try:
            Thread(target=run, name="lancekeep-link", daemon=True).start()
        except RuntimeError as error:
            self._proofs.release()
            raise Malformed(f"the system starts no thread: {error}") from error
        return await asyncio.wrap_future(done)

    def _take(self, asker: TlsAsker, number: int, message: Mapping[str, Any], content: bytes) -> None:
        """Take an append, or decline it: then its process finds another committer, or commits it itself."""
        try:
            table, rows, key, upsert = append_of(message, content)
        except InvalidInput:
            asker.decline(number)
            return
        is_taken = self._takes and self._tables.takes(table)
        if not is_taken or not self._taken.add(asker, number, rows.size + OVERHEAD):
            asker.decline(number)
            return
        try:
            self._tables.receive(Received(table, rows, key, asker, number, upsert))
        except BaseException:
            self._taken.remove(asker, [number])
            raise


def _keep_alive(connection: socket.socket) -> None:
    """Let the system end a connection whose other host has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):  # not on each system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _context(protocol: Any, certificate: str, private_key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the authority signs for these processes alone
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, private_key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"the certificate {certificate}, its key {private_key} or the authority {authority} of the cluster cannot "
            f"be used: {error}"
        ) from error
    return context


def _listener(host: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first free port."""
    family, address = _resolved(host)
    if ip_address(address.partition("%")[0]).is_unspecified:
        raise InvalidInput(
            f"the host {host} of the cluster stands for every address of this machine; give the address or name at "
            "which the other servers reach this one"
        )
    failed: OSError | None = None
    for port in ports or [0]:
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            failed = error
    named = f"{ports[0]} to {ports[-1]}" if ports else "any"
    raise InvalidInput(f"cannot listen on {host}, port {named}, for other servers of the cluster: {failed}") from failed


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the family and the address of a host."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"the host {host} of the cluster cannot be resolved: {error}") from error
    return socket.AddressFamily(family), str(address[0])
