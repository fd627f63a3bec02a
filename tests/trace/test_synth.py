"""Generated traces against the published figures, seed by seed, and the shipped sample against its recipe."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from ladder_opt.errors import UsageError
from ladder_opt.files import sha256_of
from ladder_opt.trace._profiles import FIGURES, LengthFigures, Profile
from ladder_opt.trace.parquet import read_canonical
from ladder_opt.trace.synth import MAX_REQUESTS, PROFILES, busiest_minute, synthesize
from ladder_opt.trace.table import Trace

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
NAMES = sorted(FIGURES)
SEEDS = (0, 1, 7)
SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "sample.parquet"
SAMPLE_BYTES = 400_000


def gap_cv(seconds: np.ndarray) -> float:
    gaps = np.diff(seconds)
    return float(gaps.std() / gaps.mean())


@pytest.fixture(scope="module", params=[(name, seed) for name in NAMES for seed in SEEDS], ids=str)
def drawn(request: pytest.FixtureRequest) -> tuple[Profile, Trace]:
    name, seed = request.param
    return FIGURES[name], synthesize(name, requests=20_000, seed=seed)


def arrivals_of(trace: Trace) -> np.ndarray:
    assert trace.arrival_seconds is not None
    return trace.arrival_seconds


def sides(figures: Profile, trace: Trace) -> list[tuple[LengthFigures, np.ndarray]]:
    return [(figures.prompt, trace.prompt_tokens), (figures.output, trace.output_tokens)]


class TestPublishedFigures:
    def test_quantiles_within_3_percent_or_a_token(self, drawn: tuple[Profile, Trace]) -> None:
        for length, tokens in sides(*drawn):
            found = np.quantile(tokens, LEVELS, method="inverted_cdf")
            assert found == pytest.approx(length.quantiles, rel=0.03, abs=1.0)

    def test_extremes_are_kept(self, drawn: tuple[Profile, Trace]) -> None:
        for length, tokens in sides(*drawn):
            assert length.minimum <= tokens.min() <= length.quantiles[0]
            assert length.quantiles[-1] <= tokens.max() <= length.maximum

    def test_means_within_1_percent(self, drawn: tuple[Profile, Trace]) -> None:
        for length, tokens in sides(*drawn):
            assert tokens.mean() == pytest.approx(length.mean, rel=0.01)

    def test_spikes_hold_their_share(self, drawn: tuple[Profile, Trace]) -> None:
        for length, tokens in sides(*drawn):
            for below, up_to, fewest, most in length.spikes:
                share = np.mean((tokens >= fewest) & (tokens <= most))
                assert share == pytest.approx(up_to - below, abs=0.002)

    def test_rank_correlation(self, drawn: tuple[Profile, Trace]) -> None:
        figures, trace = drawn
        found = spearmanr(trace.prompt_tokens, trace.output_tokens).statistic
        assert found == pytest.approx(figures.spearman, abs=0.03)

    def test_rate(self, drawn: tuple[Profile, Trace]) -> None:
        figures, trace = drawn
        assert len(trace) / trace.span_seconds == pytest.approx(figures.rate_per_second, rel=0.001)

    def test_gap_cv(self, drawn: tuple[Profile, Trace]) -> None:
        figures, trace = drawn
        assert gap_cv(arrivals_of(trace)) == pytest.approx(figures.gap_cv, rel=0.03)

    def test_busiest_minute(self, drawn: tuple[Profile, Trace]) -> None:
        figures, trace = drawn
        found = busiest_minute(arrivals_of(trace), figures.span_minutes)
        assert found == pytest.approx(figures.busiest_minute, rel=0.04)

    def test_minutes_vary_as_published(self) -> None:
        """Emergent, not fitted: the spread of requests per minute (0.22, on 58 minutes)."""
        spreads = []
        for seed in range(8):
            counts = np.bincount((arrivals_of(synthesize(seed=seed)) / 60).astype(int))[:-1]
            spreads.append(counts.std() / counts.mean())
        assert np.mean(spreads) == pytest.approx(0.22, abs=0.04)


class TestLongTrace:
    def test_each_hour_peaks_as_published(self) -> None:
        seconds = arrivals_of(synthesize("azure2023_conv", requests=100_000))
        figures = FIGURES["azure2023_conv"]
        assert busiest_minute(seconds, figures.span_minutes) == pytest.approx(1.52, rel=0.05)
        assert busiest_minute(seconds) > 1.52  # five hours have a higher peak than one
        assert gap_cv(seconds) == pytest.approx(figures.gap_cv, rel=0.05)


class TestRate:
    @pytest.mark.parametrize("name", NAMES)
    def test_another_rate_stretches_the_clock(self, name: str) -> None:
        published = synthesize(name, requests=3000, seed=4)
        slow = synthesize(name, requests=3000, seed=4, rate=FIGURES[name].rate_per_second / 8)
        assert arrivals_of(slow) == pytest.approx(arrivals_of(published) * 8, abs=1e-5)
        assert (slow.prompt_tokens == published.prompt_tokens).all()
        assert (slow.output_tokens == published.output_tokens).all()

    def test_mooncake_arrives_on_its_grid(self) -> None:
        ticks = arrivals_of(synthesize("mooncake_conversation", requests=2000)) / 3.0
        assert (ticks == np.round(ticks)).all()

    def test_azure_code_has_silences(self) -> None:
        gaps = np.diff(arrivals_of(synthesize("azure2023_code", requests=8819)))
        assert 35 <= (gaps > 10).sum() <= 50  # 45 published


class TestSeed:
    @pytest.mark.parametrize("name", NAMES)
    def test_same_arguments_same_trace(self, name: str) -> None:
        one, other = synthesize(name, requests=500, seed=3), synthesize(name, requests=500, seed=3)
        assert (one.prompt_tokens == other.prompt_tokens).all()
        assert (one.output_tokens == other.output_tokens).all()
        assert (arrivals_of(one) == arrivals_of(other)).all()

    @pytest.mark.parametrize("name", NAMES)
    def test_another_seed_another_trace(self, name: str) -> None:
        one, other = synthesize(name, requests=500, seed=3), synthesize(name, requests=500, seed=4)
        assert (one.prompt_tokens != other.prompt_tokens).any()
        assert (arrivals_of(one) != arrivals_of(other)).any()

    def test_global_generator_is_left_alone(self) -> None:
        before = str(np.random.get_state(legacy=False))  # noqa: NPY002 - the state we must not touch
        synthesize(requests=50)
        assert str(np.random.get_state(legacy=False)) == before  # noqa: NPY002


@settings(max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    requests=st.integers(1, 3000),
    seed=st.integers(0, 2**64),
    rate=st.one_of(st.none(), st.floats(1e-6, 1e6)),
)
def test_any_size_gives_a_valid_trace(name: str, requests: int, seed: int, rate: float | None) -> None:
    trace = synthesize(name, requests=requests, seed=seed, rate=rate)
    assert len(trace) == requests
    seconds = arrivals_of(trace)
    assert seconds[0] == 0
    assert (np.diff(seconds) >= 0).all()
    figures = FIGURES[name]
    for length, tokens in sides(figures, trace):
        assert tokens.min() >= length.minimum
        assert tokens.max() <= length.maximum
    assert trace.cached_tokens is None
    assert trace.session is None


class TestNotes:
    def test_say_how_it_was_made_and_whose_figures_they_are(self) -> None:
        trace = synthesize("mooncake_conversation", requests=10, rate=0.5, seed=9)
        assert trace.notes == (
            (
                "synthetic: profile mooncake_conversation, 10 requests, 0.5 requests/s, seed 9; "
                "not a recording, no sessions, no prefix sharing"
            ),
            (
                "drawn from published figures of kvcache-ai/Mooncake FAST25-release, Apache-2.0 "
                "(Qin et al., Mooncake, FAST 2025)"
            ),
            "arrivals sit on a 20.4 s grid, as the published ones do; --spread-ticks spreads them",
        )
        assert trace.sources == ()

    def test_profiles_are_described_in_a_line(self) -> None:
        assert set(PROFILES) == {"azure2023_conv", "azure2023_code", "mooncake_conversation"}
        assert all(title and "\n" not in title for title in PROFILES.values())


class TestErrors:
    def test_unknown_profile(self) -> None:
        with pytest.raises(UsageError) as caught:
            synthesize("azure")
        assert str(caught.value) == (
            "found profile 'azure', expected one of azure2023_conv, azure2023_code, mooncake_conversation; "
            "did you mean azure2023_conv or azure2023_code?"
        )

    @pytest.mark.parametrize("requests", [0, -1, MAX_REQUESTS + 1])
    def test_requests_out_of_range(self, requests: int) -> None:
        with pytest.raises(UsageError) as caught:
            synthesize(requests=requests)
        assert (
            str(caught.value) == f"found requests {requests!r}, expected an integer from 1 to {MAX_REQUESTS}"
        )

    @pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
    def test_rate_out_of_range(self, rate: float) -> None:
        with pytest.raises(UsageError) as caught:
            synthesize(requests=5, rate=rate)
        assert str(caught.value) == f"found rate {rate!r}, expected requests a second from 1e-06 to 1e+06"

    def test_seed_out_of_range(self) -> None:
        with pytest.raises(UsageError) as caught:
            synthesize(requests=5, seed=-1)
        assert str(caught.value) == "found seed -1, expected an integer of at least 0"

    @pytest.mark.parametrize(
        ("argument", "value", "expected"),
        [
            ("requests", 1.5, "a whole number"),
            ("requests", True, "a whole number"),
            ("rate", True, "a number"),
            ("rate", "5", "a number"),
            ("seed", 0.0, "a whole number"),
            ("seed", False, "a whole number"),
        ],
    )
    def test_numbers_of_another_type(self, argument: str, value: Any, expected: str) -> None:
        with pytest.raises(UsageError) as caught:
            synthesize(**{"requests": 5, argument: value})
        found = f"{value!r} ({type(value).__name__})"
        assert str(caught.value) == f"synthesize: found {found} as {argument}, expected {expected}"


class TestSample:
    """traces/sample.parquet is what traces/README.md says it is."""

    def test_regenerates(self) -> None:
        stored = read_canonical(SAMPLE)
        trace = synthesize("azure2023_conv", requests=20_000, seed=0)
        # Values, not bytes: Parquet bytes move with the writer's version. A logarithm's last bit may
        # differ between processors, so the odd value may round the other way.
        for found, expected in (
            (stored.prompt_tokens, trace.prompt_tokens),
            (stored.output_tokens, trace.output_tokens),
        ):
            difference = np.abs(found - expected)
            assert difference.max() <= 1
            assert np.count_nonzero(difference) <= 2
        assert np.abs(arrivals_of(stored) - arrivals_of(trace)).max() <= 1.5e-6

    def test_says_how_it_was_made(self) -> None:
        assert read_canonical(SAMPLE).notes == synthesize("azure2023_conv", requests=20_000, seed=0).notes

    def test_is_small(self) -> None:
        assert SAMPLE.stat().st_size < SAMPLE_BYTES

    def test_readme_gives_its_digest(self) -> None:
        assert f"`{sha256_of(SAMPLE)}`" in (SAMPLE.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.shared
class TestFiguresAgainstTheFiles:
    """The figures in `_profiles` against the public files themselves, where those are at hand."""

    def test_azure_conv(self, shared_dir: Path) -> None:
        path = shared_dir / "traces" / "AzureLLMInferenceTrace_conv.csv.gz"
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        # Seven digits of a second; datetime keeps six.
        stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
        seconds = np.array([(stamp - stamps[0]).total_seconds() for stamp in stamps])
        prompt = np.array([int(row["ContextTokens"]) for row in rows])
        output = np.array([int(row["GeneratedTokens"]) for row in rows])
        self.compare("azure2023_conv", seconds, prompt, output)

    def test_mooncake_conversation(self, shared_dir: Path) -> None:
        path = shared_dir / "traces" / "mooncake_conversation_trace.jsonl.gz"
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            rows = [json.loads(line) for line in stream]
        seconds = np.array([row["timestamp"] / 1000 for row in rows])
        prompt = np.array([row["input_length"] for row in rows])
        output = np.array([row["output_length"] for row in rows])
        self.compare("mooncake_conversation", seconds, prompt, output)

    @staticmethod
    def compare(name: str, seconds: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> None:
        figures = FIGURES[name]
        assert len(seconds) == figures.requests
        assert seconds[-1] / 60 == pytest.approx(figures.span_minutes, abs=0.1)
        assert len(seconds) / seconds[-1] == pytest.approx(figures.rate_per_second, rel=0.005)
        assert gap_cv(seconds) == pytest.approx(figures.gap_cv, rel=0.01)
        assert busiest_minute(seconds) == pytest.approx(figures.busiest_minute, rel=0.01)
        assert spearmanr(prompt, output).statistic == pytest.approx(figures.spearman, abs=0.005)
        for length, tokens in ((figures.prompt, prompt), (figures.output, output)):
            assert (tokens.min(), tokens.max()) == (length.minimum, length.maximum)
            assert tokens.mean() == pytest.approx(length.mean, rel=0.001)
            assert np.quantile(tokens, LEVELS) == pytest.approx(length.quantiles, rel=0.01, abs=1.0)
            for level, expected in length.shape:
                assert np.quantile(tokens, level) == pytest.approx(expected, rel=0.01)
            for below, up_to, fewest, most in length.spikes:
                share = np.mean((tokens >= fewest) & (tokens <= most))
                assert share == pytest.approx(up_to - below, abs=0.0005)
