"""The options that say how an engine schedules; part of every command that replays traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_opt.errors import UsageError
from ladder_opt.occupancy.engine_file import NO_SPECULATION
from ladder_opt.occupancy.scheduling import Scheduling

if TYPE_CHECKING:
    from ladder_opt.cli.options import EngineOptions


@dataclass(frozen=True, kw_only=True)
class SchedulingOptions:
    """How the engine schedules, besides its limits."""

    scheduling_policy: Annotated[
        str | None,
        typer.Option("--scheduling-policy", help="fcfs or priority (the traces' priority column) [fcfs]."),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        typer.Option("--long-prefill-token-threshold", help="Most tokens of one request in a step [0: any]."),
    ] = None
    sliding_window: Annotated[
        int | None,
        typer.Option("--sliding-window", help="Tokens that every layer of the model attends to [all]."),
    ] = None
    n: Annotated[
        int | None,
        typer.Option("--n", help="Sequences of each request, each with the row's output [1]."),
    ] = None
    prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--prefix-caching/--no-prefix-caching",
            help="Prompts start from cached KV blocks, by the traces' hash_ids or else cached_tokens [off].",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--num-speculative-tokens",
            help="Refused above 0: verify steps have several tokens a sequence and meet no ladder [0].",
        ),
    ] = None

    def scheduling(self, engine_options: EngineOptions, *, base: Scheduling | None = None) -> Scheduling:
        """The settings: defaults (or `base`), then the engine file, then the options."""
        if self.num_speculative_tokens:
            found = self.num_speculative_tokens
            raise UsageError(f"--num-speculative-tokens: found {found}, expected {NO_SPECULATION}")
        given = {
            "policy": self.scheduling_policy,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "sliding_window": self.sliding_window,
            "n": self.n,
            "prefix_caching": self.prefix_caching,
        }
        settings = dict(engine_options.scheduling_file().settings)
        settings |= {name: value for name, value in given.items() if value is not None}
        try:
            return replace(base or Scheduling(), **settings)
        except UsageError as error:
            if engine_options.engine_file is None:
                raise UsageError(f"--{error}") from None
            raise UsageError(f"{engine_options.engine_file} and options: {error}") from None
