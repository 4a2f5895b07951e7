"""A wire with faults: a TCP proxy whose connections are slow, in crumbs, cut, silent or corrupt.

What befalls a connection is drawn when it comes, from a seed, for each direction. Only the server is sent
corrupt bytes: clients of gRPC end their process at some of them.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


@dataclass
class Fate:
    """What happens to the bytes of one direction, from byte `after` on."""

    kind: str  # fine, slow, crumbs, cut, end, silent, corrupt
    after: int = 0
    seconds: float = 0.0


def draw_fate(rng, to_server):
    if rng.random() < 0.6:
        return Fate("fine")
    kinds = ("slow", "crumbs", "cut", "end", "silent")
    kind = rng.choice((*kinds, "corrupt") if to_server else kinds)
    return Fate(kind, int(rng.paretovariate(0.5)) + rng.randrange(2000), rng.uniform(0.001, 0.05))


class Wire:
    """Listens at `address` and connects to `target`, both "HOST:PORT"."""

    def __init__(self, target, seed=1):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._connections = set()
        self.fates = {}  # how many of each kind there were
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def cut_all(self):
        """Resets every connection."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        self._loop.run_forever()
        server.close()
        self._cut_all()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _cut_all(self):
        for writer in list(self._connections):
            reset(writer)

    async def _serve(self, reader, writer):
        try:
            out_reader, out_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return writer.close()
        ends = (writer, out_writer)
        self._connections.update(ends)
        try:
            await asyncio.gather(
                self._carry(reader, out_writer, ends, True),
                self._carry(out_reader, writer, ends, False),
            )
        finally:
            self._connections.difference_update(ends)
            for end in ends:
                end.close()

    async def _carry(self, reader, writer, ends, to_server):
        fate = draw_fate(self._rng, to_server)
        self.fates[fate.kind] = self.fates.get(fate.kind, 0) + 1
        carried = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 14):
                carried += len(data)
                if carried > fate.after and fate.kind != "fine":
                    data = await self._befall(fate, data, writer, ends)
                    if data is None:
                        return
                if writer.is_closing():
                    return
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    async def _befall(self, fate, data, writer, ends):
        """The data to forward; None: this direction is closed."""
        if fate.kind == "slow":
            await asyncio.sleep(fate.seconds)
        elif fate.kind == "crumbs":
            for i in range(min(len(data), 200)):
                if writer.is_closing():
                    return None
                writer.write(data[i : i + 1])
                await asyncio.sleep(0)
            return data[200:]
        elif fate.kind == "cut":
            for end in ends:
                reset(end)
            return None
        elif fate.kind == "end":
            writer.write(data)
            writer.write_eof()
            return None
        elif fate.kind == "silent":
            await asyncio.sleep(100 * fate.seconds)
            fate.kind = "fine"
        elif fate.kind == "corrupt":
            data = bytearray(data)
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        return data


def reset(writer):
    """The other side sees a reset instead of an end."""
    with contextlib.suppress(OSError, ValueError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
