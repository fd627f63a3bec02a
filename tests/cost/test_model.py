"""Cost models: files good and bad, formulas by hand, measured tables, digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.cost import model as cost_module
from ladder_opt.cost.model import (
    DEFAULT_COST_NAME,
    CostModel,
    builtin_names,
    cost_model_from_text,
    read_cost_model,
)
from ladder_opt.errors import InputError, UsageError

DATA: dict[str, Any] = {
    "schema": "ladder_opt/cost/1",
    "name": "test",
    "kernel": "chunked",
    "step_seconds": {"base": 0.01, "per_seq": 0.001, "per_iteration": 0.1, "per_gather": 0.0001},
    "compile_seconds": {"base": 1.0, "per_iteration": 0.5, "per_iteration_sq": 0.25},
    "replay_seconds": {"per_sequence_gather": 0.5, "per_prefill_token": 0.125},
    "graphs_per_variant": 3,
    "startup_seconds": 40.0,
}
TABLE = [[s, m, 0.1 * s + m] for s in (4, 8) for m in (1, 2, 9, 16)]


def changed(**changes: Any) -> dict[str, Any]:
    return DATA | changes


def message(data: object) -> str:
    with pytest.raises(InputError) as error:
        cost_model_from_text(json.dumps(data), path="c.json")
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_formulas_by_hand() -> None:
    cost = CostModel.model_validate(DATA)
    # (9, 4) chunked: 2 iterations, 54 gathers.
    assert float(cost.batched_step_seconds(9, 4)) == pytest.approx(0.01 + 0.009 + 0.2 + 0.0054)
    assert float(cost.variant_compile_seconds(9, 4)) == pytest.approx(3 * (1.0 + 0.5 * 2 + 0.25 * 4))
    flat = cost.with_kernel("per_block")
    assert float(flat.batched_step_seconds(9, 4)) == pytest.approx(0.01 + 0.009 + 0.4 + 0.0036)
    assert float(flat.variant_compile_seconds(9, 4)) == pytest.approx(3 * (1.0 + 0.5 * 4 + 0.25 * 16))


def test_optional_parts_have_the_designs_defaults() -> None:
    cost = cost_model_from_text(
        json.dumps(
            {"schema": "ladder_opt/cost/1.7", "name": "bare", "step_seconds": {}, "compile_seconds": {}}
        )
    )
    assert cost.kernel == "chunked"
    assert (cost.graphs_per_variant, cost.startup_seconds) == (1, 0.0)
    assert (cost.replay_seconds.per_sequence_gather, cost.replay_seconds.per_prefill_token) == (0.0, 0.0)
    assert cost.table_sizes() is None
    assert float(cost.batched_step_seconds(4, 1)) == 0.0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            changed(schema="ladder_opt/cost/2"),
            "schema: found 'ladder_opt/cost/2', expected 'ladder_opt/cost/1'",
        ),
        (
            changed(schema="ladder_opt/plan/1"),
            "schema: found 'ladder_opt/plan/1', expected 'ladder_opt/cost/1'",
        ),
        (changed(name=7), "name: found 7, expected string"),
        (
            changed(kernel="flash"),
            "kernel: found 'flash', expected one of per_block, chunked",
        ),
        (changed(extra=1), "extra: found an unknown key, expected only the keys of this format"),
        (
            changed(step_seconds={"base": 1.0, "per_sequence": 2.0}),
            "step_seconds.per_sequence: found an unknown key, expected only the keys of this format",
        ),
        (
            changed(step_seconds={"base": -0.1}),
            "step_seconds.base: found -0.1, expected greater than or equal to 0",
        ),
        (
            changed(step_seconds={"base": 1e13}),
            "step_seconds.base: found 10000000000000.0, expected less than or equal to 1000000000000",
        ),
        (changed(step_seconds={"base": "0.1"}), "step_seconds.base: found '0.1', expected number"),
        (changed(step_seconds={"base": True}), "step_seconds.base: found True, expected number"),
        (changed(graphs_per_variant=0), "graphs_per_variant: found 0, expected greater than or equal to 1"),
        (changed(graphs_per_variant=2.0), "graphs_per_variant: found 2.0, expected integer"),
        (changed(graphs_per_variant=True), "graphs_per_variant: found True, expected integer"),
        (changed(startup_seconds=None), "startup_seconds: found None, expected number"),
        (
            {key: value for key, value in DATA.items() if key != "step_seconds"},
            "step_seconds: found nothing, expected a value",
        ),
        (changed(step_table=[]), "step_table: found no row, expected [num_seqs, num_blocks, seconds] rows"),
        (
            changed(step_table=[*TABLE, TABLE[0]]),
            "step_table: found 1 repeated pairs in 9 rows, expected each pair once",
        ),
        (changed(step_table=TABLE[:-1]), "step_table: found 7 pairs, expected a full grid (1 more)"),
        (
            changed(compile_table=[[4, 0, 1.0]]),
            "compile_table[0][1]: found 0, expected greater than or equal to 1",
        ),
        (changed(compile_table=[[4, 1]]), "compile_table[0][2]: found nothing, expected a value"),
    ],
)
def test_files_that_are_no_cost_model(data: dict[str, Any], text: str) -> None:
    assert message(data) == f"c.json: {text}"


def test_numbers_that_are_not_finite_are_refused() -> None:
    for name in ("NaN", "Infinity", "-Infinity"):
        text = json.dumps(DATA).replace("40.0", name)
        with pytest.raises(InputError) as error:
            cost_model_from_text(text, path="c.json")
        assert str(error.value) == f"c.json: found {name}, expected finite numbers"
    with pytest.raises(InputError) as error:
        cost_model_from_text(json.dumps(DATA).replace("40.0", "1e999"), path="c.json")
    assert str(error.value) == "c.json: startup_seconds: found inf, expected a finite number"


def test_torn_json_says_line_and_column() -> None:
    text = json.dumps(DATA, indent=1)
    with pytest.raises(InputError) as error:
        cost_model_from_text(text[: text.index('"graphs') + 12], path="c.json")
    assert str(error.value) == (
        "c.json:20: column 2: found '\"graphs_per_' (Unterminated string starting at), "
        "expected a cost model in JSON"
    )


def test_a_file_is_read_by_path_and_a_built_in_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(DATA), encoding="utf-8")
    assert read_cost_model(path) == CostModel.model_validate(DATA)
    assert builtin_names() == (DEFAULT_COST_NAME,)
    assert read_cost_model().name == DEFAULT_COST_NAME
    with pytest.raises(InputError) as error:
        read_cost_model(tmp_path / "gone")
    assert str(error.value) == (
        f"{tmp_path / 'gone'}: found no such file, expected a cost model file or a built-in name "
        f"({DEFAULT_COST_NAME})"
    )


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "MAX_COST_FILE_BYTES", 10)
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(DATA), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_cost_model(path)
    assert str(error.value) == f"{path}: found more than 10 bytes, expected a cost model of at most that"


def test_a_step_table_gives_whole_steps() -> None:
    cost = CostModel.model_validate(changed(step_table=TABLE))
    assert cost.batched_step_seconds([[4], [8]], [[9, 16]]).tolist() == [
        [pytest.approx(9.4), pytest.approx(16.4)],
        [pytest.approx(9.8), pytest.approx(16.8)],
    ]
    assert cost.table_sizes() == ((4, 8), (1, 2, 9, 16))


def test_rows_of_one_variant_of_a_compile_table_are_averaged() -> None:
    table = [[4, 1, 10.0], [4, 9, 20.0], [4, 16, 40.0], [4, 17, 70.0]]
    cost = CostModel.model_validate(changed(compile_table=table))
    # 9 and 16 blocks of 4 sequences are one kernel: 8 blocks a chunk, 2 chunks.
    assert cost.variant_compile_seconds(4, [1, 9, 16, 17]).tolist() == [10.0, 30.0, 30.0, 70.0]
    flat = CostModel.model_validate(changed(kernel="per_block", compile_table=table))
    assert flat.variant_compile_seconds(4, [1, 9, 16, 17]).tolist() == [10.0, 20.0, 40.0, 70.0]


def test_both_tables_leave_the_sizes_they_share() -> None:
    compiles = [[s, m, 1.0] for s in (4, 6) for m in (2, 9, 10)]
    cost = CostModel.model_validate(changed(step_table=TABLE, compile_table=compiles))
    assert cost.table_sizes() == ((4,), (2, 9))


@pytest.mark.parametrize(("s", "m"), [(5, 1), (4, 3), (99, 99), (1, 1)])
def test_a_pair_that_a_table_lacks_is_told(s: int, m: int) -> None:
    cost = CostModel.model_validate(changed(step_table=TABLE))
    with pytest.raises(InputError) as error:
        cost.batched_step_seconds(np.array([4, s]), np.array([1, m]))
    assert str(error.value) == (
        f"test: step_table: found no row for num_seqs {s}, num_blocks {m}, "
        "expected one for every rung pair in use"
    )


def test_with_kernel_keeps_the_numbers() -> None:
    cost = CostModel.model_validate(DATA)
    assert cost.with_kernel(None) is cost
    assert cost.with_kernel("chunked") is cost
    other = cost.with_kernel("per_block")
    assert other.to_dict() == cost.to_dict() | {"kernel": "per_block"}
    assert other.sha256() != cost.sha256()


def test_with_kernel_refuses_what_it_cannot_mean() -> None:
    with pytest.raises(UsageError) as error:
        CostModel.model_validate(DATA).with_kernel("flash")
    assert str(error.value) == "kernel: found 'flash', expected one of per_block, chunked"
    for name in ("step_table", "compile_table"):
        with pytest.raises(UsageError) as error:
            CostModel.model_validate(changed(**{name: TABLE})).with_kernel("per_block")
        assert str(error.value) == (
            "kernel: found 'per_block', expected 'chunked', with which the table was measured"
        )


@given(st.permutations(list(DATA)), st.integers(0, 4))
def test_the_digest_does_not_depend_on_key_order_or_spacing(keys: list[str], indent: int) -> None:
    text = json.dumps({key: DATA[key] for key in keys}, indent=indent)
    assert cost_model_from_text(text).sha256() == CostModel.model_validate(DATA).sha256()


@given(st.sampled_from(["base", "per_seq", "per_iteration", "per_gather"]), st.floats(0, 1e6))
def test_the_digest_depends_on_every_number(term: str, value: float) -> None:
    other = CostModel.model_validate(changed(step_seconds=DATA["step_seconds"] | {term: value}))
    assert (other.sha256() == CostModel.model_validate(DATA).sha256()) == (
        value == DATA["step_seconds"][term]
    )


def test_what_is_written_is_read_as_equal() -> None:
    for data in (DATA, changed(step_table=TABLE, compile_table=TABLE, fit={"source": "by hand", "r": [1]})):
        cost = CostModel.model_validate(data)
        again = cost_model_from_text(json.dumps(cost.to_dict()))
        assert again == cost
        assert again.sha256() == cost.sha256()
        assert again.to_dict() == data
