"""What is answered under each path.

``documents`` and ``exports`` give what is kept, ``plans`` asks for work and ``jobs`` follows it,
``system`` says whether the service is well; ``common`` has what the routes share.
"""

__all__: list[str] = []
