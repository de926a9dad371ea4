"""The committed codec equals the output of the generator, for every API in the table."""

from penstock.protocol.apis import APIS, PRODUCE
from penstock.protocol.codecs import CODECS
from tools.protocol import codegen


def test_committed_modules_match_the_generator() -> None:
    generated = codegen.generate()
    committed = {
        path.name: path.read_text()
        for path in codegen.OUTPUT.glob("*.py")
        if path.name != "__init__.py"
    }
    assert committed == generated, "run: python -m tools.protocol.codegen"


def test_the_table_and_the_codecs_contain_the_same_apis() -> None:
    assert set(CODECS) == set(APIS)


def test_only_produce_advertises_unsupported_versions() -> None:
    assert [api for api in APIS.values() if api.announced_min != api.served_min] == [PRODUCE]
    assert PRODUCE.announced_min == 0
    assert not PRODUCE.serves(2)
    assert PRODUCE.serves(3)
