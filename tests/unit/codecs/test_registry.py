from __future__ import annotations

import pytest

from hifc_ray.codecs import by_code, by_name, names
from hifc_ray.errors import ConfigError, CorruptRecord


def test_codes_and_names_are_distinct() -> None:
    assert len({by_name(name).code for name in names()}) == len(names())


def test_raw_keeps_its_code_for_ever() -> None:
    assert by_name("raw").code == 0


def test_an_unknown_name_says_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"'zip'; allowed: raw"):
        by_name("zip")


def test_a_record_with_an_unknown_code_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="250"):
        by_code(250)
