"""14.2: two codes to a byte."""

import torch
from torch import Tensor

from graders.common import touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation


def _codes(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8)


def packed_by_hand(codes: Tensor) -> Tensor:
    packed = []
    for row in codes.tolist():
        groups = [row[start : start + 32] for start in range(0, len(row), 32)]
        packed.append([group[i] + 16 * group[i + 16] for group in groups for i in range(16)])
    return torch.tensor(packed, dtype=torch.uint8)


def _packing(rows: int, columns: int, seed: int) -> Case:
    codes = _codes(rows, columns, seed)

    def observe(f: Function) -> Observation:
        mine = codes.clone()
        return {"the result": f(mine), "afterwards": touched(codes=(mine, codes))}

    return Case(
        f"codes of {rows} rows of {columns}",
        observe,
        lambda: {"the result": packed_by_hand(codes), "afterwards": "as they were"},
    )


def halves(codes: Tensor) -> tuple[Tensor, Tensor]:
    grouped = codes.reshape(codes.shape[0], -1, 2, 16)
    return grouped[:, :, 0].reshape(len(codes), -1), grouped[:, :, 1].reshape(len(codes), -1)


def by_slices(codes: Tensor) -> Tensor:
    low = torch.cat([codes[:, start : start + 16] for start in range(0, codes.shape[1], 32)], dim=1)
    high = torch.cat([codes[:, start + 16 : start + 32] for start in range(0, codes.shape[1], 32)], dim=1)
    return low + high * 16


PACK_NIBBLES = Grader(
    cases=[_packing(3, 96, 1), _packing(1, 32, 2), _packing(2, 64, 3)],
    mutants=[
        Mutant(
            lambda codes: codes[:, 0::2] | codes[:, 1::2] << 4,
            "You put neighbours into one byte. In these blocks code i shares its byte with code i + 16 of the same"
            " group: then one AND takes sixteen consecutive codes out of sixteen bytes.",
        ),
        Mutant(
            lambda codes: codes[:, 1::2] | codes[:, 0::2] << 4,
            "You put neighbours into one byte, the first of them into the upper half. Code i goes into the lower half"
            " of byte i, and it is code i + 16 that joins it.",
        ),
        Mutant(
            lambda codes: halves(codes)[1] | halves(codes)[0] << 4,
            "Upper and lower half are exchanged: the first sixteen codes of a group are in the lower four bits.",
        ),
        Mutant(
            lambda codes: codes[:, : codes.shape[1] // 2] | codes[:, codes.shape[1] // 2 :] << 4,
            "You pair the first half of a row with its second half. That is right for a row of 32 only: pair within"
            " each group of 32.",
        ),
        Mutant(
            lambda codes: halves(codes)[0] | halves(codes)[1],
            "The two codes of a byte lie on top of each other. Shift the second by four bits (<< 4, or * 16) first.",
        ),
        Mutant(
            lambda codes: halves(codes)[0] + halves(codes)[1] << 4,
            "You shift the sum of both: in Python, a + b << 4 is (a + b) << 4. Write a | b << 4, or a + (b << 4).",
        ),
        Mutant(
            lambda codes: halves(codes)[0] | halves(codes)[1] << 3,
            "You shift by too little: a code has four bits, so the other begins at the fifth (<< 4).",
        ),
        Mutant(
            lambda codes: halves(codes)[0].int() | halves(codes)[1].int() << 4,
            "The bytes are right, and the dtype is not: in int32 or int64 the packed matrix is larger than the one you"
            " began with. Stay in uint8, or go back to it.",
        ),
        Mutant(
            lambda codes: torch.cat(
                (halves(codes)[0].view(len(codes), -1, 16), halves(codes)[1].view(len(codes), -1, 16)), 2
            ).view(codes.shape),
            "Nothing is packed: the result has as many bytes as there are codes. Two codes go into each byte.",
        ),
    ],
    alternatives=[
        by_slices,
        lambda codes: halves(codes)[0] | halves(codes)[1] << 4,
        lambda codes: (halves(codes)[0].int() + 16 * halves(codes)[1].int()).to(torch.uint8),
    ],
)
