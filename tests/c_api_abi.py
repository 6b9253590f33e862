#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the binary interface of the C libraries with the recorded one, tests/c_api_abi.txt.

    c_api_abi.py check --cc CC LIBRARY...    exits with 1 and names each difference
    c_api_abi.py update --cc CC LIBRARY...   records the interface as it is
    c_api_abi.py itself --cc CC LIBRARY...   shows that the check sees breaches: changes the record, expects a failure
    c_api_abi.py against OLD.so NEW.so       runs abidiff (Debian's abigail-tools) on two builds of a library

The record has what programs were compiled against: SONAMEs, exported functions with their versions and declarations,
values of enumerators, and sizes and offsets of structures, as a compiler of 64-bit machines lays them out. A difference
is a "break" if programs that were compiled before would no longer work: something is gone, has moved or has another
type. All else is an "addition"; then the record is to be updated.
"""
import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/c_api_abi.txt"
HEADERS = ["c_api.h", "c_api_observers.h", "c_api_plugin.h", "c_api_weights.h", "c_api_graph.h"]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exports(library):
    """The SONAME and the exported symbols with their versions."""
    soname = re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "-dW", library))
    lines = [f"library {soname.group(1) if soname else 'WITHOUT SONAME'}"]
    for line in run("readelf", "--dyn-syms", "-W", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK") and fields[6] not in ("UND", "ABS"):
            lines.append(f"export {soname.group(1) if soname else library} {fields[7]}")
    return lines


def declarations(text):
    """Functions, callbacks and structures of a header without comments and directives."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    lines, structures, enumerators = [], {}, []
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.S):
        fields = []
        for declaration in body.split(";"):
            callback = re.search(r"\(\*(\w+)\)\s*\(", declaration)
            if callback:
                fields.append(callback.group(1))
                continue
            fields += [re.search(r"(\w+)\s*$", part).group(1) for part in declaration.split(",") if part.strip()]
        structures[name] = fields
        types = re.sub(r"\s+", " ", body).strip()
        lines.append(f"fields {name}: {types}")
    for body, name in re.findall(r"typedef enum \w+ DETENT_C_ENUM \{(.*?)\} (\w+);", text, flags=re.S):
        enumerators += re.findall(r"(DETENT_\w+)\s*=", body)
    text = re.sub(r"typedef (struct|enum)[^{;]*\{.*?\} \w+;", "", text, flags=re.S)
    for declaration in re.findall(r"DETENT_C_API\s+(.*?);", text, flags=re.S):
        lines.append("function " + re.sub(r"\s+", " ", declaration))
    for declaration in re.findall(r"typedef ([^;]*\(\*?\w+\)?\([^;]*);", text, flags=re.S):
        lines.append("callback " + re.sub(r"\s+", " ", declaration))
    return lines, structures, enumerators


def layouts(cc, structures, enumerators):
    """Sizes, offsets and values, as a program says that the compiler has made."""
    program = ["#include <stdio.h>"] + [f"#include <detent/{h}>" for h in HEADERS] + ["int main(void) {"]
    for name, fields in structures.items():
        program.append(f'  printf("size {name} %zu\\n", sizeof({name}));')
        for f in fields:
            program.append(f'  printf("offset {name}.{f} %zu\\n", offsetof({name}, {f}));')
            program.append(f'  printf("width {name}.{f} %zu\\n", sizeof((({name}*)0)->{f}));')
    program += [f'  printf("value {e} %d\\n", (int){e});' for e in enumerators]
    program.append("  return 0;\n}")
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text("\n".join(program) + "\n", encoding="utf-8")
        run(cc, "-std=c99", "-I", str(ROOT / "include"), str(source), "-o", str(binary))
        return run(str(binary)).splitlines()


def interface(cc, libraries):
    lines = [line for library in libraries for line in exports(library)]
    structures, enumerators = {}, []
    for header in HEADERS:
        found, own, values = declarations((ROOT / "include/detent" / header).read_text(encoding="utf-8"))
        lines += found
        structures.update(own)
        enumerators += values
    lines += layouts(cc, structures, enumerators)
    declared = {re.search(r"(\w+)\(", line).group(1) for line in lines if line.startswith("function ")}
    exported = {line.split()[2].split("@")[0] for line in lines if line.startswith("export ")}
    wrong = [f"{name} is exported, but no header declares it"
             for name in sorted(exported - declared) if not re.fullmatch(r"DETENT_[\d.]+", name)]
    wrong += [f"{name} is declared, but no library exports it" for name in sorted(declared - exported)]
    wrong += [f"{line} has no version" for line in lines if line.startswith("export ") and "@@" not in line]
    return sorted(set(lines)), wrong


def differences(recorded, now):
    """Sentences on what differs. A structure that only became longer breaks nothing if programs state its size, as
    they do in a first field of that name."""
    found = []
    sized = {line.split()[1].rstrip(":") for line in recorded if re.match(r"fields \w+: size_t size;", line)}
    new_sizes = dict(line.rsplit(" ", 1) for line in now if line.startswith("size "))
    for line in sorted(set(recorded) - set(now)):
        grown = False
        if line.startswith("size "):
            key, size = line.rsplit(" ", 1)
            grown = key.split()[1] in sized and int(new_sizes.get(key, 0)) > int(size)
        elif line.startswith("fields "):
            # The offsets and widths of old fields have lines of their own; their types begin this one.
            grown = line.split()[1].rstrip(":") in sized and any(other.startswith(line) for other in now)
        found.append(("addition: changed " if grown else "break: gone or changed: ") + line)
    found += ["addition: " + line for line in sorted(set(now) - set(recorded))]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["check", "update", "itself", "against"])
    parser.add_argument("--cc", default="cc")
    parser.add_argument("libraries", nargs="+")
    a = parser.parse_args()
    if a.command == "against":
        if shutil.which("abidiff") is None:
            print("abidiff is not installed (Debian: abigail-tools)")
            return 77
        result = subprocess.run(["abidiff", "--headers-dir1", str(ROOT / "include/detent"), *a.libraries], check=False)
        return 1 if result.returncode & 8 else 0  # incompatible changes
    if shutil.which("readelf") is None or sys.maxsize < 2**32:
        print("skipped: needs readelf and a 64-bit machine")
        return 77
    now, wrong = interface(a.cc, a.libraries)
    if a.command == "update":
        RECORD.write_text("\n".join(now) + "\n", encoding="utf-8")
        return 0
    recorded = RECORD.read_text(encoding="utf-8").splitlines()
    if a.command == "itself":
        offset = next(line for line in recorded if line.startswith("offset "))
        moved = [line if line != offset else line + "0" for line in recorded]
        gone = recorded + ["export libdetent_c.so.0.1 detent_gone@@DETENT_0.1"]
        grown = [line for line in recorded if line != recorded[-1]]
        sizes = [line for line in recorded if line.startswith("size detent_scheme ")]
        longer = [line if line not in sizes else "size detent_scheme 4" for line in recorded]
        old = [line if not line.startswith("size detent_epilogue ") else "size detent_epilogue 8" for line in recorded]
        seen = [any(d.startswith("break") for d in differences(record, now)) for record in (moved, gone, longer)]
        seen += [bool(differences(grown, now)), not any(d.startswith("break") for d in differences(old, now))]
        print("sees a moved field, a function that is gone, a structure without size that grew, an addition, and that "
              "a structure with size may grow:", seen)
        return 0 if all(seen) else 1
    found = wrong + differences(recorded, now)
    for line in found:
        print(line)
    if found:
        print("after a change that is meant: c_api_abi.py update; a break needs another SONAME")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
