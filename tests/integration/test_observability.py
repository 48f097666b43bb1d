"""The files of docs/observability hold: their tools take them, and they name nothing that the server does not tell."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from telemetry.metrics.catalogue import METRICS, prometheus_label
from tests.kit.metering import measured_engine, mixed_run
from tests.kit.scraping import Scrape, needs_prometheus, promtool

FOLDER = Path(__file__).parents[2] / "docs" / "observability"
DASHBOARD = FOLDER / "grafana" / "dashboards" / "tenure.json"
NAME = re.compile(r"\b(?:tenure|gen_ai)_\w+|\btarget_info\b")
LABELS = {prometheus_label(label) for metric in METRICS for label in metric.labels}
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+")
UNITS = {"short", "s", "percentunit", "none"}


def panels() -> Iterator[dict[str, Any]]:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    yield from (panel for panel in dashboard["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    rules = yaml.safe_load((FOLDER / "rules.yml").read_text("utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return [*alerts, *(target["expr"] for panel in panels() for target in panel["targets"])]


async def scrape_used_engine() -> Scrape:
    async with measured_engine() as measured:
        await mixed_run(measured.rig)
        return await measured.scrape()


@needs_prometheus
@pytest.mark.parametrize(
    "command",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
async def test_file_when_promtool_looks_at_it_then_it_is_good(command: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(promtool, *command, cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_when_read_then_each_alert_has_a_test_that_raises_it_and_one_that_does_not() -> None:
    rules = yaml.safe_load((FOLDER / "rules.yml").read_text("utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((FOLDER / "rules_test.yml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


async def test_expressions_when_compared_with_a_scrape_then_every_series_and_label_is_there() -> None:
    """MET-05 (llm-d/llm-d-autoscaling#1351): a name that nobody tells is an empty panel."""
    page = await scrape_used_engine()
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert named - LABELS - page.names == set()
    assert len(named - LABELS) > 20


async def test_metrics_when_compared_with_the_dashboard_then_each_is_shown() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name in NAME.findall(target["expr"])}
    page = await scrape_used_engine()
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in page.names - {"target_info"}}
    shown = {re.sub(r"_bucket$", "", name) for name in shown}
    # What it is divided by is in the sum of the terms, and units moved are beside their moves.
    assert names - shown <= {"tenure_pool_size", "tenure_kv_moved_total"}


@pytest.mark.parametrize("panel", list(panels()), ids=lambda panel: panel["title"])
def test_panel_when_looked_at_then_it_has_a_unit_a_sentence_and_something_to_show(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert re.fullmatch(r"[A-Z][^.]*\.", panel["description"]), panel["description"]
    assert panel["targets"]
    assert all(target["datasource"]["uid"] == "prometheus" for target in panel["targets"])


def test_dashboard_when_provisioned_then_its_data_sources_are_there() -> None:
    provisioned = FOLDER / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioned / "datasources" / "datasources.yaml").read_text("utf-8"))["datasources"]
    assert {source["uid"] for source in sources} == {"prometheus", "jaeger"}
    assert all(source["url"].startswith("http://127.0.0.1:") for source in sources)
    assert yaml.safe_load((provisioned / "dashboards" / "dashboards.yaml").read_text("utf-8"))["providers"]


def test_compose_when_read_then_images_are_pinned_mounts_are_there_and_all_ports_are_on_loopback() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]
    assert set(services) == {"jaeger", "prometheus", "grafana"}
    for service in services.values():
        assert PINNED.fullmatch(service["image"]), service["image"]
        assert all((FOLDER / mount.partition(":")[0]).exists() for mount in service.get("volumes", ()))
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    told = (*services["prometheus"]["command"], f"grafana={services['grafana']['environment']['GF_SERVER_HTTP_ADDR']}")
    assert {"--web.listen-address=127.0.0.1:9090", "grafana=127.0.0.1"} <= set(told)


def test_readme_when_read_then_its_ports_are_those_of_the_files() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    files = "".join((FOLDER / name).read_text("utf-8") for name in ("compose.yaml", "prometheus.yml"))
    for port in set(re.findall(r"127\.0\.0\.1:(\d+)|--metrics-port (\d+)", readme)):
        assert "".join(port) in files
