#!/usr/bin/env python3
"""Writes the generated parts of the documentation: the text between <!-- NAME: begin --> and <!-- NAME: end -->.

Usage: refresh.py --portile PROGRAM [--check]   (--check changes nothing and fails when a part is out of date)
"""
import argparse
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def example(_):
    return "```cpp\n" + (ROOT / "examples/basic/main.cpp").read_text() + "```\n"


def table(portile, flag, leave_out=()):
    """A table of `portile ops` without the columns that depend on the backends of this build."""
    text = subprocess.run([portile, "ops", flag], check=True, capture_output=True, text=True).stdout
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
    keep = [i for i, name in enumerate(rows[0]) if name.strip() not in leave_out]
    return "\n" + "".join("|" + "|".join(row[i] for i in keep) + "|\n" for row in rows) + "\n"


PARTS = {
    "README.md": {"example": example, "operations": lambda p: table(p, "--markdown", ("implementations",))},
    "docs/limits.md": {"limits": lambda p: table(p, "--limits")},
}


def replace(text, name, content):
    pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
    result, count = re.subn(pattern, lambda m: m[1] + content + m[2], text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"expected one part named {name}, found {count}")
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--portile", required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = False
    for file, parts in PARTS.items():
        path = ROOT / file
        old = path.read_text()
        new = old
        for name, make in parts.items():
            new = replace(new, name, make(options.portile))
        if new == old:
            continue
        if options.check:
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), file, "generated"))
            stale = True
        else:
            path.write_text(new)
            print(f"wrote {file}")
    if stale:
        raise SystemExit("out of date; ./dev docs writes it anew")


if __name__ == "__main__":
    main()
