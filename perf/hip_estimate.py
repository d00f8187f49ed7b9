#!/usr/bin/env python3
"""What the matrix-core kernels could reach on AMD parts: an estimate from data sheets and from the compiled code. No
kernel of the HIP plug-in has ever run.

    python3 backends/hip/code_objects.py build-sid/lib/libportile_backend_hip.so --instructions --json kernels.jsonl
    python3 perf/hip_estimate.py kernels.jsonl > perf/results/hip/estimate.md

Per product: FLOP over the part's peak, bytes (each operand moved once) over its memory bandwidth, and the kernel's own
bound: the cycles that a compute unit's matrix cores and LDS need for a step of a tile, by the instructions in the
loop, times the steps of the tiles of the busiest compute unit."""

import json
import math
import re
import sys

# Peaks of AMD's data sheets: "AMD Instinct MI250X" (one of its two dies), "MI300X", "MI355X". FLOP/s by type, without
# sparsity; bytes/s; compute units; clock.
PARTS = {
    "gfx90a": dict(name="MI250X, one die", bf16=191.5e12, float=47.9e12, e4m3=191.5e12, bytes=1.6e12, units=110, clock=1.7e9),
    "gfx942": dict(name="MI300X", bf16=1307.4e12, float=653.7e12, e4m3=2614.9e12, bytes=5.3e12, units=304, clock=2.1e9),
    "gfx950": dict(name="MI355X", bf16=2516.6e12, float=157.3e12, e4m3=5033.2e12, bytes=8.0e12, units=256, clock=2.4e9),
}
SIZE = {"bf16": 2, "float": 4, "e4m3": 1}
LDS_BYTES = 128  # per cycle and compute unit: 32 banks of 4 bytes
WAVES, TILE, CHUNK = 4, 128, 64 * 16  # waves of a block, rows and columns of its tile, bytes of a wave's 16-byte access

# name, kernel, type, rows (of all experts), N, K, experts
PRODUCTS = [
    ("gemm.nt", "tiled_product", "bf16", 4096, 4096, 7168, 1),
    ("gemm.nt", "tiled_product", "float", 4096, 4096, 7168, 1),
    ("gemm.nt", "tiled_product", "e4m3", 4096, 4096, 7168, 1),
    ("block: gate and up, 8,192 tokens, top-8 of 256", "grouped_product", "e4m3", 65536, 4096, 7168, 256),
    ("block: down, 8,192 tokens, top-8 of 256", "grouped_product", "e4m3", 65536, 7168, 2048, 256),
]


def find(records, arch, kernel, type_):
    pattern = re.compile(rf"^{kernel}<hip::matrix_product<hip::{arch}, {type_}, {type_}>")
    for r in records:
        if r["arch"] == arch and pattern.search(r["kernel"]):
            return r["instructions"]
    sys.exit(f"hip_estimate.py: no {kernel} of {type_} for {arch} in the records; were they made with --instructions?")


def bound(part, instructions, type_, rows, n, k, experts):
    """Seconds by the busiest compute unit, and the cycles of a step in its matrix cores and in LDS."""
    mfma = [(name, count) for name, count in instructions.items() if name.startswith("v_mfma")]
    (name, count), = mfma
    m, _, depth = map(int, re.search(r"_(\d+)x(\d+)x(\d+)", name).groups())
    per_cycle = part[type_] / part["units"] / part["clock"] / 4  # FLOP of one of the four matrix cores
    matrix = count * 2 * m * m * depth / per_cycle
    reads = count_of(instructions, "ds_read_b128") * WAVES * CHUNK / LDS_BYTES
    writes = count_of(instructions, "ds_write_b128") / 2 * WAVES * CHUNK / LDS_BYTES  # half are before the loop
    step = count * depth // 4  # channels: two by two atoms of each wave
    tiles = math.ceil(rows / experts / TILE) * experts * math.ceil(n / TILE)
    cycles = math.ceil(tiles / part["units"]) * math.ceil(k / step) * max(matrix, reads + writes)
    return cycles / part["clock"], matrix, reads + writes


def count_of(instructions, prefix):
    return sum(c for name, c in instructions.items() if name.startswith(prefix))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    records = [json.loads(line) for line in open(sys.argv[1])]
    print("# HIP: an estimate\n\nNo AMD device was at hand: **nothing here was measured**. " +
          __doc__.split("\n\n")[2].replace("\n", " ") + "\n")
    print("Peaks: AMD's data sheets of the MI250X (one die), MI300X and MI355X, without sparsity; LDS: 128 bytes a cycle "
          "and compute unit. gfx90a has no fp8 instructions and multiplies in bf16. Latency, launch "
          "and the clock under load are left out, so a device is slower than the last columns say; reads of scales are counted "
          "in every step, and happen in every second one. Command:\n"
          "`python3 perf/hip_estimate.py kernels.jsonl`, with the records of `backends/hip/code_objects.py --instructions "
          "--json kernels.jsonl`.\n")
    print("| part | product | type | M x N x K | FLOP / peak, us | bytes / bandwidth, us | matrix cycles a step | LDS cycles a "
          "step | kernel's bound, us | share of the peak |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for arch, part in PARTS.items():
        for name, kernel, type_, rows, n, k, experts in PRODUCTS:
            flop = 2 * rows * n * k
            moved = SIZE[type_] * (rows * k + experts * n * k) + 2 * rows * n
            seconds, matrix, lds = bound(part, find(records, arch, kernel, type_), type_, rows, n, k, experts)
            peak = flop / part[type_]
            print(f"| {arch} ({part['name']}) | {name} | {'f32' if type_ == 'float' else type_} | {rows} x {n} x {k} "
                  f"| {peak * 1e6:.0f} | {moved / part['bytes'] * 1e6:.0f} | {matrix:.0f} | {lds:.0f} "
                  f"| {seconds * 1e6:.0f} | {peak / seconds:.2f} |")


if __name__ == "__main__":
    main()
