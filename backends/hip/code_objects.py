#!/usr/bin/env python3
"""Registers, LDS, scratch and instructions of the HIP plug-in's kernels, read from its code objects.

    python3 backends/hip/code_objects.py build-sid/lib/libportile_backend_hip.so --markdown perf/results/hip/kernels.md
    python3 backends/hip/code_objects.py FILE --instructions --check   # exit status 1 if a kernel uses scratch memory
                                                # or lacks an instruction that it claims to use

The kernels were compiled, never run. Needs llvm-readelf, and llvm-objdump with --instructions, of any LLVM that knows
the architectures (--llvm FOLDER, else the folders of the system's LLVM and the search path)."""

import argparse
import collections
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COUNTED = ["v_mfma", "v_wmma", "ds_read_b128", "ds_write_b128", "buffer_load_dwordx4", "global_load_dwordx4",
           "global_load_b128", "global_store_dwordx4", "global_store_b128", "global_load_lds", "scratch_"]


def find(tool, folder):
    places = [folder] if folder else sorted(map(str, Path("/usr/lib").glob("llvm-*/bin")), reverse=True)
    places += [] if folder else ["/opt/rocm/llvm/bin"]
    found = shutil.which(tool, path=os.pathsep.join(places + [os.environ.get("PATH", "")]))
    if not found:
        sys.exit(f"code_objects.py: {tool} is not there; give its folder with --llvm")
    return found


def code_objects(data):
    """(architecture, ELF) of every device image in the file: each bundle has a header and its images."""
    start = data.find(MAGIC)
    while start >= 0:
        (count,) = struct.unpack_from("<Q", data, start + len(MAGIC))
        at = start + len(MAGIC) + 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<3Q", data, at)
            target = data[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if target.startswith("hip") and size:
                yield target.split("--")[-1].split(":")[0], data[start + offset : start + offset + size]
        start = data.find(MAGIC, at)


def kernels_of(elf, readelf):
    """The metadata note of a code object, as llvm-readelf prints it: YAML with one item for each kernel."""
    text = subprocess.run([readelf, "--notes", elf], check=True, capture_output=True, text=True).stdout
    block = text.partition("amdhsa.kernels:")[2].partition("amdhsa.target:")[0]
    for item in re.split(r"\n  - ", "\n" + block)[1:]:
        fields = dict(re.findall(r"^\s*\.(\w+):\s+(\S.*?)\s*$", item.replace("\n    .", "\n."), re.M))
        if "symbol" in fields:
            yield fields


def plain(names):
    """Demangled, without what is the same in all of them."""
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    result = {}
    for mangled, name in zip(names, out.splitlines()):
        m = re.search(r"kernel_entry<(.*)>\(", name)
        name = m.group(1) if m else name
        for noise in ("portile::gpu::", "(anonymous namespace)::", "portile::", "numeric::"):
            name = name.replace(noise, "")
        result[mangled] = name
    return result


def instructions(elf, objdump):
    """How often each kernel uses the instructions of COUNTED."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", elf], check=True, capture_output=True, text=True).stdout
    counts, now = {}, None
    for line in text.splitlines():
        m = re.match(r"[0-9a-f]+ <(.*)>:", line)
        if m:
            now = counts.setdefault(m.group(1), collections.Counter())
        elif now is not None:
            word = line.split(None, 1)[0] if line.strip() else ""
            for name in COUNTED:
                if word.startswith(name):
                    now[word.removesuffix("_e32").removesuffix("_e64") if name == "v_mfma" else name] += 1
    return counts


def read(path, llvm, with_instructions):
    records = []
    readelf = find("llvm-readelf", llvm)
    objdump = find("llvm-objdump", llvm) if with_instructions else None
    with tempfile.TemporaryDirectory() as folder:
        for i, (arch, image) in enumerate(code_objects(Path(path).read_bytes())):
            elf = f"{folder}/{i}.elf"
            Path(elf).write_bytes(image)
            counts = instructions(elf, objdump) if objdump else {}
            for k in kernels_of(elf, readelf):
                name = k["symbol"].strip("'\"").removesuffix(".kd")
                record = {"arch": arch, "kernel": name}
                for key, field in (("vgpr", "vgpr_count"), ("agpr", "agpr_count"), ("sgpr", "sgpr_count"),
                                   ("lds", "group_segment_fixed_size"), ("scratch", "private_segment_fixed_size"),
                                   ("vgpr_spills", "vgpr_spill_count"), ("sgpr_spills", "sgpr_spill_count"),
                                   ("threads", "max_flat_workgroup_size"), ("wave", "wavefront_size")):
                    record[key] = int(k.get(field, 0))
                if objdump:
                    record["instructions"] = dict(counts.get(name, {}))
                records.append(record)
            os.unlink(elf)
    names = plain(sorted({r["kernel"] for r in records}))
    for r in records:
        r["kernel"] = names[r["kernel"]]
    return sorted(records, key=lambda r: (r["arch"], r["kernel"]))


# The instruction that each part multiplies a type's values with.
MFMA = {"gfx90a": {"bf16": "v_mfma_f32_32x32x8bf16_1k", "float": "v_mfma_f32_32x32x2f32", "e4m3": "v_mfma_f32_32x32x8bf16_1k"},
        "gfx942": {"bf16": "v_mfma_f32_32x32x8_bf16", "float": "v_mfma_f32_32x32x4_xf32", "e4m3": "v_mfma_f32_32x32x16_fp8_fp8"},
        "gfx950": {"bf16": "v_mfma_f32_32x32x16_bf16", "float": "v_mfma_f32_32x32x2_f32", "e4m3": "v_mfma_f32_32x32x16_fp8_fp8"}}


def missing(record):
    """Instructions that a kernel claims to use and does not. Kernels of another part are empty."""
    m = re.search(r"hip::(\w*matrix_product)<hip::(gfx\w+), (\w+)(?:, (\w+))?>", record["kernel"])
    if not m or m.group(2) != record["arch"]:
        return []
    product, part, a, b = m.groups()
    claims = [MFMA[part][a], "ds_read_b128"]
    if product == "matrix_product":
        claims.append("ds_write_b128")
    if b != "e2m1x2" and not (part == "gfx90a" and a == "e4m3"):  # those read eight bytes at a time
        claims.append("global_load_dwordx4")
    used = record["instructions"]
    return [c for c in claims if not used.get(c)]


def family(kernel):
    return re.split(r"[<,]", kernel)[0]


def part_of(kernel):
    """The part whose matrix instructions a kernel uses, if any."""
    m = re.search(r"hip::(gfx\w+),", kernel)
    return m.group(1) if m else None


def waves(record):
    """Waves that the registers of a SIMD hold: 512 in steps of 8 for CDNA (both kinds together), 1536 in steps of 24 for
    gfx11's waves of 32."""
    total, step, most = (512, 8, 8) if record["arch"].startswith("gfx9") else (1536, 24, 16)
    return min(most, total // max(step, -(-record["vgpr"] // step) * step))


def table(records):
    lines = ["# Kernels of the HIP plug-in, by their code objects", "",
             "Compiled, never run. A row of the second tables is a kernel class; its numbers are the worst of its instances. LDS is what the",
             "kernel declares: memory that a launch asks for is not in it. Command:",
             "`python3 backends/hip/code_objects.py build-sid/lib/libportile_backend_hip.so --instructions --markdown FILE`.", ""]
    for arch in sorted({r["arch"] for r in records}):
        mine = [r for r in records if r["arch"] == arch]
        spilled = [r for r in mine if r["scratch"]]
        lines += [f"## {arch}", "", f"{len(mine)} kernels, {len(spilled)} with scratch memory.", ""]
        matrix = [r for r in mine if part_of(r["kernel"]) == arch]
        if matrix:
            lines += ["| kernel with matrix instructions | VGPR and AGPR | of them AGPR | waves a SIMD | scratch bytes | instructions |",
                      "|---|---|---|---|---|---|"]
            for r in matrix:
                counts = ", ".join(f"{n} `{name}`" for name, n in sorted(r.get("instructions", {}).items()))
                lines.append(f"| `{r['kernel'].strip()}` | {r['vgpr']} | {r['agpr']} | {waves(r)} | {r['scratch']} | {counts} |")
            lines.append("")
        lines += ["| kernel | instances | threads | VGPR | AGPR | SGPR | waves a SIMD | LDS bytes | scratch bytes | VGPR spills | SGPR spills |",
                  "|---|---|---|---|---|---|---|---|---|---|---|"]
        groups = collections.defaultdict(list)
        for r in mine:
            if not part_of(r["kernel"]):
                groups[family(r["kernel"])].append(r)
        for name, group in sorted(groups.items()):
            cells = [max(r[k] for r in group) for k in ("threads", "vgpr", "agpr", "sgpr")]
            cells += [min(waves(r) for r in group)]
            cells += [max(r[k] for r in group) for k in ("lds", "scratch", "vgpr_spills", "sgpr_spills")]
            lines.append(f"| `{name}` | {len(group)} | " + " | ".join(map(str, cells)) + " |")
        lines.append("")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plugin", help="libportile_backend_hip.so, or any file with HIP code objects in it")
    p.add_argument("--llvm", help="folder of llvm-readelf and llvm-objdump")
    p.add_argument("--instructions", action="store_true", help="disassemble, and count the instructions of interest")
    p.add_argument("--json", help="write a record per kernel to this file")
    p.add_argument("--markdown", help="write the table to this file")
    p.add_argument("--check", action="store_true", help="fail if a kernel uses scratch memory or, with --instructions, lacks one that it claims")
    args = p.parse_args()
    records = read(args.plugin, args.llvm, args.instructions)
    if not records:
        sys.exit(f"code_objects.py: no HIP code object in {args.plugin}")
    if args.json:
        Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in records))
    if args.markdown:
        Path(args.markdown).parent.mkdir(parents=True, exist_ok=True)
        Path(args.markdown).write_text(table(records))
    bad = [r for r in records if r["scratch"]]
    for r in bad:
        print(f"{r['arch']} {r['kernel']}: {r['scratch']} bytes of scratch, {r['vgpr_spills']} VGPR and "
              f"{r['sgpr_spills']} SGPR spills")
    lacking = [(r, missing(r)) for r in records] if args.instructions else []
    lacking = [(r, names) for r, names in lacking if names]
    for r, names in lacking:
        print(f"{r['arch']} {r['kernel']}: no {', '.join(names)}; it has {r['instructions']}")
    mfma = sum(any(k.startswith("v_mfma") for k in r.get("instructions", {})) for r in records)
    if args.instructions:
        print(f"{mfma} kernels with matrix instructions, {len(lacking)} without one that they claim")
    print(f"{len(records)} kernels of {len({r['arch'] for r in records})} architectures, {len(bad)} with scratch memory")
    return 1 if args.check and (bad or lacking or (args.instructions and not mfma)) else 0


if __name__ == "__main__":
    sys.exit(main())
