"""The report page, in a real browser if there is one, and the live server."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from test_plot import make_run

from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.directory import CONFIG_FILE, METRICS_FILE
from jaxtrpo.runs.metrics import Metrics
from jaxtrpo.runs.reader import LoggedRun, read_run
from jaxtrpo.runs.sweep.scheduler import fraction_done
from jaxtrpo.runs.view.figures import LOOKS, seconds_of
from jaxtrpo.runs.view.groups import COLORS, GRID, column_of, groups_of, quartiles
from jaxtrpo.runs.view.report import in_ranges, made_with, page_of, settings_of, summary
from jaxtrpo.runs.view.watch import MOST_CONNECTIONS, serve

FIGURES = len(LOOKS) + 1
LONG = "ppo(clip=0.1, learning_rate=0.0001, epochs=4, minibatch_size=128, gae_lambda=0.9, kl_stop=0.02)"


def make_full_run(place: Path, updates: int = 50, **settings) -> Path:
    """Writes a run with all columns that the page shows."""
    place.mkdir(parents=True)
    save_config(place, "Some-v1", Config(**settings))
    rng, metrics = np.random.default_rng(settings.get("seed", 0)), Metrics(place / METRICS_FILE)
    numbers = [
        {
            "update": i + 1, "env_steps": 1024 * (i + 1), "wall_seconds": 0.1 * (i + 1), "collect_seconds": 0.04,
            "learn_seconds": 0.05, "steps_per_update": 1024, "max_kl": 0.02, "return_100": 10.0 * i + rng.normal(),
            "kl": 0.01 * rng.uniform(0.5, 1), "gain_ratio": rng.normal(), "explained_variance": rng.uniform(),
            "mean_length": 100.0 + i, "entropy": 3 - 0.01 * i, "policy_std": 0.5,
            "eval_return": 20.0 * i if i % 10 == 9 else np.nan,
        }
        for i in range(updates)
    ]  # fmt: skip
    metrics.add(*numbers)
    return place


# ---- content


def test_summary_of_a_run(tmp_path):
    run = read_run(make_full_run(tmp_path / "run", total_steps=102_400))
    totals = summary(run)
    assert (totals["steps"], totals["done"], totals["best"]) == (51_200, 0.5, 980.0)
    timed = make_full_run(tmp_path / "timed", total_steps=10**10, stop_after_seconds=20)
    assert summary(read_run(timed))["done"] == fraction_done(timed) == 0.25
    np.testing.assert_allclose(seconds_of(run), [2.0, 2.5, 0.5])
    blank = read_run(make_run(tmp_path / "blank", updates=1))
    assert summary(blank)["return_100"] is None and seconds_of(blank)[0] == 0


def test_differing_settings_are_separated_from_common_ones(tmp_path):
    runs = [read_run(make_full_run(tmp_path / str(seed), seed=seed, max_kl=0.02)) for seed in (0, 1)]
    differing, common = settings_of(runs)
    assert differing == {"seed": [0, 1]} and common["max_kl"] == 0.02 and "versions" not in common


def nine_runs(place: Path) -> list[LoggedRun]:
    """Three seeds of each of three algorithms, of which one has many settings; sorted by directory, not by group."""
    return [
        read_run(make_full_run(place / f"{seed}-{number}", seed=seed, algorithm=algorithm))
        for seed in range(3)
        for number, algorithm in enumerate(("trpo", LONG, "a2c"))
    ]


def test_runs_that_differ_by_their_seed_have_one_colour(tmp_path):
    groups = groups_of(nine_runs(tmp_path))
    assert [group.name for group in groups] == ["algorithm=trpo", f"algorithm={LONG}", "algorithm=a2c"]
    assert [group.numbers for group in groups] == [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    assert [group.color for group in groups] == list(COLORS[:3])
    alone = groups_of([read_run(make_run(tmp_path / "one", "A-v1")), read_run(make_run(tmp_path / "two", "B-v1"))])
    assert [group.name for group in alone] == ["A-v1", "B-v1"]


def test_more_groups_than_colours_have_dashes(tmp_path):
    runs = [read_run(make_run(tmp_path / str(number), max_kl=number / 100)) for number in range(1, 13)]
    looks = [(group.color, group.dash) for group in groups_of(runs)]
    assert len(set(looks)) == 12 and looks[10] == (COLORS[0], "dashed")


def test_group_has_median_and_quartiles_on_every_axis(tmp_path):
    runs = [read_run(make_run(tmp_path / str(s), updates=n, slope=s)) for n, s in ((4, 1.0), (9, 3.0), (9, 10.0))]
    columns = quartiles([*runs, LoggedRun(tmp_path, "Some-v1", {}, {})], ["return_100", "kl", "none"])
    for axis, first, last, scale in (("env_steps", 100, 400, 1), ("wall_seconds", 0.5, 2, 200), ("update", 1, 4, 100)):
        np.testing.assert_allclose(columns[axis], np.linspace(first, last, GRID), rtol=1e-6)
        middle, low, high = (columns[column_of("return_100", axis, part)] for part in ("middle", "low", "high"))
        known = columns[axis] * scale >= 200  # returns are blank before
        np.testing.assert_allclose(middle[known], 3 * scale * columns[axis][known], rtol=1e-5)
        np.testing.assert_allclose(low[known], 2 * scale * columns[axis][known], rtol=1e-5)
        np.testing.assert_allclose(high[known], 6.5 * scale * columns[axis][known], rtol=1e-5)
        assert np.isnan(middle[~known]).all() and np.isnan(columns[column_of("none", axis, "high")]).all()
    assert np.isnan(quartiles([], ["kl"])["update"]).all()


def test_page_shows_groups_long_settings_and_each_version_once(tmp_path):
    runs = nine_runs(tmp_path)
    page = page_of(runs)
    shown = html.unescape(re.sub("<script.*?</script>", "", page, flags=re.S))
    for name in ("trpo", LONG, "a2c"):
        assert f"algorithm={name}, median and quartiles of 3 seeds</label>" in shown
    assert shown.count(f'<td class="setting">{LONG}</td>') == 3 and shown.count("<th>1 to 9</th>") == 1
    assert page.count('"name":"g1:kl"') == 2  # band and median
    alone = page_of(runs[:1])
    assert 'id="groups"' not in alone and '"name":"g0:kl"' not in alone


def test_versions_are_told_once_for_all_runs_that_share_them(tmp_path):
    runs = [read_run(make_run(tmp_path / str(number))) for number in range(4)]
    runs[1] = runs[1]._replace(settings={**runs[1].settings, "versions": {"jax": "0.1"}})
    (shared, versions, _), (other, changed, _) = made_with(runs)
    assert (shared, other, changed) == ("1, 3 to 4", "2", {"jax": "0.1"}) and "jax" in versions
    assert in_ranges([1, 2, 3, 5, 7, 8]) == "1 to 3, 5, 7 to 8"


def test_page_of_ten_runs_of_a_thousand_updates_is_below_five_megabytes(tmp_path):
    runs = [read_run(make_full_run(tmp_path / str(seed), updates=1_000, seed=seed)) for seed in range(10)]
    assert len(page_of(runs).encode()) < 5e6


def test_directory_names_are_escaped(tmp_path):
    page = page_of([read_run(make_run(tmp_path / "<script>alert(1)<"))])
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page


def test_page_loads_no_external_resources(tmp_path):
    page = page_of([read_run(make_full_run(tmp_path / "run"))])
    assert not re.findall(r"<(?:script|link|img|video)[^>]*(?:src|href)=\"(?!data:)", page)


# ---- server


@pytest.fixture
def served(tmp_path):
    """The directory of a run and the URL of a server for it."""
    place = make_full_run(tmp_path / "run", total_steps=102_400)
    server = serve([place], 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield place, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def get(url: str, host: str | None = None) -> str:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def test_data_is_current(served):
    place, url = served
    before = json.loads(get(f"{url}/data"))["runs"][0]
    assert len(before["columns"]["kl"]) == 50 and before["cells"]["done"] == "50%"
    with (place / METRICS_FILE).open("a") as file:
        file.write((place / METRICS_FILE).read_text().splitlines()[-1].replace("50,51200", "51,52224", 1) + "\n51,")
    found = json.loads(get(f"{url}/data"))
    assert found["runs"][0]["columns"]["env_steps"][-1] == 52224 and len(found["runs"][0]["columns"]["kl"]) == 51
    assert found["groups"] == [None]
    make_full_run(place.parent / "run" / "other", seed=1, total_steps=102_400)
    (group,) = json.loads(get(f"{url}/data"))["groups"]
    assert len(group["kl@update@middle"]) == GRID and group["kl@update@middle"][0] > 0
    shutil.rmtree(place / "other")
    assert found["runs"][0]["columns"]["eval_return"][0] is None and found["time"]["run"] == ["1"]
    shutil.rmtree(place)
    assert json.loads(get(f"{url}/data"))["runs"] == [] and "No run yet" in get(f"{url}/")


HEADER = "update,env_steps,wall_seconds,return_100\n"
MALFORMED = {
    "no table": (METRICS_FILE, "no table\nat all\n"),
    "words": (METRICS_FILE, HEADER + "1,2,3,many\n"),
    "binary": (METRICS_FILE, "\0\1\2\n\3\n"),
    "no steps": (METRICS_FILE, "update,kl\n1,2\n"),
    "a column twice": (METRICS_FILE, HEADER.replace("return_100", "update") + "1,2,3,4\n"),
    "a field without end": (METRICS_FILE, HEADER + '1,2,3,"' + 200_000 * "x" + "\n"),
    "a list": (CONFIG_FILE, "[1, 2]"),
    "a number": (CONFIG_FILE, "3"),
    "half of it": (CONFIG_FILE, '{"env": "X"'),
    "deep": (CONFIG_FILE, 100_000 * "["),
    "steps in words": (CONFIG_FILE, '{"env": "X", "total_steps": "many"}'),
    "no steps at all": (CONFIG_FILE, '{"env": "X", "total_steps": null}'),
    "seconds in words": (CONFIG_FILE, '{"env": "X", "stop_after_seconds": "soon"}'),
    "versions in words": (CONFIG_FILE, '{"env": "X", "versions": "new"}'),
    "machine as a list": (CONFIG_FILE, '{"env": "X", "machine": [1]}'),
    "no text": (CONFIG_FILE, "\udcff"),
}


@pytest.mark.parametrize("name", [*MALFORMED, "a pipe", "a pipe of settings", "a directory"])
def test_a_malformed_run_does_not_keep_others_from_being_shown(served, name):
    place, url = served
    other = make_full_run(place / "other")
    if name in MALFORMED:
        file, text = MALFORMED[name]
        (other / file).write_bytes(text.encode(errors="surrogateescape"))
    else:
        path = other / (CONFIG_FILE if "settings" in name else METRICS_FILE)
        path.unlink()
        os.mkfifo(path) if "pipe" in name else path.mkdir()
    found = json.loads(get(f"{url}/data"))
    assert len(found["runs"]) == 1 and len(found["runs"][0]["columns"]["kl"]) == 50
    page = get(f"{url}/")
    assert str(place) in page and str(other) not in page


def test_idle_connections_are_limited_and_closed(served):
    _, url = served
    at = "127.0.0.1", int(url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(at)) for _ in range(MOST_CONNECTIONS + 5)]
        for one in idle:
            one.settimeout(30)
        refused = sum(_is_closed(one) for one in idle[-5:])
        assert refused == 5
        for one in idle[:5]:
            one.close()
        for _ in range(50):  # until the server has noticed
            with contextlib.suppress(OSError, urllib.error.URLError, http.client.HTTPException):
                assert "<html" in get(f"{url}/")
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the server does not answer")


def _is_closed(one: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return one.recv(1) == b""
    return True


def test_server_rejects_other_hosts_and_paths(served):
    _, url = served
    assert "<html" in get(f"{url}/", host="localhost:80")
    for path, host in (("/", "evil.example"), ("/../run", None), ("/etc/passwd", None)):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url + path, host)


def test_occupied_port_is_reported_in_one_sentence(served, capsys):
    place, url = served
    assert cli.main(["watch", str(place), "--port", url.rpartition(":")[2]]) == cli.INPUT_ERROR
    assert "cannot be used: Address already in use" in capsys.readouterr().err


def test_watch_prints_its_url_and_ends_on_interrupt(tmp_path):
    # Processes started by tests that run in the background of a shell ignore SIGINT by default.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from jaxtrpo.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "watch", str(make_run(tmp_path / "run"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[0]
        assert "<html" in get(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_watch_flag_needs_out(capsys):
    assert cli.main(["train", "CartPole-v1", "--watch"]) == cli.INPUT_ERROR
    assert "--watch needs --out" in capsys.readouterr().err


def test_train_serves_a_live_report(tmp_path):
    command = [
        sys.executable,
        "-m",
        "jaxtrpo",
        "train",
        "CartPole-v1",
        "--total-steps",
        "60000",
        "--actors",
        "1",
        "--quiet",
    ]
    command += ["--out", str(tmp_path / "run"), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        words = process.stdout.readline().split()
        assert words[:3] == ["live", "report", "at"]
        steps = []

        def poll() -> bool:
            with contextlib.suppress(OSError):  # the server stops with the run
                steps.extend(run["cells"]["steps"] for run in json.loads(get(f"{words[3]}data"))["runs"])
            return process.poll() is not None

        wait_until(poll, 120)
        assert process.returncode == 0
    assert len({each for each in steps if each != "–"}) > 3  # the data grew during training


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    if shutil.which("chromedriver") is None and "CI" not in os.environ:
        pytest.skip("chromedriver is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


READY = (
    "return typeof Bokeh !== 'undefined' && Bokeh.documents.length > 0 && Bokeh.documents.every((doc) => doc.is_idle)"
)
# A figure is visible if one of its canvases, also in shadow roots, has pixels of several colours.
VISIBLE = """
function canvases(node) {
  const inner = [...node.querySelectorAll("*")].filter((each) => each.shadowRoot);
  return [...node.querySelectorAll("canvas"), ...inner.flatMap((each) => canvases(each.shadowRoot))];
}
function colours(canvas) {
  if (!canvas.width || !canvas.height) return 0;
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext("2d", {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  return new Set(new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer)).size;
}
return [...document.querySelectorAll(".drawing")].map((place) => canvases(place).some((each) => colours(each) > 2));
"""
LINES = """
const figures = Bokeh.documents.flatMap((doc) => doc.roots());
const lines = figures.flatMap((figure) => figure.renderers ?? []).filter((each) => /^\\d+:/.test(String(each.name)));
return lines.map((each) => [each.name, each.visible, each.glyph.x.field]);
"""
AGAINST_SECONDS = """
const axis = document.getElementById("axis");
axis.value = "wall_seconds";
axis.dispatchEvent(new Event("change"));
"""


def opened(driver, url: str, *, width: int = 1280, dark: bool = False) -> list[bool]:
    """Opens a page and returns which of its figures are visible."""
    driver.get_log("performance"), driver.get_log("browser")
    size = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(url)
    wait_until(lambda: driver.execute_script(READY))
    wait_until(lambda: all(driver.execute_script(VISIBLE)))
    return driver.execute_script(VISIBLE)


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def console_errors(driver) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requests(driver) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith("data:")]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_visible_and_nothing_is_requested(browser, tmp_path, width, dark):
    for seed in range(3):
        make_full_run(tmp_path / f"runs/{seed}", seed=seed)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    assert opened(browser, page.as_uri(), width=width, dark=dark) == [True] * FIGURES
    assert console_errors(browser) == [] and requests(browser) == [page.as_uri()]
    inside, there = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert inside <= there
    back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", back)[:3])) < 60) == dark


def test_report_of_ten_runs_opens_in_under_two_seconds(browser, tmp_path):
    for seed in range(10):
        make_full_run(tmp_path / f"runs/{seed}", updates=1_000, seed=seed)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    took = []
    for _ in range(3):
        opened(browser, page.as_uri())
        timing = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        took.append(browser.execute_script(timing) / 1000)
    assert min(took) < 2, took


def test_runs_can_be_hidden_and_the_axis_changed(browser, tmp_path):
    for seed in range(2):
        make_full_run(tmp_path / f"runs/{seed}", seed=seed)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    opened(browser, page.as_uri())
    before = browser.execute_script(LINES)
    assert len(before) == 2 * sum(len(look.columns) + bool(look.points) for look in LOOKS)
    assert all(visible and x == "env_steps" for _, visible, x in before)
    browser.execute_script("document.querySelector('[data-shows=\"1\"]').click()")
    browser.execute_script(AGAINST_SECONDS)
    for name, visible, x in browser.execute_script(LINES):
        assert visible == name.startswith("0:") and x == "wall_seconds"
    assert console_errors(browser) == []


GROUP = """
const figures = Bokeh.documents.flatMap((doc) => doc.roots());
const [band, line] = figures.flatMap((figure) => figure.renderers ?? []).filter((each) => each.name === "g0:kl");
return [band.visible, line.visible, line.glyph.x.field, line.glyph.y.field, band.glyph.y1.field, band.glyph.y2.field];
"""
DATA = "return Array.from(Bokeh.documents[0].get_model_by_name(arguments[0]).data[arguments[1]])"
SMOOTHED = """
const smoothing = document.getElementById("smoothing");
smoothing.value = arguments[0];
smoothing.dispatchEvent(new Event("input"));
"""


def test_groups_can_be_hidden_and_follow_the_axis(browser, tmp_path):
    for seed in range(2):
        make_full_run(tmp_path / f"runs/{seed}", seed=seed)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    opened(browser, page.as_uri())
    of = [f"kl@env_steps@{part}" for part in ("middle", "low", "high")]
    assert browser.execute_script(GROUP) == [True, True, "env_steps", *of]
    browser.execute_script(AGAINST_SECONDS)
    of = [f"kl@wall_seconds@{part}" for part in ("middle", "low", "high")]
    assert browser.execute_script(GROUP) == [True, True, "wall_seconds", *of]
    browser.execute_script("document.querySelector('[data-group=\"0\"]').click()")
    assert browser.execute_script(GROUP)[:2] == [False, False]
    assert not any(visible for _, visible, _ in browser.execute_script(LINES))
    assert console_errors(browser) == []


def test_lines_can_be_smoothed_and_are_measured_values_again(browser, tmp_path):
    for seed in range(2):
        make_full_run(tmp_path / f"runs/{seed}", seed=seed)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    opened(browser, page.as_uri())
    measured = browser.execute_script(DATA, "run-0", "kl")
    for _ in range(2):  # of the measured values, not of smoothed ones
        browser.execute_script(SMOOTHED, 0.9)
    weight = 0.9 ** (GRID / len(measured))
    expected = [np.average(measured[: i + 1], weights=weight ** np.arange(i, -1, -1.0)) for i in range(len(measured))]
    np.testing.assert_allclose(browser.execute_script(DATA, "run-0", "kl"), expected, rtol=1e-6)
    steps = browser.execute_script(DATA, "run-0", "env_steps")
    np.testing.assert_array_equal(steps, read_run(tmp_path / "runs/0").columns["env_steps"])
    points = browser.execute_script(DATA, "run-0", "eval_return")
    assert points[9] == 180 and points[8] is None
    assert np.std(browser.execute_script(DATA, "group-0", "kl@update@middle")) < 0.5 * np.std(measured)
    browser.execute_script(SMOOTHED, 0)
    assert browser.execute_script(DATA, "run-0", "kl") == measured
    assert console_errors(browser) == []


def test_live_report_shows_new_data(browser, served):
    place, url = served
    assert opened(browser, f"{url}/") == [True] * FIGURES
    with (place / METRICS_FILE).open("a") as file:
        file.write((place / METRICS_FILE).read_text().splitlines()[-1].replace("50,51200", "51,61440", 1) + "\n")
    cell = "return document.querySelector('[data-cell=\"steps\"]').textContent"
    wait_until(lambda: browser.execute_script(cell) == "61,440")
    assert browser.execute_script(cell) == "61,440"
    length = "return Bokeh.documents[0].get_model_by_name('run-0').data.kl.length"
    assert browser.execute_script(length) == 51
    assert console_errors(browser) == [] and set(requests(browser)) <= {f"{url}/", f"{url}/data"}


def test_live_report_shows_runs_that_start_later(browser, served):
    place, url = served
    shutil.rmtree(place)
    browser.get(f"{url}/")
    assert browser.execute_script("return document.querySelectorAll('.drawing').length") == 0
    make_full_run(place / "first")
    wait_until(lambda: browser.execute_script("return document.querySelectorAll('[data-run]').length") == 1)
    make_full_run(place / "second", seed=1)
    wait_until(lambda: browser.execute_script("return document.querySelectorAll('[data-run]').length") == 2)
    assert browser.execute_script("return document.querySelectorAll('[data-run]').length") == 2
    assert console_errors(browser) == []
