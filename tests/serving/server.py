"""`vllm serve` as a child of the test: started, asked over HTTP, ended; and killed where a test wants it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.serving.environment import ENGINE_ARGUMENTS, environment, python

MODEL_NAME = "tiny"
_START_SECONDS = 600.0
_END_SECONDS = 60.0
_ANSWER_SECONDS = 300.0
_QUEUED_SECONDS = 0.02  # from the answer's head to the engine's queue; a millisecond or two when calm


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens it is to be continued with."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        tokens: the tokens generated.
        asked_at: when the request was sent, seconds since the epoch.
        first_token_at: when the first one came, seconds since the epoch.
        last_token_at: when the last one came.
    """

    tokens: list[int]
    asked_at: float
    first_token_at: float
    last_token_at: float


class Server:
    """One server; a context manager, which waits until it is up and ends it."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        inductor_cache: Path,
        *,
        arguments: dict[str, Any],
        additional_config: dict[str, Any],
        variables: dict[str, str] | None = None,
        interpreter: Path | None = None,
    ) -> None:
        self.log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options: list[object] = ["serve", model, "--port", self.port, "--host", "127.0.0.1"]
        options += ["--served-model-name", MODEL_NAME, "--additional-config", json.dumps(additional_config)]
        for name, value in {**ENGINE_ARGUMENTS, **arguments}.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                options.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                options += [f"--{flag}", value]
        self._command = python("vllm.entrypoints.cli.main", *options, interpreter=interpreter)
        self._environment = environment(inductor_cache, VLLM_SERVER_DEV_MODE="1", **(variables or {}))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        try:
            self._wait_until_up()
        except BaseException:  # an interrupt too: __exit__ is not called for what was never entered
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all of its processes at once, whatever they are doing."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_END_SECONDS)

    def report(self) -> dict[str, Any]:
        """The worker's report."""
        with self._post("/collective_rpc", {"method": "ladder_opt_report"}) as reply:
            report: dict[str, Any] = json.load(reply)["results"][0]
        return report

    def complete(self, request: Request, accepted: threading.Event | None = None) -> Answer:
        """Greedy tokens of one request; `accepted` is set once the server has begun to answer."""
        asked = {
            "model": MODEL_NAME,
            "prompt": list(request.prompt),
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        tokens: list[int] = []
        asked_at, first_token_at, last_token_at = time.time(), 0.0, 0.0
        with self._post("/v1/completions", asked) as reply:
            if accepted is not None:
                accepted.set()
            for line in reply:
                text = line.decode().removeprefix("data: ").strip()
                if text in {"", "[DONE]"}:
                    continue
                new = json.loads(text)["choices"][0].get("token_ids") or []
                if new:
                    last_token_at = time.time()
                    first_token_at = first_token_at or last_token_at
                tokens += new
        return Answer(tokens, asked_at, first_token_at, last_token_at)

    def complete_in_order(self, requests: Sequence[Request]) -> list[Answer]:
        """Greedy tokens of requests in flight together, each sent after the server has taken the last.

        Requests sent at once are queued in another order than that of their arrival times, now and then: the
        server stamps them, begins to answer, and only then hands them to the engine, each in its own task.
        """
        with ThreadPoolExecutor(len(requests)) as pool:
            waiting: list[Future[Answer]] = []
            for request in requests:
                accepted = threading.Event()
                waiting.append(pool.submit(self.complete, request, accepted))
                accepted.wait(_ANSWER_SECONDS)
                time.sleep(_QUEUED_SECONDS)
            return [answer.result() for answer in waiting]

    def complete_all(self, requests: Sequence[Request], *, gap_seconds: Sequence[float] = ()) -> list[Answer]:
        """Greedy tokens of requests in flight together, sent in order, a gap after each of the first ones."""
        with ThreadPoolExecutor(len(requests)) as pool:
            waiting: list[Future[Answer]] = []
            for at, request in enumerate(requests):
                waiting.append(pool.submit(self.complete, request))
                time.sleep(gap_seconds[at] if at < len(gap_seconds) else 0.0)
            return [answer.result() for answer in waiting]

    def flood(self, requests: Sequence[Request]) -> None:
        """Send requests and leave them; that they fail, when the server is killed, is nobody's concern."""

        def send(request: Request) -> None:
            with contextlib.suppress(OSError, ValueError):
                self.complete(request)

        for request in requests:
            threading.Thread(target=send, args=(request,), daemon=True).start()

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self._log_end()}")
            with contextlib.suppress(OSError), urllib.request.urlopen(self._url("/health"), timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError(f"the server was not up after {_START_SECONDS:g} s:\n{self._log_end()}")

    def _post(self, path: str, data: dict[str, Any]) -> Any:
        body = json.dumps(data).encode()
        asked = urllib.request.Request(self._url(path), body, {"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(asked, timeout=_ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read()[:500]!r}") from None

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]
