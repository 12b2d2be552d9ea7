"""Lines and heat maps as one HTML page that needs no network: Plotly inside it, light and dark.

Plotly is an extra: ``pip install 'moeplan[plots]'``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version

from solvers.errors import UnsupportedError

__all__ = ["Chart", "Grid", "Line", "TableOf", "build_plots", "require_plotly"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes
    ----------
    name
        In the legend.
    x, y
        Points; None in ``y`` leaves a gap.
    dashed
        For what is no plan: a bound, a limit.
    texts
        What is shown of each point beside its values.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    dashed: bool = False
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot, with a sentence below it."""

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    words: str = ""
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A heat map, with a sentence below it.

    Attributes
    ----------
    title, x_title, y_title
        As of a chart.
    y
        What the rows stand for, from above; columns count from 0.
    cells
        Numbers, row by row, 0 the faintest.
    unit
        What the numbers are.
    """

    title: str
    x_title: str
    y_title: str
    y: tuple[int, ...]
    cells: tuple[tuple[float, ...], ...]
    unit: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class TableOf:
    """A table: its heading, its columns' headings, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: str = ""


def require_plotly() -> None:
    """Make sure, before any long work, that plots can be drawn.

    Raises
    ------
    UnsupportedError
        With the command that installs what is missing.
    """
    if importlib.util.find_spec("plotly") is None:
        raise UnsupportedError("--html needs plotly: pip install 'moeplan[plots]'")


def build_plots(
    title: str, subtitle: str, charts: Sequence[Chart | Grid], tables: Sequence[TableOf] = ()
) -> str:
    """The page.

    Parameters
    ----------
    title, subtitle
        At the top.
    charts, tables
        In this order below it; charts without a point are left out.

    Returns
    -------
    str
        HTML text, ready to be written to a file.
    """
    from plotly.offline import get_plotlyjs

    drawn = [
        chart for chart in charts if isinstance(chart, Grid) or any(line.x for line in chart.lines)
    ]
    sections = [
        f"<section><h2>{escape(chart.title)}</h2>"
        f'<div class="plot" id="plot{index}" role="img" aria-label="{escape(chart.title)}"></div>'
        f"<p>{escape(chart.words)}</p></section>"
        for index, chart in enumerate(drawn)
    ]
    sections += [_table(table) for table in tables]
    # "<" is escaped, so that no text in the data can end the script element
    data = json.dumps([_plot(chart) for chart in drawn], allow_nan=False).replace("<", "\\u003c")
    return _PAGE.format(
        title=escape(title),
        subtitle=escape(subtitle),
        sections="\n".join(sections),
        footer=escape(f"Made by moeplan {version('moeplan')}."),
        plotly=get_plotlyjs(),
        data=data,
        script=_SCRIPT,
    )


def _plot(chart: Chart | Grid) -> dict[str, object]:
    if isinstance(chart, Grid):
        # three digits that mean something: a large matrix is many numbers
        cells = [[float(f"{cell:.3g}") for cell in row] for row in chart.cells]
        return {
            "x": chart.x_title,
            "y": chart.y_title,
            "rows": [str(row) for row in chart.y],
            "cells": cells,
            "unit": chart.unit,
        }
    return {
        "x": chart.x_title,
        "y": chart.y_title,
        "log": chart.log_x,
        "lines": [
            {
                "name": line.name,
                "x": line.x,
                "y": line.y,
                "dashed": line.dashed,
                # plotly reads some tags in texts: none of ours has any
                "text": [escape(text) for text in line.texts],
            }
            for line in chart.lines
        ],
    }


def _table(table: TableOf) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div><p>{escape(table.words)}</p></section>"
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --page: #f7f7f5; --card: #fff; --ink: #1c1d21; --soft: #5d6068;
  --line: #dcdcd8; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #141519; --card: #1d1f24; --ink: #ececee;
  --soft: #a3a6ae; --line: #363942; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
main {{ max-width: 1000px; margin: 0 auto; padding: 20px 12px 40px; }}
h1 {{ font-size: 22px; margin: 0; line-height: 1.25; overflow-wrap: anywhere; }}
h2 {{ font-size: 16px; margin: 0 0 8px; }}
p {{ margin: 6px 0 0; color: var(--soft); max-width: 80ch; overflow-wrap: anywhere; }}
p:empty {{ display: none; }}
section {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px; margin-top: 14px; }}
.plot {{ width: 100%; height: 380px; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px; }}
th, td {{ text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
th {{ font-weight: 600; color: var(--soft); font-size: 13px; }}
footer {{ margin-top: 16px; color: var(--soft); font-size: 13px; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{subtitle}</p>
{sections}
<footer>{footer}</footer>
</main>
<script>{plotly}</script>
<script>
const plots = {data};
{script}
</script>
</body>
</html>
"""

_SCRIPT = """
function grid(plot, index, ink, line, narrow) {
  const axis = title => ({ title: { text: title, standoff: 8 }, linecolor: line, showgrid: false,
    zeroline: false, automargin: true });
  const faint = dark.matches ? "#1d1f24" : "#ffffff", strong = dark.matches ? "#9cc0ff" : "#123f94";
  Plotly.react("plot" + index, [{
    type: "heatmap", z: plot.cells, y: plot.rows, zmin: 0,
    colorscale: [[0, faint], [0.5, dark.matches ? "#3a6fd0" : "#7fa8ee"], [1, strong]],
    colorbar: { thickness: narrow ? 8 : 12, outlinewidth: 0,
                title: { text: plot.unit, side: "right" } },
    hovertemplate: plot.y + " %{y}, " + plot.x + " %{x}: %{z:.3~g}<extra></extra>",
  }], {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
    margin: { l: narrow ? 44 : 60, r: 12, t: 8, b: 44 },
    xaxis: axis(plot.x), yaxis: { ...axis(plot.y), type: "category", autorange: "reversed" },
  }, { responsive: true, displaylogo: false, displayModeBar: false });
}
const dark = matchMedia("(prefers-color-scheme: dark)");
const colours = () => dark.matches
  ? ["#5c93f2", "#f0963a", "#a886e6", "#45b581", "#ff6b84", "#e0bb3a", "#3fb6cc", "#e8622c"]
  : ["#2f6fde", "#e07b18", "#8457c7", "#2a9360", "#c62f4b", "#a8830a", "#1f7a8c", "#c2410c"];
function draw() {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map(
    name => style.getPropertyValue(name).trim());
  const narrow = innerWidth < 560;
  plots.forEach((plot, index) => {
    if (plot.cells) return grid(plot, index, ink, line, narrow);
    const traces = plot.lines.map((one, at) => ({
      name: one.name, x: one.x, y: one.y, text: one.text, mode: "lines+markers",
      line: { color: one.dashed ? soft : colours()[at % 8], width: 2,
              dash: one.dashed ? "dash" : "solid" },
      marker: { size: 7, symbol: at % 8 },
      hovertemplate: "%{x:.4~g}, %{y:.4~g}<br>%{text}<extra>" + one.name.replace(/[<>&]/g, " ")
        + "</extra>",
    }));
    const axis = title => ({ title: { text: title, standoff: 8 }, gridcolor: line, linecolor: line,
      zerolinecolor: line, automargin: true });
    const x = axis(plot.x);
    if (plot.log) {
      // ticks where the points are
      x.type = "log";
      x.tickvals = [...new Set(plot.lines.flatMap(one => one.x))].sort((a, b) => a - b);
      x.ticktext = x.tickvals.map(value =>
        value >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3)));
    }
    Plotly.react("plot" + index, traces, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
      margin: { l: narrow ? 44 : 60, r: 12, t: 8, b: 44 },
      xaxis: x, yaxis: { ...axis(plot.y), rangemode: "tozero" },
      legend: { orientation: "h", y: -0.25, yanchor: "top", x: 0 }, showlegend: true,
      hoverlabel: { namelength: -1 },
    }, { responsive: true, displaylogo: false, displayModeBar: false });
  });
}
draw();
dark.addEventListener("change", draw);
addEventListener("resize", draw);
"""
