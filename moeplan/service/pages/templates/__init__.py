"""Jinja templates of the pages; ``render`` fills them in, everything escaped."""

__all__: list[str] = []
