"""The stubs against the module, and the package as a type checker sees it. Needs mypy (``pip install mypy``)."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lanner
from lanner import aio

PACKAGE = Path(lanner.__file__).parent

GOOD = """
import lanner, lanner.aio

def use(client: lanner.Client) -> None:
    listed: list[tuple[bytes, int]] = client.list("prefix", limit=5)
    values: list[bytes | None] = client.get_batch(["a", b"b"])
    stored: list[bool] = client.put_chain(["a"], 0, [b""])
    lanner.EngramStore(client, 1, [5], row_bytes=3).lookup([[[1]]])

async def wait() -> None:
    async with await lanner.aio.Client.connect() as client:
        length: int | None = await client.get_into("a", bytearray(5))
        listed: list[tuple[bytes, int]] = await client.list("prefix")
        snapshot = await client.match_chain(["a"])
        await snapshot.read_into([(0, 0, 1, 0)], bytearray(1), refresh=True)
        count: int = snapshot.value_bytes(0) + len(snapshot)
"""
#: A mistake in each line.
BAD = """
import lanner, lanner.aio
async def wait(plain: lanner.Client, client: lanner.aio.Client) -> None:
    plain.get(5)
    plain.put("a", b"", pin="softly")
    client.no_such_call("a")
    await client.get("a", "b")
    length: int = await client.get("a")
"""


def mypy(module: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | {"MYPYPATH": str(PACKAGE.parent)}, capture_output=True, text=True)


def test_the_stubs_are_those_of_the_module(tmp_path):
    """``def list`` in a class made ``list[...]`` below it mean the method, so no checker could read the stubs."""
    done = mypy("mypy.stubtest", "lanner._lanner", "lanner.aio", "--ignore-disjoint-bases", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_are_checked(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    flags = ["--strict", "--follow-imports=silent", "--no-incremental"]
    done = mypy("mypy", *flags, "good.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = mypy("mypy", *flags, "bad.py", folder=tmp_path)
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == {4, 5, 6, 7, 8}, done.stdout


def test_every_call_says_what_it_does():
    """``help`` shows what the docstrings of the module say; the stubs repeat none."""
    classes = [each for each in vars(lanner._lanner).values() if isinstance(each, type)]
    assert len(classes) == 7
    silent = [
        f"{each.__name__}.{name}" for each in classes for name, member in vars(each).items() if not name.startswith("_") and not member.__doc__
    ]
    calls = [member for each in (aio.Client, aio.Snapshot) for name, member in vars(each).items() if not name.startswith("_")]
    assert not silent and all(each.__doc__ for each in [*classes, *calls, lanner.EngramStore, lanner.stored_keys])
    assert (PACKAGE / "_lanner.pyi").read_text().count('"""') == 2


@pytest.mark.parametrize("plain, awaited", [(lanner.Client, aio.Client), (lanner.Snapshot, aio.Snapshot)])
def test_asyncio_has_every_call_and_its_arguments(plain, awaited):
    for name in dir(plain):
        if name.startswith("_"):
            continue
        ours, theirs = getattr(awaited, name), getattr(plain, name)
        if callable(theirs):
            arguments = lambda call: [(each.name, each.kind, str(each.default)) for each in inspect.signature(call).parameters.values()][1:]
            wanted = [(each[0], inspect.Parameter.POSITIONAL_OR_KEYWORD, each[2]) if each[1] == 0 else each for each in arguments(theirs)]
            if name != "list":  # its default is the prefix of no bytes, which Rust writes otherwise
                assert arguments(ours) == wanted, name
        else:
            assert isinstance(ours, property), name
