"""`import penstock` is fast and complete, and its errors contain the missing extras."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from penstock import (
    Cluster,
    ClusterFailed,
    ManifestNotFound,
    ObjectStoreError,
    StreamError,
    UnknownPartition,
    scan,
    topics,
)
from penstock.deploy.local import moto_store
from tests.support.waiting import PATIENCE_S
from tests.tidy.repository import project


def output_of(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout


def test_importing_penstock_imports_no_other_module() -> None:
    loaded = output_of(
        "import sys; before = set(sys.modules); import penstock; print(*(set(sys.modules) -"
        " before))"
    ).split()
    assert {name.partition(".")[0] for name in loaded} & {
        "penstock",
        "stream",
        "objectstore",
        "protocol",
        "deploy",
        "pyarrow",
        "msgspec",
    } == {"penstock"}


def test_every_public_name_exists() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert set(penstock.__all__) <= set(dir(penstock))
    assert penstock.__version__ == project()["project"]["version"]
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'scam'"):
        penstock.scam  # noqa: B018


def test_every_public_object_has_a_docstring() -> None:
    for name in set(penstock.__all__) - {"__version__"}:
        assert getattr(penstock, name).__doc__, name


def test_the_error_of_scan_without_its_packages_contains_the_install_command(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import penstock\n"
        "try: penstock.scan\n"
        "except ImportError as error: print(error.name, error)\n"
        f"try: penstock.topics('file:{tmp_path}')\n"
        "except penstock.ManifestNotFound: print('topics need no extra')\n"
    )
    needed = (
        'pyarrow penstock.scan needs the package pyarrow: pip install "penstock-streams[reader]"'
    )
    assert output_of(code) == f"{needed}\ntopics need no extra\n"


def test_the_error_of_sql_without_its_packages_contains_the_install_command() -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None; import penstock\n"
        "try: penstock.sql\n"
        "except ImportError as error: print(error.name, error)\n"
    )
    needed = 'duckdb penstock.sql needs the package duckdb: pip install "penstock-streams[sql]"'
    assert output_of(code) == f"{needed}\n"


def test_the_error_of_spark_without_its_packages_contains_the_install_command() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import penstock.spark\n"
        "try: penstock.spark.register(None)\n"
        "except ImportError as error: print(error.name, error)\n"
    )
    assert (
        output_of(code) == "pyspark penstock.spark needs the package pyspark: pip install"
        ' "penstock-streams[spark]"\n'
    )


def test_spark_uses_the_data_source_and_pushes_filters_down() -> None:
    import penstock.spark
    from pyspark_penstock import DefaultSource

    sources: list[object] = []
    settings: dict[str, str] = {}
    session = SimpleNamespace(
        dataSource=SimpleNamespace(register=sources.append),
        conf=SimpleNamespace(set=lambda name, value: settings.update({name: value})),
    )
    penstock.spark.register(session)
    assert sources == [DefaultSource]
    assert settings == {"spark.sql.python.filterPushdown.enabled": "true"}


def test_a_directory_without_a_cluster_and_an_invalid_address_are_rejected(tmp_path: Path) -> None:
    for read in (lambda url: topics(url), lambda url: scan(url, "orders")):
        with pytest.raises(ManifestNotFound, match="the store holds no manifest of any cluster"):
            read(f"file:{tmp_path}")
        with pytest.raises(ObjectStoreError):
            read("ftp://bucket")
    assert issubclass(UnknownPartition, StreamError)


def test_the_module_can_be_run_as_the_command() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert shown.stdout == f"penstock {penstock.__version__}\n"


def test_a_cluster_rejects_invalid_settings_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ClusterFailed, match="33 is not allowed: 1 to 32"):
        Cluster(brokers=33)
    with pytest.raises(ClusterFailed, match="ftp://x is not allowed"):
        Cluster(store="ftp://x")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        moto_store, "find_spec", lambda name: None if name == "moto" else find_spec(name)
    )
    with pytest.raises(ClusterFailed, match=r'pip install "penstock-streams\[local\]"'):
        Cluster(store="moto")
    cluster = Cluster()
    with pytest.raises(ClusterFailed, match="the cluster is not running"):
        _ = cluster.bootstrap_servers
    cluster.close()
