#!/usr/bin/env python3
"""Kernel times of every operation on a GPU, against the goals in shapes/*.json.

    PYTHONPATH=build/python python3 perf/bench.py --json results.jsonl
    PYTHONPATH=build/python python3 perf/bench.py --op 'quant.*' --quick

Needs torch with a GPU and the Python module. Two times per case, both with a cold L2:

graph   a CUDA graph of many launches, each on its own copy of the tensors, per launch: the kernel and what the
        stream needs between two kernels. Median and interquartile range over the replays; nothing is subtracted,
        the floor (an empty kernel, measured the same way) is printed at the top.
kernel  the sum of the launch's kernels, fills and copies as CUPTI reports them, L2 flushed before each, median. The
        goals and the peers' times are kernel times, so this one is judged where CUPTI can be had.

A memory-bound case passes when its time is at most the larger of its goal and 1.03 x (bytes / speed of a copy of
the same size in this run) + 1.5 us. Products are held against cuBLAS in this run."""

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")  # never compile a shim for an old torch here

import torch  # noqa: E402

import portile  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import cases  # noqa: E402

COLD_BYTES = 256 << 20  # more than any L2 of today, several times over
MAX_LAUNCHES = 24


class Timer:
    """Times work given as a list of functions, one per copy of the tensors, on the GPU."""

    device = "cuda"

    def __init__(self, replays):
        self.stream = torch.cuda.Stream()
        self.replays = replays
        # Doubles, so that no fill of an operation or of a peer is taken for the flush.
        self.flush = torch.empty(COLD_BYTES // 8, dtype=torch.float64, device="cuda")

    @staticmethod
    def free():
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def graph(self, calls, replays=None):
        """(median, quartile, quartile, launches per replay) in microseconds per launch."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            calls[0]()  # loads modules, gets the workspace
            begin.record()
            calls[-1]()
            end.record()
            self.stream.synchronize()
            once = max(begin.elapsed_time(end) * 1e3, 1.0)
            launches = max(2, min(MAX_LAUNCHES, int(60e3 / once)))
            for call in calls[:launches]:
                call()
            self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for i in range(launches):
                calls[i % len(calls)]()
        times = []
        for i in range((replays or self.replays) + 1):
            with torch.cuda.stream(self.stream):
                for _ in range(2):  # long enough to hide the launch of the graph
                    self.flush.fill_(1 + i)
                begin.record()
                graph.replay()
                end.record()
                self.stream.synchronize()
            if i > 0:
                times.append(begin.elapsed_time(end) * 1e3 / launches)
        del graph
        q = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
        return statistics.median(times), q[0], q[2], launches

    def launches(self, calls):
        """What ran on the device for each call, in order: [[(name, microseconds), ...], ...] by CUPTI, with a cold L2;
        None where CUPTI does not tell all of it."""
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        with torch.cuda.stream(self.stream):
            with profile:
                for i, call in enumerate(calls):
                    self.flush.fill_(1 + i)
                    call()
                self.stream.synchronize()
        events = [(e.start_ns(), e.duration_ns(), e.name()) for e in profile.profiler.kineto_results.events()
                  if "CUDA" in str(e.device_type())]
        groups = []
        for _, duration, name in sorted(events):
            if "FillFunctor<double>" in name:
                groups.append([])
            elif groups and "ync" not in name.partition("<")[0]:  # no "Stream Sync" spans
                groups[-1].append((name, duration / 1e3))
        return groups if len(groups) == len(calls) and all(groups) else None

    def kernel(self, calls, launches=10):
        """Median of the summed kernel times of a launch by CUPTI, or None where it cannot be had."""
        groups = self.launches([calls[i % len(calls)] for i in range(launches)])
        if groups is None:
            return None
        return statistics.median(sum(us for _, us in group) for group in groups), len(groups[-1])


def copies_for(size, free):
    """How many copies make sure that no launch finds its data in L2: rotating over more than L2 holds, or one per
    launch (the replay begins with a flushed L2)."""
    wanted = min(MAX_LAUNCHES, max(2, -(-COLD_BYTES // max(size, 1))))
    return max(1, min(wanted, int(free * 0.8 // max(size, 1))))


def clone(fields):
    def one(value):
        if isinstance(value, list):
            return [one(v) for v in value]
        if isinstance(value, portile.Typed):
            return portile.typed(one(value.tensor), value.dtype)
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_contiguous():
            return value.clone()
        out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return out.copy_(value)
    return {name: one(value) for name, value in fields.items()}


class Ceiling:
    """Speed of a device-to-device copy (or fill) that moves this many bytes, in TB/s, timed as `time` does: functions
    on copies of the tensors to microseconds of one (by default per launch in a CUDA graph)."""

    def __init__(self, timer, time=None):
        self.timer, self.known = timer, {}
        self.time = time or (lambda calls: timer.graph(calls, 5)[0])

    def __call__(self, size, kind="copy"):
        step = 1 << max(size.bit_length() - 3, 0)  # sizes within an eighth share one measurement
        size = max(-(-size // step) * step, 1 << 12)
        if (size, kind) not in self.known:
            half = size if kind == "write" else size // 2
            n = copies_for(size, self.timer.free())
            targets = [torch.empty(half, dtype=torch.uint8, device=self.timer.device) for _ in range(n)]
            if kind == "write":
                calls = [t.zero_ for t in targets]
            else:
                sources = [torch.zeros_like(t) for t in targets]
                calls = [lambda t=t, s=s: t.copy_(s) for t, s in zip(targets, sources)]
            self.known[size, kind] = size / self.time(calls) / 1e6
        return self.known[size, kind]


def rival_calls(kind, names, n, device):
    """cuBLAS through torch, on n copies."""
    rows, columns, depth = names["M"], names["N"], names["K"]

    def make(*shape):
        return torch.randn(*shape, device=device, dtype=torch.float32 if kind == "tf32" else torch.bfloat16)

    calls = []
    for _ in range(n):
        a, b = make(rows, depth), make(columns, depth)
        if kind == "fp8":
            a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            one = torch.ones((), device=device)
            calls.append(lambda a=a, b=b: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16))
        else:
            out = torch.empty(rows, columns, device=device, dtype=a.dtype)
            calls.append(lambda a=a, b=b, out=out: torch.mm(a, b.t(), out=out))
    return calls


def revision():
    try:
        run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True,
                             text=True, check=True)
        return run.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def measure(case, options, timer, ceiling, tiny=False):
    problem = cases.Problem(case, tiny)
    record = {"op": problem.op, "case": case["name"], "bytes": problem.bytes(), "peer_us": case.get("peer")}
    why = portile.explain(problem.op, device="cuda:0" if timer.device == "cuda" else timer.device, **problem.specs())
    if why["error"]:
        raise ValueError(why["error"])
    accepted = [c["implementation"] for c in why["candidates"] if c["accepted"]]
    implementation = options.implementation or why["chosen"]
    if not implementation or implementation not in accepted:
        record["skipped"] = f"no {'GPU' if timer.device == 'cuda' else timer.device} implementation" if not accepted else f"{implementation} does not take it"
        return record
    record["implementation"] = implementation
    memory = cases.TorchMemory(timer.device)
    fields = problem.allocate(memory)
    size = sum(t.numel() * t.element_size() for t in tensors_of(fields))
    copies = [fields] + [clone(fields) for _ in range(copies_for(size, timer.free()) - 1)]
    calls = [lambda f=f: portile.run(problem.op, implementation=implementation, **f) for f in copies]
    t, low, high, launches = timer.graph(calls)
    record.update(graph_us=t, graph_iqr_us=high - low, launches=launches, copies=len(copies))
    judged = t
    if not options.no_cupti:
        try:
            kernel = timer.kernel(calls)
            if kernel:
                record.update(kernel_us=kernel[0], kernels=kernel[1])
                judged = kernel[0]
        except Exception as e:  # no CUPTI here, or not allowed
            record["cupti"] = f"{type(e).__name__}: {e}"
            options.no_cupti = True
    record["tbs"] = record["bytes"] / judged / 1e6
    flop = problem.flop()
    if flop:
        record["tflops"] = flop / judged / 1e6
    del calls, copies
    goal = case.get("goal") or {}
    if "rival" in case:
        torch.backends.cuda.matmul.allow_tf32 = True
        rival = rival_calls(case["rival"], problem.names, min(4, copies_for(size, timer.free())), timer.device)
        record["rival_us"] = timer.graph(rival)[0]
        # Both by graph: their gap is the same.
        record["limit_us"] = record["rival_us"] / goal["rival"]
        judged = t
    elif record["bytes"] >= 4 << 20:
        copy = ceiling(record["bytes"], case.get("kind", "copy"))
        record.update(copy_tbs=copy, share_of_copy=record["tbs"] / copy)
        record["limit_us"] = record["bytes"] / copy / 1e6 * 1.03 + 1.5
    if "us" in goal:
        record["goal_us"] = goal["us"]
    elif "tbs" in goal:
        record["goal_us"] = record["bytes"] / goal["tbs"] / 1e6
    elif "copy" in goal and "copy_tbs" in record:
        record["goal_us"] = record["bytes"] / (record["copy_tbs"] * goal["copy"]) / 1e6
    limits = [record[k] for k in ("goal_us", "limit_us") if k in record]
    if goal and limits:
        record["pass"] = judged <= max(limits)
    return record


def run_once(chosen, implementation):
    """One launch of every case in a named range, for a profiler that replays kernels."""
    for case in chosen:
        problem = cases.Problem(case)
        fields = problem.allocate(cases.TorchMemory("cuda"))
        with torch.cuda.nvtx.range(f"{problem.op}: {case['name']}"):
            portile.run(problem.op, implementation=implementation, **fields)
        torch.cuda.synchronize()
        del fields
        torch.cuda.empty_cache()


def tensors_of(fields):
    for value in fields.values():
        for v in value if isinstance(value, list) else [value]:
            v = v.tensor if isinstance(v, portile.Typed) else v
            if isinstance(v, torch.Tensor):
                yield v


def show(record):
    title = f"{record['op']}: {record['case']}".rstrip(": ")
    if "error" in record or "skipped" in record:
        return f"{title:<66.66} {record.get('error') or record['skipped']}"
    def cell(key, form):
        return format(record[key], form) if record.get(key) is not None else "-"
    peers = record["peer_us"] or {}
    rate = f"{record['tflops']:.0f} TF/s" if "rival_us" in record else f"{record['tbs']:.2f} TB/s"
    verdict = {True: "pass", False: "MISS", None: ""}[record.get("pass")]
    share = f"{100 * record['share_of_copy']:.0f}%" if "share_of_copy" in record else "-"
    return (f"{title:<66.66} {cell('kernel_us', '.2f'):>9} {record['graph_us']:9.2f} ±{record['graph_iqr_us']:<5.2f} "
            f"{rate:>9} {share:>5} {cell('goal_us', '.1f'):>7} {cell('limit_us', '.1f'):>7} "
            f"{min(peers.values()) if peers else '-':>7} {verdict:4} {record['implementation']}"
            + (f" ({record['kernels']} kernels)" if record.get("kernels", 1) > 1 else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="*", help="only operations that fit this pattern")
    parser.add_argument("--case", default="*", help="only cases whose name fits this pattern")
    parser.add_argument("--implementation", help="force this one, such as cuda.simt")
    parser.add_argument("--quick", action="store_true", help="one or two cases of each kind, fewer replays")
    parser.add_argument("--json", help="append a record per case to this file")
    parser.add_argument("--no-cupti", action="store_true", help="graph times only")
    parser.add_argument("--once", action="store_true", help="run each case once and time nothing: for ncu --nvtx")
    parser.add_argument("--budget", type=float, default=170, help="seconds after which remaining cases are skipped")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench.py: torch finds no GPU")
    torch.cuda.init()
    begin = time.monotonic()
    chosen = [c for c in cases.load(options.op)
              if fnmatch.fnmatch(c["name"], options.case) and (c.get("quick") or not options.quick)]
    if not chosen:
        sys.exit("bench.py: no case fits")
    if options.once:
        return run_once(chosen, options.implementation)
    timer = Timer(5 if options.quick else 7)
    ceiling = Ceiling(timer)
    floor = timer.graph([lambda: torch.cuda._sleep(0)])[0]
    device = torch.cuda.get_device_name()
    common = {"device": device, "revision": os.environ.get("PORTILE_REVISION") or revision(), "floor_us": floor}
    print(f"{device}; empty kernel {floor:.2f} us per launch; copy of 1 GiB + 1 GiB {ceiling(2 << 30):.2f} TB/s")
    print(f"{'':66} {'kernel us':>9} {'graph us':>9}  {'iqr':5} {'':>9} {'copy':>5} {'goal':>7} {'limit':>7} "
          f"{'peer':>7}")
    out = open(options.json, "a") if options.json else None
    missed = passed = failed = skipped = 0
    for case in chosen:
        if time.monotonic() - begin > options.budget:
            record = {"op": case["op"], "case": case["name"], "skipped": f"over the budget of {options.budget:.0f} s"}
        else:
            try:
                record = measure(case, options, timer, ceiling)
            except Exception as e:
                text = str(e).strip().splitlines()
                record = {"op": case["op"], "case": case["name"], "error": f"{type(e).__name__}: {' '.join(text)[:300]}"}
                try:  # a capture that broke off
                    torch.cuda.synchronize()
                except Exception as fatal:
                    print(show(record))
                    sys.exit(f"bench.py: the device is lost: {fatal}")
            torch.cuda.empty_cache()
        passed += record.get("pass") is True
        missed += record.get("pass") is False
        failed += "error" in record
        skipped += "skipped" in record
        print(show(record), flush=True)
        if out:
            out.write(json.dumps({**common, **record}) + "\n")
            out.flush()
    if not options.no_cupti:
        print(f"empty kernel now {timer.graph([lambda: torch.cuda._sleep(0)])[0]:.2f} us per launch")
    print(f"{passed} pass, {missed} miss, {failed} failed, {skipped} skipped, {len(chosen)} cases, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
