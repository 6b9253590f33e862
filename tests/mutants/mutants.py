#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Changes one line of the library at a time and asks whether any test notices.

    mutants.py FOLDER [--jobs N] [--only WORD] [--without-python] [--keep-build]
    mutants.py --check

--check only says whether each mutant of mutants.txt still fits its header; the exit code is 1 if one does not.

mutants.txt lists the changes ("mutants"). All are compiled at once into a copy of the library in FOLDER, each behind a
switch that the environment variable DETENT_MUTANT turns on (switch.hpp). Then

1. every test runs once without a mutant; that tells how long it takes and which mutants its code comes to;
2. for each mutant, the tests that come to it run, the quickest first, until one fails: the mutant is killed. First those
   that need no Python packages, then those that do.

FOLDER/table.txt says of each mutant which test killed it, or that it lives. The last line counts. The exit code is 1 if
fewer than 95 % are killed without Python packages, fewer than 98 % with them, or a mutant lives of which mutants.txt gives
no reason. --only takes the mutants whose line or header contains WORD; --without-python leaves out the tests that need
Python packages; --keep-build does not build again.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGETS = ["numerics_tests", "graph_tests", "configuration_tests", "c_api_test", "c_api_convolution_test", "c_api_elements_test", "c_api_products_test", "calibrate_mpi",
           "detent_cli", "detent_onnxruntime", "example_onnxruntime_run", "concurrent_runs", "example_09_observer_plugin", "example_train_digits"]
PLAIN = {"numerics", "graph"}     # labels of tests that need no Python packages
PYTHON = {"interop", "cli"}       # and of those that do
MEMORY = 12 << 30                 # bytes of address space of a test: some mutants ask for far more


class Mutant:
    def __init__(self, number, header, text, line, start, end, code):
        self.number, self.header, self.text, self.line = number, header, text, line
        self.start, self.end, self.code = start, end, code    # of the header's text, and what takes its place
        self.reason = None                                    # why it lives, if the table says so
        self.killer = None

    @property
    def place(self):
        return f"{self.header}:{self.line}"


def read_table(include):
    """The mutants of mutants.txt. Ends the program if one of them does not fit its header."""
    mutants, errors, header, content = [], [], None, ""
    for at, row in enumerate((HERE / "mutants.txt").read_text().splitlines(), 1):
        where = f"mutants.txt:{at}"
        row = row.rstrip()
        if not row or row.startswith("#"):
            continue
        if row.startswith("[") and row.endswith("]") and (include / row[1:-1]).is_file():
            header, content = row[1:-1], (include / row[1:-1]).read_text()
            continue
        if row.startswith("lives: "):
            mutants[-1].reason = row[7:]
            continue
        if row.startswith("- "):
            context, original, mutated = "", row[2:], None
        elif " => " in row:
            context, _, change = row.rpartition(" @@ ")
            original, mutated = change.split(" => ")
        else:
            errors.append(f"{where}: neither a header nor a mutant: {row}")
            continue
        # Spaces stand for any white space, so that a line of the table may be longer than one of the code.
        begin, length = 0, len(content)
        if context:
            found = list(re.finditer(pattern_of(context), content))
            if len(found) != 1:
                errors.append(f"{where}: the context is there {len(found)} times")
                continue
            begin, length = content.rfind("\n", 0, found[0].start()) + 1, max(found[0].end(), content.find("\n", found[0].start()))
        found = list(re.finditer(pattern_of(original), content[begin:length]))
        if len(found) != 1:
            errors.append(f"{where}: there {len(found)} times in {header}: {original}")
            continue
        for text in (original, mutated):
            if mutated is not None and not is_expression(text):
                errors.append(f"{where}: no expression: {text}")
        start, end = begin + found[0].start(), begin + found[0].end()
        if mutated is not None and not binds_alone(content[:start], content[start:end], content[end:]):
            errors.append(f"{where}: what surrounds it binds more tightly: {original}")
        number = len(mutants)
        kept = content[start:end]
        if mutated is None:
            code = f"if (!::detent_mutants::on({number})) {{ {kept} }}"
        else:
            code = f"(::detent_mutants::on({number}) ? ({mutated}) : ({kept}))"
        mutants.append(Mutant(number, header, row, content.count("\n", 0, start) + 1, start, end, code))
    by_place = sorted(mutants, key=lambda m: (m.header, m.start))
    for a, b in zip(by_place, by_place[1:]):
        if a.header == b.header and b.start < a.end:
            errors.append(f"mutants.txt: two mutants of one place in {a.header}: {a.text}; {b.text}")
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        sys.exit(1)
    return mutants


# Binary operators and how tightly they bind; a condition a ? b : c binds least.
PRECEDENCE = {"?": 1, ":": 1, "||": 2, "&&": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7, "<": 8, ">": 8, "<=": 8, ">=": 8, "<<": 9, ">>": 9,
              "+": 10, "-": 10, "*": 11, "/": 11, "%": 11}
OPERATOR = r"\|\||&&|==|!=|<=|>=|<<|>>|[?:|^&<>+*/%-]"


def binds_alone(before, kept, after):
    """False if brackets around the expression `kept` change what its surroundings mean: `a && b ? c : d` is no `a && (b ? c : d)`."""
    code = re.sub(r'"[^"]*"|\'.\'', "x", kept.replace("::", "").replace("->", "."))
    outer = ""
    while outer != code:
        outer, code = code, re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|<[\w:, *]*>", "x", code)
    own = min((PRECEDENCE[o] for o in re.findall(r"(?<=[\w)]) ?(" + OPERATOR + r")(?= )", code)), default=99)
    left = re.search("(" + OPERATOR + r")\s*$", before.replace("::", "").replace("->", "."))
    right = re.match(r"\s*(" + OPERATOR + ")", after.replace("::", "").replace("->", "."))
    # Of equals the left one comes first.
    associative = ("||", "&&", "?", ":")
    if left and (PRECEDENCE[left[1]] > own or PRECEDENCE[left[1]] == own and left[1] not in associative):
        return False
    return not (right and PRECEDENCE[right[1]] > own)


def is_expression(text):
    """False for what surely is none: statements, lists of arguments, and pieces that begin or end within brackets or within `a ? b : c`."""
    code = re.sub(r'"[^"]*"|\'.\'', "x", text.replace("::", ""))
    outer, inner = "", code
    while outer != inner:
        outer, inner = inner, re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|<[\w, *]*>", "x", inner)
    return ";" not in code and "," not in inner and not code.startswith("void(") and not re.search(r"[?:=*/%&|,<]\s*$", code) and all(code.count(a) == code.count(b) for a, b in ("()", "{}", "[]", "?:"))


def pattern_of(text):
    return r"\s+".join(re.escape(word) for word in text.split())


def write_if_changed(path, content):
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def build(folder, mutants, jobs):
    """Copies the project with the mutants in it to FOLDER/source and builds it in FOLDER/build."""
    source = folder / "source"
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    changed = {}
    for m in mutants:
        changed.setdefault(pathlib.Path("include/detent") / m.header, []).append(m)
    for name in filter(None, files.stdout.decode().split("\0")):
        if not (ROOT / name).is_file():
            continue
        content = (ROOT / name).read_bytes()
        if pathlib.Path(name) in changed:
            text = content.decode()
            # From the end, so that places stay right.
            for m in sorted(changed[pathlib.Path(name)], key=lambda m: m.start, reverse=True):
                text = text[:m.start] + m.code + text[m.end:]
            content = text.encode()
        write_if_changed(source / name, content)
    shared = folder / "shared"
    if (ROOT.parent / "shared").is_dir() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")
    configure = ["cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DCMAKE_CXX_FLAGS=-include {HERE / 'switch.hpp'}", "-DDETENT_BUILD_BENCHMARKS=OFF",
                 f"-DCMAKE_PREFIX_PATH={ROOT / 'build/deps/usr'};{ROOT / 'build/onnxruntime/usr'}", f"-DDETENT_PYTHON={ROOT / 'build/venv/bin/python'}"]
    log = folder / "build.log"
    with open(log, "w") as out:
        for command in (configure, ["cmake", "--build", folder / "build", "-j", str(jobs), "--target", *TARGETS, "--", "-k", "0"]):
            if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode != 0:
                sys.exit(f"mutants: the build failed; see {log}")


class Test:
    def __init__(self, entry):
        properties = {p["name"]: p["value"] for p in entry["properties"]}
        self.name = entry["name"]
        self.labels = set(properties.get("LABELS", []))
        self.command = entry["command"] + (["--abort-after=1"] if any("--source-file=" in word for word in entry["command"]) else [])
        self.environment = dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))
        self.folder = properties["WORKING_DIRECTORY"]
        self.seconds, self.reached = 0.0, set()

    def run(self, environment, timeout=None):
        """True if it passes, False if it fails or takes too long, None if it is skipped."""
        process = subprocess.Popen(
            self.command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **self.environment, **environment},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)))
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return False
        if process.returncode == 77:
            return None
        return process.returncode == 0 and not re.search(rb"test cases: +0 ", output)


def all_tests(folder, labels):
    """The tests with one of the labels, each run once without a mutant; the quickest first."""
    listed = json.loads(subprocess.run(["ctest", "--test-dir", folder / "build", "--show-only=json-v1"], check=True, capture_output=True).stdout)
    tests = [Test(t) for t in listed["tests"] if "command" in t]
    tests = [t for t in tests if t.labels & labels]
    for t in tests:
        with tempfile.TemporaryDirectory() as notes:
            # Once more if it fails, since some tests give a program little time, which a busy machine has not.
            for _ in range(2):
                begin = time.monotonic()
                passed = t.run({"DETENT_MUTANTS_REACHED": notes})
                t.seconds = time.monotonic() - begin
                if passed is not False:
                    break
            else:
                sys.exit(f"mutants: {t.name} fails without a mutant")
            print(f"{t.name}: {'skipped' if passed is None else f'{t.seconds:.1f} s'}", flush=True)
            for note in pathlib.Path(notes).iterdir():
                t.reached |= set(map(int, note.read_text().split()))
    return sorted(tests, key=lambda t: (not t.labels & PLAIN, t.seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--without-python", action="store_true")
    parser.add_argument("--keep-build", action="store_true")
    options = parser.parse_args()
    mutants = read_table(ROOT / "include/detent")
    if options.check:
        print(f"{len(mutants)} mutants fit their headers")
        return 0
    if options.folder is None:
        parser.error("FOLDER is missing")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not options.keep_build:
        build(folder, mutants, options.jobs)
    tests = all_tests(folder, PLAIN if options.without_python else PLAIN | PYTHON)

    before = folder / "killers.json"
    killers = json.loads(before.read_text()) if before.exists() else {}
    chosen = [m for m in mutants if options.only in m.text or options.only in m.header]
    lock = threading.Lock()

    def judge(m):
        first = killers.get(f"{m.header} {m.text}")
        # What killed it last time comes first, but for tests that need Python packages: the others have precedence.
        for t in sorted((t for t in tests if m.number in t.reached), key=lambda t: (not t.labels & PLAIN, t.name != first)):
            if t.run({"DETENT_MUTANT": str(m.number)}, timeout=20 + 5 * t.seconds) is False:
                m.killer = t
                break
        with lock:
            killers[f"{m.header} {m.text}"] = m.killer.name if m.killer else None
            before.write_text(json.dumps(killers, indent=1))
            print(f"{m.place}: {m.text}: {'killed by ' + m.killer.name if m.killer else 'LIVES'}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(judge, chosen))

    rows, plain, unexplained = [], 0, 0
    for m in chosen:
        plain += bool(m.killer and m.killer.labels & PLAIN)
        unexplained += m.killer is None and m.reason is None
        reached = any(m.number in t.reached for t in tests)
        rows.append(f"{m.place}\t{m.text}\t" + (m.killer.name if m.killer else "lives: " + (m.reason or ("?" if reached else "no test comes to it"))))
    (folder / "table.txt").write_text("\n".join(rows) + "\n")
    killed = sum(m.killer is not None for m in chosen)
    print(f"{len(chosen)} mutants: {plain} killed without Python packages, {killed} with them, {len(chosen) - killed} live, "
          f"{unexplained} of them without a reason")
    wanted = 0.95 if options.without_python else 0.98
    return 0 if plain >= 0.95 * len(chosen) and killed >= wanted * len(chosen) and unexplained == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
