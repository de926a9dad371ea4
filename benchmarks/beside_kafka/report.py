"""Show results as a table on the terminal, and as Markdown with a chart in the docs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from benchmarks.beside_kafka.results import ROOT, Result, rows_of, systems_of
from benchmarks.beside_kafka.rows import KAFKA, Bar, Row
from benchmarks.beside_kafka.systems import DURABILITY, SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE: Final = ROOT / "docs" / "performance-kafka.md"
CHART: Final = ROOT / "docs" / "beside-kafka.svg"
BEGIN: Final = "<!-- beside-kafka: begin -->"
END: Final = "<!-- beside-kafka: end -->"
_CHARTED: Final = (
    "java-produce",
    "java-produce-cpu",
    "consume-cpu",
    "small",
    "small-cpu",
    "fan-out",
    "fan-out-cpu",
    "latency-p99",
    "group",
    "start",
    "move",
    "kill-p50",
    "kill-all",
    "rss-idle",
)
_COLORS: Final = {"memory": "#4c78a8", "file": "#54a24b", "moto": "#b279a2", "versitygw": "#e45756"}


def number(value: float) -> str:
    """Return the number with about three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bar_text(row: Row, bar: Bar) -> str:
    sign = "≥" if row.better == "higher" else "≤"
    return f"{sign} {bar.value:g}" + (" times" if bar.beside_kafka else "")


def bars_text(row: Row) -> str:
    """Return the targets of a row, or a single one if all systems have the same."""
    texts = {name: bar_text(row, bar) for name, bar in row.bars.items()}
    if len(set(texts.values())) <= 1 and ("*" in texts or len(texts) != 1):
        return next(iter(texts.values()), "")
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def cell(row: Row, values: Mapping[str, float], system: str, result: Result) -> str:
    """Return the value and its ratio to that of Kafka."""
    if system in result.failures and system not in values:
        return "failed"
    if system not in values:
        return ""
    ratio = row.ratio(values, system) if system != KAFKA else None
    return number(values[system]) + (f" ({number(ratio)}x)" if ratio is not None else "")


def terminal_table(results: Mapping[str, Result], title: str) -> Table:
    systems = systems_of(results, SYSTEMS)
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for system in systems:
        table.add_column(system, justify="right")
    table.add_column("bar")
    for row, values, result in rows_of(results):
        cells: list[str] = []
        for system in systems:
            text, passed = cell(row, values, system, result), row.passed(values, system)
            color = {True: "green", False: "red", None: ""}[passed]
            cells.append(f"[{color}]{text}[/]" if color else text)
        busy = " *" if result.is_busy else ""
        table.add_row(f"{row.title}, {row.unit}{busy}", *cells, bars_text(row))
    return table


def markdown(results: Mapping[str, Result]) -> str:
    """Return the text between the markers of docs/performance-kafka.md."""
    systems, shown = systems_of(results, SYSTEMS), rows_of(results)
    lines = [*_run(results), "", *_durability(systems), ""]
    lines += [f"| Measure | {' | '.join(systems)} | Bar |", f"|---|{'---|' * len(systems)}---|"]
    for row, values, result in shown:
        cells: list[str] = []
        for system in systems:
            text = cell(row, values, system, result)
            cells.append(f"**{text}**" if row.passed(values, system) is False else text)
        lines.append(f"| {row.title}, {row.unit} | {' | '.join(cells)} | {bars_text(row)} |")
    failures = [
        f"- {result.measurement}, {system}: {text}"
        for result in results.values()
        for system, text in result.failures.items()
    ]
    lines += [
        "",
        "Figures that miss their bar are bold; bars compare with Kafka where they say so.",
    ]
    lines += ["", "These measurements failed:", "", *failures] if failures else []
    lines += ["", f"![Ratios beside Kafka]({CHART.name}){{ .diagram }}", ""]
    return "\n".join(lines)


def _run(results: Mapping[str, Result]) -> list[str]:
    """Return a line with the machine, date and commit of the results."""
    commits = sorted({result.commit for result in results.values()})
    dates = sorted({result.date[:10] for result in results.values()})
    machines = sorted({result.machine for result in results.values()})
    busy = [name for name, result in results.items() if result.is_busy]
    loads = [results[name].load for name in busy]
    lines = [
        f"Commit {', '.join(commits)}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))},"
        f" {'; '.join(machines)}."
    ]
    if busy:
        lines.append(
            f"Other work ran on the machine during {len(busy)} of {len(results)} measurements and"
            f" took {min(loads):.0%} to {max(loads):.0%} of its cores."
        )
    return lines


def _durability(systems: Sequence[str]) -> list[str]:
    return ["A record is", "", *(f"- **{name}**: {DURABILITY[name]}." for name in systems)]


def with_section(page: str, section: str) -> str:
    """Return the page with the text between its markers replaced. Raises ValueError without
    markers.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{PAGE.name} needs one line {BEGIN} and one line {END}")
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{section}\n{END}{rest.partition(END)[2]}"


def draw(results: Mapping[str, Result], file: Path = CHART) -> None:
    """Draw the ratios as an SVG: values right of 1 are better than those of Kafka."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    from benchmarks.beside_kafka.chart import figure, save

    systems = [name for name in systems_of(results, SYSTEMS) if name != KAFKA]
    rows = [
        (row, values)
        for row, values, _ in rows_of(results)
        if row.key in _CHARTED and any(row.ratio(values, name) for name in systems)
    ]
    with figure(8, 1 + 0.42 * len(rows)) as axes:
        for at, (row, values) in enumerate(rows):
            _draw_row(axes, at, row, values, systems)
        axes.set_yticks(range(len(rows)), [row.title for row, _ in rows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.axvline(1, color="#888888", linewidth=1)
        axes.set_xlabel("times better than Apache Kafka (left of 1: worse)")
        handles, labels = axes.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        axes.legend(named.values(), named.keys(), loc="lower right")
        save(axes, file)


def _draw_row(
    axes: "Axes", at: int, row: Row, values: Mapping[str, float], systems: Sequence[str]
) -> None:
    for index, system in enumerate(systems):
        ratio = row.ratio(values, system)
        if not ratio:
            continue
        better = ratio if row.better == "higher" else 1 / ratio
        spread = 0.5 * ((index + 0.5) / len(systems) - 0.5)
        axes.plot(better, at + spread, "o", color=_COLORS[system], label=system, markersize=5)


def write_docs(results: Mapping[str, Result]) -> None:
    """Rewrite the section of docs/performance-kafka.md and its chart."""
    from benchmarks.beside_kafka import many

    section = markdown(results)
    draw(results)
    if (measured := many.stored()) is not None:
        section += "\n" + many.markdown(measured)
        many.draw(measured.values)
    PAGE.write_text(with_section(PAGE.read_text(), section))
