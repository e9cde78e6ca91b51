"""The engines' tests from end to end: starts Lanner, runs engine processes against it, compares every answer, prints what it measured.

    run.py --server LANNER_SERVER --vllm-python PYTHON --sglang-python PYTHON --folder FOLDER [--quick] [--compare] [--vllm | --sglang]

Called by ``scripts/e2e``, which makes the virtual environments. Leaves ``report.json`` and ``report.svg`` in FOLDER. Exit status 1 if an answer
differed from that without a store, a page came back wrong, a request failed, or a restarted engine found nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from plot import bars
from processes import (
    ENGINE_CPUS, HERE, SHIM, Engine, LMCache, Mooncake, Server, lmcache_in_process, lmcache_mooncakestore, metric, mooncake_connector_on_lanner,
)

TOKENS, SYSTEM, TURNS, TALKS = 2048, 512, 4, 4


def prompts(seed: int) -> list[list[int]]:
    """Two long prompts, each twice, and conversations of some turns that all begin with one system prompt."""
    rng = random.Random(seed)
    some = lambda count: [rng.randrange(3, 250) for _ in range(count)]
    long = [some(TOKENS) for _ in range(2)]
    system = some(SYSTEM)
    talks = [system + some(100) for _ in range(TALKS)]
    turns = []
    for _ in range(TURNS):
        turns += [list(talk) for talk in talks]
        talks = [talk + some(90) for talk in talks]
    return [long[0], long[1], long[0], long[1], *turns]


def crowd(seed: int) -> list[list[int]]:
    """Ten prompts of some 470 tokens that all begin with one."""
    rng = random.Random(seed)
    some = lambda count: [rng.randrange(3, 250) for _ in range(count)]
    system = some(256)
    return [system + some(rng.randrange(150, 290)) for _ in range(10)]


def engine_run(options: argparse.Namespace, folder: Path, requests: list, *flags: str, environment: dict | None = None) -> dict:
    """The answers of one engine process, what it was asked, and the seconds that it took for all of them."""
    print(f"    vLLM {' '.join(flags) or 'without a store'}", file=sys.stderr, flush=True)
    engine = Engine(options.vllm_python, folder / "model", folder / "vllm.log", *flags, environment=environment).wait()
    started = time.perf_counter()
    answers = engine.ask(requests)
    seconds = time.perf_counter() - started
    engine.close()
    return {"answers": answers, "requests": requests, "seconds": seconds}


def vllm_runs(options: argparse.Namespace, folder: Path) -> tuple[list[dict], bool]:
    """A row for each run, and whether all is as it should be."""
    subprocess.run([options.vllm_python, str(HERE / "tiny_model.py"), str(folder / "model")], check=True, capture_output=True)
    requests = prompts(1)
    run = lambda *flags, **more: engine_run(options, folder, requests, *flags, **more)
    server = Server(options.server, folder / "server.log")
    lanner = lambda transport="auto": ["--store", "lanner", "--url", server.url(transport)]
    runs = {"no store": run(), "Lanner, cold": run(*lanner()), "Lanner, restarted engine": run(*lanner("shm"))}
    found = ["Lanner, restarted engine"]
    if not options.quick:
        runs["Lanner over TCP, restarted engine"] = run(*lanner("tcp"))
        found.append("Lanner over TCP, restarted engine")
        small = ["--no-prefix-cache", "--batched-tokens", "512", "--kv-bytes", str(80 << 20), "--together"]
        runs["chunked prefill, no prefix cache"] = run(*lanner(), *small)
        # Room for 4,352 tokens, and the ten have 5,900 when they are done: some have to give theirs up and are resumed later.
        crowded = ["--no-prefix-cache", "--batched-tokens", "256", "--kv-bytes", str(34 << 20), "--together", "--sequences", "10"]
        many = lambda *flags: engine_run(options, folder, crowd(2), "--max-tokens", "120", *flags)
        runs["crowd, no store"] = many()
        runs["crowd, preemption, cold"] = many(*lanner(), *crowded)
        runs["crowd, preemption, restarted engine"] = many(*lanner(), *crowded)
        found.append("crowd, preemption, restarted engine")
        behind = ["--store", "tier", "--url", server.url()]
        runs["behind OffloadingConnector, cold"] = run(*behind)
        runs["behind OffloadingConnector, restarted engine"] = run(*behind)
        found.append("behind OffloadingConnector, restarted engine")
        runs["two ranks, no store"] = run("--ranks", "2")
        runs["two ranks, cold"] = run(*lanner(), "--ranks", "2")
        runs["two ranks, restarted engine"] = run(*lanner(), "--ranks", "2")
        found.append("two ranks, restarted engine")
    runs["loads that are lost on the way"] = run(*lanner(), "--no-prefix-cache", "--lose", "0.7")
    # What those runs stored while their loads failed is what this one reads.
    runs["warm again"] = run(*lanner(), "--no-prefix-cache")
    runs["the server killed after 6 requests"] = run(*lanner(), "--kill", str(server.process.pid), "--kill-after", "6")
    server.stop()
    more, names = others_on_lanner(options, folder, run)
    runs |= more
    found += names
    if options.compare:
        other = LMCache(options.vllm_python, folder / "lmcache.log")
        runs["LMCache's server, cold"] = run(*other.flags, environment=other.environment)
        runs["LMCache's server, restarted engine"] = run(*other.flags, environment=other.environment)
        other.stop()
        runs |= lmcache_on_lanner(options, folder, run)
        found.append("LMCache on Lanner, all of LMCache restarted")
    rows = [row_of(name, run, run["requests"]) for name, run in runs.items()]
    tokens = {name: [answer["tokens"] for answer in run["answers"]] for name, run in runs.items()}
    for row in rows:
        row["same"] = tokens[row["run"]] == tokens[reference_of(row["run"])]
    calm = [row["run"] for row in rows if "preemption" in row["run"] and not row["preemptions"]]
    for name in calm:
        print(f"{name}: no request was preempted")
    missed = [name for name in found if not all(answer["cached"] for answer in runs[name]["answers"])]
    for name in missed:
        print(f"{name}: a request found nothing in the store")
    return rows, not missed and not calm and all(row["same"] for row in rows)


def reference_of(name: str) -> str:
    """The run with whose answers those of this one are compared. With two ranks sums are rounded otherwise, and a crowd asks something else."""
    return next((f"{kind}, no store" for kind in ("two ranks", "crowd") if name.startswith(kind)), "no store")


def others_on_lanner(options: argparse.Namespace, folder: Path, run) -> tuple[dict[str, dict], list[str]]:
    """Connectors that others wrote, on Lanner: runs, and names of those in which each request has to find something. What a restarted engine has
    it can only have from Lanner: these connectors keep the rest in the engine's process."""
    server, runs, found = Server(options.server, folder / "server.log"), {}, []
    connectors = {
        "MooncakeStoreConnector": mooncake_connector_on_lanner(folder, server.address),
        "LMCache in the engine": lmcache_in_process(folder, server.url("shm")),
        "LMCache's mooncakestore": lmcache_mooncakestore(folder, server.address),
    }
    for name, (flags, environment) in connectors.items():
        for which in ("cold", "restarted engine"):
            runs[f"{name}, {which}"] = run(*flags, environment=environment)
        found.append(f"{name}, restarted engine")
    if not options.quick:
        flags, environment = lmcache_in_process(folder, server.url("tcp"), enable_async_loading=True)
        found.append("LMCache in the engine, loading while others run")
        runs[found[-1]] = run(*flags, environment=environment)
    server.stop()
    if not options.quick:
        for name, connect in (("MooncakeStoreConnector", mooncake_connector_on_lanner), ("LMCache's mooncakestore", lmcache_mooncakestore)):
            server = Server(options.server, folder / "server.log")
            flags, environment = connect(folder, server.address)
            kill = ["--kill", str(server.process.pid), "--kill-after", "6"]
            runs[f"{name}, server killed"] = run(*flags, *kill, environment=environment)
            server.stop()
    return runs, found


def lmcache_on_lanner(options: argparse.Namespace, folder: Path, run) -> dict[str, dict]:
    """LMCache's server with Lanner as its second level. What the second server has it can only have from Lanner."""
    server, runs = Server(options.server, folder / "server.log"), {}
    for name in ("LMCache on Lanner, cold", "LMCache on Lanner, all of LMCache restarted"):
        other = LMCache(options.vllm_python, folder / "lmcache.log", server.url("shm"))
        runs[name] = run(*other.flags, environment=other.environment)
        other.stop()
        if metric(server.admin, "lanner_puts_total") == 0:
            raise SystemExit(f"LMCache's server stored nothing in Lanner; see {folder / 'lmcache.log'}")
    server.stop()
    return runs


def row_of(name: str, run: dict, requests: list) -> dict:
    answers = run["answers"]
    median = lambda some: statistics.median(answer["ttft_ms"] for answer in some)
    return {
        "run": name, "requests": len(answers), "first_ttft_ms": median(answers[:2]), "again_ttft_ms": median(answers[2:4]),
        "turns_ttft_ms": median(answers[4:]), "tokens_per_second": sum(len(answer["tokens"]) for answer in answers) / run["seconds"],
        "hit_ratio": sum(answer["cached"] or 0 for answer in answers) / sum(map(len, requests)), "answers": answers,
        "preemptions": answers[-1]["preemptions"],
    }


def hicache_runs(options: argparse.Namespace, folder: Path) -> tuple[list[dict], bool]:
    """A row for each backend and layout, and whether all bytes came back."""
    server = Server(options.server, folder / "server.log")
    shm, tcp = ["--url", server.url("shm")], ["--url", server.url("tcp")]
    cases = [("Lanner", "lanner", shm), ("Lanner, chains", "lanner", [*shm, "--chain"]), ("files", "file", [])]
    shim = {"master_server_address": server.address, "local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
            "global_segment_size": 16 << 20, "device_name": "", "check_server": False}
    cases.append(("SGLang's backend for Mooncake, on Lanner", "mooncake", ["--extra", json.dumps(shim)]))
    cases += [("two ranks", "lanner", [*shm, "--ranks", "2"])]
    if not options.quick:
        cases += [("Lanner, TCP", "lanner", tcp), ("Lanner, TCP, chains", "lanner", [*tcp, "--chain"])]
        cases += [(f"Lanner, {layout}", "lanner", [*shm, "--layout", layout]) for layout in ("page_first", "layer_first")]
        cases += [("two ranks, MLA", "lanner", [*shm, "--ranks", "2", "--mla"]), ("two ranks, chains", "lanner", [*shm, "--ranks", "2", "--chain"])]
    mooncake = Mooncake(options.sglang_python, folder, folder / "mooncake.log") if options.compare else None
    if mooncake is not None:
        cases.append(("Mooncake", "mooncake", ["--extra", json.dumps(mooncake.sglang_config)]))
    environment = os.environ | {
        "PATH": f"{Path(options.sglang_python).parent}:{os.environ['PATH']}",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder / "hicache-files"),
    }
    rows = []
    for name, backend, flags in cases:
        print(f"    HiCacheController with {name}", file=sys.stderr, flush=True)
        command = [options.sglang_python, str(HERE / "hicache.py"), backend, *flags]
        command += [] if "--ranks" in flags else ["--cpus", json.dumps(ENGINE_CPUS)]
        # SGLang's own Mooncake backend then finds Lanner.
        more = {"PYTHONPATH": str(SHIM)} if name.endswith("on Lanner") else {}
        with (folder / "sglang.log").open("a") as errors:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=300, env=environment | more)
        lines = [line for line in done.stdout.split("\n") if line.startswith("{")]
        rows.append({"case": name, "correct": False} | (json.loads(lines[-1]) if done.returncode == 0 and lines else {}))
    server.stop()
    if mooncake is not None:
        mooncake.stop()
    return rows, all(row["correct"] for row in rows)


def report(hicache: list[dict], vllm: list[dict], folder: Path) -> None:
    if hicache:
        print(f"\nSGLang's HiCacheController, {TOKENS} tokens, 8 MiB, medians of 15 rounds\n")
        print(f"{'backend':<44}{'write':>10}{'prefetch':>12}{'bytes':>10}")
    for row in hicache:
        times = f"{row['write_ms']:>7.1f} ms{row['prefetch_ms']:>9.1f} ms" if "write_ms" in row else " " * 22
        print(f"{row['case']:<44}{times}{'right' if row['correct'] else 'WRONG':>10}")
    if vllm:
        what = f"time to first token of {TOKENS} tokens the first and the second time, and of the turns of conversations"
        print(f"\nvLLM, greedy requests, {vllm[0]['requests']} a run (of a crowd ten); {what}\n")
        print(f"{'run':<46}{'first':>11}{'second':>11}{'turns':>11}{'tokens/s':>10}{'hits':>7}{'preempted':>11}{'answers':>11}")
    for row in vllm:
        times = "".join(f"{row[name]:>8.1f} ms" for name in ("first_ttft_ms", "again_ttft_ms", "turns_ttft_ms"))
        print(f"{row['run']:<46}{times}{row['tokens_per_second']:>10.0f}{row['hit_ratio']:>7.0%}{row['preemptions']:>11}{'the same' if row['same'] else 'DIFFERENT':>11}")
    if vllm:
        print(f"\n{sum(row['requests'] for row in vllm)} requests, none failed")
    (folder / "report.json").write_text(json.dumps({"hicache": hicache, "vllm": vllm}))
    panels = {
        "time to first token of 2,048 tokens, ms": {row["run"]: row["first_ttft_ms"] for row in vllm},
        "tokens a second": {row["run"]: row["tokens_per_second"] for row in vllm},
        "share of prompt tokens that weren't computed, %": {row["run"]: 100 * row["hit_ratio"] for row in vllm},
    }
    (folder / "report.svg").write_text(bars("vLLM with and without a store", panels))
    print(f"{folder / 'report.json'}, {folder / 'report.svg'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--server", "--vllm-python", "--sglang-python", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compare", action="store_true")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--vllm", action="store_true")
    only.add_argument("--sglang", action="store_true")
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    hicache, is_hicache_good = ([], True) if options.vllm else hicache_runs(options, folder)
    vllm, is_vllm_good = ([], True) if options.sglang else vllm_runs(options, folder)
    report(hicache, vllm, folder)
    is_good = is_hicache_good and is_vllm_good
    print("all answers as they should be" if is_good else "FAILED: see above")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
