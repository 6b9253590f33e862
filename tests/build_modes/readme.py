#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""readme.py ROOT: the code in README.md is examples/02_gemm.cpp, and the links of README.md and docs/ lead somewhere."""
import re
import sys
from pathlib import Path


def main():
    root = Path(sys.argv[1])
    readme = (root / "README.md").read_text(encoding="utf-8")
    example = (root / "examples/02_gemm.cpp").read_text(encoding="utf-8")
    code = re.search(r"```cpp\n(.*?)```", readme, re.S)
    wrong = []
    if not code or code[1].strip() != example[example.index("#include"):].strip():
        wrong.append("the code in README.md is not examples/02_gemm.cpp from its first #include on")
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"```.*?```", "", text, flags=re.S)  # lambdas look like links
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if "://" not in link and not (page.parent / link).exists():
                wrong.append(f"{page.relative_to(root)} links to {link}, which does not exist")
        if page.parent.name == "docs" and text.count("\n") > 250:
            wrong.append(f"{page.relative_to(root)} has more than 250 lines")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(pages)} pages are in step")


if __name__ == "__main__":
    main()
