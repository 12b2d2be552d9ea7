"""The planner as a service: an HTTP API over a store of documents and jobs.

``store`` keeps documents by their hash and jobs with leases; ``worker`` is a process that takes
jobs and solves them, ``supervisor`` keeps several of them alive; ``app`` answers requests and
solves nothing. Needs the extra ``service``; nothing outside this folder imports it at the top.
"""

__all__: list[str] = []
