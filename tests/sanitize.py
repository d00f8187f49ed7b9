#!/usr/bin/env python3
"""Every operation under compute-sanitizer on the GPU of this machine, as a table.

    python3 tests/sanitize.py --build build                      # what `./dev sanitize` does
    python3 tests/sanitize.py --build build --op 'moe.*' --tool racecheck --logs logs

Runs random problems of portile_fuzz_driver (which also compares the results with the reference, once more with
another grid, and as a replayed graph) under each tool. Exit status: 0 all clean, 1 something was found, 2 the tool,
the driver or a GPU is missing."""

import argparse
import fnmatch
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]


def outcome(text, status):
    """One word for a run: 'clean', 'N errors', that every problem was refused, or how the driver itself failed."""
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", text)
    errors = sum(int(a or b) for a, b in found)
    if errors:
        return f"{errors} errors"
    if status == "timeout":
        return "timeout"
    if not found or status != 0:
        return f"failed ({status})"
    launched = re.search(r"ran +(\d+), trapped +(\d+)", text)
    return "clean" if launched and sum(map(int, launched.groups())) else "nothing ran"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, default=Path("build"), help="folder with bin/ of a build or an installation")
    p.add_argument("--impl", default="cuda.simt", help="implementation to run")
    p.add_argument("--op", default="*", help="operations, with * as a wildcard")
    p.add_argument("--tool", action="append", choices=TOOLS, help="may be repeated; all four unless given")
    p.add_argument("--runs", type=int, default=4, help="problems per operation and tool")
    p.add_argument("--first", type=int, default=40, help="number of the first problem")
    p.add_argument("--jobs", type=int, default=8, help="processes at a time")
    p.add_argument("--timeout", type=int, default=300, help="seconds per process")
    p.add_argument("--logs", type=Path, help="folder for the output of everything that is not clean")
    p.add_argument("--sanitizer", default="compute-sanitizer", help="the command")
    args = p.parse_args()

    driver, command = args.build / "bin/portile_fuzz_driver", args.build / "bin/portile"
    for program in (args.sanitizer, driver, command):
        if not shutil.which(str(program)):
            print(f"sanitize: {program} is not there", file=sys.stderr)
            return 2
    described = json.loads(subprocess.run([command, "ops", "--json"], check=True, capture_output=True).stdout)
    ops = [
        op["name"]
        for op in described
        if fnmatch.fnmatch(op["name"], args.op) and any(i["name"] == args.impl for i in op["implementations"])
    ]
    if not ops:
        print(f"sanitize: no operation {args.op} with an implementation {args.impl}", file=sys.stderr)
        return 2
    tools = args.tool or TOOLS

    def run(job):
        op, tool = job
        line = [args.sanitizer, "--tool", tool, "--error-exitcode", "9", str(driver), "--op", op]
        line += ["--impl", args.impl, "--runs", str(args.runs), "--first", str(args.first)]
        try:
            r = subprocess.run(line, capture_output=True, text=True, timeout=args.timeout)
            text, status = r.stdout + r.stderr, r.returncode
        except subprocess.TimeoutExpired as e:
            text, status = str(e.stdout or ""), "timeout"
        word = outcome(text, status)
        if word != "clean" and args.logs:
            args.logs.mkdir(parents=True, exist_ok=True)
            (args.logs / f"{op}.{tool}.log").write_text(" ".join(line) + "\n" + text)
        return word

    jobs = [(op, tool) for op in ops for tool in tools]
    with ThreadPoolExecutor(args.jobs) as pool:
        words = dict(zip(jobs, pool.map(run, jobs)))
    width = max(map(len, ops))
    print(f"{'operation':{width}} " + " ".join(f"{t:>14}" for t in tools))
    for op in ops:
        print(f"{op:{width}} " + " ".join(f"{words[op, t]:>14}" for t in tools))
    bad = [job for job in jobs if words[job] != "clean"]
    print(f"{len(jobs) - len(bad)} of {len(jobs)} clean")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
