#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the units that show that each public header compiles alone.

    self_contained.py write FOLDER INCLUDE_DIR HEADER...
    self_contained.py check FOLDER INCLUDE_DIR HEADER...

A unit would do for each header, but most of its time would go into what it shares with the others. Hence a unit
has several, in an order such that each header includes, directly or not, every header before it: then what it
finds there is no more than what it brings along by itself. `write` prints the units, `check` fails if those in
FOLDER do not hold each header once, in such an order.
"""
import re
import sys
from pathlib import Path


def direct_includes(path):
    """The headers of detent that a header includes whatever is defined: within its guard and no other condition."""
    found, depth = set(), 0
    for line in path.read_text().splitlines():
        if match := re.match(r"\s*#\s*(if|endif|include\s*<(detent/[^>]+)>)", line):
            depth += {"if": 1, "endif": -1}.get(match[1], 0)
            if match[2] and depth == 1:
                found.add(match[2])
    return found


def closure(header, includes):
    """`header` and all that it includes, directly or not."""
    found, waiting = set(), [header]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += includes[name]
    return found


def chains(headers, closures):
    """Splits the headers into such orders. A header at the end of one costs a unit of its own, so the large ones
    are the first that get a successor: a matching by augmenting paths, which finds the least total."""
    by_size = sorted(headers, key=lambda h: (len(closures[h]), h))
    successors = {h: [s for s in by_size if h in closures[s] and s not in closures[h]] for h in headers}
    predecessor = {}

    def match(header, visited):
        for successor in successors[header]:
            if successor not in visited:
                visited.add(successor)
                if successor not in predecessor or match(predecessor[successor], visited):
                    predecessor[successor] = header
                    return True
        return False

    for header in reversed(by_size):
        match(header, set())
    result = []
    for last in sorted(set(headers) - set(predecessor.values())):
        chain = [last]
        while chain[-1] in predecessor:
            chain.append(predecessor[chain[-1]])
        result.append(chain[::-1])
    return result


def main():
    action, folder, include_dir, *headers = sys.argv[1:]
    folder, include_dir = Path(folder), Path(include_dir)
    includes = {str(path.relative_to(include_dir)): direct_includes(path)
                for path in include_dir.glob("detent/**/*.hpp") if "c_api" not in path.relative_to(include_dir).parts}
    closures = {header: closure(header, includes) for header in includes}
    if action == "write":
        folder.mkdir(parents=True, exist_ok=True)
        units = {folder / (re.sub(r"[/.]", "_", chain[-1]) + ".cpp"): "".join(f"#include <{h}>\n" for h in chain)
                 for chain in chains(headers, closures)}
        for path in set(folder.glob("*.cpp")) - set(units):
            path.unlink()
        for path, text in units.items():
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        print(*units, sep=";", end="")
        return
    seen = []
    for path in sorted(folder.glob("*.cpp")):
        order = re.findall(r"#include <(.*)>", path.read_text())
        for before, header in zip(order, order[1:]):
            if before not in closures[header]:
                sys.exit(f"{path}: {header} does not include {before} and comes after it; run cmake again")
        seen += order
    if sorted(seen) != sorted(headers):
        sys.exit(f"{folder}: not the public headers, each once; run cmake again")
    print(f"{len(seen)} headers, each after nothing but what it includes")


if __name__ == "__main__":
    main()
