"""Sweeps: plans for many models on many machines within many budgets, kept in a store.

``pairs`` says what is planned, ``run`` plans what the store does not have yet and records it;
``local`` and ``on_ray`` carry out what ``task`` describes, in processes of this machine or on a
cluster. Needs the extra ``service`` for the store, and ``cluster`` for Ray.
"""

__all__: list[str] = []
