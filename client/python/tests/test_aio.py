"""Calls that are awaited: the event loop goes on, several wait at once, a cancelled one harms nobody."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import lanner
from lanner import aio


def test_calls_are_awaited(server, name):
    async def use():
        async with await aio.Client.connect(server.url("tcp")) as client:
            keys = [f"{name}{index}" for index in range(50)]
            await asyncio.gather(*(client.upsert(key, key.encode()) for key in keys))
            values = await asyncio.gather(*(client.get(key) for key in keys))
            assert values == [key.encode() for key in keys]
            assert await client.get(name + "none") is None
            snapshot = await client.prepare_snapshot(keys[:1])
            target = bytearray(len(keys[0]))
            await snapshot.read_into([(0, 0, len(target), 0)], target, refresh=True)
            assert target == keys[0].encode() and len(snapshot) == 1
            with pytest.raises(lanner.AlreadyExists):
                await client.put(keys[0], b"again")

    asyncio.run(use())


def test_the_loop_goes_on_while_calls_wait_and_one_may_be_cancelled(own_server, name):
    async def use():
        async with await aio.Client.connect(own_server.url("tcp", timeout="1s"), threads=2) as client:
            await asyncio.gather(client.upsert(name, b"v" * 1000), client.upsert(name + "2", b"v"))
            own_server.pause()
            buffer = bytearray(1000)
            read = asyncio.create_task(client.get_into(name, buffer))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not read.done()
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
            # The read goes on, so its memory is held.
            with pytest.raises(BufferError):
                buffer.extend(b"x")
            own_server.resume()
            assert await client.get(name + "2") == b"v"
        buffer.extend(b"x")

    asyncio.run(use())


def test_stubs_name_every_call():
    """The stubs and the module have the same classes and members."""
    import ast
    from pathlib import Path

    from lanner import _lanner

    tree = ast.parse((Path(lanner.__file__).parent / "_lanner.pyi").read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    classes = {name: kind for name, kind in vars(_lanner).items() if isinstance(kind, type)}
    assert stubs.keys() == classes.keys()
    for name, kind in classes.items():
        members = {member for member in vars(kind) if not member.startswith("_")}
        described = {node.name for node in stubs[name].body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
        assert members == described, name
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions == {name for name, what in vars(_lanner).items() if callable(what) and name not in classes}


def test_any_other_call(server, name):
    async def use():
        async with aio.Client(lanner.Client(server.url())) as client:
            tensor = await client.run(lanner.ShardedTensor.create, client.client, f"{name}t", "float32", [4, 2], parts=2)
            for part in range(2):
                await client.run(tensor.write_part, part, np.full(4, part, np.float32))
            whole = np.empty((4, 2), np.float32)
            await client.run(tensor.whole().read_into, whole)
            assert whole[:2].sum() == 0 and whole[2:].sum() == 4

    asyncio.run(use())


def test_a_url_is_no_client() -> None:
    with pytest.raises(TypeError, match="connect"):
        aio.Client("lanner://127.0.0.1:1")  # type: ignore[arg-type]
