"""The processes that the harness starts: Lanner's server, engines, and the stores that Lanner is compared with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
#: With this in PYTHONPATH, `mooncake.store` is Lanner.
SHIM = HERE.parent / "mooncake-shim"
CPUS = sorted(os.sched_getaffinity(0))
#: Servers have the last CPU, Lanner's and others'.
SERVER_CPU = CPUS[-1]
#: What is left for engines, if they are to be kept off the servers' CPU.
ENGINE_CPUS = CPUS[:-1] or CPUS
#: A command on the servers' CPU.
ON_SERVER_CPU = ["taskset", "-c", str(SERVER_CPU)]


class Server:
    """A lanner-server of its own."""

    def __init__(self, binary: str, log: Path, memory: str = "1GiB") -> None:
        command = [binary, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--cores", str(SERVER_CPU), "--memory", memory]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("a"), text=True)
        ready = self.process.stdout.readline()
        if not ready.startswith("ready "):
            raise SystemExit(f"{binary} didn't start; see {log}")
        words = dict(word.split("=", 1) for word in ready.split()[1:])
        self.address, self.admin = words["listen"], words["admin"]

    def url(self, transport: str = "auto") -> str:
        return f"lanner://{self.address}?transport={transport}&timeout=1s"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Engine:
    """A process of vLLM's (vllm_engine.py). It's ready when ``wait`` returns."""

    def __init__(self, python: str, model: Path, log: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.command, self.log = [python, str(HERE / "vllm_engine.py"), str(model), *flags], log
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("a"), text=True, env=os.environ | (environment or {})
        )

    def wait(self) -> Engine:
        self._answer()
        return self

    def ask(self, prompts: list[list[int]], unplugged: bool = False) -> list[dict]:
        """What became of each prompt; ``unplugged``: as if the engine had no connector."""
        self.process.stdin.write(json.dumps({"prompts": prompts, "unplugged": unplugged}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.command)} ended with {self.process.wait()}; see {self.log}")
        return json.loads(line)

    def close(self, seconds: float = 60) -> None:
        """Lets it end by itself, so that what it has to store is stored."""
        self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class LMCache:
    """LMCache's server mode, and the engine's flags to use it. With the URL of a Lanner server that is its second level."""

    def __init__(self, python: str, log: Path, lanner: str | None = None) -> None:
        port, http = free_port(), free_port()
        command = [*ON_SERVER_CPU, str(Path(python).parent / "lmcache"), "server", "--host", "localhost", "--port", str(port), "--http-port", str(http)]
        command += ["--chunk-size", "64", "--l1-size-gb", "1", "--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven"]
        if lanner is not None:
            plugin = {"type": "plugin", "module_path": "lanner.lmcache", "class_name": "LannerL2Adapter"}
            command += ["--l2-adapter", json.dumps(plugin | {"adapter_params": {"url": lanner, "namespace": "float32-chunk64"}})]
        # It would send statistics of its use to its makers.
        environment = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
        self.process = subprocess.Popen(command, stdout=log.open("a"), stderr=subprocess.STDOUT, env=environment)
        wait_for(lambda: connects(port), self.process, f"LMCache's server didn't start; see {log}")
        self.flags = ["--store", "lmcache", "--extra", json.dumps({"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": port})]
        self.environment = {"LMCACHE_TRACK_USAGE": "false"}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def lmcache_in_process(folder: Path, url: str, **fields: bool) -> tuple[list[str], dict[str, str]]:
    """An engine's flags and environment for LMCache inside it, with Lanner as its remote storage, by Lanner's plug-in. ``fields``: more of LMCache's
    configuration."""
    plugin = {"module_path": "lanner.lmcache_remote", "class_name": "LannerConnectorAdapter", "url": url, "namespace": "float32"}
    extra = {f"remote_storage_plugin.lanner.{name}": value for name, value in plugin.items()}
    path = folder / f"{'-'.join(['lmcache-lanner', *fields])}.json"
    return _lmcache_in_process(path, {"remote_storage_plugins": ["lanner"], "extra_config": extra} | fields)


def lmcache_mooncakestore(folder: Path, address: str) -> tuple[list[str], dict[str, str]]:
    """The same with LMCache's own `mooncakestore` backend, which finds Lanner."""
    extra = {name: value for name, value in mooncake_config(address).items() if name != "mode"} | {"local_hostname": "127.0.0.1"}
    fields = {"remote_url": f"mooncakestore://{address}/", "extra_config": extra | {"transfer_timeout": 5}}
    flags, environment = _lmcache_in_process(folder / "lmcache-mooncakestore.json", fields)
    return flags, environment | {"PYTHONPATH": str(SHIM)}


def _lmcache_in_process(path: Path, fields: dict) -> tuple[list[str], dict[str, str]]:
    # With LMCache's default hash, `builtin`, no process finds what another one stored: each begins with a random number.
    fields = {"chunk_size": 64, "local_cpu": True, "max_local_cpu_size": 1.0, "pre_caching_hash_algorithm": "sha256_cbor"} | fields
    path.write_text(json.dumps(fields))  # as YAML it's the same
    return ["--store", "lmcache-in-process"], {"LMCACHE_CONFIG_FILE": str(path), "LMCACHE_TRACK_USAGE": "false"}


def mooncake_config(address: str, metadata_server: str = "P2PHANDSHAKE") -> dict:
    """A configuration of Mooncake as vLLM takes it, for the master at this address, which may be a server of Lanner's."""
    return {
        "metadata_server": metadata_server, "master_server_address": address, "protocol": "tcp", "device_name": "",
        "mode": "standalone-store", "global_segment_size": 0, "local_buffer_size": 512 << 20,
    }


def mooncake_connector(path: Path, config: dict) -> tuple[list[str], dict[str, str]]:
    """An engine's flags and environment for vLLM's own connector for Mooncake."""
    path.write_text(json.dumps(config))
    return ["--store", "mooncake"], {"MOONCAKE_CONFIG_PATH": str(path), "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1"}


def mooncake_connector_on_lanner(folder: Path, address: str) -> tuple[list[str], dict[str, str]]:
    """The same, which finds Lanner."""
    flags, environment = mooncake_connector(folder / "mooncake-lanner.json", mooncake_config(address))
    return flags, environment | {"PYTHONPATH": str(SHIM)}


class Mooncake:
    """Mooncake's master and a process that owns the memory, and the engine's flags to use them."""

    def __init__(self, python: str, folder: Path, log: Path) -> None:
        rpc, metrics, http = free_port(), free_port(), free_port()
        find = "import mooncake, pathlib; print(pathlib.Path(mooncake.__file__).parent / 'mooncake_master')"
        master = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()
        command = [*ON_SERVER_CPU, master, f"--rpc_port={rpc}", f"--metrics_port={metrics}", "--enable_http_metadata_server=true"]
        self.processes = [
            subprocess.Popen([*command, f"--http_metadata_server_port={http}"], stdout=log.open("a"), stderr=subprocess.STDOUT)
        ]
        wait_for(lambda: connects(rpc) and connects(http), self.processes[0], f"mooncake_master didn't start; see {log}")
        config = mooncake_config(f"127.0.0.1:{rpc}", f"http://127.0.0.1:{http}/metadata")
        own = (
            "import json, sys; from mooncake.store import MooncakeDistributedStore as Store; store, config = Store(), json.loads(sys.argv[1]);"
            "code = store.setup('127.0.0.1', config['metadata_server'], 1 << 30, 64 << 20, 'tcp', '', config['master_server_address']);"
            "print('code', code, flush=True); sys.stdin.read()"
        )
        owner = subprocess.Popen(
            [*ON_SERVER_CPU, python, "-c", own, json.dumps(config)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("a"), text=True
        )
        self.processes.append(owner)
        while not (line := owner.stdout.readline()).startswith("code"):
            if not line:
                raise SystemExit(f"Mooncake's memory wasn't set up; see {log}")
        self.flags, self.environment = mooncake_connector(folder / "mooncake.json", config)
        #: For SGLang's backend.
        self.sglang_config = {
            "master_server_address": f"127.0.0.1:{rpc}", "local_hostname": "127.0.0.1", "metadata_server": config["metadata_server"],
            "global_segment_size": 0, "protocol": "tcp", "device_name": "", "check_server": False,
        }

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def connects(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(is_done, process: subprocess.Popen, failure: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(failure)
        time.sleep(0.1)


def metric(admin: str, name: str) -> float:
    """The sum of a metric's values over a server's shards."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as page:
        lines = [line.split() for line in page.read().decode().split("\n")]
    return sum(float(words[-1]) for words in lines if words and words[0].split("{")[0] == name)
