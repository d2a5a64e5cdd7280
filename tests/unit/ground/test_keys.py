from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hifc_ray.keys import chain, extend, namespace, session_tag, tenant_tag
from hifc_ray.types import KEY_BYTES, Namespace

SPACE = namespace({"weights": "w", "dtype": "float32"})
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_golden_digests() -> None:
    """Keys on flash outlive a release: these may change only together with `LAYOUT_VERSION`."""
    assert SPACE.hex() == "b40ee0eb74f334dfd03fc29679a29a3d3238158f7381c411e6ce5f1019e9ad69"
    assert [key.hex() for key in chain(SPACE, range(8), 4)] == [
        "1eb9a636010dd0485ecc3fb341c115ee281d4ef9083c768d2ab060bcbd185e6f",
        "f33125a94aa26e9604edd16a77687e6efaee2e19638e4dd0035007a1a495bed7",
    ]


def test_golden_tags() -> None:
    """Tags lie on flash: others would make what is stored there nobody's."""
    assert (hex(tenant_tag("salt")), hex(session_tag("salt"))) == ("0x759e87312d60d2eb", "0xcb67c3ff2fc94839")
    assert (tenant_tag(""), session_tag("")) == (0, 0)


@given(st.text(st.characters()), st.text(st.characters()))
def test_tags_are_of_one_text_and_never_of_nobody(first: str, second: str) -> None:
    for tag in (tenant_tag, session_tag):
        assert 0 <= tag(first) < 2**64
        assert (tag(first) == 0) == (first == "")
        assert (tag(first) == tag(second)) == (first == second)
    assert first == "" or tenant_tag(first) != session_tag(first)


@given(tokens, tokens)
def test_a_common_prefix_has_common_keys_and_nothing_after_it_has(first: list[int], second: list[int]) -> None:
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    a, b = chain(SPACE, first, 4), chain(SPACE, second, 4)
    assert a[: common // 4] == b[: common // 4]
    assert not set(a[common // 4 :]) & set(b[common // 4 :])


@given(tokens)
def test_only_full_blocks_have_keys_of_fixed_width(ids: list[int]) -> None:
    keys = chain(SPACE, ids, 4)
    assert len(keys) == len(ids) // 4
    assert all(len(key) == KEY_BYTES for key in keys)
    assert chain(SPACE, ids[: len(keys) * 4], 4) == keys


def test_the_same_tokens_at_another_place_have_another_key() -> None:
    first, second = chain(SPACE, [7, 7, 7, 7], 2)
    assert first != second


def test_token_ids_are_hashed_at_fixed_width() -> None:
    assert chain(SPACE, [1, 0], 2) != chain(SPACE, [0, 1], 2)
    assert chain(SPACE, [256], 1) == [extend(SPACE, b"\x00\x01\x00\x00")]


def test_another_namespace_has_other_keys() -> None:
    other = namespace({"weights": "w2", "dtype": "float32"})
    assert not set(chain(SPACE, range(8), 2)) & set(chain(other, range(8), 2))


def test_parts_of_a_namespace_cannot_run_into_each_other() -> None:
    spaces: list[Namespace] = [
        namespace({"a": "bc"}),
        namespace({"ab": "c"}),
        namespace({"a": "b", "c": ""}),
        namespace({"a": "", "b": "c"}),
        namespace({}),
    ]
    assert len(set(spaces)) == len(spaces)


def test_a_namespace_does_not_depend_on_the_order_of_its_parts() -> None:
    assert namespace({"a": "1", "b": b"2"}) == namespace({"b": "2", "a": b"1"})
