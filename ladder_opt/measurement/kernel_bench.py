"""The batched kernel on this machine's device: compiled with an empty cache, timed through the builder.

A timed step is what attention adds to a decode step of a server: the batch is padded by `BatchPadder`, sent
to the device, and run by every layer (at most `MOST_TIMED_LAYERS` of them, which stand for the rest), each on
KV pages of its own (past `MOST_CACHE_BYTES` layers share theirs). What is told is one layer's share.

Clocks. `cpu`: CPU time of the thread that computes; for a compile, of this process and of the compilers that
it starts. Other work on the machine hardly counts in it. It is a step's time only where one thread does all
of it. `wall`: what a clock on the wall says, the device waited for; on CUDA between two events of the stream.

A compile's seconds are those of a server's warm-up past its first. Cold, for every compile: the Inductor
cache, a folder of its own (graphs, generated code, objects; Triton's too), and what Inductor remembers of
others. Warm: the compiler is imported, the machine probed and its precompiled headers made, by a first
compile before the timed ones. Dynamo is not reset, for that would throw away the kernels compiled so far,
which are still timed; each variant is a region of its own, so that it finds none of theirs. Garbage is
collected before: else one compile in five pays for what those before have left, a fifth of its own seconds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.utils

from ladder_opt.bucketer import Bucketer
from ladder_opt.engine import Engine
from ladder_opt.errors import InternalError, UsageError
from ladder_opt.ladder import Ladders
from ladder_opt.measurement.bench import Point, Timed
from ladder_opt.measurement.heap import kept_heap
from ladder_opt.measurement.model_shape import ModelShape
from ladder_opt.reference.batch import BatchPadder
from ladder_opt.reference.compiled import AttentionLayer, CompiledKernels

MOST_CACHE_BYTES = 2 << 30
MOST_TIMED_LAYERS = 8
CLOCKS = ("cpu", "wall")
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def find_device(name: str) -> torch.device:
    """The device of that name, once it has held a tensor.

    Raises:
        UsageError: torch does not know it, or it is not here.
    """
    expected = "expected cpu, cuda or another device that torch.compile has here"
    try:
        device = torch.device(name)
    except (RuntimeError, ValueError):
        raise UsageError(f"--device: found {name!r}, which torch does not know, {expected}") from None
    try:
        usable = float(torch.ones(1, device=device).sum().item()) == 1.0
    except (RuntimeError, NotImplementedError, AssertionError, ImportError, AttributeError):
        usable = False  # each device has its own way of saying so, in many lines
    if not usable:
        raise UsageError(
            f"--device: found {name!r}, which torch {torch.__version__} cannot use here, {expected}"
        )
    return device


def device_name(device: torch.device) -> str:
    """The device's make, as far as it says; empty else."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "cpu":
        return _cpu_name()
    return ""


def check_compiler(name: str) -> None:
    """Whether torch.compile has a backend of that name.

    Raises:
        UsageError: it has none.
    """
    backends = torch._dynamo.list_backends  # noqa: SLF001 - where torch keeps it
    if name not in backends(exclude_tags=()):
        usual = ", ".join(["eager", *backends()])
        raise UsageError(f"--compiler: found {name!r}, expected a backend of torch.compile such as {usual}")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How the kernel is run.

    Attributes:
        device: a torch device.
        compiler: a backend of torch.compile.
        threads: CPU threads that torch computes with.
        clock: `cpu` or `wall`.
        seed: of contents, pages and lengths.
    """

    device: torch.device
    compiler: str
    threads: int
    clock: str
    seed: int


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    """Nothing that Inductor or Triton has compiled before is found; what is compiled here stays till the end.

    The folder lies within that of `fresh_compiler`, which takes it away: a kernel may load its objects late.
    """
    within = os.environ.get(CACHE_VARIABLE)
    with torch._inductor.utils.fresh_cache(dir=within, delete=within is None):  # noqa: SLF001 - no public name
        yield


@contextlib.contextmanager
def fresh_compiler(options: BenchOptions) -> Iterator[None]:
    """Torch's threads set and its Inductor cache empty; the process' first compile done, freed memory kept.

    That first compile, of a small kernel that nothing else here has, imports the compiler and probes the
    machine, which no later compile does.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        # The folder is ours: fresh_cache leaves its own behind after an error or Ctrl-C.
        with (
            tempfile.TemporaryDirectory(prefix="ladder-opt-measure-") as folder,
            torch._inductor.utils.fresh_cache(dir=folder),  # noqa: SLF001 - it has no public name
            kept_heap(),
        ):
            compile_something(options)
            yield
    finally:
        torch.set_num_threads(threads)


def compile_something(options: BenchOptions) -> None:
    """The first compile of a process.

    Raises:
        UsageError: the compiler fails here.
    """
    compiled: Any = torch.compile(_something_else, backend=options.compiler)
    try:
        compiled(torch.ones(7, 5, device=options.device))
    except (RuntimeError, ImportError, NotImplementedError) as error:  # Dynamo's own are RuntimeErrors
        raise UsageError(
            f"--compiler: found {options.compiler!r}, which fails on {options.device} here "
            f"({_first_line(error)}), expected one that compiles"
        ) from error


def _first_line(error: Exception) -> str:
    return next(
        (line.strip()[:200] for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


def _something_else(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers @ numbers.T).softmax(-1).amax()


class KernelBench:
    """The reference kernel of one model's layers; use it within `opened`."""

    def __init__(self, engine: Engine, shape: ModelShape, options: BenchOptions) -> None:
        self.engine, self.shape, self.options = engine, shape, options
        self.layer = AttentionLayer(
            shape.num_query_heads, shape.head_size, shape.score_scale, shape.logits_soft_cap
        )
        self.dtype: torch.dtype = getattr(torch, shape.dtype)
        self.rng = torch.Generator().manual_seed(options.seed)
        self.timed_layers = min(shape.layers, MOST_TIMED_LAYERS)
        self.pages = self._allocate()
        self.compiled: dict[Point, _Compiled] = {}
        self.kernels = CompiledKernels(compiler=options.compiler)
        self._graphs: dict[tuple[int, int, int], Timed] = {}

    @classmethod
    @contextlib.contextmanager
    def opened(cls, engine: Engine, shape: ModelShape, options: BenchOptions) -> Iterator[KernelBench]:
        """A bench with its threads set and an empty Inductor cache; both are put back afterwards."""
        with fresh_compiler(options):
            yield cls(engine, shape, options)

    def compile(self, point: Point) -> Timed:
        """See `Bench.compile`."""
        made = self.compiled[point] = _Compiled.of(point, self)
        batch = made.padded(self)
        graph = batch.variant.key
        known = self._graphs.get(graph)
        if known is not None:  # the two kernels meet where a chunk is one block, and pairs within a variant
            return known
        before = self.kernels.compiles
        gc.collect()
        with empty_cache():
            wall, spent = time.perf_counter(), process_seconds()
            try:
                self._layer_call(made, batch, 0)
                self._wait()
            except RuntimeError as error:
                raise self._failed(point, error) from error
            wall, spent = time.perf_counter() - wall, process_seconds() - spent
        if self.kernels.compiles != before + 1:
            raise InternalError(f"{point}: {self.kernels.compiles - before} graphs compiled, expected one")
        timed = self._graphs[graph] = Timed(spent if self.options.clock == "cpu" else wall, wall)
        return timed

    def step(self, point: Point) -> Timed:
        """See `Bench.step`."""
        made = self.compiled[point]
        cuda = self.options.device.type == "cuda"
        self._wait()
        new_event: Any = torch.cuda.Event  # its constructor carries no types
        events = [new_event(enable_timing=True) for _ in range(3)] if cuda else []
        wall, spent = time.perf_counter(), time.thread_time()
        stream = torch.cuda.current_stream(self.options.device) if cuda else None
        if events:
            events[0].record(stream)
        batch = made.padded(self)
        padded_wall, padded_spent = time.perf_counter(), time.thread_time()
        if events:
            events[1].record(stream)
        for at in range(self.timed_layers):
            self._layer_call(made, batch, at)
        if events:
            events[2].record(stream)
        self._wait()
        done_wall, done_spent = time.perf_counter(), time.thread_time()
        by_wall = self._share(padded_wall - wall, done_wall - padded_wall)
        if self.options.clock == "cpu":
            return Timed(self._share(padded_spent - spent, done_spent - padded_spent), by_wall)
        if events:
            padding, calls = (one.elapsed_time(other) * 1e-3 for one, other in pairwise(events))
            return Timed(self._share(padding, calls), by_wall)
        return Timed(by_wall, by_wall)

    def _share(self, padding_seconds: float, calls_seconds: float) -> float:
        """One layer's: a step is padded once, and calls the kernel in every layer."""
        return padding_seconds / self.shape.layers + calls_seconds / self.timed_layers

    def _layer_call(self, made: _Compiled, batch: Any, at: int) -> None:
        sliding = at < self.shape.sliding_layers  # a mask of another start: the graph is the same
        self.kernels.run(
            batch,
            self.layer,
            made.query,
            self.pages[at % len(self.pages)],
            sliding_window=self.shape.sliding_window if sliding else None,
        )

    def _allocate(self) -> list[torch.Tensor]:
        shape = self.shape
        page_bytes = shape.num_kv_heads * self.engine.block_size * 2 * shape.head_size * self.dtype.itemsize
        pages = min(self.engine.num_pages, max(2, MOST_CACHE_BYTES // page_bytes))
        layers = max(1, min(self.timed_layers, MOST_CACHE_BYTES // (pages * page_bytes)))
        size = (pages, shape.num_kv_heads, self.engine.block_size, 2 * shape.head_size)
        made = []
        for _ in range(layers):
            part = torch.empty(size, dtype=self.dtype)
            part.normal_(generator=self.rng)
            made.append(part.to(self.options.device))
        return made

    def _failed(self, point: Point, error: RuntimeError) -> UsageError:
        at = f"{point.kernel} {point.num_seqs} x {point.num_blocks}"
        return UsageError(
            f"--compiler: found {self.options.compiler!r}, which fails on {self.options.device} at {at} "
            f"({_first_line(error)}), expected one that compiles"
        )

    def _wait(self) -> None:
        if self.options.device.type == "cuda":
            torch.cuda.synchronize(self.options.device)
        elif self.options.device.type != "cpu":
            from torch._dynamo.device_interface import get_interface_for_device  # noqa: PLC0415

            get_interface_for_device(self.options.device).synchronize(self.options.device)


@dataclass(frozen=True)
class _Compiled:
    """The batch that a point is timed with: all of its sequences, one of them of all its blocks.

    Attributes:
        padder: the builder, with ladders that hold the point.
        block_table: int32 (num_seqs, num_blocks), pages dealt at random.
        seq_lens: int32 (num_seqs,).
        query: (num_seqs, num_query_heads, head_size).
    """

    padder: BatchPadder
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query: torch.Tensor

    @classmethod
    def of(cls, point: Point, bench: KernelBench) -> _Compiled:
        engine, rng = bench.engine, bench.rng
        longest = min(point.num_blocks * engine.block_size, engine.max_model_len)
        seq_lens = torch.randint(1, longest + 1, (point.num_seqs,), generator=rng, dtype=torch.int32)
        seq_lens[0] = longest
        pages = len(bench.pages[0])
        table = torch.randint(1, pages, (point.num_seqs, point.num_blocks), generator=rng, dtype=torch.int32)
        shape = (point.num_seqs, bench.layer.num_heads, bench.layer.head_size)
        query = torch.randn(shape, generator=rng).to(dtype=bench.dtype, device=bench.options.device)
        return cls(_padder(engine, point), table, seq_lens, query)

    def padded(self, bench: KernelBench) -> Any:
        batch = self.padder.pad(self.block_table, self.seq_lens)
        if batch is None:
            raise InternalError(f"found no variant for a batch of {tuple(self.block_table.shape)}")
        return batch if bench.options.device.type == "cpu" else batch.to(bench.options.device)


def _padder(engine: Engine, point: Point) -> BatchPadder:
    """The server's builder, with ladders that have the point among their rungs."""
    ladders = Ladders(
        tuple(sorted({point.num_seqs, engine.max_num_seqs})),
        tuple(sorted({point.num_blocks, engine.max_num_blocks})),
    )
    return BatchPadder(
        Bucketer(
            engine,
            ladders,
            kv_tokens=(engine.max_model_len,),
            query_tokens=(1,),
            kernel=point.kernel,
        )
    )


def process_seconds() -> float:
    """CPU time of this process and of those that it has waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
