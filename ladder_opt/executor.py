"""Where independent work runs: on threads here, or on a Dask cluster through joblib.

Results come back in the order of the tasks, so what is added up in that order does not depend on where it
ran, nor on how many jobs there were. `docs/design/0014-streams-and-shares.md` says why threads.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ladder_opt.arguments import check_fields
from ladder_opt.errors import UsageError

Report = Callable[[int], None]
"""Called by a task with units of its work that are done, now and then."""
Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Task, Report | None], Result]

MOST_JOBS = 4096
_SCHEME = "dask://"
_CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Executor:
    """Where work runs.

    Attributes:
        jobs: how many tasks run at a time; None: as many as there are cores, here or in the cluster.
        dask: "HOST:PORT" of a Dask scheduler; None: here.
    """

    jobs: int | None = None
    dask: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise UsageError(f"--jobs: found {self.jobs}, expected 1 to {MOST_JOBS}")

    @classmethod
    def named(cls, name: str, *, jobs: int | None = None) -> Executor:
        """An executor by its name on the command line: `local`, or `dask://HOST:PORT`.

        Raises:
            UsageError: the name is neither.
        """
        if name == "local":
            return cls(jobs)
        address = name.removeprefix(_SCHEME)
        host, colon, port = address.rpartition(":")
        if name == address or not (host and colon and port.isascii() and port.isdigit()):
            raise UsageError(f"--executor: found {name!r}, expected local or {_SCHEME}HOST:PORT")
        return cls(jobs, address)

    @contextlib.contextmanager
    def open(self) -> Iterator[Pool]:
        """Workers to give tasks to.

        Raises:
            UsageError: no cluster answers, it has no workers, or the extra `dask` is not installed.
        """
        if self.dask is None:
            yield _LocalPool(self.jobs or _cores_here())
            return
        client = _connected(self.dask)
        try:
            yield _DaskPool(self.jobs or _cores_of(client, self.dask), client, self.dask)
        finally:
            client.close()


@dataclass(frozen=True)
class Pool:
    """Workers.

    Attributes:
        workers: how many tasks run at a time.
    """

    workers: int

    @property
    def is_remote(self) -> bool:
        """Whether tasks travel to other processes."""
        return False

    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        *,
        sizes: Sequence[int],
        progress: Callable[[float], None] | None = None,
    ) -> list[Result]:
        """The results of `work(task, report)`, in the order of the tasks.

        Args:
            work: a function that other processes can import.
            tasks: what it is called with.
            sizes: units of work of each, in which it reports.
            progress: called with the share done, 0 to 1.
        """
        raise NotImplementedError


class _LocalPool(Pool):
    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        *,
        sizes: Sequence[int],
        progress: Callable[[float], None] | None = None,
    ) -> list[Result]:
        report = None if progress is None else _Tally(sum(sizes), progress)
        if self.workers == 1 or len(tasks) <= 1:
            return [work(task, report) for task in tasks]
        from multiprocessing.pool import ThreadPool  # noqa: PLC0415  (small work does without)

        # Not concurrent.futures, whose threads are waited for: Ctrl-C would end when a long replay does.
        with ThreadPool(min(self.workers, len(tasks))) as pool:
            return list(pool.imap(lambda task: work(task, report), tasks))


@dataclass(frozen=True)
class _DaskPool(Pool):
    client: Any
    address: str

    @property
    def is_remote(self) -> bool:
        return True

    def map(
        self,
        work: Work[Task, Result],
        tasks: Sequence[Task],
        *,
        sizes: Sequence[int],
        progress: Callable[[float], None] | None = None,
    ) -> list[Result]:
        import joblib  # noqa: PLC0415

        report = None if progress is None else _Tally(sum(sizes), progress)
        # joblib's Dask backend puts large arguments on one worker, and they are lost with it. Bytes stay in
        # the task, which the scheduler keeps: a task whose worker dies runs again elsewhere.
        packed = [pickle.dumps((work, task)) for task in tasks]
        results: list[Result] = []
        try:
            with joblib.parallel_config(
                backend="dask", client=self.client, wait_for_workers_timeout=_CONNECT_SECONDS
            ):
                parallel = joblib.Parallel(
                    n_jobs=self.workers, batch_size=1, pre_dispatch="all", return_as="generator"
                )
                for size, result in zip(
                    sizes, parallel(joblib.delayed(_run_packed)(each) for each in packed), strict=True
                ):
                    results.append(result)
                    if report is not None:
                        report(size)
        except ImportError as error:
            raise UsageError(
                f"--executor: found workers at {self.address} that lack {error.name}, "
                "expected the ladder_opt of this machine on all of them"
            ) from None
        except self._lost() as error:
            raise UsageError(f"--executor: found {str(error)[:200]}, expected workers that stay up") from None
        return results

    @staticmethod
    def _lost() -> type[Exception]:
        from distributed import KilledWorker  # noqa: PLC0415

        lost: type[Exception] = KilledWorker
        return lost


def _run_packed(packed: bytes) -> Any:
    work, task = pickle.loads(packed)  # noqa: S301  (packed by this very run)
    return work(task, None)


class _Tally:
    """Units done by tasks that run side by side, told as a share of all."""

    def __init__(self, total: int, progress: Callable[[float], None]) -> None:
        self._total = max(1, total)
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, units: int) -> None:
        with self._lock:
            self._done += units
            self._progress(min(1.0, self._done / self._total))


def _cores_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _connected(address: str) -> Any:
    try:
        import joblib  # noqa: F401, PLC0415
        from distributed import Client  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"--executor: found {_SCHEME}{address} but no package {error.name}, expected it (pip install "
            "'ladder-opt[dask]')"
        ) from None
    try:
        connect: Any = Client
        return connect(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n", maxsplit=1)[0][:120]
        raise UsageError(f"--executor: found no Dask scheduler at {address} ({reason})") from None


def _cores_of(client: Any, address: str) -> int:
    cores = sum(client.ncores().values())
    if not cores:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError:
            raise UsageError(f"--executor: found no worker at {address}, expected at least one") from None
        cores = sum(client.ncores().values())
    return int(cores)
