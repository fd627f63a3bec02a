"""Small random replays, the same for the replay and for what it is compared with.

All seconds are multiples of a power of two, so sums are exact in whatever order they are taken: both sides
read the same clock to the last bit, and an arrival may fall exactly on the end of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from ladder_opt.cost.model import CostModel, ReplaySeconds, StepSeconds
from ladder_opt.engine import Engine
from ladder_opt.ladder import Ladders
from ladder_opt.occupancy.scheduling import Scheduling
from ladder_opt.trace.table import HashIds

TICK_SECONDS = 2.0**-10


@dataclass(frozen=True)
class Case:
    """One replay, the same for both sides."""

    engine: Engine
    cost: CostModel
    ladders: Ladders
    arrivals: list[float]
    prompts: list[int]
    outputs: list[int]
    concurrency: int | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    priorities: list[int] | None = None
    hash_ids: HashIds | None = None
    cached_tokens: list[int] | None = None


def seeded(seed: str) -> Random:
    return Random(seed)  # noqa: S311  (hypothesis draws this kind too; nothing here is a secret)


def make_cost(random: Random) -> CostModel:
    def ticks(most: int, per_tick: int) -> float:
        return random.randint(0, most) * TICK_SECONDS / per_tick

    return CostModel(
        schema="ladder_opt/cost/1",
        name="random",
        kernel=random.choice(["chunked", "per_block"]),
        step_seconds=StepSeconds(
            base=TICK_SECONDS * random.randint(1, 16),
            per_seq=ticks(4, 8),
            per_iteration=ticks(4, 16),
            per_gather=ticks(4, 128),
        ),
        compile_seconds={},
        replay_seconds=ReplaySeconds(per_sequence_gather=ticks(4, 64), per_prefill_token=ticks(4, 64)),
    )


def make_ladders(random: Random, engine: Engine) -> Ladders:
    def rungs(first: int, last: int) -> tuple[int, ...]:
        below = range(first, last)
        kept = random.sample(below, random.randint(0, len(below))) if last > first else []
        return (*sorted(kept), last) if last >= first else ()

    return Ladders(
        rungs(engine.min_batched_seqs, engine.max_num_seqs),
        rungs(1, engine.max_num_blocks),
    )


def make_case(random: Random, *, pool: str, arrivals: str, lengths: str) -> Case:
    """A small case of the named kinds; what is not named is drawn too."""
    block_size = random.choice([64, 128])
    max_num_seqs = random.randint(1, 8)
    max_model_len = random.randint(2, 12 * block_size)
    max_num_blocks = -(-max_model_len // block_size)
    most_blocks = max_num_seqs * max_num_blocks
    budget = random.choice([max_num_seqs, 16, 100, 512])
    engine = Engine(
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_num_batched_tokens=max(budget, max_num_seqs),
        # a request of max_model_len tokens has to fit, or neither side ever ends
        num_kv_blocks={
            "tiny": 1 + min(most_blocks, max_num_blocks + random.randint(0, 2)),
            "some": 1 + random.randint(max_num_blocks, most_blocks),
            "full": None,
        }[pool],
        min_batched_seqs=random.choice([4, 4, 1, 2]),
    )

    def prompt() -> int:
        any_length = random.randint(1, max_model_len - 1)
        length = {
            "any": any_length,
            "one": random.choice([1, 1, any_length]),
            # whole chunks and one token more: that last chunk looks like a decode and is none
            "tails": 1 + engine.max_num_batched_tokens * random.randint(1, 3),
            "blocks": block_size * random.randint(1, 3) + random.randint(-1, 1),
        }[lengths]
        return max(1, min(length, max_model_len - 1))

    def output(prompt_tokens: int) -> int:
        return random.randint(1, min(max_model_len - prompt_tokens, random.choice([1, 8, 80, 300])))

    requests = random.randint(1, 25)
    prompts = [prompt() for _ in range(requests)]
    gap = {"burst": [0], "mixed": [0, 0, 1, 5, 60], "sparse": [100, 1000], "closed": [0]}[arrivals]
    gaps = [random.choice(gap) for _ in range(requests)]
    return Case(
        engine=engine,
        cost=make_cost(random),
        ladders=make_ladders(random, engine),
        arrivals=[int(ticks) * TICK_SECONDS for ticks in np.cumsum(gaps)],
        prompts=prompts,
        outputs=[output(tokens) for tokens in prompts],
        concurrency=random.randint(1, max_num_seqs + 2) if arrivals == "closed" else None,
    )


def with_settings(case: Case, random: Random) -> Case:
    """The case under a random mix of scheduling settings."""
    engine = case.engine
    least = -(-engine.max_model_len // engine.block_size) + 2
    return replace(
        case,
        # what admission asks for under a window may be a block more than the longest sequence has
        engine=engine
        if engine.num_kv_blocks is None
        else replace(engine, num_kv_blocks=max(engine.num_kv_blocks, least)),
        scheduling=Scheduling(
            policy=random.choice(["fcfs", "priority"]),
            long_prefill_token_threshold=random.choice(
                [0, 1, min(50, engine.max_model_len), min(200, engine.max_model_len)]
            ),
            sliding_window=random.choice(
                [None, None, 1, random.randint(1, 2 * engine.max_model_len), 2 * engine.block_size]
            ),
            n=random.choice([1, 1, 2, 3]),
        ),
        priorities=random.choice([None, [random.randint(-2, 2) for _ in case.prompts]]),
    )


def with_shared_prefixes(case: Case, random: Random) -> Case:
    """The case under prefix caching: prompts that begin as others do, in blocks of a size of their own."""
    block_tokens = random.choice([16, 48, 64, 128, 200, 512])
    ids: list[list[int]] = []
    fresh = iter(range(10**9))
    for prompt in case.prompts:
        blocks = -(-prompt // block_tokens)
        base = random.choice(ids) if ids and random.random() < 0.8 else []
        kept = base[: min(blocks, random.randint(0, len(base) + 2))]
        ids.append(kept + [next(fresh) for _ in range(blocks - len(kept))])
    return replace(
        case,
        hash_ids=HashIds.of(ids, block_tokens),
        scheduling=replace(case.scheduling, prefix_caching=True, sliding_window=None),
    )


def with_recorded_hits(case: Case, random: Random) -> Case:
    """The case under prefix caching of which no more is known than how much of each prompt was cached."""
    shares = (0.0, 0.0, 1.0, 1.5, random.random(), random.random(), random.random())
    return replace(
        case,
        cached_tokens=[int(prompt * random.choice(shares)) for prompt in case.prompts],
        scheduling=replace(case.scheduling, prefix_caching=True, sliding_window=None),
    )
