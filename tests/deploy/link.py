"""A TCP link with faults: relays connections to a target and can cut, stall or slow them."""

import asyncio
import contextlib
import threading


class Links:
    """Runs the event loop of all links in a thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def open(self, target):
        """`target`: host:port."""
        link = Link(target)
        self.run(link.listen())
        link.links = self
        return link

    def close(self):
        async def cancel():
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Link:
    """Listens on `address`. Methods are called from other threads."""

    PIECE = 256  # bytes of a slow link
    PAUSE = 0.001  # seconds between them

    def __init__(self, target):
        self.target = target
        self.is_cut = self.is_slow = False
        self.writers = set()

    async def listen(self):
        self.flows = asyncio.Event()
        self.flows.set()
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def accept(self, reader, writer):
        self.writers.add(writer)
        away = None
        try:
            if not self.is_cut:
                host, port = self.target.rsplit(":", 1)
                there, away = await asyncio.open_connection(host, int(port))
                self.writers.add(away)
                await asyncio.gather(self.relay(reader, away), self.relay(there, writer))
        except OSError:
            pass  # the other side of the link sees the abort below
        finally:
            for end in (writer, away):
                if end is not None:
                    self.writers.discard(end)
                    end.transport.abort()

    async def relay(self, reader, writer):
        while data := await reader.read(1 << 16):
            await self.flows.wait()
            step = self.PIECE if self.is_slow else len(data)
            for start in range(0, len(data), step):
                writer.write(data[start : start + step])
                await writer.drain()
                if self.is_slow:
                    await asyncio.sleep(self.PAUSE)
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def set(self, cut=False, stalled=False, slow=False):
        self.is_cut, self.is_slow = cut, slow
        if stalled:
            self.flows.clear()
        else:
            self.flows.set()
        if cut:
            for writer in list(self.writers):
                writer.transport.abort()

    def cut(self):
        """Resets connections, present and future."""
        self.links.run(self.set(cut=True))

    def stall(self):
        """Passes no byte, as between the parts of a divided network."""
        self.links.run(self.set(stalled=True))

    def slow(self):
        self.links.run(self.set(slow=True))

    def restore(self):
        """What was stalled arrives late."""
        self.links.run(self.set())
