"""A real ``lanner-server`` for the tests, found by LANNER_SERVER or in the target folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lanner

ROOT = Path(__file__).resolve().parents[3]

# A shell ignores SIGINT for what it starts in the background, and what is ignored stays so in all children: those that a test interrupts, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def server_binary() -> str:
    """The newest server that was built, unless LANNER_SERVER names one."""
    if named := os.environ.get("LANNER_SERVER"):
        return named
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [path for kind in ("debug", "release") if (path := target / kind / "lanner-server").exists()]
    assert built, f"no lanner-server below {target}: cargo build -p lanner-server, or name one in LANNER_SERVER"
    return str(max(built, key=lambda path: path.stat().st_mtime))


class Server:
    """A running server; ``url()`` leads to it."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        command = [server_binary(), "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--shards", "1", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        ready = self.process.stdout.readline()
        assert ready.startswith("ready "), f"{command} said {ready!r}"
        self.fields = dict(word.split("=", 1) for word in ready.split()[1:])

    def url(self, transport: str = "auto", **query: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in query.items())
        return f"lanner://{self.fields['listen']}?transport={transport}{more}"

    @property
    def port(self) -> int:
        return int(self.fields["listen"].rsplit(":", 1)[1])

    def pause(self) -> None:
        """Returns once the server has stopped running."""
        self.process.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1][0] != "T":
            time.sleep(0.001)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it without the drain, which would take as long as its leases."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def server():
    server = Server("--memory", "256MiB")
    yield server
    server.kill()


@pytest.fixture
def own_server():
    """A server that the test may pause or kill, with short leases."""
    server = Server("--memory", "64MiB", "--lease-ttl", "1s")
    yield server
    server.kill()


@pytest.fixture
def two_servers():
    """Two servers that the test may pause or kill, and what leads to both."""
    servers = [Server("--memory", "64MiB") for _ in range(2)]
    yield servers, "lanner://" + ",".join(server.fields["listen"] for server in servers)
    for server in servers:
        server.kill()


@pytest.fixture(params=["shm", "tcp"])
def client(server, request):
    return lanner.Client(server.url(request.param))


@pytest.fixture
def name(request):
    """A prefix of keys that no other test uses."""
    return f"{request.node.nodeid}:"


def run_python(script: str, *arguments: str, timeout: float = 30, **options) -> subprocess.CompletedProcess:
    """Runs a script in an interpreter of its own."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
