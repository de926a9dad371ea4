"""The generated codec is the generator's output, for every API of the table."""

from penstock.protocol.apis import APIS, PRODUCE
from penstock.protocol.codecs import CODECS
from tools.protocol import codegen


def test_the_committed_modules_equal_the_generators_output() -> None:
    generated = codegen.generate()
    committed = {
        path.name: path.read_text()
        for path in codegen.OUTPUT.glob("*.py")
        if path.name != "__init__.py"
    }
    assert committed == generated, "run: python -m tools.protocol.codegen"


def test_every_api_of_the_table_has_a_codec_and_the_other_way_round() -> None:
    assert set(CODECS) == set(APIS)


def test_only_produce_lists_unserved_versions() -> None:
    assert [api for api in APIS.values() if api.announced_min != api.served_min] == [PRODUCE]
    assert PRODUCE.announced_min == 0
    assert not PRODUCE.serves(2)
    assert PRODUCE.serves(3)
