"""Check that the chart's generated files are up to date, that the chart uses only existing
settings, and that all versions agree.
"""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from penstock.deploy.node.config.definition import ROLES, settings_of, variable_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "penstock"
GENERATE = ROOT / "helm" / "generate.py"


def test_generated_files_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, GENERATE, "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, f"{checked.stderr}\nrun: python helm/generate.py"


def test_the_check_covers_each_generated_file(tmp_path: Path) -> None:
    generated = runpy.run_path(str(GENERATE))["generated"]()
    assert {str(path.relative_to(CHART)) for path in generated} == {
        "values.yaml",
        "values.schema.json",
        "README.md",
        "docs/how-to/kubernetes.md",
        "docs/how-to/encrypt-controllers.md",
        "docs/how-to/alerts.md",
    }
    assert all(path.read_text() == text for path, text in generated.items())


def test_computed_settings_exist_and_are_used_in_the_templates() -> None:
    module = runpy.run_path(str(GENERATE))
    known = {name for role in ROLES for name in settings_of(role)}
    assert module["COMPUTED"] <= known
    templates = "".join(path.read_text() for path in (CHART / "templates").glob("*.*"))
    for name in module["COMPUTED"]:
        assert variable_of(name) in templates, name


def test_the_spark_pipeline_uses_the_settings_and_versions_of_the_code() -> None:
    config = runpy.run_path(str(ROOT / "examples" / "pipeline" / "config.py"))
    settings = {config["variable"](name) for name in config["Config"].__dataclass_fields__}
    manifest = (CHART / "examples" / "spark-pipeline.yaml").read_text()
    configured, application, _ = yaml.safe_load_all(manifest)
    assert set(configured["data"]) <= settings
    config["Config"].from_environment(configured["data"])
    version = config["SPARK"]
    assert application["spec"]["sparkVersion"] == version
    assert f"pyspark=={version}\n" in (ROOT / "examples/pipeline/requirements.txt").read_text()
    dockerfile = (ROOT / "examples" / "pipeline" / "Dockerfile").read_text()
    assert application["spec"]["deps"]["packages"] == [config["ICEBERG"]]
    assert f"FROM apache/spark:{version}-" in dockerfile
    assert f"pyspark=={version} " in dockerfile


def test_chart_image_and_package_have_the_same_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == (version, version)
    dev = yaml.safe_load((CHART / "values-dev.yaml").read_text())
    assert dev["image"]["tag"] == f"{version}-local"
    nodes = yaml.safe_load((ROOT / "deploy" / "image" / "compose.yaml").read_text())["services"]
    assert nodes["broker-0"]["image"] == f"penstock:{version}"
    assert (
        f"penstock:{version}" in (ROOT / "docs" / "tutorials" / "first-helm-install.md").read_text()
    )
