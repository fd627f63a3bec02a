"""Engine limits, and the files they are read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.engine import Engine, read_engine_settings
from ladder_opt.errors import InputError, UsageError


def test_defaults_are_those_of_the_design() -> None:
    assert Engine().to_dict() == {
        "block_size": 128,
        "max_num_seqs": 32,
        "max_model_len": 8192,
        "max_num_batched_tokens": 512,
        "num_kv_blocks": None,
        "min_batched_seqs": 4,
    }


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "blocks"),
    [(8192, 128, 64), (8193, 128, 65), (1, 64, 1), (64, 64, 1), (65, 64, 2), (131072, 256, 512)],
)
def test_the_top_block_rung_rounds_up(max_model_len: int, block_size: int, blocks: int) -> None:
    assert Engine(max_model_len=max_model_len, block_size=block_size).max_num_blocks == blocks


def test_auto_gives_every_sequence_its_longest_and_the_null_block_is_counted() -> None:
    auto = Engine(max_num_seqs=3, max_model_len=1000)
    assert auto.num_kv_blocks is None
    assert auto.usable_kv_blocks == 3 * 8
    assert Engine(max_num_seqs=3, max_model_len=1000, num_kv_blocks=3 * 8 + 1).usable_kv_blocks == 3 * 8
    assert Engine(num_kv_blocks=2).usable_kv_blocks == 1


@pytest.mark.parametrize(("max_num_seqs", "batches"), [(1, False), (3, False), (4, True), (256, True)])
def test_batches_from_four_sequences_on(max_num_seqs: int, batches: bool) -> None:
    assert Engine(max_num_seqs=max_num_seqs).batches_decodes is batches


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 100}, "block_size: found 100, expected a multiple of 64"),
        ({"block_size": 0}, "block_size: found 0, expected 1 to 2147483647"),
        ({"max_num_seqs": -1}, "max_num_seqs: found -1, expected 1 to 2147483647"),
        ({"max_model_len": 1 << 31}, "max_model_len: found 2147483648, expected 1 to 2147483647"),
        ({"max_model_len": 8192.0}, "max_model_len: found 8192.0, expected a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs: found True, expected a whole number"),
        ({"max_num_seqs": "32"}, "max_num_seqs: found '32', expected a whole number"),
        ({"max_num_seqs": None}, "max_num_seqs: found None, expected a whole number"),
        ({"num_kv_blocks": 1}, "num_kv_blocks: found 1, expected 2 or more (one is vLLM's null block)"),
        ({"min_batched_seqs": 0}, "min_batched_seqs: found 0, expected 1 to 2147483647"),
    ],
)
def test_limits_out_of_range(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Engine(**settings)  # type: ignore[arg-type]
    assert str(error.value) == message


@given(
    st.builds(
        Engine,
        block_size=st.integers(1, 16).map(lambda grains: grains * 64),
        max_num_seqs=st.integers(1, 512),
        max_model_len=st.integers(1, 1 << 20),
        num_kv_blocks=st.none() | st.integers(2, 1 << 20),
    )
)
def test_what_is_written_is_read_as_equal(engine: Engine) -> None:
    assert Engine.from_dict(json.loads(json.dumps(engine.to_dict()))) == engine


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"max_seqs": 3},
            (
                "p.json: engine: found 'max_seqs', expected one of block_size, max_model_len, "
                "max_num_batched_tokens, max_num_seqs, min_batched_seqs, num_kv_blocks; "
                "did you mean max_num_seqs?"
            ),
        ),
        ({"block_size": 100}, "p.json: engine.block_size: found 100, expected a multiple of 64"),
    ],
)
def test_a_stored_engine_that_is_none(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        Engine.from_dict(data, path="p.json")
    assert str(error.value) == message


def settings_of(folder: Path, text: str, name: str = "engine.yaml") -> dict[str, int | None]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_engine_settings(path)


def test_a_vllm_serve_yaml_is_read(tmp_path: Path) -> None:
    text = """
    model: ibm-granite/granite-3.3-8b-instruct   # not ours
    max-num-seqs: 16
    max_model_len: 4096
    block-size: 64
    num-gpu-blocks-override: 513
    enable-prefix-caching: false
    """
    assert settings_of(tmp_path, text) == {
        "max_num_seqs": 16,
        "max_model_len": 4096,
        "block_size": 64,
        "num_kv_blocks": 513,
    }


def test_a_saved_engine_json_and_a_plan_are_read(tmp_path: Path) -> None:
    engine = Engine(max_num_seqs=16, num_kv_blocks=700)
    assert settings_of(tmp_path, json.dumps(engine.to_dict())) == engine.to_dict()
    assert settings_of(tmp_path, json.dumps({"engine": engine.to_dict(), "num_seqs": [4, 16]})) == (
        engine.to_dict()
    )
    assert settings_of(tmp_path, "num_kv_blocks: null") == {"num_kv_blocks": None}
    assert settings_of(tmp_path, "port: 8000") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": found NoneType, expected a mapping of engine settings"),
        ("- 1\n- 2\n", ": found list, expected a mapping of engine settings"),
        ("max-num-seqs: 'many'", ": max-num-seqs: found 'many', expected a whole number"),
        ("max-num-seqs: 16.0", ": max-num-seqs: found 16.0, expected a whole number"),
        ("max-num-seqs: true", ": max-num-seqs: found True, expected a whole number"),
        ("max-num-seqs: null", ": max-num-seqs: found None, expected a whole number"),
        ("max_model_len: 8kk", ": max_model_len: found '8kk', expected a whole number"),
        ("max_model_len: [8192]", ": max_model_len: found list, expected a whole number"),
        ("max_model_len: {a: 1}", ": max_model_len: found dict, expected a whole number"),
        (
            "a: 1\nb: [1, 2\n",
            ":3: found expected ',' or ']', but got '<stream end>', expected a vLLM serve YAML",
        ),
        ("a: 1\n\tb: 2\n", None),
        ("a: \x01", ": found text that is no YAML, expected a vLLM serve YAML"),
        ("a: 1\n---\nb: 2\n", ":2: found but found another document, expected a vLLM serve YAML"),
        ("a: !!python/object:os.system x", None),
        ("day: 2023-13-45", ": found text that is no YAML, expected a vLLM serve YAML"),
        ("a: !!int abc", ": found text that is no YAML, expected a vLLM serve YAML"),
        ("block_size: " + "9" * 5000, ":1: found a number of 5000 characters, expected at most 100"),
        ("a: 1\nb: " + "1:" * 9999 + "1", ":2: found a number of 19999 characters, expected at most 100"),
        ("a: 1\nb: 2\na: 1\n", ":3: found key 'a' twice, expected each key once"),
        ("a: {x: {y: 1,\n y: 1}}", ":2: found key 'y' twice, expected each key once"),
        ("? [1]\n: 1\n", ":1: found unhashable key, expected a vLLM serve YAML"),
        (
            "a: &a {x: 1}\nb: &b {<<: [*a, *a, *a, *a]}\nc: {<<: [*b, *b, *b, *b, *b]}\n",
            ":2: found more than 8 merges (<<), expected at most that",
        ),
        ("[" * 50_000, ": found text that is no YAML, expected a vLLM serve YAML"),
    ],
)
def test_engine_files_that_are_none(tmp_path: Path, text: str, message: str | None) -> None:
    with pytest.raises(InputError) as error:
        settings_of(tmp_path, text)
    found = str(error.value)
    assert len(found.splitlines()) == 1
    if message is None:
        assert found.startswith(f"{tmp_path / 'engine.yaml'}:")
        assert found.endswith(", expected a vLLM serve YAML")
    else:
        assert found == f"{tmp_path / 'engine.yaml'}{message}"


def test_a_reference_bomb_is_one_short_line(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(InputError) as error:
        settings_of(tmp_path, "\n".join([*lines, "max_num_seqs: *a11"]))
    assert str(error.value) == (
        f"{tmp_path / 'engine.yaml'}: max_num_seqs: found list, expected a whole number"
    )


def test_large_engine_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found more than 1048576 bytes, expected an engine file of at most"):
        settings_of(tmp_path, "#" * ((1 << 20) + 1))


@pytest.mark.parametrize(
    ("written", "tokens"), [("8k", 8000), ("8K", 8192), ("'4096'", 4096), ("1M", 1 << 20)]
)
def test_limits_as_vllm_lets_people_write_them(tmp_path: Path, written: str, tokens: int) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"max-model-len: {written}\n", encoding="utf-8")
    assert read_engine_settings(path) == {"max_model_len": tokens}
