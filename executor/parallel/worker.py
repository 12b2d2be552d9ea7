"""The processes of all ranks, forked from one that has loaded torch.

So it is loaded once, whatever the number of ranks. Each rank takes orders from a pipe, one JSON
object a line, and answers into another; the first process tells their ids and how they end.
Started by ``executor.parallel.group``; all of them end when its side of the pipes closes, however
it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["main"]

Answer = Callable[[dict[str, Any]], None]


def main(pipes: list[tuple[int, int]]) -> None:
    """Fork a rank for each pair of pipes (orders, answers), and wait for all."""
    # loaded here, they are shared
    import transformers.modeling_utils  # noqa: F401

    import executor.parallel.rank  # noqa: F401

    processes: list[int] = []
    for rank, (orders, answers) in enumerate(pipes):
        process = os.fork()
        if process == 0:
            for other, ends in enumerate(pipes):
                if other != rank:
                    os.close(ends[0])
                    os.close(ends[1])
            _be_rank(orders, answers)
        processes.append(process)
    for ends in pipes:
        os.close(ends[0])
        os.close(ends[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(json.dumps({"processes": processes}), flush=True)
    for _ in pipes:
        process, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"ended": [processes.index(process), code]}), flush=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    # the group was made for these processes
    os.killpg(0, signal.SIGKILL)


def _be_rank(orders_pipe: int, answers_pipe: int) -> None:
    """Serve until there are no more orders; does not return."""
    # whatever libraries print is no answer
    os.dup2(2, 1)
    answers = os.fdopen(answers_pipe, "w", encoding="utf-8", buffering=1)
    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders_pipe, orders), daemon=True).start()

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        _serve(orders, answer)
    except BaseException as error:  # noqa: BLE001 - told to whoever gave the order
        answer({"error": _told(error)})
    finally:
        # a thread of the transport may wait for ranks that are gone
        os._exit(1)


def _listen(pipe: int, orders: SimpleQueue[dict[str, Any]]) -> None:
    with os.fdopen(pipe, encoding="utf-8") as lines:
        for line in lines:
            orders.put(json.loads(line))
    # nobody is left to answer to, and no collective may hold the process
    os._exit(0)


def _told(error: BaseException) -> dict[str, Any]:
    import torch.distributed

    from executor.parallel.group import told_error
    from solvers.errors import MoeplanError

    lost = isinstance(error, torch.distributed.DistError) or (
        type(error) is RuntimeError and "gloo" in str(error).lower()
    )
    return {
        "known": told_error(error) if isinstance(error, MoeplanError) else None,
        "trace": traceback.format_exc(),
        # another rank has gone, or does not answer
        "lost_peer": lost,
    }


def _serve(orders: SimpleQueue[dict[str, Any]], answer: Answer) -> None:
    import torch

    from executor.allocator import tune_process
    from executor.parallel.meeting import Meeting, rank_backend, wait_for_all
    from executor.parallel.rank import Rank, RankOptions
    from executor.source import WeightSource, open_weights

    start = orders.get()
    tune_process()
    torch.set_num_threads(start["threads"])
    rank: int = start["rank"]
    backend = rank_backend(start["device"], start["place"], start["places"])
    meeting = Meeting(rank, start["devices"], start["device"])
    host = start["listen"]
    answer({"done": {"port": None if host is None else meeting.listen(host)}})
    source: WeightSource | None = None
    loaded: Rank | None = None
    while True:
        order = orders.get()
        if order["order"] == "meet":
            meeting.join(order)
            answer({"done": {}})
        elif order["order"] == "load":
            loaded = None
            if source is not None:
                source.close()
            source = open_weights(order["checkpoint"], order["store"])
            placement = {one["layer"]: one["devices"] for one in order["placement"]}
            loaded = Rank(source, rank, RankOptions(**order["options"]), placement, backend)
            wait_for_all()
            answer({"done": {}})
        elif order["order"] == "generate" and loaded is not None:
            answer(
                {
                    "done": loaded.generate(
                        order["prompts"],
                        order["limit"],
                        frozenset(order["end_tokens"]),
                        lambda done, total: answer({"progress": [done, total]}),
                        record=order["record"],
                        rebalance=order["rebalance"],
                    )
                }
            )
        elif order["order"] == "measure" and loaded is not None:
            answer({"done": loaded.measure()})
        else:
            raise ValueError(f"order {order['order']!r} cannot be carried out now")


if __name__ == "__main__":
    numbers = [int(one) for one in sys.argv[1:]]
    main(list(zip(numbers[::2], numbers[1::2], strict=True)))
