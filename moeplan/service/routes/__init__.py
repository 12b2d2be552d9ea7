"""What is answered under each path; ``common`` has what the routes share."""

__all__: list[str] = []
