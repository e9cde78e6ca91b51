"""The engines' tests from end to end: starts Lanner, runs engine processes against it, compares every answer, prints what it measured.

    run.py --server LANNER_SERVER --vllm-python PYTHON --sglang-python PYTHON --folder FOLDER [--quick]

Called by ``scripts/e2e``, which makes the virtual environments. Exit status 1 if an answer differed from that without a store, a page came back
wrong, or a request failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TOKENS, SYSTEM = 2048, 512
#: The server has the last one, and HiCacheController the others if there are any; vLLM has all.
CPUS = sorted(os.sched_getaffinity(0))


class Server:
    """A lanner-server of this run's own."""

    def __init__(self, binary: str, log: Path) -> None:
        command = [binary, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--cores", str(CPUS[-1]), "--memory", "1GiB"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("a"), text=True)
        ready = self.process.stdout.readline()
        if not ready.startswith("ready "):
            raise SystemExit(f"{binary} didn't start; see {log}")
        self.address = dict(word.split("=", 1) for word in ready.split()[1:])["listen"]

    def url(self, transport: str = "auto") -> str:
        return f"lanner://{self.address}?transport={transport}&timeout=1s"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def prompts(seed: int) -> list[list[int]]:
    """Two long prompts, each twice, and four conversations of four turns that begin with one system prompt."""
    rng = random.Random(seed)
    some = lambda count: [rng.randrange(3, 250) for _ in range(count)]
    long = [some(TOKENS) for _ in range(2)]
    system = some(SYSTEM)
    talks = [system + some(100) for _ in range(4)]
    turns = []
    for _ in range(4):
        turns += [list(talk) for talk in talks]
        talks = [talk + some(90) for talk in talks]
    return [long[0], long[1], long[0], long[1], *turns]


def engine(python: str, folder: Path, requests: list, *flags: str) -> list[dict]:
    """The answers of one engine process."""
    command = [python, str(HERE / "vllm_engine.py"), str(folder / "model"), *flags]
    log = folder / "vllm.log"
    with log.open("a") as errors:
        done = subprocess.run(command, input=json.dumps(requests), stdout=subprocess.PIPE, stderr=errors, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}; see {log}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def vllm_runs(options: argparse.Namespace, folder: Path) -> bool:
    subprocess.run([options.vllm_python, str(HERE / "tiny_model.py"), str(folder / "model")], check=True, capture_output=True)
    requests = prompts(1)
    run = lambda *flags: engine(options.vllm_python, folder, requests, *flags)
    server = Server(options.server, folder / "server.log")
    runs = {"no store": run()}
    runs["Lanner, cold"] = run("--url", server.url())
    runs["Lanner, warm, restarted engine"] = run("--url", server.url())
    if not options.quick:
        runs["the same over TCP"] = run("--url", server.url("tcp"))
        small = ["--no-prefix-cache", "--batched-tokens", "512", "--kv-bytes", str(80 << 20), "--together"]
        runs["chunked prefill, preemption, no prefix cache"] = run("--url", server.url(), *small)
    runs["loads that are lost on the way"] = run("--url", server.url(), "--no-prefix-cache", "--lose", "0.7")
    # What those runs stored while their loads failed is what this one reads.
    runs["warm again"] = run("--url", server.url(), "--no-prefix-cache")
    killed = ["--kill", str(server.process.pid), "--kill-after", "6"]
    runs["the server killed after 6 requests"] = run("--url", server.url(), *killed)
    server.stop()
    expected = [answer["tokens"] for answer in runs["no store"]]
    is_good = True
    print(f"\nvLLM, {len(requests)} requests a run, greedy\n")
    print(f"{'run':<46}{'TTFT of 2,048 tokens, first and second time':>46}{'cached':>10}{'answers':>12}")
    for name, answers in runs.items():
        same = [answer["tokens"] for answer in answers] == expected
        is_good &= same
        first = statistics.median(answer["ttft_ms"] for answer in answers[:2])
        again = statistics.median(answer["ttft_ms"] for answer in answers[2:4])
        cached = sum(answer["cached"] or 0 for answer in answers) / sum(map(len, requests))
        print(f"{name:<46}{first:>32.1f} ms{again:>8.1f} ms{cached:>10.0%}{'the same' if same else 'DIFFERENT':>12}")
    warm = runs["Lanner, warm, restarted engine"]
    if not all(answer["cached"] for answer in warm):
        print("a request of a restarted engine found nothing in the store")
        is_good = False
    print(f"\n{len(requests) * len(runs)} requests, none failed")
    (folder / "vllm.json").write_text(json.dumps(runs))
    return is_good


def hicache_runs(options: argparse.Namespace, folder: Path) -> bool:
    server = Server(options.server, folder / "server.log")
    layouts = ["page_first_direct"] if options.quick else ["page_first_direct", "page_first", "layer_first"]
    cases = [("lanner", layout, server.url(), {}) for layout in layouts] + [("file", "page_first_direct", "", {})]
    if not options.quick:
        cases.append(("lanner", "page_first_direct", server.url("tcp"), {}))
    shim = {"master_server_address": server.address, "local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
            "global_segment_size": 16 << 20, "device_name": "", "check_server": False}
    cases.append(("mooncake", "page_first_direct", "", shim))
    print(f"\nSGLang's HiCacheController, {TOKENS} tokens, 8 MiB\n")
    print(f"{'backend':<34}{'layout':<20}{'write':>10}{'prefetch':>12}")
    environment = os.environ | {
        "PATH": f"{Path(options.sglang_python).parent}:{os.environ['PATH']}",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder / "hicache-files"),
        # SGLang's own Mooncake backend, on Lanner.
        "PYTHONPATH": str(HERE.parent / "mooncake-shim"),
    }
    is_good = True
    for backend, layout, url, extra in cases:
        command = [options.sglang_python, str(HERE / "hicache.py"), backend, "--layout", layout, "--url", url, "--extra", json.dumps(extra)]
        command += ["--cpus", json.dumps(CPUS[:-1])]
        with (folder / "sglang.log").open("a") as errors:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=300, env=environment)
        lines = [line for line in done.stdout.split("\n") if line.startswith("{")]
        name = {"mooncake": "mooncake, its calls on Lanner"}.get(backend, backend) + (", TCP" if "transport=tcp" in url else "")
        if done.returncode != 0 or not lines:
            print(f"{name:<34}{layout:<20}FAILED; see {folder / 'sglang.log'}")
            is_good = False
            continue
        result = json.loads(lines[-1])
        print(f"{name:<34}{layout:<20}{result['write_ms']:>7.1f} ms{result['prefetch_ms']:>9.1f} ms")
    server.stop()
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--server", "--vllm-python", "--sglang-python", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_good = [hicache_runs(options, folder), vllm_runs(options, folder)]
    print("\nall answers as they should be" if all(is_good) else "\nFAILED: see above")
    return 0 if all(is_good) else 1


if __name__ == "__main__":
    sys.exit(main())
