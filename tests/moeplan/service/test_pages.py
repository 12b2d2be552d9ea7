"""The pages in a real browser: upload, plan, watch, zoom, compare; names that are markup; phones.

The browser is Debian's Chromium, driven by playwright.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from moeplan.client import Client
from moeplan.service.app import AppSettings, create_app
from moeplan.service.guard import GuardSettings
from moeplan.service.pages.charts import Axis, Point, chart, frontier
from moeplan.service.problems import problem
from moeplan.service.requests import CompareRequest, PlacementRequest, PlanRequest
from moeplan.service.store import Store
from moeplan.service.store.jobs import job_id
from moeplan.service.work import carry_out
from planner.documents import Trace, document_hash, to_json, write_document
from planner.documents.base import SEAL
from planner.profiles import Profile, load_profile
from solvers.errors import InputError

EVIL = '"><img src=x onerror="window.hit=1"><script>window.hit=1</script>'
"""A name that is harmless only where it is escaped."""
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed here (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextlib.contextmanager
def tab(browser: Any, url: str, *, faults: int = 0, **options: Any) -> Iterator[Any]:
    """A page in a profile of its own; scripts may not fail in it, and the console stays empty but
    for that many answers that refuse."""
    context = browser.new_context(base_url=url, **{"viewport": WIDE, **options})
    context.set_default_timeout(60_000)
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(f"script: {error}"))
    page.on(
        "console", lambda one: said.append(one.text) if one.type in ("error", "warning") else None
    )
    elsewhere: list[str] = []
    page.on("request", lambda one: elsewhere.append(one.url))
    yield page
    context.close()
    assert [one for one in elsewhere if not one.startswith((url, "blob:"))] == []
    refused = [one for one in said if re.search(r"status of 4\d\d", one)]
    assert [one for one in said if one not in refused] == []
    assert len(refused) == faults


@pytest.fixture
def running(server: Any, browser: Any) -> Iterator[Any]:
    """A tab at a server with a worker."""
    with tab(browser, server.url) as page:
        yield page


def upload_profile(page: Any, folder: Path) -> None:
    page.goto("/profiles")
    page.get_by_label("The folder").set_input_files(folder)
    page.get_by_role("button", name="Upload the profile").click()
    page.wait_for_url("**/profiles/*")


def test_from_a_profile_to_a_timeline_and_a_comparison(
    running: Any, profile_folder: Path, trace: Trace, tmp_path: Path
) -> None:
    page = running
    upload_profile(page, profile_folder)
    page.get_by_role("link", name="Make a plan").click()
    page.get_by_label("Memory", exact=True).fill("1500kB")
    page.get_by_label("Requests").fill("3")
    page.get_by_label("Prompt tokens").fill("16")
    page.get_by_label("New tokens").fill("4")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Time limit").fill("1")
    page.get_by_role("button", name="Make a plan").click()
    page.wait_for_url("**/jobs/*")
    # nothing is loaded again: the state arrives by itself
    page.get_by_role("status").filter(has_text="done").wait_for()
    page.get_by_role("link", name="Open the result").click()
    page.wait_for_url("**/plans/*")
    plan = page.url.rpartition("/")[2]
    assert "3 requests, prompts of up to 16 tokens" in page.locator("#why").inner_text()
    assert "Memory: device" in page.locator("main").inner_text()

    stage, where = page.locator("#stage"), page.locator("#where")
    before = where.inner_text()
    assert before.startswith("pass 1")
    stage.focus()
    page.keyboard.press("+")
    where.filter(has_not_text=before).wait_for()
    page.keyboard.press("Home")
    where.filter(has_text="whole run").wait_for()
    assert colours(page, "#time") > 5
    assert colours(page, "#heat") > 2

    # a run of it: the hand-made trace of two layers, as if it were this plan's
    write_document(dataclasses.replace(trace, plan_hash=plan), tmp_path / "trace.json")
    page.get_by_label("A run's trace").set_input_files(tmp_path / "trace.json")
    page.get_by_role("button", name="Upload the trace").click()
    page.wait_for_url("**?run=*")
    assert "shown above" in page.locator("#runs").inner_text()
    names = page.evaluate("data.tracks.map(track => track.name)")
    assert names == ["Predicted", "Measured"]

    page.goto(f"/compare/new?of={page.evaluate(PROFILE_OF)}")
    for solver in page.get_by_role("group", name="Solvers").get_by_role("checkbox").all():
        solver.set_checked(solver.get_attribute("value") in ("lru", "lifo"))
    page.get_by_role("group", name="Objectives").get_by_label("bytes").check()
    page.get_by_label("Memory", exact=True).fill("1500kB")
    page.get_by_label("Requests").fill("3")
    page.get_by_label("Prompt tokens").fill("16")
    page.get_by_label("New tokens").fill("4")
    page.get_by_role("button", name="Compare solvers").click()
    page.get_by_role("link", name="Open the result").click()
    page.wait_for_url("**/compare/*")
    matrix = page.get_by_role("region", name="Solvers and objectives")
    assert matrix.get_by_role("columnheader").all_inner_texts()[-2:] == ["throughput", "bytes"]
    assert matrix.get_by_role("rowheader").all_inner_texts() == ["lru", "lifo"]
    assert matrix.get_by_role("link").count() == 4
    page.get_by_label("Plan B").select_option(index=1)
    page.get_by_role("button", name="Side by side").click()
    page.wait_for_url("**/beside?*")
    assert page.evaluate("data.tracks.map(track => track.name)") == ["Plan A: lru", "Plan B: lifo"]
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="solver"))
    assert row.get_by_role("cell").all_inner_texts()[:2] == ["lru", "lifo"]


PROFILE_OF = (
    "document.querySelector('.actions a[href^=\"/profiles/\"]').getAttribute('href').split('/')[2]"
)


def colours(page: Any, canvas: str) -> int:
    """How many different colours a drawing has."""
    found: int = page.locator(canvas).evaluate(
        """one => {
          const {data} = one.getContext("2d").getImageData(0, 0, one.width, one.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    return found


def test_a_job_is_watched_and_cancelled_by_keyboard(
    running: Any,
    server: Any,
    profile_folder: Path,
    long_comparison: Callable[[str], dict[str, Any]],
) -> None:
    page = running
    page.goto("/jobs")
    with Client(server.url) as client:
        profile = client.upload_profile(load_profile(profile_folder))
        job = client.ask("compare", **long_comparison(profile))
        row = page.locator(f"#job-{job.id}")
        row.filter(has_text="running").wait_for()  # it came by itself
        button = row.get_by_role("button", name="Cancel")
        button.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{job.id}")
        page.get_by_role("status").filter(has_text="cancelled").wait_for()
        assert client.job(job.id).state == "cancelled"
        assert page.get_by_role("button", name="Cancel").count() == 0


# --- a site whose documents have names that are markup, in this process and without workers ------


@contextlib.contextmanager
def serving(store_url: str, *, token_required: bool) -> Iterator[str]:
    """The application under uvicorn in a thread; yields its URL."""
    settings = AppSettings(GuardSettings(token_required))
    app = create_app(Store(store_url), settings)
    config = uvicorn.Config(
        app, port=0, log_level="warning", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def renamed(profile: Profile) -> Profile:
    """The same with a machine and a model of another name, the hashes made to fit."""
    replace = dataclasses.replace
    hardware = replace(profile.hardware, name=EVIL, processor=EVIL)
    model = replace(profile.model, name=EVIL)
    machine, named = document_hash(hardware), document_hash(model)
    costs = replace(profile.costs, model_hash=named, hardware_hash=machine)
    routing = replace(profile.routing, model_hash=named)
    index = replace(
        profile.index,
        checkpoint=f"/{EVIL}",
        notes=(EVIL,),
        hardware_hash=machine,
        model_hash=named,
        costs_hash=document_hash(costs),
        routing_hash=document_hash(routing),
    )
    parts = {"index": index, "hardware": hardware, "model": model, "costs": costs}
    return replace(profile, routing=routing, **parts)


def done(store: Store, kind: str, inputs: dict[str, Any]) -> str:
    """Ask for a job and do it here; the hash of its result."""
    store.jobs.submit(kind, inputs, most_queued=9)
    job = store.jobs.claim("test", lease_seconds=60, most_attempts=1)
    assert job is not None
    entries, result = carry_out(store, job, lambda _: None)
    assert store.jobs.finish(job, entries, result)
    return result


@pytest.fixture(scope="module")
def site(
    profile_folder: Path,
    plan_request: Callable[..., dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SimpleNamespace]:
    """Its ``url`` and ``store``, and the paths of all of its ``pages`` by name."""
    url = f"sqlite:///{tmp_path_factory.mktemp('site') / 'site.db'}"
    store = Store(url)
    with serving(url, token_required=False) as address, Client(address) as client:
        profile = client.upload_profile(renamed(load_profile(profile_folder)))
        rules = {k: v for k, v in plan_request(profile).items() if k != "solver"}
        asked = CompareRequest(**rules, solvers=["lru", "lifo"], objectives=["throughput"])
        compared = done(store, "compare", asked.inputs())
        plan, other = (row["plan"] for row in client.get(f"compare/{compared}")["rows"])
        routing = client.get("routings")["items"][0]["hash"]
        where = {"routing": routing, "devices": 2, "method": "cpsat", "scenarios": 32}
        placed = done(store, "place", PlacementRequest(**where).inputs())
        chosen_from = client.get(f"placements/{placed}")["candidates"]
        failed = client.ask("plans", **plan_request(profile, seed=2)).id
        job = store.jobs.claim("test", lease_seconds=60, most_attempts=1)
        assert job is not None
        # one word that is wider than a phone, beside a name that is markup
        store.jobs.fail(job, problem(422, "stale", "Stale", f"profile-{'0' * 400}: {EVIL}"))
        waiting = client.ask("plans", **plan_request(profile, seed=1)).id
        yield SimpleNamespace(
            url=address,
            store=store,
            plan=plan,
            profile=profile,
            chosen_from=chosen_from,
            pages={
                "plans": "/plans",
                "searched": "/plans?search=%3Cimg",
                "plan": f"/plans/{plan}",
                "beside": f"/beside?plan={plan}&plan={other}",
                "comparisons": "/compare",
                "comparison": f"/compare/{compared}",
                "placements": "/placements",
                "placement": f"/placements/{placed}",
                "jobs": "/jobs",
                "job": f"/jobs/{waiting}",
                "failed job": f"/jobs/{failed}",
                "profiles": "/profiles",
                "profile": f"/profiles/{profile}",
                "new plan": f"/plans/new?of={profile}",
                "new comparison": "/compare/new",
                "new placement": "/placements/new",
            },
        )
    store.close()


UNNAMED = """
[...document.querySelectorAll("a, button, input:not([type=hidden]), select, canvas")]
  .filter(one => !(one.innerText || one.labels?.length || one.closest("[aria-label]")))
  .map(one => one.outerHTML)"""
"""What nothing names for those who do not see it."""
SQUEEZED = """
[...document.querySelectorAll("main a, main p, main dd")]
  .filter(one => one.offsetWidth && one.innerText.length > 20)
  .filter(one => one.offsetWidth < 60)
  .map(one => one.outerHTML)"""
"""Texts that are narrower than a few words."""


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": WIDE, "color_scheme": "light"},
        {"viewport": PHONE, "color_scheme": "dark"},
        {"viewport": PHONE, "color_scheme": "light", "java_script_enabled": False},
    ],
    ids=["wide and light", "phone and dark", "phone without scripts"],
)
def test_every_page_fits_is_whole_and_shows_names_as_text(
    browser: Any, site: SimpleNamespace, options: dict[str, Any]
) -> None:
    light = options["color_scheme"] == "light"
    pages = list(site.pages.items())
    with tab(browser, site.url, **options) as page:
        # what needs no script is the same in all of them
        for name, path in pages if options.get("java_script_enabled", True) else pages[:5]:
            page.goto(path)
            assert page.locator("h1").count() == 1, name
            assert page.locator("img, main script").count() == 0, name
            wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], name
            # nothing is squeezed to a column of letters
            assert page.evaluate(SQUEEZED) == [], name
            assert page.evaluate("window.hit === undefined"), name
            assert page.evaluate(UNNAMED) == [], name
            if name == "placement":
                rows = page.locator("section", has_text="chosen from").locator("tbody tr")
                told = {tuple(row.split("\t")) for row in rows.all_inner_texts()}
                assert told == {
                    (one["name"], f"{one['average_max_load']:.2%}", str(one["layers"]))
                    for one in site.chosen_from
                }
                assert len(told) > 1
            if "new" not in name and "placement" not in name:
                assert "<img src=x onerror" in page.locator("main").inner_text(), name
            shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert shade == ("rgb(247, 247, 245)" if light else "rgb(20, 21, 25)"), name


def test_everything_is_reached_by_keyboard(browser: Any, site: SimpleNamespace) -> None:
    with tab(browser, site.url) as page:
        page.goto(site.pages["plan"])
        page.keyboard.press("Tab")
        skip = page.locator(":focus")
        assert skip.inner_text() == "To the content"
        assert skip.bounding_box()["y"] >= 0  # it shows when it is reached
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(
                page.evaluate("document.activeElement.id || document.activeElement.innerText")
            )
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none" or seen[-1].startswith("<"), seen[-1]
            if seen[-1] == "the API's description":
                break
        for wanted in ("Plans", "Profiles", "Download the plan", "stage", "trace", "Find out"):
            assert wanted in seen, wanted


# --- forms, logging in, and what pages of other sites cannot do ----------------------------------

Clients = Callable[..., TestClient]
OWN = {"origin": "http://127.0.0.1:1"}
HTML = {"accept": "text/html"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"memory_bytes": ""}, "Memory is empty; it is needed."),
        ({"memory_bytes": "5 bananas"}, "Memory &#39;5 bananas&#39; has an unknown unit"),
        ({"requests": "many"}, "Requests is &#39;many&#39;; write a whole number, like 64."),
        ({"requests": "0"}, "Requests must be at least 1."),
        ({"new_tokens": "99999999999"}, "New tokens must be at most 134,217,728."),
        ({"solver": "magic"}, "Solver is none of the choices."),
        ({"profile": "0" * 64}, "The store has no profile 000"),
        ({"profile": "../../etc/passwd"}, "Profile is none of the choices."),
        ({"time_limit_seconds": "5"}, "Time limit has no effect: lru follows a rule."),
        ({"tolerance": "2%"}, "Tolerance has no effect without second objective."),
        ({"then": "bytes"}, "Second objective has no effect: lru follows a rule."),
        ({"seed": "<b>1</b>"}, "Seed is &#39;&lt;b&gt;1&lt;/b&gt;&#39;; write a whole number"),
    ],
)
def test_a_form_says_what_is_wrong_beside_the_field(
    site: SimpleNamespace, changed: dict[str, str], said: str
) -> None:
    jobs = site.store.jobs.counts()
    typed = {
        "profile": site.profile,
        "memory_bytes": "1500kB",
        "requests": "4",
        "prompt_tokens": "16",
        "new_tokens": "4",
        "solver": "lru",
        "objective": "throughput",
        "seed": "",
        **changed,
    }
    answer = httpx.post(f"{site.url}/plans/new", data=typed, headers={"origin": site.url})
    assert answer.status_code == 422
    (name,) = changed
    assert f'<p class="wrong" id="{name}-wrong">{said}' in answer.text
    assert f'href="#{name}">{said}' in answer.text
    assert site.store.jobs.counts() == jobs
    # what else was typed is still there
    assert 'name="prompt_tokens" value="16"' in answer.text


def test_a_form_makes_the_job_that_the_interface_makes(
    app_client: Clients, upload: dict[str, Any], plan_request: Callable[..., dict[str, Any]]
) -> None:
    client = app_client(most_queued=1)
    profile = client.post("/v1/profiles", json=upload).json()["hash"]
    job = client.post("/v1/plans", json=plan_request(profile)).json()
    typed = {"profile": profile, "memory_bytes": "1.5 MB", "requests": "4", "seed": "0"}
    typed |= {"prompt_tokens": "16", "new_tokens": "4", "solver": "lru", "objective": "throughput"}
    # where a browser posts it: what a link chose is in the form, and no parameter of a job
    asked = client.get(f"/plans/new?of={profile}").text
    (place,) = re.findall(r'<form method="post" action="([^"]*)" class="ask">', asked)
    answer = client.post(place, data=typed, headers=OWN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job['id']}")
    more = {"attention_window": 6, "attention_sinks": 0}
    work = {"requests": 4, "prompt_tokens": 16, "new_tokens": 4, **more}
    # 0.7 / 100 would be a little less than 0.007
    later = {"kv": "below", "predictors": True, "allow_error": 0.007}
    other = plan_request(profile, workload=work, **later)
    inputs = PlanRequest.model_validate(other).inputs()
    client.post(f"/v1/jobs/{job['id']}/cancel")
    chosen = {"attention_window": "6", "attention_sinks": "0", "kv": "below", "predictors": "yes"}
    chosen |= {"allow_error": "0.7%"}
    answer = client.post(place, data=typed | chosen, headers=OWN, follow_redirects=False)
    assert answer.headers["location"] == f"/jobs/{job_id('plan', inputs)}"
    answer = client.post(place, data=typed | {"attention_sinks": "0"}, headers=OWN)
    assert answer.status_code == 422
    assert "go together" in answer.text
    answer = client.post("/plans/new", data=typed | {"seed": "1"}, headers=OWN)
    assert answer.status_code == 429
    assert "1 job in the queue already; come again when some are done." in answer.text


def test_pages_elsewhere_cannot_post_forms(app_client: Clients) -> None:
    client = app_client()
    for path in ("/plans/new", f"/jobs/{'0' * 64}/cancel", "/login", "/logout"):
        for headers in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
            answer = client.post(path, data={"a": "b"}, headers=headers)
            assert (answer.status_code, answer.json()["field"]) == (403, "header.origin")
    # a form is no way into the interface
    answer = client.post("/v1/plans", data={"a": "b"}, headers=OWN)
    assert (answer.status_code, answer.json()["field"]) == (415, "header.content-type")
    for body in (b"\xff", b"a=%ff", b"a=%00", b"&".join([b"a=1"] * 300)):
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = client.post("/plans/new", content=body, headers=OWN | kind)
        assert (answer.status_code, answer.json()["field"]) == (400, "body")


def test_pages_run_only_their_own_scripts(app_client: Clients) -> None:
    client = app_client()
    for path in ("/plans", "/profiles", "/nothing", f"/plans/{'0' * 64}", "/beside", "/plans/x"):
        answer = client.get(path, headers=HTML)
        assert answer.headers["content-type"] == "text/html; charset=utf-8", path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert not re.search(r'\sstyle="|\son\w+="|javascript:|https?://', answer.text), path
    assert client.get("/nothing").headers["content-type"] == "application/problem+json"
    for name in ("..%2fpages.js", "%2e%2e/base.html", "base.html", "__init__.py"):
        assert client.get(f"/assets/{name}").status_code == 404


def test_logging_in(app_client: Clients, tmp_path: Path) -> None:
    client = app_client(token_required=True)
    tokens = Store(f"sqlite:///{tmp_path / 'app.db'}").tokens
    token, text = tokens.create("browser")
    client.follow_redirects = False
    answer = client.get("/plans?search=a+b", headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fplans%3Fsearch%3Da%2Bb"
    login = client.get(answer.headers["location"], headers=HTML)
    assert 'name="next" value="/plans?search=a+b"' in login.text
    assert client.get("/assets/pages.js").status_code == 200
    wrong = client.post("/login", data={"token": text[:-1], "next": "/jobs"}, headers=OWN)
    assert wrong.status_code == 401
    assert "This token is not valid" in wrong.text
    assert "set-cookie" not in wrong.headers
    for there in ("//evil.example", "https://evil.example", "/\\evil", ""):
        answer = client.post("/login", data={"token": text, "next": there}, headers=OWN)
        assert (answer.status_code, answer.headers["location"]) == (303, "/plans")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("moeplan_token=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    # the browser's cookie is all that it sends now
    assert client.get("/plans", headers=HTML).status_code == 200
    assert client.get("/v1/plans").status_code == 200
    # in a user's name, but from nowhere
    answer = client.post("/v1/plans", json={})
    assert (answer.status_code, answer.json()["field"]) == (403, "header.origin")
    assert client.post("/v1/plans", json={}, headers=OWN).status_code == 422
    tokens.revoke(token.id)
    assert client.get("/plans", headers=HTML).status_code == 303


def test_a_cookie_is_for_tls_alone_where_there_is_tls(app_client: Clients, tmp_path: Path) -> None:
    client = app_client(token_required=True)
    _, text = Store(f"sqlite:///{tmp_path / 'app.db'}").tokens.create("browser")
    headers = {"origin": "https://service.example", "host": "service.example"}
    answer = client.post("/login", data={"token": text}, headers=headers, follow_redirects=False)
    assert "Secure" in answer.headers["set-cookie"].split("; ")


def test_a_browser_logs_in_and_out(browser: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = Store(url)
    _, text = store.tokens.create("browser")
    store.close()
    # a wrong token is answered 401, which the console tells
    with serving(url, token_required=True) as there, tab(browser, there, faults=1) as page:
        page.goto("/jobs")
        page.get_by_label("API token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        assert (
            page.get_by_role("alert").inner_text() == "This token is not valid, or it was revoked."
        )
        page.get_by_label("API token").fill(text)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/jobs")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
        page.goto("/plans")
        assert page.url.endswith("/login?next=%2Fplans")


# --- runs of plans -------------------------------------------------------------------------------


def test_a_trace_is_kept_for_its_plan_alone(site: SimpleNamespace, trace: Trace) -> None:
    own = dataclasses.replace(trace, plan_hash=site.plan, device=EVIL)
    with Client(site.url) as client:
        digest = client.upload_trace(own)
        assert client.upload_trace(own) == digest
        (listed,) = client.get("traces", search=site.plan)["items"]
        assert listed["summary"]["plan_hash"] == site.plan
        kept = client.get(f"traces/{digest}")
        assert kept == {**to_json(own), SEAL: digest}
        shown = httpx.get(f"{site.url}/plans/{site.plan}?run={digest}").text
        assert "&lt;img src=x" in shown
        assert "<img" not in shown
        for body, field in (
            ({**to_json(trace), SEAL: document_hash(trace)}, "plan_hash: the store has no plan"),
            ({**to_json(own), SEAL: document_hash(trace)}, f"{SEAL}: "),
            (to_json(own), f"{SEAL}: "),
            ({**to_json(own), SEAL: digest, "device": 1}, "device: "),
        ):
            with pytest.raises(InputError, match=re.escape(field)):
                client._json("POST", "/v1/traces", body)


# --- frontiers -----------------------------------------------------------------------------------


def at(x: float, y: float) -> Point:
    return Point(x, y, "g", f"{x}, {y}", "/")


def test_the_frontier_has_what_no_other_one_beats() -> None:
    # by hand: (2, 1) is slower than (1, 3) and takes more; (3, 5) and (3, 4) take the same
    points = [at(3, 4), at(1, 3), at(2, 1), at(3, 5), at(4, 5)]
    assert [(one.x, one.y) for one in frontier(points)] == [(1, 3), (3, 5)]
    assert frontier([]) == []


def test_a_chart_needs_two_points_and_escapes_names() -> None:
    axis = Axis("<b>", str)
    assert chart("t", [at(1, 1), at(1, 1)], axis, axis) == ""
    drawn = chart("t", [Point(1, 1, EVIL, EVIL, "/"), at(2, 2)], axis, axis)
    assert "<img" not in drawn
    assert "&lt;b&gt;" in drawn


def test_ticks_are_round_in_the_unit_of_the_axis() -> None:
    mib = 1 << 20
    points = [at(5.2 * mib, 1), at(7.6 * mib, 2)]
    for base, expected in (
        # the axis goes from 5.0 to 7.8: 8% of 2.4 on either side
        (1024, ["6", "7", "x"]),
        # in millions: 5.25 to 8.17, of 1.048576 each
        (1000, ["5.72", "6.68", "7.63", "x"]),
    ):
        axis = Axis("x", lambda value: f"{value / mib:.3g}", base)
        drawn = chart("t", points, axis, Axis("y", "{:g}".format))
        assert re.findall(r'"middle">([^<]*)</text>', drawn)[: len(expected)] == expected
