"""Reads the metrics endpoint as Prometheus does, has promtool look at it, and runs a Prometheus of its own."""

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.kit.requirements import requires

PROMTOOL = "promtool"
_PROMETHEUS = "prometheus"
_TIMEOUT_S = 20.0

needs_prometheus = requires(
    _PROMETHEUS,
    present=shutil.which(PROMTOOL) is not None and shutil.which(_PROMETHEUS) is not None,
    reason="nobody but us reads the metrics: `make services` installs it",
)

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One page of metrics."""

    text: str
    series: Mapping[tuple[str, Labels], float]
    """Name with its suffix, and labels, → value."""

    def value(self, name: str, **labels: str) -> float:
        """Of the one series that has these labels, and maybe others."""
        found = [
            value
            for (other, others), value in self.series.items()
            if other == name and set(labels.items()) <= set(others)
        ]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values that are not 0, by one label."""
        return {dict(labels)[label]: value for (other, labels), value in self.series.items() if other == name and value}

    def label_sets(self, name: str) -> set[Labels]:
        return {labels for other, labels in self.series if other == name}

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.series}


def parse(text: str) -> Scrape:
    series = {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Scrape(text, series)


def fetch(url: str, accept: str = "") -> str:
    """Raises urllib's errors."""
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        body: bytes = answer.read()
    return body.decode()


async def scrape(url: str) -> Scrape:
    return parse(await asyncio.to_thread(fetch, url))


def promtool(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROMTOOL, *arguments], input=stdin, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


@dataclass(frozen=True, slots=True)
class QueryEngine:
    """A running Prometheus."""

    url: str

    async def query(self, expression: str) -> dict[Labels, float]:
        """Labels without those that scraping adds, → value. Raises HTTPError for what is no query."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        answer = json.loads(await asyncio.to_thread(fetch, url))
        return {
            frozenset((key, value) for key, value in each["metric"].items() if key not in ("instance", "job")): float(
                each["value"][1]
            )
            for each in answer["data"]["result"]
        }


@asynccontextmanager
async def prometheus_of(metrics_url: str, folder: Path) -> AsyncIterator[QueryEngine]:
    """Scrapes that page five times a second, and keeps what it reads in `folder`."""
    target, _, path = metrics_url.removeprefix("http://").partition("/")
    config = folder / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n  - job_name: tenure\n    scrape_interval: 200ms\n    scrape_timeout: 200ms\n"
        f"    metrics_path: /{path}\n    static_configs: [{{targets: ['{target}']}}]\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        _PROMETHEUS,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    engine = QueryEngine(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while not await _has_scraped(engine):  # noqa: ASYNC110 - seen from outside only, there is no event
                await asyncio.sleep(0.1)
        yield engine
    finally:
        process.terminate()
        await process.wait()


async def _has_scraped(engine: QueryEngine) -> bool:
    try:
        return 1.0 in (await engine.query("up")).values()
    except urllib.error.URLError:  # it has not begun to answer
        return False
