"""From documents to a plan, without torch.

``documents`` and ``profiles`` hold what is known, ``checkpoint``, ``model_spec`` and
``architectures`` read models, ``routing`` and ``scenarios`` turn recorded routing into passes,
``memory`` counts the device's bytes, ``encode`` makes a problem for ``solvers``, ``solve`` chooses
and ``predict`` says what to expect; ``check`` holds a plan against all of it, ``compare`` is the
matrix of solvers and objectives.
"""

__all__: list[str] = []
