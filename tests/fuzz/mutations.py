"""Mutate inputs. The same random numbers produce the same mutation."""

from random import Random

INPUT_BYTES_MAX = 64 << 10
_EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutated(seeds: list[bytes], random: Random) -> bytes:
    """Return one of the seeds after one to eight edits."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, 8)):
        _edit(data, seeds, random)
    return bytes(data[:INPUT_BYTES_MAX])


def _edit(data: bytearray, seeds: list[bytes], random: Random) -> None:
    at = random.randint(0, len(data))
    match random.randint(0, 7):
        case 0:
            data[at : at + 1] = bytes([random.choice(_EDGES)])
        case 1:
            data[at : at + 1] = bytes([random.randint(0, 255)])
        case 2:
            data[at:at] = bytes([random.choice(_EDGES)]) * random.randint(1, 9)
        case 3:
            del data[at : at + random.randint(1, 8)]
        case 4:
            del data[at:]
        case 5:
            size = random.choice((2, 4, 8))
            number = random.choice(_NUMBERS).to_bytes(8, "big")[-size:]
            data[at : at + size] = number if random.randint(0, 1) else number[::-1]
        case 6:
            data[at:at] = data[at : at + random.randint(1, 64)] * random.randint(1, 16)
        case _:
            other = random.choice(seeds)
            data[at:] = other[random.randint(0, len(other)) :]
