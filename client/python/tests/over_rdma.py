"""Python's registered memory over RDMA: `lanner.Registered`, and what `register_buffer` of `lanner.mooncake` does with it. In the guest of
scripts/rdma-vm, with the standard library only and a module that was built with RDMA (`scripts/rdma-vm/tests.sh`); pytest doesn't collect it.

    PYTHONPATH=… LANNER_SERVER=… python3 client/python/tests/over_rdma.py
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import time
import unittest
import urllib.request

import lanner
from lanner import mooncake

LONG = 1 << 20
#: Puts of at most so many bytes come in messages; of longer ones a server READs registered memory.
SHORT = 8 << 10


class Server:
    """Behind the guest's first device."""

    def __init__(self) -> None:
        command = [os.environ["LANNER_SERVER"], "--listen", f"{os.environ['RDMA_VM_IP0']}:0", "--admin", "127.0.0.1:0", "--memory", "64MiB"]
        command += ["--shards", "1", "--cores", "1", "--shm", "off", "--rdma", "auto", "--huge-pages", "off"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        assert ready.startswith("ready "), ready
        fields = dict(word.split("=", 1) for word in ready.split()[1:])
        self.address, self.admin = fields["listen"], fields["admin"]

    def values_read(self) -> int:
        """How many values of puts it has READ out of clients' memory, once it says so."""
        time.sleep(0.3)
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as page:
            lines = [line.split() for line in page.read().decode().split("\n")]
        return sum(int(float(words[-1])) for words in lines if words and words[0].split("{")[0] == "lanner_rdma_values_read_total")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def filled(size: int, seed: int) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


def address_of(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))


class OverRdma(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.stop)

    def client(self) -> lanner.Client:
        return lanner.Client(f"lanner://{self.server.address}?transport=rdma&rdma=rxe1&timeout=5s")

    def test_registered_memory_is_read_by_the_server_and_read_to(self) -> None:
        client, memory = self.client(), filled(3 * LONG, 1)
        put = bytes(memory)
        registered = client.register(memory)
        self.assertTrue(registered.is_with_device)
        self.assertEqual(registered.put_batch([b"short", b"long"], [(0, SHORT), (100, LONG)]), [True, True])
        self.assertEqual(self.server.values_read(), 1)
        self.assertEqual([client.get(b"short"), client.get(b"long")], [put[:SHORT], put[100 : 100 + LONG]])
        memory[2 * LONG :] = bytes(LONG)
        self.assertEqual(registered.get_into_batch([b"long", b"none", b"short"], [(LONG + SHORT, LONG), (0, 9), (LONG, SHORT)]), [LONG, None, SHORT])
        self.assertEqual(memory[LONG : 2 * LONG + SHORT], put[:SHORT] + put[100 : 100 + LONG])
        snapshot = client.prepare_snapshot([b"long"])
        registered.read_from_snapshot(snapshot, [(0, 1000, 264, 0), (0, 70000, 264, 264)])
        self.assertEqual(memory[:528], put[1100:1364] + put[70100:70364])
        # What isn't registered goes in messages.
        client.put(b"ordinary", put[:LONG])
        self.assertEqual((client.get(b"ordinary"), self.server.values_read()), (put[:LONG], 1))

    def test_a_child_of_a_fork_has_a_device_context_of_its_own(self) -> None:
        # It went on with the parent's context, which refuses a child everything; and whatever it ended there it would have ended for the parent.
        client, memory, others = self.client(), filled(LONG, 5), filled(LONG, 6)
        put = bytes(memory)
        registered, idle = client.register(memory), client.register(others)
        registered.put_batch([b"key"], [(0, LONG)])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for used in client, self.client():
                    read = filled(LONG, 7)
                    childs = used.register(read)
                    same = [used.get(b"key") == put, childs.get_into(b"key", 0, LONG) == LONG and read == put]
                    ways = [used.transport_for(b"key"), childs.is_with_device]
                    childs.close()
                    status = 0 if same + ways == [True, True, "rdma", True] else 2
                    if status:
                        break
            except BaseException as error:
                print(error, flush=True)
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        # What the parent has registered is so still.
        self.assertEqual(idle.put_batch([b"idle"], [(0, LONG)]), [True])
        self.assertEqual((self.server.values_read(), client.get(b"idle") == others), (2, True))

    def test_memory_is_free_again_when_the_registration_ends(self) -> None:
        client, memory = self.client(), filled(LONG, 2)
        registered = client.register(memory)
        with self.assertRaises(BufferError):
            memory.extend(b"more")
        registered.close()
        memory.extend(b"more")
        with self.assertRaises(RuntimeError):
            registered.get_into(b"key", 0, 10)

    def test_buffers_that_mooncakes_programs_register(self) -> None:
        store = mooncake.MooncakeDistributedStore()
        self.assertEqual(store.setup("localhost", "P2PHANDSHAKE", 0, 0, "rdma", "rxe1", self.server.address), 0)
        memory, plain = filled(2 * LONG, 3), filled(LONG, 4)
        start, rest, put = address_of(memory), address_of(plain), bytes(memory)
        self.assertEqual(store.register_buffer(start, 2 * LONG), 0)
        self.assertEqual(store.batch_put_from(["a", "b", "c"], [start + 50, rest, start], [LONG, LONG, SHORT]), [0, 0, 0])
        self.assertEqual(self.server.values_read(), 1)
        self.assertEqual(store.get("a"), put[50 : 50 + LONG])
        self.assertEqual(store.get("b"), bytes(plain))
        self.assertEqual(store.batch_get_into(["a", "none", "b", "c"], [start, rest + SHORT, start + LONG, rest], [LONG, 1, LONG, SHORT]), [LONG, -704, LONG, SHORT])
        self.assertEqual(bytes(memory), put[50 : 50 + LONG] + store.get("b"))
        self.assertEqual(plain[:SHORT], put[:SHORT])
        self.assertEqual((store.unregister_buffer(start), store.unregister_buffer(start)), (0, -600))
        self.assertEqual((store.put_from("d", start, LONG), store.get("d") == memory[:LONG], self.server.values_read()), (0, True, 1))
        self.assertEqual(store.close(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
