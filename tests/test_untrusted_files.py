"""What SECURITY.md promises of files from others: they are data, and open, run or reach nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ladder_opt.plan.plan import plan_from_dict, write_plan
from tests.plan.plans import make_cost, make_plan

# Python tells a hook of every file that it opens and everything that it starts or connects to.
WATCHED = """
import json, sys
import ladder_opt as lo
from ladder_opt.cli.app import main

_IMPORTED = (".py", ".pyc", ".so", ".nbi", ".nbc")
seen = []

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not arguments[0].endswith(_IMPORTED):
        seen.append(["open", arguments[0]])
    elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect",
                   "socket.getaddrinfo", "pickle.find_class", "urllib.Request"):
        seen.append([event, repr(arguments)])

sys.addaudithook(hook)
codes = [main(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps({"codes": codes, "seen": seen}), file=sys.stderr)
"""


def watched(folder: Path, *commands: list[str]) -> tuple[list[int], list[tuple[str, str]], str]:
    """Exit codes of commands, what they opened, ran or reached, and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    *said, last = done.stderr.splitlines()
    told = json.loads(last)
    return told["codes"], [(event, what) for event, what in told["seen"]], "\n".join(said)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text("not to be read", encoding="utf-8")
    return file


def test_paths_and_commands_in_a_plan_are_text(tmp_path: Path, secret: Path) -> None:
    hostile = f"{secret}"
    content = make_plan().to_dict()
    content["provenance"]["inputs"] = [{"path": hostile, "sha256": "0" * 64, "rows": 1}]
    content["warnings"] = [f"$(cat {secret})", "<script>alert(1)</script>"]
    content["ladder_opt_record"] = hostile
    plan = tmp_path / "plan.json"
    write_plan(plan_from_dict(content, path="made here"), plan)
    codes, seen, _ = watched(
        tmp_path,
        ["check", "plan.json"],
        *(["export", "plan.json", "--format", kind] for kind in ("env", "json")),
    )
    assert codes == [0, 0, 0]
    assert ("open", "plan.json") in {(event, Path(what).name) for event, what in seen}
    assert [item for item in seen if item[0] != "open" or "secret" in item[1]] == []


@pytest.mark.parametrize(
    "hostile",
    [
        '!!python/object/apply:os.system ["touch made"]',
        '!!python/object/new:subprocess.Popen [["touch", "made"]]',
        '{max_num_seqs: !!python/object/apply:os.system ["touch made"]}',
    ],
)
def test_tags_in_an_engine_file_make_no_objects(tmp_path: Path, hostile: str) -> None:
    write_plan(make_plan(), tmp_path / "plan.json")
    (tmp_path / "engine.yaml").write_text(hostile, encoding="utf-8")
    codes, seen, said = watched(tmp_path, ["check", "plan.json", "--engine", "engine.yaml"])
    assert codes == [2]
    assert "engine.yaml" in said
    assert len(said.splitlines()) == 1
    assert [item for item in seen if item[0] != "open"] == []
    assert not (tmp_path / "made").exists()


def test_a_cost_model_that_names_files_is_refused(tmp_path: Path, secret: Path) -> None:
    cost = make_cost().model_dump(mode="json", by_alias=True) | {"step_table": str(secret)}
    (tmp_path / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
    (tmp_path / "steps.csv").write_text("num_seqs,num_blocks,steps\n4,2,10\n", encoding="utf-8")
    ladders = ["--num-seqs", "32", "--num-blocks", "64"]
    command = ["evaluate", "--steps", "steps.csv", *ladders, "--cost", "cost.json"]
    codes, seen, said = watched(tmp_path, command)
    assert codes == [2]
    assert "cost.json: step_table: found" in said
    assert [item for item in seen if item[0] != "open" or "secret" in item[1]] == []
