"""Commands connect to controllers with the TLS settings of their environment."""

from pathlib import Path

import pytest

from penstock.base.errors import ExpectedError
from penstock.base.settings import fields_of
from penstock.controller.api.tls import TlsConfig
from penstock.deploy.clients.controllers import connect
from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import variable_of
from tests.support.certs import Authority

ADDRESS = "127.0.0.1:1"


async def test_commands_use_the_same_variables_as_nodes(tmp_path: Path) -> None:
    assert connect(ADDRESS, {}).tls is None
    files = Authority(tmp_path).make("penstock-admin")
    assert set(files.environment) == {variable_of(field.name) for field in fields_of(TlsConfig)}
    tls = connect(ADDRESS, files.environment).tls
    assert tls is not None
    assert tls.current().subject == "CN=penstock-admin"


async def test_errors_contain_the_missing_variable_or_file(tmp_path: Path) -> None:
    files = Authority(tmp_path).make("penstock-admin")
    variable = "PENSTOCK_CONTROLLER_SSL_CA_LOCATION"
    with pytest.raises(UsageError, match=f"{variable} is missing"):
        connect(ADDRESS, files.environment | {variable: ""})
    with pytest.raises(ExpectedError, match="cannot be read: No such file"):
        connect(ADDRESS, files.environment | {variable: str(tmp_path / "none.pem")})
