#!/usr/bin/env python3
"""Exported symbols and needed libraries of libportile.so and of every plug-in beside it.

libportile exports names of namespace portile (functions, variables, type information) and instantiations of std templates
(the standard headers ask for default visibility), nothing else. A plug-in exports portile_backend_entry only.
libportile needs the C and C++ run time only: no CUDA, HIP or Kokkos library.
"""
import glob
import os
import re
import subprocess
import sys

RUN_TIME = re.compile(r"^(lib(c|m|stdc\+\+|gcc_s|dl|pthread|asan|ubsan|tsan)|ld-linux[-\w]*)\.so")
OURS = re.compile(r"^((typeinfo|typeinfo name|vtable|guard variable|construction vtable|VTT)( for)? )?portile::")
# A return type may stand before the name of a function template.
STD = re.compile(r"^((typeinfo|typeinfo name|vtable|guard variable|VTT)( for)? )?(\S.* )?(std::|__gnu_cxx::|operator (new|delete))")


def tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library):
    lines = tool("nm", "-D", "-C", "--defined-only", library).splitlines()
    return [line.split(None, 2)[2] for line in lines if len(line.split(None, 2)) == 3]


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", library))


def rpaths(library):
    return re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", tool("readelf", "-d", library))


def main(folder):
    problems = []
    library = os.path.join(folder, "libportile.so")
    names = exported(library)
    if not any(n.startswith("portile::") for n in names):
        problems.append(f"{library} exports no name of portile")
    problems += [f"{library} exports {n}" for n in names if not OURS.match(n) and not STD.match(n)]
    problems += [f"{library} exports a name of the test support: {n}" for n in names if "portile::test" in n]
    problems += [f"{library} needs {n}" for n in needed(library) if not RUN_TIME.match(n)]

    plugins = sorted(glob.glob(os.path.join(folder, "libportile_backend_*.so")))
    for plugin in plugins:
        names = exported(plugin)
        if names != ["portile_backend_entry"]:
            problems.append(f"{plugin} exports {names[:10]}, must be portile_backend_entry alone")
        for n in needed(plugin):
            if n.startswith(("libcuda.so", "libcudart.so", "libnvidia")):
                problems.append(f"{plugin} needs {n}: it would not load on a machine without a driver")
        if not any("$ORIGIN" in p for p in rpaths(plugin)):
            problems.append(f"{plugin} does not look for libportile beside itself ($ORIGIN)")
    for file in [library, *plugins]:
        if any("" in p.split(":") for p in rpaths(file)):
            problems.append(f"{file} has an empty entry in its RUNPATH, which means the current folder")
    print("\n".join(problems) or f"libportile and {len(plugins)} plug-ins: exports and needs as declared")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
