"""Made-up request traces with the published figures of real ones.

A generated trace has the size, rate and spread of a public trace and holds none of its rows, so it
can be shipped, scaled and seeded.

Method:

- **Lengths.** The quantile function passes through the published quantiles, the extremes and the
  edges of every spike (a cap, a template), with a monotone cubic (PCHIP) in the logarithm of the
  tokens between them. Prompt and output share a Gaussian copula whose correlation
  r = 2 sin(pi/6 * spearman) gives the published rank correlation. The uniforms behind both are
  stratified (one in each of n equal cells), so a short trace has its share of the tail too.
- **Arrivals, wandering rate.** A stationary Gaussian process z(t) gives the rate exp(a z(t)); on its
  integral sits a Weibull renewal process. The amplitude a is found by bisection so that the busiest
  minute has the published share (on average over the stretches of the published length, where a
  trace is longer; below ten minutes a comes from the published minute-to-minute variation instead).
  The Weibull shape makes up what the gaps' coefficient of variation still lacks:
  1 + CV^2 = (1 + c^2) * mean(1 / rate), rate averaging 1. Where the published arrivals sit on a
  grid, so do these, and the grid is what sets the CV.
- **Arrivals, on/off.** Bursts of exponential size, silences of a floor plus a Weibull time, Weibull
  gaps inside; bursts differ in speed by exp(a z), a bisected on the busiest minute as above.
- **Rate.** The clock is then scaled so that n requests take n / rate seconds exactly. Another `rate`
  stretches the whole clock, grid included: CV and peaks keep their proportions, and a "minute" of the
  original becomes 60 * (published rate / rate) seconds.

How close it comes, at the published length or more, over 100 seeds (`tests/trace/test_synth.py` holds
three seeds to it): quantiles within 4 % or one token, means within 1 %, rank correlation within 0.03,
rate exact, busiest minute within 4 %, gap CV within 3 %. A short on/off trace has too few bursts for
its CV or its peak to mean anything.

What it does not carry: sessions, prefix sharing (no `cached_tokens`), the order of lengths in time
(each request draws its own, so a burst of long prompts is chance), any link between length and
arrival, day and night. Since the marginals are stratified, the seeds differ in order and pairing more
than in totals: do not take the spread over seeds for the sampling error of real traffic.

- **Long traces.** `synthesize_blocks` draws blocks of `BLOCK_REQUESTS` requests, each as above with draws of
  its own, and lays them end to end on the clock; only one block is in memory. The rate starts anew where
  a block does.

The same arguments give the same trace on any machine: only raw uniforms of PCG64 are drawn, and the
last bit of a logarithm, which may differ between processors, is rounded off (tokens are whole,
arrivals microseconds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import gammaln, ndtri

from ladder_opt.arguments import checked
from ladder_opt.errors import UsageError, one_of
from ladder_opt.trace._profiles import FIGURES, LengthFigures, OnOff, Profile, SlowRate
from ladder_opt.trace.table import Trace

Floats = NDArray[np.float64]

PROFILES: Mapping[str, str] = MappingProxyType({name: figures.title for name, figures in FIGURES.items()})
"""Name and one-line description of every profile."""

MAX_REQUESTS = 10_000_000
BLOCK_REQUESTS = 1_000_000
MAX_REQUESTS_IN_BLOCKS = 1_000_000_000

_FEWEST_MINUTES = 10  # below it a busiest minute is noise, and the amplitude is not fitted to it
_CURVE_POINTS_PER_MINUTE = 2
_MAX_AMPLITUDE = 3.0
_BISECTIONS = 30


@checked
def synthesize(
    profile: str = "azure2023_conv", *, requests: int = 20_000, rate: float | None = None, seed: int = 0
) -> Trace:
    """Draw a trace with the figures of a published one.

    Args:
        profile: a name in `PROFILES` (`ladder_opt.PROFILES` says what each resembles).
        requests: number of rows, 1 to `MAX_REQUESTS`.
        rate: requests a second; None for the published rate.
        seed: 0 or above; the same arguments give the same trace.

    Returns:
        A trace of arrival seconds, prompt and output tokens, whose notes say how it was made and
        whose figures it follows.

    Raises:
        UsageError: the profile is unknown, or a number is out of range.
    """
    figures = _checked(profile, requests, rate, seed, most=MAX_REQUESTS)
    trace = _drawn(figures, requests, rate, seed, block=0)
    return replace(trace, notes=_notes(profile, figures, requests, rate, seed))


def synthesize_blocks(
    profile: str = "azure2023_conv", *, requests: int = 20_000, rate: float | None = None, seed: int = 0
) -> Iterator[Trace]:
    """Draw a trace of any length in blocks, for `trace.parquet.write_chunks`; arguments as `synthesize`.

    A trace of one block is the one that `synthesize` gives.

    Yields:
        Chunks of at most `BLOCK_REQUESTS` requests, the first with the notes.

    Raises:
        UsageError: the profile is unknown, or a number is out of range.
    """
    figures = _checked(profile, requests, rate, seed, most=MAX_REQUESTS_IN_BLOCKS)
    return _blocks(profile, figures, requests, rate, seed)


def _blocks(profile: str, figures: Profile, requests: int, rate: float | None, seed: int) -> Iterator[Trace]:
    notes = _notes(profile, figures, requests, rate, seed)
    served = _served(figures, rate)
    last = 0.0
    for block, first in enumerate(range(0, requests, BLOCK_REQUESTS)):
        count = min(BLOCK_REQUESTS, requests - first)
        drawn = _drawn(figures, count, rate, seed, block=block)
        assert drawn.arrival_seconds is not None  # noqa: S101  (it was drawn)
        # The block before may end a microsecond past its span, where that was rounded up.
        start = max(last, _on_grid(first / served, figures, served))
        seconds = np.round(drawn.arrival_seconds + start, 6)
        yield replace(drawn, arrival_seconds=seconds, notes=notes)
        last, notes = float(seconds[-1]), ()


def _drawn(figures: Profile, requests: int, rate: float | None, seed: int, *, block: int) -> Trace:
    prompt, output = _draw_lengths(figures, requests, _stream(seed, 0, block))
    seconds = _draw_arrivals(figures, requests, _stream(seed, 1, block))
    seconds = np.round(seconds * (figures.rate_per_second / _served(figures, rate)), 6)
    return Trace(arrival_seconds=seconds, prompt_tokens=prompt, output_tokens=output)


def _served(figures: Profile, rate: float | None) -> float:
    return figures.rate_per_second if rate is None else float(rate)


def _on_grid(seconds: float, figures: Profile, served: float) -> float:
    """The point of the grid that arrivals sit on, where there is one, at or after a time."""
    if not isinstance(figures.arrivals, SlowRate) or not figures.arrivals.grid_seconds:
        return seconds
    grid = figures.arrivals.grid_seconds * (figures.rate_per_second / served)
    return math.ceil(seconds / grid) * grid


def _notes(profile: str, figures: Profile, requests: int, rate: float | None, seed: int) -> tuple[str, ...]:
    served = _served(figures, rate)
    how = f"synthetic: profile {profile}, {requests} requests, {served:g} requests/s, seed {seed}"
    notes = [
        f"{how}; not a recording, no sessions, no prefix sharing",
        f"drawn from published figures of {figures.credit}",
    ]
    if isinstance(figures.arrivals, SlowRate) and figures.arrivals.grid_seconds:
        grid = figures.arrivals.grid_seconds * (figures.rate_per_second / served)
        notes.append(
            f"arrivals sit on a {grid:g} s grid, as the published ones do; --spread-ticks spreads them"
        )
    return tuple(notes)


def _checked(profile: str, requests: int, rate: float | None, seed: int, *, most: int) -> Profile:
    if profile not in FIGURES:
        raise UsageError(f"found profile {profile!r}, expected {one_of(FIGURES, profile)}")
    if not _is_integer(requests) or not 1 <= requests <= most:
        raise UsageError(f"found requests {requests!r}, expected an integer from 1 to {most}")
    if not _is_integer(seed) or seed < 0:
        raise UsageError(f"found seed {seed!r}, expected an integer of at least 0")
    if rate is not None and not (
        isinstance(rate, int | float | np.number) and not isinstance(rate, bool) and 1e-6 <= rate <= 1e6
    ):
        raise UsageError(f"found rate {rate!r}, expected requests a second from 1e-06 to 1e+06")
    return FIGURES[profile]


def _stream(seed: int, part: int, block: int) -> np.random.Generator:
    """A generator of its own for each part and block, so that changing one leaves the others' draws alone."""
    key = (part, block) if block else (part,)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=key)))


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _stratified(count: int, rng: np.random.Generator) -> Floats:
    """Uniforms in (0, 1), one in each of `count` equal cells, in random order."""
    return _in_cells(rng.random(count), rng.random(count))


def _in_cells(order: Floats, jitter: Floats) -> Floats:
    """Replace values by uniforms of the same order, one in each of n equal cells."""
    ranks = np.empty(len(order), dtype=np.float64)
    ranks[np.argsort(order, kind="stable")] = np.arange(len(order))
    return np.asarray((ranks + np.clip(jitter, 1e-9, 1 - 1e-9)) / len(order))


def _draw_lengths(
    figures: Profile, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and output tokens, each int64 (count,)."""
    correlation = 2.0 * math.sin(math.pi / 6.0 * figures.spearman)
    prompt_uniform = _stratified(count, rng)
    noise = ndtri(np.clip(rng.random(count), 1e-12, 1 - 1e-12))
    mixed = correlation * ndtri(prompt_uniform) + math.sqrt(1.0 - correlation**2) * noise
    output_uniform = _in_cells(mixed, rng.random(count))
    return _tokens_at(figures.prompt, prompt_uniform), _tokens_at(figures.output, output_uniform)


def _tokens_at(figures: LengthFigures, levels: Floats) -> NDArray[np.int64]:
    """The quantile function, in whole tokens."""
    knots, tokens = figures.knots()
    curve = PchipInterpolator(knots, np.log(tokens))
    whole = np.floor(np.exp(curve(levels)) + 0.5).astype(np.int64)
    return np.clip(whole, figures.minimum, figures.maximum)


def _draw_arrivals(figures: Profile, count: int, rng: np.random.Generator) -> Floats:
    """Arrival seconds at the published rate, from 0, float64 (count,)."""
    if count == 1:
        return np.zeros(1)
    if isinstance(figures.arrivals, OnOff):
        return _on_off(figures, figures.arrivals, count, rng)
    return _wandering(figures, figures.arrivals, count, rng)


def _wandering(figures: Profile, arrivals: SlowRate, count: int, rng: np.random.Generator) -> Floats:
    """Weibull renewals on the integral of a slow random rate."""
    span = count / figures.rate_per_second
    uniforms = _stratified(count - 1, rng)
    curve = _slow_curve(span / 60.0, arrivals.correlation_minutes, rng)
    clock = np.linspace(0.0, span, len(curve))

    def at(amplitude: float) -> Floats:
        rates = np.exp(amplitude * curve)
        passed = np.concatenate(([0.0], np.cumsum((rates[1:] + rates[:-1]) / 2.0)))
        mean_rate = passed[-1] / (len(curve) - 1)
        slowness = float(np.mean(mean_rate / rates))  # of 1 / rate, the mean rate being 1
        if arrivals.grid_seconds:
            gap_cv = 1.0  # the grid hides it
        else:
            gap_cv = math.sqrt(max((1.0 + figures.gap_cv**2) / slowness - 1.0, 0.01))
        turns = np.concatenate(([0.0], np.cumsum(_weibull(uniforms, gap_cv))))
        seconds: Floats = np.interp(turns / turns[-1] * passed[-1], passed, clock)
        if arrivals.grid_seconds:
            seconds = np.floor(seconds / arrivals.grid_seconds + 0.5) * arrivals.grid_seconds
            seconds -= seconds[0]
        return np.asarray(seconds)

    if span < _FEWEST_MINUTES * 60.0:
        return at(arrivals.minute_cv)
    return at(_fit_amplitude(at, figures))


def _slow_curve(minutes: float, correlation_minutes: float, rng: np.random.Generator) -> Floats:
    """A standard Gaussian process with exponential memory, one point every half minute."""
    count = max(2, math.ceil(minutes * _CURVE_POINTS_PER_MINUTE) + 1)
    keep = math.exp(-1.0 / (_CURVE_POINTS_PER_MINUTE * correlation_minutes))
    shocks = ndtri(np.clip(rng.random(count), 1e-12, 1 - 1e-12))
    values = [float(shocks[0])]
    step = math.sqrt(1.0 - keep**2)
    for shock in shocks[1:].tolist():
        values.append(keep * values[-1] + step * shock)
    return np.array(values)


def _on_off(figures: Profile, arrivals: OnOff, count: int, rng: np.random.Generator) -> Floats:
    """Bursts of Weibull gaps, each burst at a speed of its own, and silences between them."""
    bursts = max(1, round(count / arrivals.requests_per_burst))
    sizes = -np.log1p(-_stratified(bursts, rng))
    ends = np.round(np.cumsum(sizes) / sizes.sum() * count).astype(np.int64)[:-1]
    ends = np.unique(np.clip(ends, 1, count - 1))  # first request of each later burst
    pause = arrivals.silence_seconds - arrivals.silence_floor_seconds
    pause_cv = arrivals.silence_cv * arrivals.silence_seconds / pause
    # Cell middles: of some 45 silences the longest sets the gaps' CV, so where it falls in its cell matters.
    cells = _in_cells(rng.random(len(ends)), np.full(len(ends), 0.5))
    silences = arrivals.silence_floor_seconds + pause * _weibull(cells, pause_cv)
    burst_of = np.searchsorted(ends, np.arange(1, count), side="right")
    speeds = ndtri(_stratified(len(ends) + 1, rng))
    uniforms = _stratified(count - 1, rng)
    span = count / figures.rate_per_second

    def at(amplitude: float) -> Floats:
        slowness = np.exp(-amplitude * speeds)[burst_of]
        spread = float(np.mean(slowness**2) / np.mean(slowness) ** 2)
        gap_cv = math.sqrt(max((1.0 + arrivals.inner_gap_cv**2) / spread - 1.0, 0.01))
        gaps = _weibull(uniforms, gap_cv) * slowness
        gaps *= arrivals.inner_gap_seconds / gaps.mean()
        np.minimum(gaps, arrivals.silence_floor_seconds, out=gaps)  # a longer one would part the burst
        gaps[ends - 1] = silences
        seconds = np.concatenate(([0.0], np.cumsum(gaps)))
        return np.asarray(seconds * (span / seconds[-1]))

    if span < _FEWEST_MINUTES * 60.0:
        return at(arrivals.speed_spread)
    return at(_fit_amplitude(at, figures))


def _weibull(uniforms: Floats, cv: float) -> Floats:
    """Weibull quantiles of mean 1 and the given coefficient of variation."""

    def excess(log_shape: float) -> float:
        inverse = math.exp(-log_shape)
        return float(gammaln(1.0 + 2.0 * inverse) - 2.0 * gammaln(1.0 + inverse)) - math.log1p(cv**2)

    inverse = math.exp(-float(brentq(excess, math.log(0.15), math.log(30.0))))
    return np.asarray((-np.log1p(-uniforms)) ** inverse / math.exp(float(gammaln(1.0 + inverse))))


def _fit_amplitude(at: Callable[[float], Floats], figures: Profile) -> float:
    """The amplitude whose busiest minute has the published share, by bisection."""
    low, high = 0.0, _MAX_AMPLITUDE
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if busiest_minute(at(middle), figures.span_minutes) < figures.busiest_minute:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def busiest_minute(seconds: Floats, stretch_minutes: float = math.inf) -> float:
    """Requests of the busiest whole minute over those of the mean minute.

    Args:
        seconds: arrival seconds from 0, ascending, at least one minute of them.
        stretch_minutes: cut a longer trace into stretches of about this length and average over them,
            since a peak grows with the time one waits for it.
    """
    counts = np.bincount((seconds / 60.0).astype(np.int64))[:-1]
    stretches = 1 if math.isinf(stretch_minutes) else max(1, round(len(counts) / stretch_minutes))
    parts = np.array_split(counts, stretches)
    return float(np.mean([part.max() / part.mean() if part.any() else 0.0 for part in parts]))
