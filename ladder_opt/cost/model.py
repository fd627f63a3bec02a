"""The cost model: seconds of a step, and of a compile, for a rung pair.

    step_seconds(s, m)  = base + per_seq*s + per_iteration*iterations + per_gather*gathers
    compile_seconds(v)  = graphs_per_variant * (base + per_iteration*iterations
                                                + per_iteration_sq*iterations^2)
    warm-up             = startup_seconds + sum of compile_seconds over distinct variants

A measured table of (num_seqs, num_blocks, seconds) rows may replace either formula. It has to be a full
grid, and only its sizes are then candidates for rungs. A step table gives whole steps (base included); a
compile table gives whole variants (all graphs included); rows of one variant are averaged.

In the replay, a step below min_batched_seqs decoding sequences takes `base` plus `per_sequence_gather`
for each of the sequences' own blocks and `replay_seconds.per_seq` for each sequence, and every step
`per_prefill_token` for each prefill token.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ladder_opt.arguments import checked
from ladder_opt.cost.geometry import KERNELS, Kernel, get_kernel
from ladder_opt.errors import InputError, UsageError, did_you_mean, one_of
from ladder_opt.files import is_there, read_text
from ladder_opt.ladder import Target
from ladder_opt.markup import facts as fact_table
from ladder_opt.validation import as_input_error, check_schema, load_json_object

DEFAULT_COST_NAME = "spyre-granite-3.3-8b"
MAX_COST_FILE_BYTES = 64 << 20

_LARGEST_SECONDS = 1e12  # past this, sums over a trace lose their last digits
Seconds = Annotated[float, Field(ge=0, le=_LARGEST_SECONDS, allow_inf_nan=False, strict=True)]
Size = Annotated[int, Field(ge=1, le=1 << 31, strict=True)]
TableRow = tuple[Size, Size, Seconds]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StepSeconds(_Part):
    """Terms of a batched decode step, in seconds (each but the first per unit)."""

    base: Seconds = 0.0
    per_seq: Seconds = 0.0
    per_iteration: Seconds = 0.0
    per_gather: Seconds = 0.0


class CompileSeconds(_Part):
    """Terms of one graph's compile, in seconds."""

    base: Seconds = 0.0
    per_iteration: Seconds = 0.0
    per_iteration_sq: Seconds = 0.0


class ReplaySeconds(_Part):
    """Terms that only the replay needs: they cost the same under any ladder.

    `per_seq` is what a decode adds to a step that is not batched, as `step_seconds.per_seq` is in one that
    is.
    """

    per_sequence_gather: Seconds = 0.0
    per_prefill_token: Seconds = 0.0
    per_seq: Seconds = 0.0


class PerSequence(_Part):
    """The per-sequence kernel where its ladder is the planned one (target `spyre-env`).

    One graph of its variant (m blocks, padded query length q) compiles in the seconds of `compile_seconds`
    at m iterations (it unrolls its blocks); without, in those of a batched graph. Queries are read against
    every page: a call costs `per_query_gather` * m * q besides `replay_seconds.per_sequence_gather` * m.
    `recorded_in_startup_seconds` is what `startup_seconds` holds of these compiles already.
    """

    per_query_gather: Seconds = 0.0
    compile_seconds: CompileSeconds | None = None
    recorded_in_startup_seconds: Seconds = 0.0


class CostModel(BaseModel):
    """A cost model file (`ladder_opt/cost/1`); see the module's docstring for the formulas."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    schema_: str = Field("ladder_opt/cost/1", alias="schema")
    name: str = Field(strict=True, max_length=200)
    kernel: Annotated[str, Field(strict=True)] = "chunked"
    step_seconds: StepSeconds
    compile_seconds: CompileSeconds
    replay_seconds: ReplaySeconds = ReplaySeconds()
    per_sequence: PerSequence | None = None
    graphs_per_variant: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 1
    startup_seconds: Seconds = 0.0
    step_table: tuple[TableRow, ...] | None = None
    compile_table: tuple[TableRow, ...] | None = None
    fit: dict[str, Any] | None = None

    @field_validator("kernel")
    @classmethod
    def _known_kernel(cls, kernel: str) -> str:
        if kernel not in KERNELS:
            msg = f"found {kernel!r}, expected {one_of(KERNELS, kernel)}"
            raise ValueError(msg)
        return kernel

    @model_validator(mode="after")
    def _recording_is_part_of_startup(self) -> Self:
        recorded = self.per_sequence.recorded_in_startup_seconds if self.per_sequence else 0.0
        if recorded > self.startup_seconds:
            msg = (
                f"found per_sequence.recorded_in_startup_seconds {recorded:g}, "
                f"expected at most startup_seconds {self.startup_seconds:g}"
            )
            raise ValueError(msg)
        return self

    @field_validator("step_table", "compile_table")
    @classmethod
    def _full_grid(cls, rows: tuple[TableRow, ...] | None) -> tuple[TableRow, ...] | None:
        if rows is None:
            return None
        pairs = {(row[0], row[1]) for row in rows}
        if not rows:
            msg = "found no row, expected [num_seqs, num_blocks, seconds] rows"
            raise ValueError(msg)
        if len(pairs) < len(rows):
            msg = (
                f"found {len(rows) - len(pairs)} repeated pairs in {len(rows)} rows, expected each pair once"
            )
            raise ValueError(msg)
        missing = len({s for s, _ in pairs}) * len({m for _, m in pairs}) - len(pairs)
        if missing:
            msg = f"found {len(pairs)} pairs, expected a full grid ({missing} more)"
            raise ValueError(msg)
        return rows

    @property
    def geometry(self) -> Kernel:
        """The kernel whose iterations and gathers are priced."""
        return get_kernel(self.kernel)

    def batched_step_seconds(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> NDArray[np.float64]:
        """Seconds of a step padded to the rung pairs (arrays that broadcast).

        Raises:
            InputError: a step table is in use and has no such pair.
        """
        if self.step_table is not None:
            return self._from_table("step_table", num_seqs, num_blocks)
        terms = self.step_seconds
        seqs = np.asarray(num_seqs, np.float64)
        iterations = self.geometry.iterations(num_seqs, num_blocks)
        gathers = self.geometry.gathers(num_seqs, num_blocks)
        return np.asarray(
            terms.base + terms.per_seq * seqs + terms.per_iteration * iterations + terms.per_gather * gathers
        )

    def variant_compile_seconds(self, num_seqs: ArrayLike, num_blocks: ArrayLike) -> NDArray[np.float64]:
        """Seconds to compile the variant of each rung pair (all its graphs).

        Raises:
            InputError: a compile table is in use and has no such pair.
        """
        if self.compile_table is not None:
            return self._from_table("compile_table", num_seqs, num_blocks)
        terms = self.compile_seconds
        iterations = self.geometry.iterations(num_seqs, num_blocks).astype(np.float64)
        one_graph = terms.base + terms.per_iteration * iterations + terms.per_iteration_sq * iterations**2
        return np.asarray(self.graphs_per_variant * one_graph)

    def sequence_call_seconds(self, num_blocks: ArrayLike, query_len: ArrayLike) -> NDArray[np.float64]:
        """Seconds of one sequence's call of the per-sequence kernel, padded to these rungs."""
        blocks = np.asarray(num_blocks, np.float64)
        rows = np.asarray(query_len, np.float64)
        per_query_gather = self.per_sequence.per_query_gather if self.per_sequence else 0.0
        return np.asarray(blocks * (self.replay_seconds.per_sequence_gather + per_query_gather * rows))

    def sequence_compile_seconds(self, num_blocks: ArrayLike) -> NDArray[np.float64]:
        """Seconds to compile a per-sequence variant of so many blocks, for one query length (all graphs)."""
        terms = (self.per_sequence and self.per_sequence.compile_seconds) or self.compile_seconds
        blocks = np.asarray(num_blocks, np.float64)
        one_graph = terms.base + terms.per_iteration * blocks + terms.per_iteration_sq * blocks**2
        return np.asarray(self.graphs_per_variant * one_graph)

    def startup_seconds_of(self, target: Target) -> float:
        """The warm-up that ladders do not change: less where per-sequence variants are counted one by one."""
        if target == "plugin" or self.per_sequence is None:
            return self.startup_seconds
        return self.startup_seconds - self.per_sequence.recorded_in_startup_seconds

    def table_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """(num_seqs, num_blocks) sizes that the tables hold; None where formulas cover every size."""
        grids = [self._grids[name][:2] for name in ("step_table", "compile_table") if name in self._grids]
        if not grids:
            return None
        seqs = set(grids[0][0]).intersection(*(set(grid[0]) for grid in grids))
        blocks = set(grids[0][1]).intersection(*(set(grid[1]) for grid in grids))
        return tuple(sorted(int(s) for s in seqs)), tuple(sorted(int(m) for m in blocks))

    def with_kernel(self, kernel: str | None) -> CostModel:
        """The same numbers under another kernel's geometry (None: as it is).

        Raises:
            UsageError: there is no such kernel, or a table was measured with another one.
        """
        if kernel is None or kernel == self.kernel:
            return self
        get_kernel(kernel)
        if self.step_table is not None or self.compile_table is not None:
            raise UsageError(
                f"kernel: found {kernel!r}, expected {self.kernel!r}, with which the table was measured"
            )
        return self.model_copy(update={"kernel": kernel})

    def to_dict(self) -> dict[str, Any]:
        """The file's JSON object; absent optional parts are left out."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        if not self.replay_seconds.per_seq:  # a term added later: files without it keep their digest
            del data["replay_seconds"]["per_seq"]
        return data

    def _repr_html_(self) -> str:
        rows = []
        for part in ("step_seconds", "compile_seconds", "replay_seconds"):
            terms: BaseModel = getattr(self, part)
            rows += [
                (f"{part}.{name}", f"{value:.4g}") for name, value in terms.model_dump().items() if value
            ]
        rows += [("graphs_per_variant", str(self.graphs_per_variant))]
        rows += [("startup_seconds", f"{self.startup_seconds:g}")]
        for name in ("step_table", "compile_table"):
            if getattr(self, name) is not None:
                rows.append((name, f"{len(getattr(self, name)):,} measured pairs"))
        return fact_table(rows, caption=f"CostModel {self.name}, kernel {self.kernel}")

    def sha256(self) -> str:
        """Digest of the model's content, whatever its file's spacing or key order."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    @cached_property
    def _grids(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        grids = {}
        for name, rows in (("step_table", self.step_table), ("compile_table", self.compile_table)):
            if rows is None:
                continue
            seqs = np.unique([row[0] for row in rows])
            blocks = np.unique([row[1] for row in rows])
            seconds = np.zeros((len(seqs), len(blocks)))
            for num_seqs, num_blocks, value in rows:
                seconds[np.searchsorted(seqs, num_seqs), np.searchsorted(blocks, num_blocks)] = value
            if name == "compile_table":
                keys = self.geometry.variant_key(seqs[:, None], blocks[None, :])
                _, variant = np.unique(keys, return_inverse=True)
                variant = variant.ravel()
                means = np.bincount(variant, seconds.ravel()) / np.bincount(variant)
                seconds = means[variant].reshape(seconds.shape)
            grids[name] = (seqs, blocks, seconds)
        return grids

    def _from_table(self, name: str, num_seqs: ArrayLike, num_blocks: ArrayLike) -> NDArray[np.float64]:
        seqs, blocks, seconds = self._grids[name]
        want_seqs, want_blocks = np.broadcast_arrays(np.asarray(num_seqs), np.asarray(num_blocks))
        row = np.minimum(np.searchsorted(seqs, want_seqs), len(seqs) - 1)
        column = np.minimum(np.searchsorted(blocks, want_blocks), len(blocks) - 1)
        absent = (seqs[row] != want_seqs) | (blocks[column] != want_blocks)
        if absent.any():
            at = tuple(np.argwhere(absent)[0])
            raise InputError(
                f"no row for num_seqs {want_seqs[at]}, num_blocks {want_blocks[at]}",
                "one for every rung pair in use",
                path=self.name,
                column=name,
            )
        return np.asarray(seconds[row, column])


@checked
def read_cost_model(path_or_name: str | Path = DEFAULT_COST_NAME) -> CostModel:
    """Read a cost model file, or a built-in model by its name.

    Raises:
        InputError: neither a built-in name nor a readable cost file.
    """
    text = _builtin_text(str(path_or_name))
    if text is None:
        path = Path(path_or_name)
        if not is_there(path):
            raise InputError(
                "no such file",
                f"a cost model file or a built-in name ({', '.join(builtin_names())})"
                f"{did_you_mean(path, builtin_names())}",
                path=path,
            )
        text = read_text(path, max_bytes=MAX_COST_FILE_BYTES, what="a cost model")
    return cost_model_from_text(text, path=path_or_name)


def cost_model_from_text(text: str, *, path: str | Path | None = None) -> CostModel:
    """Parse the JSON text of a cost model file.

    Raises:
        InputError: with the key path of the fault.
    """
    return cost_model_from_dict(load_json_object(text, path=path, what="a cost model"), path=path)


def cost_model_from_dict(data: dict[str, Any], *, path: str | Path | None = None) -> CostModel:
    """Check a cost model's JSON object.

    Raises:
        InputError: with the key path of the fault.
    """
    check_schema(data, family="ladder_opt/cost", major=1, path=path)
    try:
        return CostModel.model_validate(data)
    except ValidationError as error:
        raise as_input_error(error, path=path) from None


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in cost models."""
    folder = resources.files("ladder_opt.cost") / "builtin"
    if not folder.is_dir():
        return ()
    return tuple(
        sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    )


def _builtin_text(name: str) -> str | None:
    if name not in builtin_names():
        return None
    return (resources.files("ladder_opt.cost") / "builtin" / f"{name}.json").read_text(encoding="utf-8")
