"""docs/benchmarks.md, from the kept results: `python -m benchmarks.report [--keep]`.

Benchmarks write to benchmarks/results/, which is this machine's own. `--keep` takes what lies there into benchmarks/kept/, a
part of the repository, without the single steps; the page and its pictures are made from there and from nothing else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.plots import draw
from benchmarks.sections import HEAD, SECTIONS, Figures, machine_line, prose

RESULTS, KEPT = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "kept"
MAKES = {"soak": "make soak", "chaos": "make chaos"}
PAGE, IMAGES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images"


def kept(folder: Path = KEPT) -> dict[str, Figures]:
    files = {name: folder / f"{name}.json" for name in SECTIONS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}


def page(results: dict[str, Figures]) -> str:
    lines = ["# Benchmarks", "", prose(HEAD), ""]
    for name, (title, section) in SECTIONS.items():
        if name in results:
            figures = results[name]
            lines += [
                f"## {title}",
                "",
                f"`{MAKES.get(name, f'python -m benchmarks.{name}')}`",
                "",
                *section(figures),
                "",
                machine_line(figures),
                "",
            ]
    return "\n".join(lines)


def keep() -> list[str]:
    """What was measured here becomes what the page says; single steps stay behind."""
    KEPT.mkdir(exist_ok=True)
    taken = []
    for name in SECTIONS:
        source = RESULTS / f"{name}.json"
        if source.exists():
            figures = json.loads(source.read_text(encoding="utf-8"))
            figures.pop("steps", None)
            (KEPT / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            taken.append(name)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="take this machine's latest results into benchmarks/kept/ first")
    options = parser.parse_args()
    if options.keep:
        print(f"kept: {', '.join(keep())}")
    results = kept()
    PAGE.write_text(page(results), encoding="utf-8")
    pictures = draw(results, IMAGES)
    print(f"wrote {PAGE.relative_to(ROOT)} from {len(results)} results, and {', '.join(path.name for path in pictures)}")


if __name__ == "__main__":
    main()
