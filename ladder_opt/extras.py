"""Packages that the core does without: where one is missing, one line says which extra of ours brings it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ladder_opt.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


@contextlib.contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Around imports: a package that is not installed is the user's to install.

    Args:
        extra: the one of pyproject.toml that names it.

    Raises:
        UsageError: it is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        raise UsageError(
            f"found no package {package}, expected it (pip install 'ladder-opt[{extra}]')"
        ) from None


def data_frame(data: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A pandas table of columns by name, or of rows.

    Raises:
        UsageError: pandas is missing.
    """
    with brought_by("frames"):
        import pandas as pd  # noqa: PLC0415  (the core does without)

    return pd.DataFrame(data)
