"""Every family of models against `transformers`: see families.py, whose table in the README is tested here too."""

import pytest
from families import CHECKS, FAMILIES, README, Check, Family, apart, table, table_in

TABLE = "run `python tests/families.py`"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.title)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.names)
def test_a_family_computes_what_transformers_computes(family: Family, check: Check):
    assert apart(family, check) <= check.bound, f"apart by {apart(family, check):.2g}, allowed is {check.bound:.2g}"


def test_the_table_in_the_readme_is_what_the_checks_say():
    assert table_in(README.read_text(encoding="utf-8")) == table(), TABLE
