"""Reads what figures.sh has left, and says for each row of docs/rdma.md's table what was measured and whether it reaches what it must.

Ratios are of lower quartiles, which an emulation's other business disturbs least. Exit status 1 if a row misses.
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])
missed = 0


def rows(name):
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text())["results"] if path.exists() else []


def line(what, value, against, ratio, limit, at_least=False):
    global missed
    reached = ratio >= limit if at_least else ratio <= limit
    missed += not reached
    word = "at least" if at_least else "at most"
    print(f"{what}: {value:.0f} us against {against:.0f} us = {ratio:.2f} ({word} {limit}): {'reached' if reached else 'MISSED'}")


def told(what, row, unit):
    """A row that has its limit beside it, and nothing that it must reach."""
    value, floor = row[unit]["p25"], row["floor"]["p25"]
    print(f"{what}: {value:.0f} us against {floor:.0f} us = {value / floor:.2f}")


tokens = {}
for row in rows("ngram-1") + rows("ngram"):
    tokens.setdefault(row["tokens"], {})[row["mode"]] = row
PUBLISHED = {1: 3.20, 4: 2.82, 8: 2.13}
for count, modes in sorted(tokens.items()):
    snapshot, query = modes["snapshot"], modes["query"]
    read, floor, asked = snapshot["us_per_token"]["p25"], snapshot["floor"]["p25"], query["us_per_token"]["p25"]
    rounds = snapshot["iterations"]
    line(f"snapshot, {count} token(s), {rounds} rounds, against a bare list", read, floor, read / floor, 1.3)
    if count == 1:
        line("query against snapshot, 1 token", asked, read, asked / read, 1.8, at_least=True)
    else:
        print(f"query against snapshot, {count} tokens: {asked:.0f} us against {read:.0f} us = {asked / read:.2f}")
    print(f"    (published of an earlier store: {PUBLISHED[count]})")

perftest = {}
if (FOLDER / "perftest").exists():
    for text in (FOLDER / "perftest").read_text().splitlines():
        name, figures = text.split(": ")
        # The least of three medians, as the product's lower quartile stands for it.
        perftest[name] = min(float(figure) for figure in figures.split())
for name, bytes_read in [("get-4KiB", 4096), ("get-1MiB", 1 << 20), ("get-1MiB-registered", 1 << 20)]:
    for row in rows(name):
        told(f"{name} against bare messages and a READ, in turns", row, "latency_us")
        if perftest:
            # perftest reports half of a round trip of messages, and the whole of a READ.
            limit = 2 * perftest["ib_send_lat 64"] + perftest[f"ib_read_lat {bytes_read}"]
            value = row["latency_us"]["p25"]
            line(f"{name} against ib_read_lat and a round trip of ib_send_lat", value, limit, value / limit, 1.3)
for name in ["put-1MiB", "put-1MiB-registered"]:
    for row in rows(name):
        told(f"{name.split('-', 2)[0]} of {row['size']} B{', registered' if 'registered' in name else ''}", row, "latency_us")
sys.exit(missed > 0)
