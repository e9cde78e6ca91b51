"""The connectors' client, whose servers may come later: when it tries to connect, and what calls answer meanwhile."""

from __future__ import annotations

import copy
import threading

import pytest

import lanner
from lanner import patient


class World:
    """A clock, and servers that answer from some moment on, or refuse after ``takes`` seconds."""

    def __init__(self, monkeypatch, takes: float = 0.0):
        self.now, self.takes, self.tries, self.is_up = 0.0, takes, 0, False
        monkeypatch.setattr(patient, "_lanner", self)

        class Client:
            def __init__(client, url):
                self.connect(url)
                client.url = url

            def get(client, key):
                return key

        self.Client = Client

    def connect(self, url):
        self.tries += 1
        self.now += self.takes
        if not self.is_up:
            raise lanner.ConnectionFailed(f"no connection to {url}")

    def clock(self):
        return self.now


@pytest.mark.parametrize("takes, pause", [(0.0, 1.0), (5.0, 45.0)])
def test_it_tries_again_a_tenth_of_the_time(monkeypatch, takes, pause):
    world = World(monkeypatch, takes)
    client = patient.PatientClient("lanner://h:1?token=secret", world.clock)
    told = []
    client.when_connected(told.append)
    assert world.tries == 1 and client.url == "lanner://h:1" and not client.is_connected
    for _ in range(100):
        with pytest.raises(lanner.ConnectionFailed, match="no connection"):
            client.get("k")
    assert world.tries == 1
    world.now += pause
    with pytest.raises(lanner.ConnectionFailed):
        client.get("k")
    assert world.tries == 2 and not told
    world.is_up, world.now = True, world.now + pause
    assert client.get("k") == "k" and client.is_connected and len(told) == 1
    client.when_connected(told.append)
    assert client.get("k") == "k" and world.tries == 3 and len(told) == 2


def test_nobody_waits_for_the_thread_that_connects(monkeypatch):
    world = World(monkeypatch)
    client = patient.PatientClient("lanner://h:1", world.clock)
    world.now, world.is_up = 1.0, True
    begun, may_end = threading.Event(), threading.Event()
    connect = world.connect

    def slow(url):
        begun.set()
        assert may_end.wait(10)
        connect(url)

    world.connect = slow
    thread = threading.Thread(target=client.get, args=("k",))
    thread.start()
    assert begun.wait(10)
    with pytest.raises(lanner.ConnectionFailed):
        client.get("k")
    may_end.set()
    thread.join()
    assert client.get("k") == "k" and world.tries == 2


def test_a_copy_is_the_same_client(monkeypatch):
    """It asked itself for its fields for ever."""
    world = World(monkeypatch)
    client = patient.PatientClient("lanner://h:1", world.clock)
    world.is_up, world.now = True, 1.0
    assert copy.copy(client).get("k") == "k"


def test_what_is_no_url_is_refused_at_once():
    with pytest.raises(AttributeError):
        patient.PatientClient("lanner://127.0.0.1:1?timeout=1s").no_such_call
    with pytest.raises(lanner.InvalidArgument):
        patient.PatientClient("http://127.0.0.1:1")
