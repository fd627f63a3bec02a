"""Mutation testing: `python -m tests.mutation [--only ladder.py] [--share 0.2] [--seed 1]`.

One operator or constant at a time is changed in the modules that choose and apply ladders, and the tests that
are to notice run until the first that fails. What survives is printed with its line; `docs/mutation.md` has
the results. Mutants are written to a copy of the package, never to the package itself.

A mutant costs a fork of this process, which has numpy, numba and pytest imported and nothing of the package.
Kernels run as plain Python: that takes less than a compile, and no kernel is taken from a cache that does not
know that another module, which it was compiled with, has changed.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_SOLVE = tuple(f"tests/solve/test_{name}.py" for name in ("ragged", "spyre_env", "product", "ties"))
TARGETS: dict[str, tuple[str, ...]] = {
    "cost/geometry.py": ("tests/cost/test_geometry.py", "tests/plan/test_gaudi.py"),
    "ladder.py": ("tests/test_ladder.py", "tests/plan/test_export_resolve.py"),
    "plan/resolve.py": ("tests/plan/test_export_resolve.py", "tests/bucketer/test_bucketer.py"),
    "bucketer/bucketer.py": ("tests/bucketer/test_bucketer.py", "tests/bucketer/test_environment.py"),
    "solve/price.py": ("tests/solve/test_price.py", "tests/solve/test_spyre_env.py"),
    "solve/verify.py": ("tests/solve/test_verify.py", "tests/solve/test_spyre_env.py"),
    "solve/problem.py": ("tests/solve/test_verify.py", *_SOLVE),
    "solve/_rows.py": ("tests/solve/test_rows.py", "tests/solve/test_verify.py", *_SOLVE),
    "solve/_dp_kernel.py": _SOLVE,
    "solve/_axis_kernel.py": _SOLVE,
    "solve/_product.py": ("tests/solve/test_product.py", "tests/solve/test_ties.py"),
    "solve/_ragged.py": ("tests/solve/test_ragged.py", "tests/solve/test_ties.py"),
    "solve/_incumbent.py": _SOLVE,
}
"""Modules, each with the tests that know it, quick ones first; `tests/laws` comes after them for all."""
_LAWS = "tests/laws/test_pipeline.py"
_IMPORTED_ONCE = ("pytest", "numpy", "numba", "scipy.optimize", "pyarrow", "pydantic", "yaml")
_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.Mod: ast.Mult,
}  # fmt: skip
_CPU_SECONDS = 20


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


def outcome(folder: Path, profile: str, tests: tuple[str, ...]) -> str:
    """`passed`, `failed`, or `timed out` (of CPU time, so that a busy machine kills nothing)."""
    child = os.fork()
    if child == 0:
        _run_tests(folder, profile, tests)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "timed out"
    return "failed" if status else "passed"


def _run_tests(folder: Path, profile: str, tests: tuple[str, ...]) -> None:
    """In a forked process, which ends here."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": str(folder), "CI": "1"}
        sys.path.insert(0, str(folder))
        for name in [each for each in sys.modules if each.split(".")[0] == "tests"]:
            del sys.modules[name]
        pytest = importlib.import_module("pytest")
        options = ("-q", "-x", "-p", "no:cacheprovider", f"--hypothesis-profile={profile}")
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


def main() -> int:
    """Run; the exit code is 1 where a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9)
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    os.environ |= {"NUMBA_DISABLE_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = (
        True  # a mutant as long as the last, written in the same second, would be taken for it
    )
    for name in _IMPORTED_ONCE:
        importlib.import_module(name)
    survived = 0
    with tempfile.TemporaryDirectory(prefix="ladder-opt-mutants-") as name:
        folder = Path(name)
        for part in ("ladder_opt", "tests", "traces"):
            shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        compileall.compile_dir(folder / "ladder_opt", quiet=1)
        for target in given.only.split(","):
            rng = random.Random(f"{given.seed} {target}")  # noqa: S311  (to be run again, alone or not)
            survived += _try_all(folder, target, rng, given.share, until)
    return 1 if survived else 0


def _try_all(folder: Path, target: str, rng: random.Random, share: float, until: float) -> int:
    path = folder / "ladder_opt" / target
    source = path.read_text(encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
    runs = (("few", TARGETS[target]), ("few", (_LAWS,)))
    if any(outcome(folder, *run) != "passed" for run in runs):
        raise SystemExit(f"{target}: its tests fail, or take too long, without a mutant")
    count = {"all": 0, "tried": 0, "passed": 0, "failed": 0, "timed out": 0}
    for line, what, text in mutants(source):
        count["all"] += 1
        if rng.random() >= share or time.monotonic() > until:
            continue
        path.write_text(text, encoding="utf-8")
        count["tried"] += 1
        found = next((each for run in runs if (each := outcome(folder, *run)) != "passed"), "passed")
        count[found] += 1
        if found != "failed":
            print(f"  {found}: {target}:{line}: {what}", flush=True)  # noqa: T201
    path.write_text(source, encoding="utf-8")
    print(f"{target}: {count}", flush=True)  # noqa: T201
    return count["passed"]


if __name__ == "__main__":
    sys.exit(main())
