#!/usr/bin/env python3
"""Audits what the built libraries export and need. Usage: symbols.py [--sanitized] LIBPORTILE PLUGIN..."""
import re
import subprocess
import sys

# The library is plain C++; plug-ins must load on machines without a driver.
LIBRARY_NEEDS = r"lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so|ld-linux"
PLUGIN_MUST_NOT_NEED = r"libcuda\.so|libcudart\.so|libnvidia"


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exported(file):
    return [line.split(maxsplit=2)[2] for line in lines("nm", "-D", "-C", "--defined-only", file)]


def needed(file):
    return re.findall(r"NEEDED.*\[(.*)\]", "\n".join(lines("readelf", "-d", file)))


def search_paths(file):
    return re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", "\n".join(lines("readelf", "-d", file)))


def main(arguments):
    sanitized = arguments[:1] == ["--sanitized"]
    library, *plugins = arguments[sanitized:]
    errors = []

    symbols = exported(library)
    if not symbols:
        errors.append(f"{library}: exports nothing")
    for symbol in symbols:
        if not re.match(r"((typeinfo( name)?|vtable) for )?portile(::|_)", symbol) and not sanitized:
            errors.append(f"{library}: exports {symbol}")
    for name in needed(library):
        if not re.match(LIBRARY_NEEDS, name) and not (sanitized and re.match(r"lib(a|ub|t)san", name)):
            errors.append(f"{library}: needs {name}")

    for plugin in plugins:
        symbols = [s for s in exported(plugin) if not (sanitized and "san" in s)]
        if symbols != ["portile_backend_entry"]:
            errors.append(f"{plugin}: exports {symbols or 'nothing'}, not portile_backend_entry alone")
        for name in needed(plugin):
            if re.match(PLUGIN_MUST_NOT_NEED, name):
                errors.append(f"{plugin}: needs {name}")

    # An empty entry means the current folder to the loader.
    for file in [library, *plugins]:
        paths = [entry for path in search_paths(file) for entry in path.split(":")]
        if "" in paths:
            errors.append(f"{file}: its RUNPATH has an empty entry")
        if file in plugins and "$ORIGIN" not in paths:
            errors.append(f"{file}: does not look for libraries beside itself")

    print("\n".join(errors) or f"{library}: {len(exported(library))} symbols; {len(plugins)} plug-ins with one symbol each")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
