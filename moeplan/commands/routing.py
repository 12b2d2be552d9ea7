"""What ``show`` says of a profile, or of a routing document: its routing, in pictures."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from moeplan.output import Reporter
from moeplan.plots import require_plotly
from moeplan.routing_pictures import RoutingView, heat_map, routing_page, routing_summary
from moeplan.words import note_list
from planner.documents import write_atomic
from planner.files import exists, is_dir
from planner.profiles import load_profile
from planner.routing import load_trace
from solvers.counting import counted
from solvers.errors import DocumentError, OptionError

__all__ = ["show_routing"]


def show_routing(reporter: Reporter, path: Path, html: Path | None, layer: int | None) -> None:
    """Show the routing of a profile's folder or a routing document.

    Raises
    ------
    DocumentError
        If it cannot be read.
    OptionError
        If there is no such layer, or nothing to show.
    """
    if html is not None:
        require_plotly()
    notes: tuple[str, ...] = ()
    if is_dir(path):
        if not exists(path / "profile.json"):
            raise DocumentError(
                f"{path}: a folder cannot be read as a plan or a trace, and it is no profile: it "
                "has no profile.json"
            )
        profile = load_profile(path)
        trace, arrays, name = profile.routing, profile.arrays, profile.model.name
        notes = profile.index.notes
    else:
        (trace, arrays), name = load_trace(path), path.name
    if not trace.tokens:
        raise OptionError(f"{path}: holds no token, so there is nothing to show")
    layers = trace.moe_layers
    if layer is not None and layer not in layers[: max(len(layers) - 1, 1)]:
        last = layers[max(len(layers) - 2, 0)]
        raise OptionError(
            f"--layer {layer}: its experts and the next layer's are drawn; choose from "
            f"{layers[0]} to {last}, a layer with experts"
        )
    view = RoutingView(trace, arrays, layer)
    if html is not None:
        write_atomic(html, routing_page(view, name).encode())
        reporter.show(Text(f"The pictures are in {html}"))
    else:
        reporter.show(
            Text(
                f"{name}: routing of {counted(trace.tokens, 'token')} in "
                f"{counted(trace.sequences, 'sequence')}; {trace.top_k} of "
                f"{counted(trace.experts, 'expert')} in each of {counted(len(layers), 'layer')}"
            )
        )
        reporter.show(heat_map(view, reporter.console.width))
        if notes:
            reporter.show(note_list(notes))
    told = {"notes": list(notes), "html": None if html is None else str(html)}
    reporter.result({**routing_summary(view), **told})
