"""Published figures of three request traces: what `synth` draws from. No row of a trace is here.

Every number is a summary of a public data set, computed over the whole published file:

- `azure2023_conv`, `azure2023_code`: AzureLLMInferenceTrace_conv.csv and _code.csv of
  https://github.com/Azure/AzurePublicDataset, CC BY 4.0, Microsoft Azure; described in P. Patel et al.,
  "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024.
- `mooncake_conversation`: FAST25-release/traces/conversation_trace.jsonl of
  https://github.com/kvcache-ai/Mooncake, Apache-2.0; described in R. Qin et al., "Mooncake: Trading More
  Storage for Less Computation", FAST 2025.

Minutes are counted from a trace's first arrival, and the last, unfinished minute is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class LengthFigures:
    """The distribution of one token count.

    Attributes:
        minimum: smallest count, in tokens.
        quantiles: tokens at the levels 1, 5, 10, 25, 50, 75, 90, 95, 99 and 99.9 %.
        maximum: largest count, in tokens.
        mean: arithmetic mean, in tokens; drawn counts are held against it, not fitted to it.
        shape: further (level, tokens) pairs where the ten quantiles miss a step or a second mode.
        spikes: (level below, level up to, fewest tokens, most tokens): the share of requests between
            the two levels lies between the two counts, as caps and templates leave it.
    """

    minimum: int
    quantiles: tuple[float, ...]
    maximum: int
    mean: float
    shape: tuple[tuple[float, float], ...] = ()
    spikes: tuple[tuple[float, float, int, int], ...] = ()

    def knots(self) -> tuple[list[float], list[float]]:
        """Levels and tokens that the quantile function passes through, both ascending."""
        points = {0.0: float(self.minimum), 1.0: float(self.maximum)}
        points.update(zip(_LEVELS, self.quantiles, strict=True))
        points.update(self.shape)
        for level_below, level_to, fewest, most in self.spikes:
            points[level_below], points[level_to] = float(fewest), float(most)
        levels = sorted(points)
        return levels, [points[level] for level in levels]


@dataclass(frozen=True)
class SlowRate:
    """A request rate that wanders: a stationary Gaussian process in the logarithm of the rate.

    Attributes:
        correlation_minutes: lag at which the rate's autocorrelation falls to 1/e.
        minute_cv: coefficient of variation of requests per minute; used below ten minutes, where a
            busiest minute says nothing.
        grid_seconds: arrivals are stamped at multiples of this; 0 for none.
    """

    correlation_minutes: float
    minute_cv: float
    grid_seconds: float = 0.0


@dataclass(frozen=True)
class OnOff:
    """Bursts of requests with silence between them.

    Attributes:
        requests_per_burst: mean.
        silence_floor_seconds: gaps longer than this part two bursts.
        silence_seconds: mean gap between bursts.
        silence_cv: coefficient of variation of those.
        inner_gap_seconds: mean gap within a burst.
        inner_gap_cv: coefficient of variation of those.
        speed_spread: standard deviation of the logarithm of a burst's speed; used below ten minutes.
    """

    requests_per_burst: float
    silence_floor_seconds: float
    silence_seconds: float
    silence_cv: float
    inner_gap_seconds: float
    inner_gap_cv: float
    speed_spread: float


@dataclass(frozen=True)
class Profile:
    """All the figures of one published trace.

    Attributes:
        title: one line for a list of choices.
        credit: whose figures these are, under which licence.
        requests: rows of the published trace.
        span_minutes: minutes it covers.
        rate_per_second: requests a second, mean.
        gap_cv: coefficient of variation of the gaps between arrivals.
        busiest_minute: requests of the busiest minute over those of the mean minute.
        spearman: rank correlation of prompt and output tokens.
        prompt: prompt tokens.
        output: output tokens.
        arrivals: how the rate moves.
    """

    title: str
    credit: str
    requests: int
    span_minutes: float
    rate_per_second: float
    gap_cv: float
    busiest_minute: float
    spearman: float
    prompt: LengthFigures
    output: LengthFigures
    arrivals: SlowRate | OnOff


_AZURE = "Azure/AzurePublicDataset, CC BY 4.0 (Microsoft Azure; Patel et al., Splitwise, ISCA 2024)"

_AZURE2023_CONV = Profile(
    title="chat: prompts of 1,000 and 4,100 tokens, outputs of 130 and 400, 5.53 requests/s, steady",
    credit=_AZURE,
    requests=19366,
    span_minutes=58.4,
    rate_per_second=5.53,
    gap_cv=1.09,
    busiest_minute=1.52,
    spearman=0.07,
    prompt=LengthFigures(
        minimum=2,
        quantiles=(29, 181, 207, 396, 1020, 1189, 2735, 4083, 4142, 6212),
        maximum=14050,
        mean=1154.7,
        shape=((0.35, 414), (0.45, 984), (0.8, 1315), (0.85, 1876)),  # two modes below 1,200
        spikes=((0.9169, 0.9909, 4050, 4150),),  # prompts cut to a 4k context: 7.4 %
    ),
    output=LengthFigures(
        minimum=7,
        quantiles=(16, 41, 54, 85, 129, 395, 424, 451, 601, 954),
        maximum=1000,
        mean=211.1,
        shape=((0.65, 217), (0.7, 384)),  # few outputs between the two modes
        spikes=((0.99943, 1.0, 1000, 1000),),  # the output cap
    ),
    arrivals=SlowRate(correlation_minutes=8.0, minute_cv=0.22),
)

_AZURE2023_CODE = Profile(
    title="code completion: prompts up to 7,437 tokens, outputs of 13, 2.57 requests/s in on/off bursts",
    credit=_AZURE,
    requests=8819,
    span_minutes=57.3,
    rate_per_second=2.57,
    gap_cv=13.15,
    busiest_minute=4.18,
    spearman=-0.02,
    prompt=LengthFigures(
        minimum=3,
        quantiles=(17, 75, 147, 578, 1469, 2745, 5194, 7315, 7436, 7437),
        maximum=7437,
        mean=2047.8,
        spikes=((0.962, 1.0, 7434, 7437),),  # prompts cut to the context: 3.8 %
    ),
    output=LengthFigures(
        minimum=6,
        quantiles=(6, 6, 7, 9, 13, 24, 55, 90, 252, 831),
        maximum=1899,
        mean=27.9,
    ),
    arrivals=OnOff(
        requests_per_burst=192.0,
        silence_floor_seconds=10.0,
        silence_seconds=52.8,
        silence_cv=0.92,
        inner_gap_seconds=0.121,
        inner_gap_cv=3.0,
        speed_spread=0.5,
    ),
)

_MOONCAKE_CONVERSATION = Profile(
    title="long-context chat: prompts of 7k up to 126k tokens, outputs of 350, 3.40 requests/s every 3 s",
    credit="kvcache-ai/Mooncake FAST25-release, Apache-2.0 (Qin et al., Mooncake, FAST 2025)",
    requests=12031,
    span_minutes=58.9,
    rate_per_second=3.40,
    gap_cv=3.03,  # of gaps on the grid: nine in ten are 0
    busiest_minute=1.21,
    spearman=0.07,
    prompt=LengthFigures(
        minimum=891,
        quantiles=(894, 901, 964, 2307, 6909, 15368, 27367, 39552, 85401, 121301),
        maximum=126195,
        mean=12035.1,
    ),
    output=LengthFigures(
        minimum=1,
        quantiles=(3, 10, 24, 157, 350, 472, 597, 698, 1120, 2000),
        maximum=2000,
        mean=342.6,
        spikes=((0.9975, 1.0, 2000, 2000),),  # the output cap
    ),
    arrivals=SlowRate(correlation_minutes=15.0, minute_cv=0.12, grid_seconds=3.0),
)

FIGURES: Mapping[str, Profile] = MappingProxyType(
    {
        "azure2023_conv": _AZURE2023_CONV,
        "azure2023_code": _AZURE2023_CODE,
        "mooncake_conversation": _MOONCAKE_CONVERSATION,
    }
)
