"""Draw charts for the docs as SVG files, with identical output for identical values."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@contextmanager
def figure(width_inches: float, height_inches: float) -> "Iterator[Axes]":
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "penstock", "font.size": 9, "svg.fonttype": "none"}):
        made, axes = pyplot.subplots(figsize=(width_inches, height_inches))
        axes.grid(visible=True, axis="both", linewidth=0.4)
        axes.set_axisbelow(True)
        try:
            yield axes
        finally:
            pyplot.close(made)


def save(axes: "Axes", file: Path) -> None:
    made = axes.get_figure()
    assert made is not None
    made.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    # Matplotlib leaves trailing spaces.
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")
