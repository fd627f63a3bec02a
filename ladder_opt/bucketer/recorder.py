"""Counting what is dispatched, at next to no cost, and writing it down beside the server.

`StepRecorder` is what the attention backend calls once a step, with the sizes before padding: a dictionary
look-up and two additions. `StepsWriter` writes a recorder's counts from a thread of its own, every so often
and when the process ends, as a steps file and the record beside it (`ladder_opt/occupancy/record_file.py`).
A write that fails is told once and tried again at the next; serving never waits for it and never sees it.
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing.util
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder_opt._version import __version__
from ladder_opt.bucketer.bucketer import Bucketer

_MOST_NOTED = 1 << 16  # where nobody asks for the counts
_ADD_UP_SECONDS = 1.0  # little and often: adding up holds the interpreter
_QUIET_SHARE = 0.1  # of the time between writes, to be past before a write for quiet
_LAST_OF_EXIT = -100  # finalizers of lower priority run later: what serves has ended by then


@dataclass(frozen=True)
class Counts:
    """What a recorder has counted.

    Attributes:
        cells: {(num_seqs, num_blocks): (steps, KV pages that their sequences hold)}.
        late_compiles: compiles since warm-up ended.
        seconds: time since warm-up ended.
    """

    cells: dict[tuple[int, int], tuple[int, int]]
    late_compiles: int
    seconds: float


class StepRecorder:
    """Counts decode steps before they are padded. Nothing is counted until `start`.

    The thread that serves only notes what it saw (`step`, `decode`); whoever asks for `counts`, such as the
    writer's thread, adds it up. So a step costs the server one append, whatever the batch.

    Attributes:
        counting: whether warm-up has ended.
        added_up: steps added up so far.
    """

    def __init__(self) -> None:
        self.counting = False
        self.added_up = 0
        self._noted: deque[tuple[int, int, int]] = deque()
        self._noted_lengths: deque[tuple[int, tuple[int, ...]]] = deque()
        self._cells: dict[tuple[int, int], list[int]] = {}
        self._adding = threading.Lock()
        self._late = 0
        self._compiles = 0
        self._started = 0.0

    def start(self, *, compiles: int = 0) -> None:
        """Warm-up has ended; a second call starts over.

        Args:
            compiles: what the process's count of compiles stands at.
        """
        with self._adding:
            self._noted.clear()
            self._noted_lengths.clear()
            self._cells.clear()
        self._late, self._compiles = 0, compiles
        self._started = time.monotonic()
        self.counting = True

    def step(self, num_seqs: int, num_blocks: int, pages: int) -> None:
        """Count a step.

        Args:
            num_seqs: decoding sequences in it.
            num_blocks: KV blocks of the longest of them.
            pages: KV blocks of all of them.
        """
        if self.counting:
            self._noted.append((num_seqs, num_blocks, pages))
            if len(self._noted) >= _MOST_NOTED:
                self.add_up()

    def decode(self, kv_lens: Sequence[int], block_size: int) -> None:
        """Count a step by its decoding sequences' KV tokens (its own token counted); none is no step."""
        if self.counting and kv_lens:
            self._noted_lengths.append((block_size, tuple(kv_lens)))
            if len(self._noted_lengths) >= _MOST_NOTED:
                self.add_up()

    def compiles(self, total: int) -> None:
        """Tell where the process's count of compiles stands; what it grew by since `start` was late."""
        if self.counting and total > self._compiles:
            self._late += total - self._compiles
            self._compiles = total

    def add_up(self) -> None:
        """Add up what was noted."""
        with self._adding:
            for _ in range(len(self._noted_lengths)):
                block_size, kv_lens = self._noted_lengths.popleft()
                blocks = [-(-tokens // block_size) for tokens in kv_lens]
                self._add(len(blocks), max(blocks), sum(blocks))
            for _ in range(len(self._noted)):
                self._add(*self._noted.popleft())

    def counts(self) -> Counts:
        """What was counted so far."""
        self.add_up()
        with self._adding:
            cells = {size: (cell[0], cell[1]) for size, cell in self._cells.items()}
        return Counts(cells, self._late, time.monotonic() - self._started if self.counting else 0.0)

    def _add(self, num_seqs: int, num_blocks: int, pages: int) -> None:
        cell = self._cells.setdefault((num_seqs, num_blocks), [0, 0])
        cell[0] += 1
        cell[1] += pages
        self.added_up += 1


class StepsWriter:
    """Writes what a recorder counts, in a thread of its own.

    Args:
        recorder: what to write.
        bucketer: the ladders in use, which say what the steps were padded to.
        folder: where files go; made where it is missing.
        instance: the server, the same for all its processes.
        rank: the engine's number among the server's engines.
        every_seconds: time between writes.
        warn: called with one line, once, when a write fails.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        bucketer: Bucketer,
        folder: str | Path,
        *,
        instance: str,
        rank: int,
        every_seconds: float,
        warn: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._bucketer = bucketer
        from ladder_opt.occupancy.record_file import record_stem  # noqa: PLC0415  (brings numpy)

        self._folder = Path(folder)
        self._started = dt.datetime.now(dt.UTC)
        self._stem = record_stem(started=f"{self._started:%Y%m%dT%H%M%SZ}", instance=instance, rank=rank)
        self._instance, self._rank = instance, rank
        self._every_seconds = every_seconds
        self._warn = warn
        self._has_warned = False
        self._stopped = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ladder_opt steps", daemon=True)
        # Runs as the process ends, in vLLM's forked workers too, where atexit's handlers do not.
        self._finalizer = multiprocessing.util.Finalize(None, self.stop, exitpriority=_LAST_OF_EXIT)

    @property
    def path(self) -> Path:
        """The steps file."""
        return self._folder / f"{self._stem}.csv"

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what there is and end."""
        if not self._stopped.is_set():
            self._stopped.set()
            self.write()

    def write(self) -> bool:
        """Write now; whether it was done (nothing counted yet is nothing to write)."""
        counts = self._recorder.counts()
        if not counts.cells:
            return False
        try:
            with self._writing:
                self._write(counts)
        except Exception as error:  # noqa: BLE001 - whatever fails here, serving goes on
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"nothing recorded in {self._folder} for now: {error}; serving goes on")
            return False
        return True

    def _run(self) -> None:
        # vLLM kills its workers as it shuts down, unless told to wait, and mostly when traffic has ended:
        # what was counted is also written as soon as steps cease to come.
        seen = written = 0
        last_write = time.monotonic()
        while not self._stopped.wait(min(_ADD_UP_SECONDS, self._every_seconds)):
            self._recorder.add_up()
            total = self._recorder.added_up
            since = time.monotonic() - last_write
            is_quiet = total == seen != written and since >= self._every_seconds * _QUIET_SHARE
            seen = total
            if is_quiet or since >= self._every_seconds:
                last_write = time.monotonic()
                if self.write():
                    written = total

    def _write(self, counts: Counts) -> None:
        import numpy as np  # noqa: PLC0415

        from ladder_opt.files import write_text  # noqa: PLC0415
        from ladder_opt.occupancy.histogram import StepHistogram  # noqa: PLC0415
        from ladder_opt.occupancy.steps_file import write_steps  # noqa: PLC0415

        self._folder.mkdir(parents=True, exist_ok=True)
        sizes = np.array(list(counts.cells), np.int64)
        steps = np.array(list(counts.cells.values()), np.float64)
        write_steps(StepHistogram(sizes[:, 0], sizes[:, 1], steps[:, 0], steps[:, 1]), self.path)
        write_text(self.path.with_suffix(".json"), json.dumps(self._record(counts), indent=2) + "\n")

    def _record(self, counts: Counts) -> dict[str, Any]:
        from ladder_opt.occupancy.record_file import RECORD_SCHEMA  # noqa: PLC0415

        ladders = self._bucketer.ladders
        return {
            "schema": RECORD_SCHEMA,
            "instance": self._instance,
            "rank": self._rank,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(counts.seconds, 3),
            "engine": self._bucketer.engine.to_dict(),
            "kernel": self._bucketer.kernel,
            "source": self._bucketer.source,
            "ladders": {
                "num_seqs": list(ladders.num_seqs),
                "num_blocks": list(ladders.num_blocks),
                "ragged": ladders.ragged_dict(),
            },
            **padding_of(counts, self._bucketer),
            "late_compiles": counts.late_compiles,
            "version": __version__,
        }


def padding_of(counts: Counts, bucketer: Bucketer) -> dict[str, dict[str, int]]:
    """Steps and KV pages of what was counted, under the ladders in use: `steps` and `gathers` of a record.

    Steps of the per-sequence path count as steps alone.
    """
    steps = {"batched": 0, "per_sequence": 0}
    gathers = {"real": 0, "ragged_floor": 0, "padded": 0}
    for (num_seqs, num_blocks), (number, pages) in counts.cells.items():
        pair = bucketer.dispatch(num_seqs, num_blocks)
        if pair is None:
            steps["per_sequence"] += number
            continue
        variant = bucketer.variant_of(*pair)
        steps["batched"] += number
        gathers["real"] += pages
        gathers["ragged_floor"] += number * num_seqs * num_blocks
        gathers["padded"] += number * variant.num_seqs * variant.blocks_per_chunk * variant.num_chunks
    return {"steps": steps, "gathers": gathers}
