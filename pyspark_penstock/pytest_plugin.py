"""Load the plugin `penstock.testing.plugin`, or fixtures that report why it cannot be loaded.

pytest imports this in every run of every project in an environment with Penstock, so it never
raises and has no dependencies. It is not in `penstock`, because a project may have a package with
that name.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest


def _check_path() -> None:
    spec = find_spec("penstock")
    ours = Path(__file__).resolve().parents[1] / "penstock"
    if spec is None or ours not in map(
        Path.resolve, map(Path, spec.submodule_search_locations or ())
    ):
        raise ImportError(
            f"Python finds another package with this name first: {spec and spec.origin}"
        )


try:
    _check_path()
    from penstock.testing.plugin import *  # noqa: F403 - hooks and fixtures
except Exception as error:  # noqa: BLE001 - also what a replaced or damaged package raises
    _PROBLEM = f"Penstock's pytest plugin cannot be loaded: {type(error).__name__}: {error}"

    @pytest.fixture(scope="session")
    def penstock_cluster() -> None:
        """Fail with the reason why the plugin cannot be loaded."""
        pytest.fail(_PROBLEM, pytrace=False)

    @pytest.fixture
    def penstock(penstock_cluster: None) -> None:
        """Fail with the reason why the plugin cannot be loaded."""
