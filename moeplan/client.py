"""A client of the service: the same documents and errors as here, over HTTP.

>>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
...     job = client.ask_plan(client.upload_profile(profile), workload, memory_bytes=600 << 20)
...     plan = client.plan(client.wait(job.id).result)
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import httpx

from moeplan.service.problems import error_of
from planner.documents import (
    Document,
    ExpertPlacement,
    Plan,
    Trace,
    Workload,
    document_hash,
    parse_document,
    to_json,
)
from planner.documents.base import SEAL
from planner.files import is_file
from planner.profiles import Profile
from planner.routing import trace_bytes
from solvers.errors import DocumentError, MoeplanError, OptionError, RunError

__all__ = ["Client", "JobStatus"]

D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as the service tells it.

    Attributes
    ----------
    progress
        What the search has: ``stage``, ``incumbent``, ``bound`` and ``gap``, or what is done.
    result
        Hash of the document that it made.
    error
        The problem document of a failed job.
    changes
        Rises with each change.
    """

    id: str
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    progress: dict[str, Any] | None
    result: str | None
    error: dict[str, Any] | None
    changes: int

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state not in ("queued", "running")


class Client:
    """One service.

    Parameters
    ----------
    url
        As 'moeplan serve' tells it.
    token
        An API token, where the service asks for one.
    timeout_seconds
        For one answer.
    patience_seconds
        How long a job is watched for while the service does not answer.
    called
        Other names of these arguments and of a job's (``token``, ``workload.requests``), where
        whoever gives them knows them by another: refusals say it.

    Raises
    ------
    OptionError
        If it is no such URL, or the token holds what none does.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 60.0,
        patience_seconds: float = 60.0,
        called: Mapping[str, str] | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            fits = False
        if not fits or parts.query or parts.fragment or parts.username:
            raise OptionError(f"{url!r} is no address of a service; write it like http://host:8000")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._called = called or {}
        if token is not None and not (token.isascii() and token.isprintable()):
            raise OptionError(f"{self._name('token')}: holds characters that no API token has")
        self.url = url.rstrip("/")
        self._patience = patience_seconds
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_seconds)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def upload_profile(self, profile: Profile) -> str:
        """Keep a profile there, unless it is there already; its hash.

        Raises
        ------
        InputError, RunError
            As the service refuses it, or if it cannot be reached.
        """
        digest = document_hash(profile.index)
        if self._send("GET", f"/v1/profiles/{digest}", missing=True) is not None:
            return digest
        parts = ("hardware", "model", "costs", "routing")
        body = {
            "profile": to_json(profile.index),
            **{name: to_json(getattr(profile, name)) for name in parts},
            "arrays_base64": base64.b64encode(_arrays(profile)).decode(),
        }
        kept = self._json("POST", "/v1/profiles", body)
        if kept.get("hash") != digest:
            raise RunError(f"{self.url} kept another profile than the one that was sent")
        return digest

    def upload_trace(self, trace: Trace) -> str:
        """Keep what a run of one of the service's plans did; its hash.

        Raises
        ------
        InputError, RunError
            As the service refuses it, or if it cannot be reached.
        """
        digest = document_hash(trace)
        self._json("POST", "/v1/traces", {**to_json(trace), SEAL: digest})
        return digest

    def ask_plan(
        self, profile_hash: str, workload: Workload, *, memory_bytes: int, **options: Any
    ) -> JobStatus:
        """Ask for a plan.

        Parameters
        ----------
        profile_hash
            As ``upload_profile`` gives it.
        workload, memory_bytes
            What is planned.
        **options
            ``solver``, ``objective``, ``then``, ``tolerance``, ``time_limit_seconds``, ``seed``,
            ``kv``, ``predictors``, ``allow_error``, ``profile_folder`` (where the profile lies
            here, which the plan then says); those that are None are left out.
        """
        work = {k: v for k, v in to_json(workload).items() if k not in ("kind", "version")}
        given = {name: value for name, value in options.items() if value is not None}
        body = {"profile": profile_hash, "memory_bytes": memory_bytes, "workload": work, **given}
        return _status(self._json("POST", "/v1/plans", body))

    def ask(self, path: str, **body: Any) -> JobStatus:
        """Ask for another job: ``compare``, ``placements``, ``plans/HASH/explanation``."""
        return _status(self._json("POST", f"/v1/{path}", body))

    def job(self, identity: str) -> JobStatus:
        """How far a job is."""
        return _status(self._json("GET", f"/v1/jobs/{identity}"))

    def cancel(self, identity: str) -> JobStatus:
        """Cancel a job."""
        return _status(self._json("POST", f"/v1/jobs/{identity}/cancel"))

    def watch(self, identity: str, lost: Callable[[], None] | None = None) -> Iterator[JobStatus]:
        """A job now, and again with each change, until it ends.

        Parameters
        ----------
        lost
            Called each time that the service does not answer, before it is asked again.

        Raises
        ------
        RunError
            If the service does not answer for longer than the client's patience.
        """
        seen = -1
        heard = time.monotonic()
        while True:
            headers = {} if seen < 0 else {"Last-Event-ID": str(seen)}
            try:
                for status in self._events(identity, headers):
                    seen, heard = status.changes, time.monotonic()
                    yield status
                    if status.ended:
                        return
            except httpx.HTTPError as error:
                if time.monotonic() - heard > self._patience:
                    raise self._unreachable(error) from error
                if lost is not None:
                    lost()
            time.sleep(0.5)

    def wait(
        self,
        identity: str,
        told: Callable[[dict[str, Any]], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> JobStatus:
        """Watch a job to its end.

        Parameters
        ----------
        told
            Called with each progress.
        lost
            As ``watch`` has it.

        Raises
        ------
        MoeplanError
            As the job failed, of the class that it would have had here.
        RunError
            If it was cancelled.
        """
        last = None
        for last in self.watch(identity, lost):
            if told is not None and last.progress is not None and last.state == "running":
                told(last.progress)
        if last is None or last.state == "cancelled":
            raise RunError(f"job {identity} was cancelled")
        if last.error is not None:
            raise error_of(last.error)
        return last

    def plan(self, digest: str | None) -> Plan:
        """A plan, held against its hash.

        Raises
        ------
        DocumentError
            If it is not the document of this hash.
        """
        return self._document(Plan, f"/v1/plans/{digest}", digest)

    def placement(self, digest: str | None) -> ExpertPlacement:
        """As ``plan``, of a placement."""
        return self._document(ExpertPlacement, f"/v1/placements/{digest}", digest)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Anything else under ``/v1/``: lists, comparisons, explanations, timelines."""
        return self._json("GET", f"/v1/{path}", query=query)

    def _document(self, cls: type[D], path: str, digest: str | None) -> D:
        body = self._json("GET", path)
        body.pop(SEAL, None)
        document = parse_document(cls, body, f"{self.url}{path}")
        if document_hash(document) != digest:
            raise DocumentError(f"{self.url}{path}: not the document of this hash")
        return document

    def _events(self, identity: str, headers: dict[str, str]) -> Iterator[JobStatus]:
        path = f"/v1/jobs/{identity}/events"
        with self._http.stream("GET", path, headers=headers) as response:
            if response.status_code >= 400:
                response.read()
                if response.status_code in (429, 503):
                    raise httpx.RemoteProtocolError(f"answers {response.status_code}")
                raise self._refused(response, self._body(response))
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield _status(json.loads(line.removeprefix("data:")))

    def _json(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return self._send(method, path, body, query) or {}

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
        *,
        missing: bool = False,
    ) -> dict[str, Any] | None:
        """The answer; None for one that is not there, where that is no fault."""
        try:
            response = self._http.request(method, path, json=body, params=query)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if missing and response.status_code == 404:
            return None
        answer = self._body(response)
        if response.status_code >= 400:
            raise self._refused(response, answer)
        return answer

    def _refused(self, response: httpx.Response, answer: dict[str, Any]) -> MoeplanError:
        """The error of a refusal, in words of what was given here: whoever gave a token and an
        address has never seen the headers and the body that they went into."""
        if response.status_code == 401:
            said = f"{self._name('token')}: {self.url} does not know this API token"
            if "Authorization" not in self._http.headers:
                said = f"{self.url} asks for an API token, given as {self._name('token')}"
            return OptionError(f"{said}; 'moeplan token create' makes one there")
        field, detail = str(answer.get("field", "")), str(answer.get("detail", ""))
        place, _, name = field.partition(".")
        if place == "header":
            answer = {**answer, "field": None, "detail": f"{self.url} refuses this: {detail}"}
        elif place == "body" and name:
            called = self._name(name)
            detail = detail.replace(f"{field}: ", f"{called}: ", 1)
            answer = {**answer, "field": called, "detail": detail}
        return error_of(answer)

    def _name(self, argument: str) -> str:
        return self._called.get(argument, argument)

    def _body(self, response: httpx.Response) -> dict[str, Any]:
        try:
            body = response.json()
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise RunError(f"{self.url} is no moeplan service: it answers {response.status_code}")
        return body

    def _unreachable(self, error: httpx.HTTPError) -> RunError:
        reason = str(error) or type(error).__name__
        return RunError(f"{self.url} cannot be reached: {reason}; is 'moeplan serve' running?")


def _status(body: dict[str, Any]) -> JobStatus:
    try:
        return JobStatus(**{name: body[name] for name in JobStatus.__dataclass_fields__})
    except KeyError as error:
        raise RunError(
            f"the service tells no {error} of a job: is it of another version?"
        ) from None


def _arrays(profile: Profile) -> bytes:
    """The bytes that the routing document's hash is of: its file, or the arrays written anew."""
    path = profile.folder / profile.routing.arrays_file
    data = path.read_bytes() if is_file(path) else b""
    if not _is_of(data, profile):
        data = trace_bytes(profile.arrays)
        if not _is_of(data, profile):
            raise DocumentError(f"{path}: not the arrays of the profile's routing document")
    return data


def _is_of(data: bytes, profile: Profile) -> bool:
    return hashlib.sha256(data).hexdigest() == profile.routing.arrays_hash
