#!/usr/bin/env python3
"""Portile beside a peer on the peer's own grid: one run, the same tensors, the same clock.

    PYTHONPATH=build/python python3 perf/peers/compare.py --grid tilekernels-v2 --out v2.jsonl
    PYTHONPATH=build/python python3 perf/peers/compare.py --grid tilekernels-v1 --tile-kernels DIR --out v1.jsonl
    PYTHONPATH=build/python python3 perf/peers/compare.py --grid gemm --out gemm.jsonl

Needs torch with a GPU, the Python module, and the peer: tile-kernels 2.1.0 with tilelang 0.1.15 for tilekernels-v2;
tilelang 0.1.9 and the sources of TileKernels of April 2026 (--tile-kernels DIR) for tilekernels-v1; torch itself, with
its cuBLAS, for gemm. Without them it says so and exits with 2.

A time is the sum of a call's kernels, fills and copies by CUPTI, L2 flushed before the call. The two sides take turns,
the first of each round being the second of the next; a round's time is the median of its launches, a side's time the
median over the rounds, with the interquartile range over the rounds. Before that both results are compared; the rules
stand beside each mapping. The peer's kernels are compiled first, by many processes into the peer's own cache on disk.

The JSONL has a record per point: peer, op, point, portile_us, peer_us, ratio = peer_us / portile_us, share_of_copy (of a
device-to-device copy of as many bytes in this run), and what else was measured."""

import argparse
import fnmatch
import importlib
import importlib.metadata
import importlib.util
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")  # never compile a shim for an old torch here
os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")

import points  # noqa: E402

# {--grid: (module here, distributions it needs)}
GRIDS = {
    "tilekernels-v2": ("tilekernels_v2", {"tilelang": "0.1.15", "tile_kernels": "2.1.0"}),
    "tilekernels-v1": ("tilekernels_v1", {"tilelang": "0.1.9"}),
    "gemm": ("gemm", {}),
}
COPY_BYTES = 4 << 20  # below this a copy's speed is the launch's
LEAST_RATIO = 0.97


class Missing(Exception):
    """Something that the comparison needs is not here."""


def require(name, why):
    if importlib.util.find_spec(name) is None:
        raise Missing(f"{name} is not installed: {why}")


def load_peer(grid, folder=None):
    """(the peer's package, what to call it in the records)"""
    _, wanted = GRIDS[grid]
    if grid == "gemm":
        import torch
        torch.backends.cuda.matmul.allow_tf32 = True
        return torch, "cublas"
    if folder:
        folder = Path(folder)
        if not (folder / "tile_kernels" / "__init__.py").exists():
            raise Missing(f"--tile-kernels {folder}: no tile_kernels/__init__.py in it")
        sys.path.insert(0, str(folder))
    require("tilelang", f"pip install tilelang=={wanted['tilelang']}")
    require("tile_kernels", "--tile-kernels DIR, the sources of TileKernels of April 2026" if "tile_kernels" not in wanted
            else f"pip install tile-kernels=={wanted['tile_kernels']}, or --tile-kernels DIR")
    have = importlib.metadata.version("tilelang")
    if have != wanted["tilelang"]:
        print(f"compare.py: tilelang {have}, the grid was made with {wanted['tilelang']}", file=sys.stderr)
    try:
        library = importlib.import_module("tile_kernels")
    except Exception as e:
        raise Missing(f"tile_kernels cannot be imported: {type(e).__name__}: {e}") from e
    version = getattr(library, "__version__", None) or "1"
    return library, f"tile-kernels {version}, tilelang {have}"


def load_points(grid, *patterns):
    """(points, those not mapped) of a grid; the patterns are for "kernel(params)" or the operation."""
    module = importlib.import_module(GRIDS[grid][0])
    chosen, left = module.grid.load()
    fits = lambda p: not patterns or any(fnmatch.fnmatchcase(text, one) for one in patterns for text in (p.name, p.op))
    return [p for p in chosen if fits(p)], left


# --- statistics and reports: nothing below needs torch until `Side` ---------------------------------------------------

def spread(values):
    """(median, interquartile range)"""
    if len(values) < 2:
        return values[0], 0.0
    q = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), q[2] - q[0]


def alternate(timer, ours, theirs, rounds, launches, kernels_only=False):
    """Times of both calls: {"portile": [us per round], "peer": ..., "kernels": [per launch of ours, of theirs]}, or
    None where CUPTI cannot be had."""
    order, calls = [], []
    for i in range(rounds):
        for who in ("portile", "peer") if i % 2 == 0 else ("peer", "portile"):
            order.append(who)
            calls += [ours if who == "portile" else theirs] * launches
    ran = timer.launches(calls)
    if ran is None:
        return None
    times = {"portile": [], "peer": []}
    parts = {}
    for i, who in enumerate(order):
        group = ran[i * launches:(i + 1) * launches]
        if kernels_only:
            group = [[part for part in launch if not part[0].startswith(("Memcpy", "Memset"))] for launch in group]
        times[who].append(statistics.median(sum(us for _, us in launch) for launch in group))
        parts[who] = len(group[-1])
    return {**times, "kernels": [parts["portile"], parts["peer"]]}


def record_of(point, peer, times, size, copy_tbs=None, flop=None, **more):
    mine, mine_iqr = spread(times["portile"])
    other, other_iqr = spread(times["peer"])
    return {
        "peer": peer, "op": point.op, "point": point.name, "kernel": point.kernel, "params": point.params,
        "portile_us": mine, "peer_us": other, "ratio": other / mine,
        "share_of_copy": size / mine / 1e6 / copy_tbs if copy_tbs else None,
        "portile_iqr": mine_iqr, "peer_iqr": other_iqr, "bytes": size,
        "portile_gbs": size / mine / 1e3, "peer_gbs": size / other / 1e3, "copy_tbs": copy_tbs,
        "rounds": len(times["portile"]), "launched": times["kernels"],
        **({"portile_tflops": flop / mine / 1e6, "peer_tflops": flop / other / 1e6} if flop else {}),
        **({"note": point.note} if point.note else {}), **point.extra, **more,
    }  # yapf: disable


HEADER = f"{'point':<100} {'portile us':>10} {'iqr':>6} {'peer us':>9} {'iqr':>6} {'rate':>6} {'peer':>6} {'ratio':>6} {'copy':>5}  agree"


def row(record):
    if "error" in record:
        return f"{record['point']:<100} {record['error']}"
    share = f"{100 * record['share_of_copy']:.0f}%" if record["share_of_copy"] else "-"
    rates = [record[f"{who}_tflops" if "peer_tflops" in record else f"{who}_gbs"] for who in ("portile", "peer")]
    return (f"{record['point']:<100} {record['portile_us']:10.2f} {record['portile_iqr']:6.2f} {record['peer_us']:9.2f} "
            f"{record['peer_iqr']:6.2f} {rates[0]:6.0f} {rates[1]:6.0f} {record['ratio']:6.2f} "
            f"{share:>5}  {'yes' if record['agree'] else 'NO: ' + record['agreement']}"
            + (" *" if record.get("note") else ""))


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def summary(records, left, chosen):
    """What the run says in the end, as lines."""
    measured = [r for r in records if "ratio" in r]
    lines = []
    mean = geometric_mean([r["ratio"] for r in measured])
    if mean is not None:
        by_op = {}
        for r in measured:
            by_op.setdefault(r["op"], []).append(r["ratio"])
        lines.append(f"geometric mean of peer / Portile: {mean:.3f} over {len(measured)} points")
        for op, ratios in sorted(by_op.items()):
            lines.append(f"  {op:<48} {geometric_mean(ratios):6.2f}   {min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} points")
    below = sorted((r for r in measured if r["ratio"] < 1.0), key=lambda r: r["ratio"])
    lines.append(f"{len(below)} points below 1.0, {sum(r['ratio'] < LEAST_RATIO for r in below)} of them below {LEAST_RATIO}")
    lines += [f"  {r['ratio']:.3f}  {r['point']}" + (f"  ({r['note']})" if r.get("note") else "") for r in below]
    apart = [r for r in measured if not r["agree"]]
    lines.append(f"{len(apart)} points whose results do not agree")
    lines += [f"  {r['point']}: {r['agreement']}" for r in apart]
    failed = [r for r in records if "error" in r]
    if failed:
        lines.append(f"{len(failed)} points without a measurement")
        lines += [f"  {r['point']}: {r['error']}" for r in failed]
    if left:
        lines.append(f"{len(left)} points of the grid have no counterpart")
        lines += [f"  {name}: {reason}" for name, reason in left]
    noted = sorted({r["note"] for r in measured if r.get("note")})
    lines += [f"* {note}" for note in noted]
    lines.append(f"{len(measured)} measured, {len(failed)} failed, {len(left)} unmapped, {chosen} chosen")
    return lines


# --- one point --------------------------------------------------------------------------------------------------------

def torch_view(value):
    """A field's tensor as the peers take it: fp8 as torch's own type, packed e2m1 as int8."""
    import torch

    import portile
    if not isinstance(value, portile.Typed):
        return value
    own = {"e4m3": torch.float8_e4m3fn, "e2m1x2": torch.int8, "ue8m0x4": torch.int32}.get(value.dtype)
    return value.tensor.view(own) if own is not None else value.tensor


class Side:
    """Both sides of one point on the device: tensors, and a call of each."""

    def __init__(self, point, library, device="cuda", tiny=False):
        import bench
        import cases
        import torch
        self.point, self.device = point, device
        self.problem = cases.Problem(point.case, tiny)
        memory = cases.TorchMemory(device)
        self.fields = self.problem.allocate(memory)
        if point.prepare:
            point.prepare(self.fields)
        roles = {name: field["role"] for name, field in self.problem.fields.items() if field["kind"] != "attribute"}
        new = lambda shape, dtype: memory.zeros(math.prod(shape), dtype).view(shape)
        clone = lambda value: bench.clone({"": value})[""]
        self.tensors = points.Tensors(self.fields, roles, torch_view, clone, new)
        self.library = library
        self.wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def peer(self):
        return self.point.call(self.library, self.tensors)

    def ours(self, implementation=None):
        import portile
        portile.run(self.problem.op, implementation=implementation, **self.fields)

    def compare(self):
        """Runs both once: (whether they agree, in words)."""
        import agree
        theirs = self.peer()  # first: it may still have to copy what Portile then changes
        self.ours()
        self.wait()
        view = lambda v: [torch_view(e) for e in v] if isinstance(v, list) else torch_view(v)
        ours = {name: view(self.fields[name]) for name in theirs}
        theirs = {name: v.compute() if isinstance(v, points.Deferred) else v for name, v in theirs.items()}
        rows = self.fields[self.point.valid_rows] >= 0 if self.point.valid_rows else None
        return agree.agree_all(self.point.rules, ours, theirs, rows)


def measure(side, peer, timer, ceiling, rounds, launches):
    """The record of one point."""
    import portile
    point = side.point
    why = portile.explain(point.op, device=f"{side.device}:0" if side.device == "cuda" else side.device,
                          **side.problem.specs())
    if why["error"] or not why["chosen"]:
        raise ValueError(why["error"] or "no implementation takes it")
    good, words = side.compare()
    times = alternate(timer, side.ours, side.peer, rounds, launches, point.kernels_only)
    if times is None:
        raise RuntimeError("CUPTI did not report every launch")
    size = side.problem.bytes()
    flop = side.problem.flop()
    copy = ceiling(size, point.case.get("kind", "copy")) if size >= COPY_BYTES and not flop else None
    return record_of(point, peer, times, size, copy, flop, implementation=why["chosen"], agree=good, agreement=words)


# --- compiling the peer's kernels ---------------------------------------------------------------------------------------

def compile_some(grid, folder, indices):
    """In a process of its own: every point of these runs the peer once. {index: error or None}"""
    import torch
    library, _ = load_peer(grid, folder)
    everything, _ = load_points(grid)
    quiet()
    errors = {}
    for i in indices:
        try:
            Side(everything[i], library).peer()
            torch.cuda.synchronize()
            errors[i] = None
        except Exception as e:
            errors[i] = f"{type(e).__name__}: {str(e).strip().splitlines()[-1] if str(e).strip() else ''}"[:300]
        torch.cuda.empty_cache()
    return errors


def quiet():
    """The peer's compiler tells of every kernel."""
    import logging
    logging.getLogger("tilelang").setLevel(logging.ERROR)


def compile_all(grid, folder, chosen, workers, timeout):
    """Fills the peer's cache on disk. Returns {point: error}; whatever fails here is tried again when measured."""
    everything, _ = load_points(grid)
    index = {p.name: i for i, p in enumerate(everything)}
    groups = {}
    for p in chosen:
        groups.setdefault(p.compile_key, []).append(index[p.name])
    errors, begin = {}, time.monotonic()
    pool = ProcessPoolExecutor(min(workers, len(groups)), multiprocessing.get_context("spawn"))
    pending = [pool.submit(compile_some, grid, folder, group) for group in groups.values()]
    try:
        for done in as_completed(pending, timeout=timeout):
            errors.update({everything[i].name: e for i, e in done.result().items() if e})
    except (TimeoutError, BrokenProcessPool, Missing) as e:
        print(f"compare.py: compiling ahead broke off ({type(e).__name__}: {e}); the rest is compiled on the way")
        for process in list((pool._processes or {}).values()):
            process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(groups)} groups of kernels compiled by {min(workers, len(groups))} processes in "
          f"{time.monotonic() - begin:.0f} s" + (f", {len(errors)} points failed" if errors else ""))
    for name, error in errors.items():
        print(f"  {name}: {error}")
    return errors


# --- the command ------------------------------------------------------------------------------------------------------

def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", required=True, choices=list(GRIDS))
    parser.add_argument("--out", required=True, help="JSONL, a record per point; written anew")
    parser.add_argument("--tile-kernels", metavar="DIR", help="folder that holds the peer's package tile_kernels/")
    parser.add_argument("--filter", action="append", default=[], metavar="GLOB",
                        help='of "kernel(params)" or of Portile\'s operation; may be given more than once')
    parser.add_argument("--rounds", type=int, default=7, help="alternations, at least 5 for figures that count")
    parser.add_argument("--launches", type=int, default=3, help="launches of a side in a round")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that compile; 0: none")
    parser.add_argument("--compile-timeout", type=float, default=900, metavar="SECONDS")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="for measuring; then the rest is left out")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.launches < 1:
        parser.error("--rounds and --launches are at least 1")
    return options


def run(options):
    require("torch", "pip install torch")
    require("portile", "PYTHONPATH=build/python, and pip install apache-tvm-ffi")
    require("numpy", "pip install numpy")
    library, peer = load_peer(options.grid, options.tile_kernels)
    import torch
    if not torch.cuda.is_available():
        raise Missing("torch finds no GPU")
    import warnings
    warnings.filterwarnings("ignore", message=".*Profiler clears events")
    import bench
    chosen, left = load_points(options.grid, *options.filter)
    if not chosen:
        raise Missing(f"no point fits {' or '.join(options.filter)}")
    if options.workers > 0 and options.grid != "gemm":
        compile_all(options.grid, options.tile_kernels, chosen, options.workers, options.compile_timeout)
    quiet()
    timer = bench.Timer(options.rounds)
    ceiling = bench.Ceiling(timer, lambda calls: timer.kernel(calls)[0])
    common = {"device": torch.cuda.get_device_name(), "revision": os.environ.get("PORTILE_REVISION") or bench.revision(),
              "torch": torch.__version__}
    print(f"{common['device']}; {peer}; torch {torch.__version__}; Portile {common['revision']}; copy of 1 GiB + 1 GiB "
          f"{ceiling(2 << 30):.2f} TB/s; {options.rounds} rounds of {options.launches} launches")
    print(HEADER + (" (rates in TFLOP/s)" if options.grid == "gemm" else " (rates in GB/s)"))
    records, begin = [], time.monotonic()
    with open(options.out, "w") as out:
        for point in chosen:
            if time.monotonic() - begin > options.budget:
                record = {"error": f"left out: over the budget of {options.budget:.0f} s"}
            else:
                try:
                    record = measure(Side(point, library), peer, timer, ceiling, options.rounds, options.launches)
                except Exception as e:
                    if os.environ.get("COMPARE_TRACEBACK"):
                        traceback.print_exc()
                    text = " ".join(str(e).split())
                    record = {"error": f"{type(e).__name__}: {text[:200]} ... {text[-200:]}" if len(text) > 400 else
                              f"{type(e).__name__}: {text}"}
            record = {"peer": peer, "op": point.op, "point": point.name, "kernel": point.kernel,
                      "params": point.params, **common, **record}
            records.append(record)
            print(row(record), flush=True)
            out.write(json.dumps(record) + "\n")
            out.flush()
            torch.cuda.empty_cache()
    print("\n".join(summary(records, left, len(chosen))))
    return 1 if any("error" in r for r in records) else 0


def main(argv=None):
    options = arguments(argv)
    try:
        return run(options)
    except Missing as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
