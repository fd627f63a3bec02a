"""Plans tried on the part of a trace that they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_opt.errors import UsageError
from ladder_opt.plan.options import SolveOptions
from ladder_opt.plan.tune import evaluate, tune
from ladder_opt.trace.table import Trace
from tests.plan.plans import ENGINE, STEPS, make_cost, make_trace


def test_the_plan_is_that_of_the_first_part_and_tried_on_the_rest() -> None:
    trace = make_trace()
    seen, unseen = trace.split_by_time(0.25)
    options = SolveOptions(restarts=2.0)
    plan = tune(trace, make_cost(), engine=ENGINE, options=SolveOptions(restarts=2.0, holdout=0.25))
    alone = tune(seen, make_cost(), engine=ENGINE, options=options)
    assert plan.ladders == alone.ladders
    assert plan.result.objective_seconds == alone.result.objective_seconds
    held = plan.result.holdout
    assert held is not None
    rest = evaluate(unseen, plan.ladders, make_cost(), engine=ENGINE, options=options)
    assert held.objective_seconds == rest.result.objective_seconds
    assert held.default_seconds == (rest.default and rest.default.objective_seconds)
    assert held.optimum_lower_bound_seconds <= held.optimum_seconds * (1 + 1e-9)
    assert held.regret_seconds >= -1e-9 * held.objective_seconds
    assert held.regret == pytest.approx(held.regret_seconds / held.optimum_seconds)


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.booleans())
def test_a_split_loses_nothing(requests: int, share: float, timed: bool) -> None:
    whole = make_trace(requests=requests)
    trace = whole if timed else Trace(None, whole.prompt_tokens, whole.output_tokens)
    seen, unseen = trace.split_by_time(share)
    assert np.array_equal(np.r_[seen.prompt_tokens, unseen.prompt_tokens], trace.prompt_tokens)
    if timed and len(seen) and len(unseen):
        assert trace.arrival_seconds is not None
        assert seen.arrival_seconds is not None
        assert seen.arrival_seconds[-1] < trace.span_seconds * (1 - share)
        assert unseen.arrival_seconds is not None
        assert unseen.arrival_seconds[0] == 0


def test_refusals() -> None:
    with pytest.raises(UsageError, match="--holdout: found a histogram, expected traces"):
        tune(STEPS, make_cost(), engine=ENGINE, options=SolveOptions(holdout=0.2))
    with pytest.raises(UsageError, match="--holdout: found 1, expected a share between 0 and 1"):
        SolveOptions(holdout=1.0)
    with pytest.raises(UsageError, match="--holdout: found an empty part"):
        tune(make_trace(requests=1), make_cost(), engine=ENGINE, options=SolveOptions(holdout=0.2))
