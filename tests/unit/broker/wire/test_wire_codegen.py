"""The generated codec is the generator's output, for every API of the table."""

from pathlib import Path

from penstock.broker.wire import codegen
from penstock.broker.wire.apis import APIS, PRODUCE
from penstock.broker.wire.codecs import CODECS

ROOT = Path(codegen.__file__).parent


def test_the_committed_modules_are_what_the_generator_writes() -> None:
    generated = codegen.generate()
    committed = {
        path.name: path.read_text()
        for path in codegen.OUTPUT.glob("*.py")
        if path.name != "__init__.py"
    }
    assert committed == generated, "run: python -m penstock.broker.wire.codegen"


def test_every_api_of_the_table_has_a_codec_and_the_other_way_round() -> None:
    assert set(CODECS) == set(APIS)


def test_only_produce_announces_what_it_does_not_serve() -> None:
    assert [api for api in APIS.values() if api.announced_min != api.served_min] == [PRODUCE]
    assert PRODUCE.announced_min == 0
    assert not PRODUCE.serves(2)
    assert PRODUCE.serves(3)


def test_kio_is_named_by_the_generator_only() -> None:
    users = {
        path.name
        for path in ROOT.rglob("*.py")
        if "import kio" in (text := path.read_text()) or "from kio" in text
    }
    dynamic = {path.name for path in ROOT.rglob("*.py") if "kio.schema" in path.read_text()}
    assert users | dynamic <= {"kio_schema.py"}
    importers = {
        path.name
        for path in ROOT.rglob("*.py")
        if "penstock.broker.wire.kio_schema import" in path.read_text()
    }
    assert importers == {"codegen.py"}
