"""The engine limits that shape a decode step, in vLLM's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from ladder_opt.arguments import plain_number
from ladder_opt.errors import InputError, UsageError, one_of
from ladder_opt.files import read_text

BLOCK_SIZE_GRAIN_TOKENS = 64  # Spyre pages are multiples of 64 tokens
_MAX_ENGINE_FILE_BYTES = 1 << 20
_MAX_CELLS = 20_000_000  # batch shapes; more than any engine has, and all that memory takes
_LARGEST_LIMIT = 1 << 31  # past this a limit is a typing mistake, not an engine


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Limits of one vLLM engine.

    Attributes:
        block_size: tokens a KV block holds; a multiple of 64.
        max_num_seqs: sequences a step may hold.
        max_model_len: tokens of prompt and output together.
        max_num_batched_tokens: token budget of a step (chunked prefill).
        num_kv_blocks: KV blocks of the pool, the null block counted (vLLM's `num_gpu_blocks`);
            None for `max_num_seqs * ceil(max_model_len / block_size) + 1`, what Spyre allocates.
        min_batched_seqs: decoding sequences from which a step uses the batched kernel.
    """

    block_size: int = 128
    max_num_seqs: int = 32
    max_model_len: int = 8192
    max_num_batched_tokens: int = 512
    num_kv_blocks: int | None = None
    min_batched_seqs: int = 4

    block_size_grain_tokens: ClassVar[int] = BLOCK_SIZE_GRAIN_TOKENS

    def __post_init__(self) -> None:
        for field in fields(self):
            value = plain_number(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            if value is None and field.name == "num_kv_blocks":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{field.name}: found {value!r}, expected a whole number")
            if not 1 <= value < _LARGEST_LIMIT:
                raise UsageError(f"{field.name}: found {value}, expected 1 to {_LARGEST_LIMIT - 1}")
        if self.block_size % self.block_size_grain_tokens:
            raise UsageError(
                f"block_size: found {self.block_size}, expected a multiple of {self.block_size_grain_tokens}"
            )
        cells = self.max_num_seqs * self.max_num_blocks
        if cells > _MAX_CELLS:
            raise UsageError(
                f"max_num_seqs x blocks of max_model_len: found {self.max_num_seqs} x {self.max_num_blocks}, "
                f"expected at most {_MAX_CELLS} in all"
            )
        if self.num_kv_blocks is not None and self.num_kv_blocks < 2:
            raise UsageError(
                f"num_kv_blocks: found {self.num_kv_blocks}, expected 2 or more (one is vLLM's null block)"
            )

    @property
    def max_num_blocks(self) -> int:
        """Blocks of the longest sequence: the top num_blocks rung."""
        return -(-self.max_model_len // self.block_size)

    @property
    def usable_kv_blocks(self) -> int:
        """KV blocks that sequences can hold (the null block left out)."""
        if self.num_kv_blocks is None:
            return self.max_num_seqs * self.max_num_blocks
        return self.num_kv_blocks - 1

    @property
    def num_pages(self) -> int:
        """Pages of the KV cache, the null block counted."""
        return self.usable_kv_blocks + 1

    @property
    def batches_decodes(self) -> bool:
        """Whether any step can reach the batched kernel."""
        return self.max_num_seqs >= self.min_batched_seqs

    def to_dict(self) -> dict[str, int | None]:
        """The `engine` object of a plan file."""
        return asdict(self)

    def server_limits(self) -> dict[str, int | None]:
        """The limits that a server has which pads nothing: all but `min_batched_seqs`."""
        return {name: value for name, value in self.to_dict().items() if name != "min_batched_seqs"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, path: str | Path | None = None) -> Engine:
        """Read the `engine` object of a plan file; keys it does not have take their defaults.

        Raises:
            InputError: an unknown key or a value out of range.
        """
        known = {field.name for field in fields(cls)}
        for key in data:
            if key not in known:
                raise InputError(repr(key), one_of(sorted(known), key), path=path, column="engine")
        try:
            return cls(**data)
        except UsageError as error:
            name, _, rest = str(error).partition(": found ")
            found, _, expected = rest.partition(", expected ")
            raise InputError(found, expected, path=path, column=f"engine.{name}") from None


@dataclass(frozen=True, kw_only=True)
class ServerEngine(Engine):
    """Limits of a server that pads nothing, such as one on GPUs: to replay and calibrate, not to plan for.

    Blocks may have any size (vLLM's default there is 16 tokens), and no step is batched to a rung, whatever
    `min_batched_seqs` says: the replay prices every step by its own sequences and blocks.
    """

    block_size_grain_tokens: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "min_batched_seqs", self.max_num_seqs + 1)

    @classmethod
    def of(cls, engine: Engine) -> ServerEngine:
        """A server with an engine's limits."""
        return cls(**engine.server_limits())  # type: ignore[arg-type]  # whole numbers, but for one None


_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _from_human_readable(text: str) -> int | None:
    """`8k` is 8000 and `8K` is 8192, as vLLM's own options take them; None for anything else."""
    digits, factor = text.strip(), 1
    if digits[-1:] in _SUFFIXES:
        digits, factor = digits[:-1], _SUFFIXES[digits[-1]]
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    return int(digits) * factor


# What PyYAML's own constructors raise on tags such as !!bool abc, on a date of month 13, on deep brackets.
_YAML_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError)


_MERGE_TAG = "tag:yaml.org,2002:merge"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_LONGEST_NUMBER = 100
_MOST_MERGES = 8  # of one mapping into another: each may double what is there, and a serve file needs none


# vLLM's ways of saying that a model pools: `runner`, and the `convert` that implies it.
_POOLING_SETTINGS = {
    ("runner", "pooling"),
    ("convert", "embed"),
    ("convert", "classify"),
    ("convert", "reward"),
}


def load_engine_file(path: str | Path) -> dict[Any, Any]:
    """The mapping in a vLLM serve YAML or a saved engine JSON (JSON is YAML too), or a plan file's engine.

    Raises:
        InputError: the file is not a mapping.
    """
    import yaml  # noqa: PLC0415  (only needed with --engine)

    text = read_text(path, max_bytes=_MAX_ENGINE_FILE_BYTES, what="an engine file")
    try:
        loader = yaml.SafeLoader(text)  # as safe_load has it, with a look at the nodes in between
        node = loader.get_single_node()
        _check_keys(node, path)
        loaded = None if node is None else loader.construct_document(node)
    except InputError:
        raise
    except (
        yaml.YAMLError,
        *_YAML_FAULTS,
    ) as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "text that is no YAML"
        raise InputError(
            problem.removeprefix("found "),
            "a vLLM serve YAML",
            path=path,
            line=line,
        ) from None
    if isinstance(loaded, dict) and isinstance(loaded.get("engine"), dict):
        loaded = loaded["engine"]  # a plan file holds one too
    if not isinstance(loaded, dict):
        raise InputError(type(loaded).__name__, "a mapping of engine settings", path=path)
    return loaded


def _check_keys(document: Any, path: str | Path) -> None:
    """Refuse a key that stands twice in a mapping, merges (`<<`) that multiply, and numbers without end.

    Args:
        document: the root node of a YAML file, or None of an empty one.
        path: the file.

    Raises:
        InputError: with the line of the second.
    """
    import yaml  # noqa: PLC0415

    seen: set[int] = set()  # an alias is the very node again
    waiting = [] if document is None else [document]
    merged = 0
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        if not isinstance(node, yaml.CollectionNode):
            if node.tag in _NUMBER_TAGS and len(node.value) > _LONGEST_NUMBER:  # base 60 takes its square
                found = f"a number of {len(node.value)} characters"
                expected = f"at most {_LONGEST_NUMBER}"
                raise InputError(found, expected, path=path, line=node.start_mark.line + 1)
            continue
        seen.add(id(node))
        if not isinstance(node, yaml.MappingNode):
            waiting.extend(node.value)
            continue
        keys: set[tuple[str, str]] = set()
        for key, value in node.value:
            waiting.extend((key, value))
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in keys:
                raise InputError(f"key {key.value[:40]!r} twice", "each key once", path=path, line=line)
            keys.add((key.tag, key.value))
            if key.tag == _MERGE_TAG:
                merged += len(value.value) if isinstance(value, yaml.SequenceNode) else 1
                if merged > _MOST_MERGES:
                    raise InputError(
                        f"more than {_MOST_MERGES} merges (<<)", "at most that", path=path, line=line
                    )


def read_engine_settings(path: str | Path) -> dict[str, int | None]:
    """The engine limits set in a vLLM serve YAML or a saved engine JSON.

    vLLM's spelling with dashes and `num_gpu_blocks_override` (the pool's size) are understood; other settings
    are passed over (`occupancy/engine_file.py` looks at those of the scheduler).

    Raises:
        InputError: the file is not a mapping, or a limit in it is no whole number.
    """
    loaded = load_engine_file(path)
    names = {field.name: field.name for field in fields(Engine)} | {
        "num_gpu_blocks_override": "num_kv_blocks"
    }
    settings: dict[str, int | None] = {}
    _check_generates(loaded, path)
    for key, value in loaded.items():
        name = names.get(str(key).replace("-", "_"))
        if name is None:
            continue
        if name in settings:
            raise InputError(f"{key!r} besides another spelling of {name}", "each limit once", path=path)
        if value is None and name == "num_kv_blocks":
            settings[name] = None
        else:
            number = _from_human_readable(value) if isinstance(value, str) else value
            if isinstance(number, bool) or not isinstance(number, int):
                raise InputError(_shown(value), "a whole number", path=path, column=str(key))
            settings[name] = number
    return settings


def _check_generates(settings: Mapping[Any, Any], path: str | Path) -> None:
    for key, value in settings.items():
        if isinstance(value, str) and (str(key).replace("-", "_"), value) in _POOLING_SETTINGS:
            raise InputError(
                f"{key}: {value}",
                "a model that generates: pooling models never decode, and what they list in "
                "SPYRE_ATTN_NUM_SEQS_BUCKETS, entries below 4 included, is for another kernel",
                path=path,
            )


def _shown(value: object) -> str:
    """A value on one short line; a list is named only, since YAML's references can make one of any length."""
    return repr(value)[:60] if value is None or isinstance(value, str | int | float) else type(value).__name__
