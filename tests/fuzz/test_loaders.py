"""Every loader on valid files that were changed: a value, or one line of ours; never a traceback."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.loaders import LOADERS, judge, seeds
from tests.fuzz.mutations import mutated

SEEDS = seeds()
PAIRS = [(kind, loader) for kind, seed in SEEDS.items() for loader in seed.loaders]


def outcome(loader: str, content: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(content)
        return judge(loader, path)


def test_every_loader_has_a_file_that_it_reads() -> None:
    assert {loader for seed in SEEDS.values() for loader in seed.loaders} == set(LOADERS)
    read = {loader for kind, loader in PAIRS if outcome(loader, SEEDS[kind].content) == "read"}
    assert read == set(LOADERS)


@given(st.sampled_from(PAIRS), st.randoms(use_true_random=True))
def test_changed_files_are_read_or_refused_in_one_line(pair: tuple[str, str], rng: random.Random) -> None:
    kind, loader = pair
    content = mutated(SEEDS[kind].content, rng)
    try:
        outcome(loader, content)
    except Exception as error:  # noqa: BLE001  (whatever comes out is a failure, told with the content)
        pytest.fail(f"{loader} of {content[:2000]!r}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("loader", LOADERS)
def test_no_loader_takes_a_folder_a_hole_or_nothing(loader: str, tmp_path: Path) -> None:
    for content in (b"", b"\x00" * 64, b"\n" * 5):
        path = tmp_path / "input"
        path.write_bytes(content)
        if loader not in {"holds_timings", "stream"}:
            assert judge(loader, path) != "read"
