"""The Spyre plugin with a plan's ladders: its bucketer, builder and recorder, adapted in place.

When the backend module is imported, one name in it is replaced: the class of the bucketer that its builders
make, by a function that looks at the engine's settings. Without a plan and a record it makes the plugin's
own bucketer, and that is all. Otherwise the builder is adapted too, and

- with a plan, the bucketer is a subclass, whose num_seqs ladder and whose block ladder of batched decode
  are the plan's, and which enumerates the distinct variants of these for the plugin's recorder. The builder
  pads the sequences of the per-sequence path on the KV ladder, as before: there one method,
  `find_blocks_bucket`, serves both paths; here it serves batched decode, and `_pad_num_blocks` asks the KV
  ladder.
- with a record, the builder counts what each step decodes, before it is padded.

The plugin moves fast, so nothing is taken on trust: `seams.differences` looks at every name, signature and
call that the adapter relies on. Where one differs, an engine with a plan does not start, and is told which.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from ladder_opt.bucketer import Bucketer
from ladder_opt.bucketer.recorder import StepRecorder
from ladder_opt.errors import InputError
from ladder_opt.ladder import Ladders
from ladder_opt.vllm_plugin import seams
from ladder_opt.vllm_plugin.loading import bucketer_for, engine_of, logger, say_once
from ladder_opt.vllm_plugin.recording import dynamo_compiles, recorder_for, start_after_warmup
from ladder_opt.vllm_plugin.settings import Settings

KERNEL = "chunked"
_MARK = "_ladder_opt"
_Mixin: Any = object


def adapt(backend: ModuleType) -> None:
    """Adapt the Spyre plugin's attention backend module, once.

    Raises:
        InputError: it has no bucketer, and a plan is to be loaded.
    """
    if hasattr(backend, _MARK):
        return
    setattr(backend, _MARK, True)
    original = backend.__dict__.get(seams.BUCKETER)
    if original is None:
        if Settings.of(_current_vllm_config(), os.environ).has_plan:
            raise _unknown([f"no {seams.BUCKETER} in {backend.__name__}"])
        return
    setattr(backend, seams.BUCKETER, _choosing(backend, original))


def _choosing(backend: ModuleType, original: Any) -> Any:
    """What stands in for the bucketer's class: the class itself, or its planned subclass, by the settings."""

    @functools.wraps(original, updated=())
    def bucketer(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        settings = Settings.of(vllm_config)
        if not settings or not _decodes(vllm_config):
            return original(vllm_config, *args, **kwargs)
        found = seams.differences(backend, original)
        if found and settings.has_plan:
            raise _unknown(found)
        if found:
            say_once(f"nothing is recorded: in {seams.PACKAGE} found {'; '.join(found)}")
            return original(vllm_config, *args, **kwargs)
        adapt_builder(getattr(backend, seams.BUILDER))
        made = (planned_class(original) if settings.has_plan else original)(vllm_config, *args, **kwargs)
        if getattr(made, "_sliding_window", None) is None:
            recorder = recorder_for(vllm_config, lambda: _ladders_in_use(made, vllm_config))
            if recorder is not None:
                start_after_warmup(
                    recorder, getattr(sys.modules.get(seams.WORKER_MODULE), seams.WORKER, None)
                )
        return made

    return bucketer


def _unknown(found: list[str]) -> InputError:
    return InputError(
        "; ".join(found), "the Spyre plugin as this release of ladder_opt knows it", path=seams.PACKAGE
    )


def _current_vllm_config() -> Any:
    config = sys.modules.get("vllm.config")
    current = getattr(config, "get_current_vllm_config_or_none", None)
    return None if current is None else current()


def _decodes(vllm_config: Any) -> bool:
    """A pooling model decodes nothing: its bucketer is left as it is."""
    return getattr(vllm_config.model_config, "runner_type", "generate") != "pooling"


@functools.cache
def planned_class(original: type) -> type:
    """The subclass of the Spyre plugin's bucketer that takes a plan's ladders."""
    source = sys.modules[original.__module__]
    return type(
        f"Planned{original.__name__}",
        (PlannedLadders, original),
        {
            "__doc__": PlannedLadders.__doc__,
            "_decode_bucket": getattr(source, seams.DECODE_BUCKET),
            "_min_batched_seqs": getattr(source, seams.MIN_BATCHED),
        },
    )


class PlannedLadders(_Mixin):  # type: ignore[misc]
    """The Spyre plugin's bucketer with batched decode on the ladders of a plan.

    Attributes:
        ladder_opt: the bucketer that owns these ladders.
    """

    ladder_opt: Bucketer
    _decode_bucket: Any
    _min_batched_seqs: int
    _batch_rung: int | None = None
    _on_kv_ladder = False

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        for name in seams.BUCKETER_LISTS:  # what its own methods read, and what is replaced below
            if getattr(self, f"_{name}", None) != getattr(self, name):
                raise _unknown([f"no list {seams.BUCKETER}._{name}"])
        ours = bucketer_for(vllm_config, min_batched_seqs=self._min_batched_seqs, kernel=KERNEL)
        if self._window is not None and ours.ladders.ragged is not None:
            # Which lengths a window can have, the plugin asks by blocks alone, whatever the batch.
            say_once("ragged ladders: layers with a sliding window take all their num_blocks rungs")
            ours = ours.with_ladders(Ladders(ours.ladders.num_seqs, ours.ladders.num_blocks))
        self.ladder_opt = ours
        self._num_seqs_buckets = list(ours.ladders.num_seqs)
        if "kv_tokens" in ours.planned:  # by a plan of target spyre-env
            self._kv_buckets = list(ours.kv_tokens.rungs)
            self._num_blocks_buckets = list(ours.sequence_blocks)
        if "query_tokens" in ours.planned:
            self._query_buckets = list(ours.query_tokens.rungs)
        logger.info(
            "ladder_opt: batched decode on num_seqs %s, num_blocks %s, from %s",
            list(ours.ladders.num_seqs),
            list(ours.ladders.num_blocks),
            ours.source,
        )

    def find_sequence_bucket(self, num_seqs: int) -> int | None:
        """The plan's num_seqs rung."""
        self._batch_rung = self.ladder_opt.num_seqs_rung(num_seqs)
        return self._batch_rung

    def find_blocks_bucket(self, num_blocks: int) -> int | None:
        """The plan's num_blocks rung; of ragged ladders, that of the num_seqs rung asked for last."""
        if self._on_kv_ladder:
            return self.find_sequence_blocks_bucket(num_blocks)
        rung = None if self.ladder_opt.ladders.ragged is None else self._batch_rung
        return self.ladder_opt.num_blocks_rung(num_blocks, rung)

    def find_sequence_blocks_bucket(self, num_blocks: int) -> int | None:
        """The rung of the per-sequence path, from the KV ladder: what the plugin's own look-up gives."""
        found: int | None = super().find_blocks_bucket(num_blocks)
        return found

    def batched_decode_variants(self) -> list[Any]:
        """The distinct kernels that the builder can dispatch to, largest first; none where they are off."""
        self._on_kv_ladder = True  # whether it has any, asked of it as it is
        try:
            are_on = bool(super().batched_decode_variants())
        finally:
            self._on_kv_ladder = False
        if not are_on:
            return []
        found = []
        for variant in self.ladder_opt.batched_variants():
            rung = self._rung_with_a_witness(self.ladder_opt.rungs_of(variant))
            if rung is not None:
                found.append(
                    self._decode_bucket(
                        num_seqs=variant.num_seqs,
                        num_blocks=rung,
                        blocks_per_chunk=variant.blocks_per_chunk,
                        num_chunks=variant.num_chunks,
                    )
                )
        return found

    @property
    def _window(self) -> int | None:
        window: int | None = getattr(self, "_sliding_window", None)
        return window

    def _rung_with_a_witness(self, rungs: tuple[int, ...]) -> int | None:
        """The first rung that a decode can ask for: under a sliding window not all can be."""
        witness = getattr(self, "decode_witness_kv_len", None)
        if witness is None or self._window is None:
            return rungs[0]
        return next((rung for rung in rungs if witness(rung) is not None), None)


def adapt_builder(builder: Any) -> None:
    """Have the Spyre plugin's builder keep the two paths apart and count what is recorded; once."""
    if hasattr(builder, _MARK):
        return
    setattr(builder, _MARK, True)
    pad_num_blocks, build = builder._pad_num_blocks, builder.build  # noqa: SLF001

    @functools.wraps(pad_num_blocks)
    def pad_on_the_kv_ladder(self: Any, num_blocks: int) -> int:
        find = getattr(self.attn_bucketer, "find_sequence_blocks_bucket", None)
        if find is None or num_blocks == 0:  # no block stays none, as in the plugin's own
            padded: int = pad_num_blocks(self, num_blocks)
            return padded
        found: int | None = find(num_blocks)
        if found is None:
            raise ValueError(
                f"num_blocks: found {num_blocks}, expected no more than the KV ladder's top rung"
            )
        return found

    @functools.wraps(build)
    def build_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder_of(self)
        metadata = build(self, *args, **kwargs)
        if recorder is not None and recorder.counting:
            recorder.compiles(dynamo_compiles())
            decodes = metadata.num_decode_seqs
            if decodes:
                recorder.decode(metadata.seq_lens[:decodes].tolist(), self.block_size)
        return metadata

    builder._pad_num_blocks = pad_on_the_kv_ladder  # noqa: SLF001
    builder.build = build_and_count


_counting_builders: dict[StepRecorder, Any] = {}


def _recorder_of(builder: Any) -> StepRecorder | None:
    """The process's recorder, for one builder: the groups of attention layers all build every step.

    A group with a sliding window sees a window's blocks alone, so a group of full attention counts.
    """
    if "_ladder_opt_recorder" not in builder.__dict__:
        recorder = None
        if getattr(builder, "sliding_window", None) is None:
            vllm_config = builder.vllm_config
            recorder = recorder_for(vllm_config, lambda: _ladders_in_use(builder.attn_bucketer, vllm_config))
        if recorder is not None and _counting_builders.setdefault(recorder, builder) is not builder:
            recorder = None
        builder._ladder_opt_recorder = recorder  # noqa: SLF001
    found: StepRecorder | None = builder._ladder_opt_recorder  # noqa: SLF001
    return found


def _ladders_in_use(bucketer: Any, vllm_config: Any) -> Bucketer:
    """The plan's bucketer; without a plan one of the plugin's own ladders (its block ladder is the KV's)."""
    ours: Bucketer | None = getattr(bucketer, "ladder_opt", None)
    if ours is not None:
        return ours
    engine = engine_of(vllm_config)
    own = Bucketer.from_engine(engine, kernel=KERNEL, environ=os.environ)
    return own.with_ladders(
        Ladders(
            tuple(rung for rung in bucketer.num_seqs_buckets if rung <= engine.max_num_seqs),
            tuple(rung for rung in bucketer.num_blocks_buckets if rung <= engine.max_num_blocks),
        ),
        source="the Spyre plugin",
    )
