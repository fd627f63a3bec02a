"""Mutation testing: `python -m tests.mutation [--only ladder.py] [--share 0.2] [--seed 1]`.

One operator or constant at a time is changed in the modules that choose and apply ladders, and the tests that
are to notice run until the first that fails. What survives is printed with its line; `docs/mutation.md` has
the results. Mutants are written to a copy of the package, never to the package itself.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TARGETS: dict[str, tuple[str, ...]] = {
    "cost/geometry.py": ("tests/cost/test_geometry.py",),
    "ladder.py": ("tests/test_ladder.py", "tests/plan/test_export_resolve.py"),
    "plan/resolve.py": ("tests/plan/test_export_resolve.py", "tests/bucketer/test_bucketer.py"),
    "bucketer/bucketer.py": ("tests/bucketer/test_bucketer.py", "tests/bucketer/test_environment.py"),
    "solve/price.py": ("tests/solve/test_price.py", "tests/solve/test_spyre_env.py"),
}
"""Modules, each with the tests that know it; `tests/laws` comes after them for all."""
_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.Mod: ast.Mult,
}  # fmt: skip
_CPU_SECONDS = 180


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was changed, the module's text) of every mutant."""
    count = sum(map(_is_mutable, ast.walk(ast.parse(source))))
    for at in range(count):
        tree = ast.parse(source)
        node = [each for each in ast.walk(tree) if _is_mutable(each)][at]
        before = ast.unparse(node)
        _change(node)
        yield getattr(node, "lineno", 0), f"{before}  ->  {ast.unparse(node)}", ast.unparse(tree)


def _is_mutable(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[one]):
            return type(one) in _COMPARE
        case ast.BinOp(left=left, op=op):
            return type(op) in _BINARY and not isinstance(left, ast.Constant | ast.JoinedStr)
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.IfExp():
            return True
        case ast.Constant(value=bool()) | ast.Constant(value=int()):
            return True
    return False


def _change(node: ast.AST) -> None:
    match node:
        case ast.Compare():
            node.ops = [_COMPARE[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = _BINARY[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.IfExp():
            node.body, node.orelse = node.orelse, node.body


def is_killed(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether a test fails, or its CPU time is up, with the package in a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder), "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, preexec_fn=_limit_cpu
    )
    return done.returncode != 0


def _limit_cpu() -> None:
    """CPU time, so that a mutant is not taken for killed where the machine is busy."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))


def main() -> int:
    """Run; the exit code is 1 where a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9)
    given = parser.parse_args()
    rng = random.Random(given.seed)  # noqa: S311  (to be run again)
    until = time.monotonic() + 60 * given.minutes
    survived = 0
    with tempfile.TemporaryDirectory(prefix="ladder-opt-mutants-") as name:
        folder = Path(name)
        for part in ("ladder_opt", "tests", "traces"):
            ignored = shutil.ignore_patterns("*.pyc")
            shutil.copytree(REPOSITORY / part, folder / part, ignore=ignored)
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        for target in given.only.split(","):
            survived += _try_all(folder, target, rng, given.share, until)
    return 1 if survived else 0


def _try_all(folder: Path, target: str, rng: random.Random, share: float, until: float) -> int:
    path = folder / "ladder_opt" / target
    source = path.read_text(encoding="utf-8")
    tests = (*TARGETS[target], "tests/laws/test_pipeline.py")
    tried = survived = 0
    for line, what, text in mutants(source):
        if rng.random() >= share or time.monotonic() > until:
            continue
        path.write_text(text, encoding="utf-8")
        tried += 1
        if not any(is_killed(folder, (each,)) for each in tests):
            survived += 1
            print(f"  survived: {target}:{line}: {what}", flush=True)  # noqa: T201
    path.write_text(source, encoding="utf-8")
    print(f"{target}: {tried} mutants, {tried - survived} killed, {survived} survived", flush=True)  # noqa: T201
    return survived


if __name__ == "__main__":
    sys.exit(main())
