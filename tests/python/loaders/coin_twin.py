"""Coins and what stays of a draw, slowly, by the words of the C++ headers: dp/mechanism/run_key.h, coins.h, truncation.h, bins.h
and kernels/gaussian.h."""

import hmac
import struct
from fractions import Fraction


def coin(key: bytes, step: int, unit: int) -> int:
    """The twin, by the words of dp/mechanism/run_key.h, coins.h and kernels/gaussian.h: 16 and 48 bits of the step's own ChaCha20
    streams."""
    subkey = key_of(key, 1, step)
    lead = word(subkey, 0, unit // 4) >> 16 * (unit % 4) & 0xFFFF
    return lead << 48 | word(subkey, 1, unit) >> 16


def word(key: bytes, stream: int, index: int) -> int:
    block = chacha20_block(key, stream, index // 8)
    return int.from_bytes(block[8 * (index % 8) : 8 * (index % 8) + 8], "little")


def chacha20_block(key: bytes, stream: int, counter: int) -> bytes:
    """RFC 8439, section 2.3; the nonce is the stream and the counter's high part."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter & 0xFFFFFFFF, stream, counter >> 32, 0]
    state = list(start)

    def quarter(a, b, c, d):
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            mixed = state[z] ^ state[x]
            state[z] = ((mixed << by) | (mixed >> (32 - by))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((one + two) & 0xFFFFFFFF for one, two in zip(state, start)))


def key_of(key: bytes, purpose: int, step: int) -> bytes:
    """Of the run whose id is zero, first attempt."""
    return hmac.digest(key, bytes([purpose]) + bytes(16) + step.to_bytes(8, "little") + bytes(8), "sha256")


def kept(key: bytes, step: int, units: int, q: float, cap: int) -> list[int]:
    """The step's draw, of which at most cap stay: those that go come first in a shuffle, whose places are words modulo their number;
    words below 2^64 mod number are passed over."""
    drawn = [unit for unit in range(units) if q == 1 or coin(key, step, unit) < int(Fraction(q) * 2**64)]
    subkey, index, gone = key_of(key, 7, step), 0, 0
    while len(drawn) - gone > cap:
        places = len(drawn) - gone
        found = word(subkey, 0, index)
        index += 1
        if found < 2**64 % places:
            continue
        place = gone + found % places
        drawn[gone], drawn[place] = drawn[place], drawn[gone]
        gone += 1
    return sorted(drawn[gone:])


def dealt(key: bytes, unit: int, bins: int) -> int:
    """The step that a unit is dealt to: its word of stream 0 modulo bins; words below 2^64 mod bins are passed over, for that of the next
    stream."""
    subkey, stream = key_of(key, 6, 0), 0
    while (found := word(subkey, stream, unit)) < 2**64 % bins:
        stream += 1
    return found % bins
