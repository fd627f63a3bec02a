"""The figures of a report as files of their own, for slides and papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder_opt.arguments import checked
from ladder_opt.errors import InputError, UsageError
from ladder_opt.files import replace_when_whole
from ladder_opt.plan.outputs import check_not_an_input
from ladder_opt.plan.plan import Plan
from ladder_opt.report.contents import Contents, as_contents
from ladder_opt.report.drawn import FigureData, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
_DOTS_PER_INCH = 200


def check_format(format: str) -> None:  # noqa: A002 - the option's name
    """Refuse a format that figures are not written in.

    Raises:
        UsageError: an unknown one.
    """
    if format not in FORMATS:
        raise UsageError(f"--figures-format: found {format!r}, expected {' or '.join(FORMATS)}")


@checked
def write_figures(
    plan: Plan | Contents,
    folder: str | Path,
    *,
    format: str = "svg",  # noqa: A002 - the option's name
    **given: Any,
) -> list[Path]:
    """Write each figure as FOLDER/NAME.svg or .png, whole or not at all; the folder is made if missing.

    Args:
        plan: the plan, or the contents that `write_report` returned.
        folder: where the files go.
        format: "svg" or "png".
        given: what a plan's file does not hold, as `report.contents.gather` takes it.

    Returns:
        The files, in the order of the report.

    Raises:
        UsageError: an unknown format.
        InputError: the folder cannot be made or written, or a figure would replace a file that the plan was
            made from.
    """
    check_format(format)
    contents = as_contents(plan, given)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(error.strerror or str(error), "a folder that can be made", path=folder) from None
    written = []
    # Without a date and a creator, the same plan gives the same picture.
    metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
    for name, data in drawn(contents).named().items():
        path = folder / f"{name}.{format}"
        check_not_an_input(path, contents.plan)
        with replace_when_whole(path) as part:
            _draw(name, data).savefig(part, format=format, dpi=_DOTS_PER_INCH, metadata=metadata)
        written.append(path)
    return written


def _draw(name: str, data: FigureData) -> Figure:
    from ladder_opt.plot import _matplotlib as draw  # noqa: PLC0415  (half a second)

    return getattr(draw, f"{name}_figure")(data)  # type: ignore[no-any-return]
