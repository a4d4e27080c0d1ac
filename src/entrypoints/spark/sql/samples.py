"""Push samples down to Lance.

The address of a row and the seed decide whether the row is in the sample, so Lance reads other columns of the chosen
rows only. As in Spark, equal seeds choose equal rows, and samples of one seed between other bounds share no row.
"""

from __future__ import annotations

from typing import NamedTuple

from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS

_PRIME = 2**31 - 1
"""The modulus: a product of two remainders fits into 64 bits."""
_FRAGMENT = 1_299_709
"""Keeps the rows of different fragments apart."""


class Sample(NamedTuple):
    """The rows whose random number is between two bounds.

    The number is between 0 and 1, the upper bound is excluded.
    """

    lower: float
    upper: float
    seed: int

    def __str__(self) -> str:
        return f"{self.lower:g} to {self.upper:g} with seed {self.seed}"

    @property
    def condition(self) -> str:
        """The condition in the SQL of Lance.

        Two rounds of a linear step and a square, modulo a prime, spread the addresses of neighbouring rows.
        """
        address, first, second = f"CAST({ROW_ADDRESS} AS BIGINT)", self.seed % _PRIME, self.seed // _PRIME % _PRIME
        row = f"({address} % {2**32} + {address} / {2**32} * {_FRAGMENT})"
        once = _squared(f"({row} % {_PRIME} * 48271 + {first})")
        number = _squared(f"({once} * 69621 + {second})")
        least, most = (round(bound * _PRIME) for bound in (self.lower, self.upper))
        return f"({number} >= {least} AND {number} < {most})"


def _squared(value: str) -> str:
    rest = f"({value} % {_PRIME})"
    return f"({rest} * {rest} % {_PRIME})"
