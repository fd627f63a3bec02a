"""Why requests are set aside, in words: files and `--json` keep the short names, people read these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_WORDS: Final[Mapping[str, str]] = {
    "zero_output": "they produced no output token",
    "zero_prompt": "they had no prompt token",
    "failed": "they failed, as their records say",
    "unreadable": "a value of theirs is missing or no number",
    "beyond_max_model_len": "prompt and output together are longer than max_model_len",
    "beyond_kv_pool": "they need more KV blocks than the engine has",
    "answered_by_proxy_cache": "a proxy answered them from its cache, and no engine saw them",
    "outer_span": "they are spans around other spans, which would count twice",
    "without_timings": "their times are missing or run backwards",
}
_LEAST_SHARE: Final = 1e-4


def reason_words(reason: str) -> str:
    """A reason of `set_aside` in plain words; one that nobody here knows, as it is, without underscores."""
    return _WORDS.get(reason, reason.replace("_", " "))


def set_aside_lines(set_aside: Mapping[str, int], requests: int) -> list[str]:
    """A line for each reason: how many of how many requests, and why.

    Args:
        set_aside: counts by reason.
        requests: those that are left.
    """
    total = requests + sum(set_aside.values())
    return [
        f"{count:,} of {total:,} requests ({_share_text(count / total)}) set aside: {reason_words(reason)}"
        for reason, count in sorted(set_aside.items())
        if count > 0
    ]


def set_aside_facts(set_aside: Mapping[str, int], requests: int) -> list[tuple[str, str]]:
    """The same as (name, value), for tables of facts."""
    return [("set aside", line.replace(" set aside", "")) for line in set_aside_lines(set_aside, requests)]


def _share_text(share: float) -> str:
    return f"{share:.2%}" if share >= _LEAST_SHARE else "under 0.01%"
