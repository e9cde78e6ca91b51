"""Servers that aren't there, aren't understood, go away, come back, hang, or are full."""

from __future__ import annotations

import socket
import threading
import time

import pytest

import lanner
from conftest import Server


def test_several_clients_in_one_process(server):
    other = Server("--memory", "64MiB")
    try:
        here, there, again = lanner.Client(server.url()), lanner.Client(other.url()), lanner.Client(server.url("tcp"))
        here.upsert("several", b"here")
        there.upsert("several", b"there")
        assert (here.get("several"), there.get("several"), again.get("several")) == (b"here", b"there", b"here")
        del here
        assert again.get("several") == b"here"
    finally:
        other.kill()


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(lanner.ConnectionFailed, match="127.0.0.1:1") as raised:
        lanner.Client("lanner://127.0.0.1:1?timeout=1s")
    assert raised.value.code == 13 and isinstance(raised.value, ConnectionError)
    with pytest.raises(lanner.InvalidArgument, match="lanner://"):
        lanner.Client("http://127.0.0.1")


def test_a_server_that_is_not_understood_is_named(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "127.0.0.1:%d" % other.getsockname()[1]
        answer = threading.Thread(target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n" * 100), daemon=True)
        answer.start()
        with pytest.raises(lanner.ConnectionFailed, match=f"{address}: .*not a Lanner handshake") as raised:
            lanner.Client(f"lanner://{address}?timeout=1s")
        answer.join()
    assert raised.value.code == 18
    with pytest.raises(lanner.ConnectionFailed, match=f"{server.fields['listen']}: .*refused tenant") as raised:
        lanner.Client(server.url() + "&tenant=nobody&token=wrong")
    assert raised.value.code == 17


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_that_was_killed_comes_back(transport):
    server = Server("--memory", "64MiB")
    client = lanner.Client(server.url(transport, timeout="1s"))
    client.upsert("k", b"old")
    snapshot = client.prepare_snapshot(["k"])
    server.kill()
    with pytest.raises((lanner.ConnectionFailed, lanner.Stale)):
        client.get("k")
    again = Server("--memory", "64MiB", port=server.port)
    try:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                assert client.get("k") is None
                break
            except lanner.ConnectionFailed:
                time.sleep(0.05)
        with pytest.raises((lanner.Stale, lanner.NotFound)):
            snapshot.read_into([(0, 0, 3, 0)], bytearray(3))
        client.put("k", b"new")
        snapshot.refresh()
        target = bytearray(3)
        snapshot.read_into([(0, 0, 3, 0)], target)
        assert target == b"new"
    finally:
        again.kill()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("is_hung", [False, True])
def test_a_server_that_is_away_takes_only_its_own_keys(two_servers, transport, is_hung):
    (one, other), url = two_servers
    client = lanner.Client(f"{url}?transport={transport}&timeout=700ms")
    keys = [f"k{index}" for index in range(20)]
    client.put_batch(keys, [b"v" * 5] * 20)
    there = [key.encode() in {key for key, _ in lanner.Client(one.url()).list()} for key in keys]
    assert 0 < sum(there) < 20
    other.pause() if is_hung else other.kill()
    calls = {client.exists_batch: True, client.size_batch: 5, client.remove_batch: True}
    for call, good in calls.items():
        answers = call(["", *keys, "k" * 1025], return_exceptions=True)
        assert type(answers[0]) is type(answers[-1]) is lanner.InvalidArgument
        assert [answer == good for answer in answers[1:-1]] == there
        assert all(isinstance(answer, lanner.ConnectionFailed) for answer, is_there in zip(answers[1:-1], there) if not is_there)
        if not is_hung:
            with pytest.raises(lanner.ConnectionFailed):
                call(keys)
    live = [key for key, is_there in zip(keys, there) if is_there]
    assert client.exists_batch([*live, "none"], return_exceptions=True)[: len(live)] == [False] * len(live)
    other.resume()


def test_blocks_are_found_though_the_first_server_is_gone(two_servers):
    """A group that nobody was reached about was taken for one of the first server's, which was then connected to, in vain."""
    (first, second), url = two_servers
    client = lanner.Client(f"{url}?timeout=700ms")
    chains = [[f"{number}/{block}" for block in range(64)] for number in range(16)]
    for chain in chains:
        client.put_chain(chain, 0, [b"v"] * 64)
    held = {key for key, _ in lanner.Client(second.url()).list()}
    first.kill()
    found = 0
    for chain in chains:
        there = [key in held for key in lanner.stored_keys(chain)] + [False]
        if any(there):
            assert len(client.match_chain(chain)) == there.index(False)
            found += there.index(False)
    assert found > 0


def test_a_store_that_is_full_says_so(own_server):
    client = lanner.Client(own_server.url())
    with pytest.raises(lanner.InvalidArgument) as raised:
        client.put("k", bytes(128 << 20))
    assert raised.value.code == 9
    stored = 0
    with pytest.raises(lanner.Busy) as raised:
        while stored < 200:
            client.put(f"pinned{stored}", bytes(1 << 20), pin="hard", ttl=60)
            stored += 1
    assert raised.value.code == 10 and stored > 10
