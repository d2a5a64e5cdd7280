"""Emptying host memory: all that nobody holds goes to flash, and what is held stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.blocks import SOON, query, store
from tests.fakes.tier import WAIT_S, faulty, in_host, on_flash, open_tier

pytestmark = pytest.mark.timeout(30)


def test_what_nobody_holds_goes_and_what_is_held_stays(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, flash=faulty())
    store(tier, range(12))
    held = tier.lookup(query([0, 1]), SOON).lease
    assert tier.demote_all(WAIT_S)
    assert in_host(tier, range(12)) == [0, 1]
    assert on_flash(tier, range(12)) == list(range(2, 12))
    tier.release(held)
    assert tier.demote_all(WAIT_S)
    assert in_host(tier, range(12)) == []
    assert on_flash(tier, range(12)) == list(range(12))
    tier.check()
    tier.close(flush=False)
