"""Traces as pandas frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ladder_opt.errors import InputError
from ladder_opt.trace.synth import synthesize
from ladder_opt.trace.table import Trace


def test_a_trace_comes_back_from_its_frame() -> None:
    trace = synthesize(requests=50, seed=1)
    frame = trace.to_frame()
    assert list(frame.columns) == ["arrival_seconds", "prompt_tokens", "output_tokens"]
    again = Trace.from_frame(frame.sample(frac=1.0, random_state=0))
    assert again.arrival_seconds is not None
    assert trace.arrival_seconds is not None
    np.testing.assert_allclose(again.arrival_seconds, trace.arrival_seconds - trace.arrival_seconds[0])
    np.testing.assert_array_equal(again.prompt_tokens, trace.prompt_tokens)
    np.testing.assert_array_equal(again.output_tokens, trace.output_tokens)


def test_what_a_frame_may_hold() -> None:
    frame = pd.DataFrame(
        {"prompt_tokens": [3, 4], "output_tokens": [1, 2], "priority": [0, 1], "user": ["a", "b"]}
    )
    trace = Trace.from_frame(frame)
    assert trace.arrival_seconds is None
    assert trace.priority is not None
    assert trace.priority.tolist() == [0, 1]
    with pytest.raises(InputError, match="columns prompt_tokens, expected output_tokens among them"):
        Trace.from_frame(frame[["prompt_tokens"]])
    for bad in (0, -1):
        with pytest.raises(InputError, match="at least 1 token"):
            Trace.from_frame(pd.DataFrame({"prompt_tokens": [bad], "output_tokens": [1]}))
    for column in ({"prompt_tokens": [1.5]}, {"prompt_tokens": ["x"]}, {"arrival_seconds": [np.nan]}):
        with pytest.raises(InputError):
            Trace.from_frame(pd.DataFrame({"prompt_tokens": [1], "output_tokens": [1], **column}))
