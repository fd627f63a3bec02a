"""The output that README.md quotes: `ladder-opt tune` on the bundled sample.

python -m benchmarks.readme_demo            print it
python -m benchmarks.readme_demo --write    put it between the demo markers of README.md
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from benchmarks import common

COMMAND = ("tune", "traces/sample.parquet", "--replicas", "80")
BEGIN, END = "<!-- demo:begin -->", "<!-- demo:end -->"


def demo_output() -> str:
    """What the command prints, as an indented block."""
    done = subprocess.run(
        [sys.executable, "-m", "ladder_opt", *COMMAND],
        cwd=common.REPOSITORY,
        env=os.environ | {"PYTHONUTF8": "1"},  # the heat map is drawn with block characters
        encoding="utf-8",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [f"    {line}".rstrip() for line in done.stdout.rstrip().splitlines()]
    return "\n".join(lines)


def with_demo(readme: str, output: str) -> str:
    """README text with the output between the markers."""
    return common.between(readme, BEGIN, END, f"\n{output}\n")


def main() -> int:
    """Print the output, or write it into README.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put it into README.md")
    arguments = parser.parse_args()
    output = demo_output()
    if not arguments.write:
        print(output)
        return 0
    readme = common.README.read_text(encoding="utf-8")
    common.README.write_text(with_demo(readme, output), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
