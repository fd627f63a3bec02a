"""The notebooks run, from their folder, and what they show is right; they are stored executed and small."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
LIMIT = 8192  # max_model_len of the default engine


def runner() -> ModuleType:
    """The script that runs and stores them."""
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "scripts" / "run_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value_of(name: str, expression: str) -> Any:
    """What an expression of JSON is worth at a notebook's end."""
    notebook = runner().run(FOLDER / f"{name}.ipynb", at_end=f"import json; print(json.dumps({expression}))")
    return json.loads(notebook.cells[-1].outputs[0].text)


def sample() -> pd.DataFrame:
    return pd.read_parquet(ROOT / "traces" / "sample.parquet")


def test_all_are_tried() -> None:
    assert [name[0] for name in NAMES] == ["1", "2", "3", "4", "5"]
    tried = {name for name, function in globals().items() if name.startswith("test_notebook_")}
    assert {name.split("_")[2] for name in tried} == {name[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_as_stored(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code[0]["metadata"]["tags"] == ["parameters"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell["outputs"]) for cell in code) >= 4
    assert path.stat().st_size <= runner().LARGEST_BYTES
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


def test_notebook_1_counts_requests() -> None:
    prompts = sample()["prompt_tokens"]
    assert value_of(NAMES[0], "[len(trace), len(long)]") == [len(prompts), int((prompts >= 1024).sum())]


def test_notebook_2_decodes_every_token_but_the_first() -> None:
    requests = sample()
    fit = requests[requests["prompt_tokens"] + requests["output_tokens"] <= LIMIT]
    assert value_of(NAMES[1], "decoded") == int((fit["output_tokens"] - 1).sum())


def test_notebook_3_finds_what_made_the_measurements() -> None:
    rows = value_of(NAMES[2], 'terms.astype(float).to_dict("index")')
    step = {name: row for name, row in rows.items() if name.startswith("step_seconds")}
    assert len(step) == 4
    assert all(row["value"] == pytest.approx(row["truth"], rel=0.15) for row in step.values())
    assert sum(row["low"] <= row["truth"] <= row["high"] for row in step.values()) >= 3


def test_notebook_4_finds_the_same_by_two_ways() -> None:
    frontier, limited = value_of(NAMES[3], '[within["step_seconds"].min(), limited.result.step_seconds]')
    assert frontier <= limited * (1 + 1e-9)  # the frontier has no price for compiles
    assert limited <= frontier * 1.01


def test_notebook_5_finds_no_drift_where_there_is_none() -> None:
    same, later, parts = value_of(
        NAMES[4],
        '[weeks["regret"].iloc[0], weeks["regret"].iloc[-1], [longer.parts.then, longer.parts.rate, '
        "longer.parts.length, longer.parts.mix, longer.parts.cost, longer.parts.now]]",
    )
    assert same == pytest.approx(0.0, abs=1e-3)
    assert later > 0.0
    assert sum(parts[:-1]) == pytest.approx(parts[-1])
    assert parts[2] == max(parts[1:5])  # the lengths are what was changed
