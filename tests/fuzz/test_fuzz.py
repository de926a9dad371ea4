"""Run the committed inputs of every target of `make fuzz`, and a few mutations of them."""

from random import Random

import pytest

from penstock.controller.api.callers import EXCHANGE, FOLLOW, METHODS
from tests.fuzz.examine import examine
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import corpora, seeds_of
from tests.fuzz.targets import MESSAGES, TARGETS

MUTATIONS = 200


@pytest.mark.parametrize("name", TARGETS)
def test_committed_inputs_and_mutations_have_no_findings(name: str) -> None:
    target = TARGETS[name]
    seeds = seeds_of(target)
    assert seeds, f"target {name} has no corpus"
    for seed, data in seeds.items():
        assert (wrong := examine(target, data, traced=True)) is None, f"{seed}: {wrong}"
    random = Random(18)
    for _ in range(MUTATIONS):
        data = mutated(list(seeds.values()), random)
        assert (wrong := examine(target, data)) is None, f"{data.hex()}: {wrong}"


def test_committed_corpora_match_the_output_of_their_script() -> None:
    for name, made in corpora():
        seeds = seeds_of(TARGETS[name])
        for seed, data in made:
            assert seeds[seed.replace(" ", "-")] == data


def test_requests_of_every_controller_method_are_fuzzed() -> None:
    """Streaming methods have their own messages."""
    assert set(METHODS) - {kind.__name__ for kind in MESSAGES} == {EXCHANGE, FOLLOW}
