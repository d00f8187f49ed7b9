#!/usr/bin/env python3
"""Every public header compiles alone, twice in a row, with a plain C++20 compiler; abi.h compiles as C too."""
import concurrent.futures
import glob
import os
import shutil
import subprocess
import sys

# These need a header of the consumer's: skipped where it is not installed.
NEEDS = {"portile/dlpack.hpp": "dlpack/dlpack.h", "portile/kokkos.hpp": None}


def main(compiler, source, generated):
    include = os.path.join(source, "include")
    headers = sorted(
        os.path.relpath(p, include)
        for part in ("core/*.hpp", "core/numeric/*.hpp", "kernels/*/*.hpp", "*.hpp")
        for p in glob.glob(os.path.join(include, "portile", part))
        if not p.endswith(("_reference.hpp", "queue_state.hpp"))
    )
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", include, "-I", generated, "-x", "c++", "-"]
    if "GNU" in subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout or "g++" in compiler:
        flags.insert(0, "-Wno-restrict")

    def compile_alone(header):
        base = header.replace(os.sep, "/")
        if base in NEEDS:
            probe = f"#if !__has_include(<{NEEDS[base] or 'Kokkos_Core.hpp'}>)\n#error\n#endif\n"
            if subprocess.run([compiler, *flags], input=probe, text=True, capture_output=True).returncode:
                return base, None, "skipped: its other half is not installed"
        text = f"#include <{base}>\n#include <{base}>\n"
        r = subprocess.run([compiler, *flags], input=text, text=True, capture_output=True)
        return base, r.returncode == 0, r.stderr

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for base, fine, text in pool.map(compile_alone, headers):
            if fine is None:
                print(base, text)
            elif not fine:
                failed += 1
                print(f"{base} does not compile alone:\n{text}")
    if cc := shutil.which("cc"):
        r = subprocess.run([cc, "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", include, "-x", "c", "-"],
                           input="#include <portile/core/abi.h>\n", text=True, capture_output=True)
        if r.returncode:
            failed += 1
            print("abi.h does not compile as C:\n" + r.stderr)
    print(f"{len(headers)} headers, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
