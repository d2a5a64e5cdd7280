from __future__ import annotations

import threading

import pytest

from hifc_ray.clock import ManualClock
from hifc_ray.flash.device import pages
from hifc_ray.flash.traffic import BUSY_PIECE_BYTES, FREE_PIECE_BYTES, MAX_BUFFERS, Traffic, pieces

PAGE = 4096
FOREVER_S = 20.0


class Watched(Traffic):
    """Says when a write has begun to wait."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.waiting = threading.Event()
        plain = self._idle.wait_for

        def wait_for(*args: object) -> bool:
            self.waiting.set()
            return plain(*args)  # type: ignore[arg-type]

        self._idle.wait_for = wait_for  # type: ignore[method-assign,assignment]


def test_without_reads_a_write_goes_on_at_once() -> None:
    traffic = Watched()
    assert traffic.yield_to_reads(FOREVER_S) == FREE_PIECE_BYTES
    assert not traffic.waiting.is_set()


@pytest.mark.timeout(30)
def test_a_write_waits_until_the_last_read_has_left() -> None:
    traffic, got = Watched(), []
    with traffic:
        with traffic:
            assert traffic.num_reads == 2
            writer = threading.Thread(target=lambda: got.append(traffic.yield_to_reads(FOREVER_S)))
            writer.start()
            assert traffic.waiting.wait(FOREVER_S)
        assert writer.is_alive()
        assert got == []
    writer.join(FOREVER_S / 2)
    assert got == [FREE_PIECE_BYTES]


@pytest.mark.timeout(30)
def test_reads_that_never_end_do_not_starve_a_write() -> None:
    traffic = Watched()
    with traffic:
        assert [traffic.yield_to_reads(0.001) for _ in range(3)] == [BUSY_PIECE_BYTES] * 3
        assert traffic.waiting.is_set()


def test_a_read_that_fails_has_left() -> None:
    traffic = Watched()
    with pytest.raises(OSError), traffic:
        raise OSError
    assert traffic.num_reads == 0


def test_waiting_is_counted() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    plain = traffic._idle.wait_for

    def wait_for(predicate: object, timeout: float) -> bool:
        clock.advance(timeout)
        return plain(predicate, 0)  # type: ignore[arg-type]

    traffic._idle.wait_for = wait_for  # type: ignore[method-assign,assignment]
    with traffic:
        traffic.yield_to_reads(0.5)
        traffic.yield_to_reads(0.25)
    assert traffic.waited_s == 0.75


def numbered(*lengths: int) -> list[memoryview]:
    views = [pages(length) for length in lengths]
    for number, view in enumerate(views):
        for page in range(len(view) // PAGE):
            view[page * PAGE : (page + 1) * PAGE] = bytes([number, page]) * (PAGE // 2)
    return views


@pytest.mark.parametrize("max_pages", [1, 2, 3, 5, 100])
def test_pieces_are_the_buffers_in_order_and_small_enough(max_pages: int) -> None:
    buffers = numbered(PAGE, 3 * PAGE, 2 * PAGE, 7 * PAGE)
    found = list(pieces(buffers, max_pages * PAGE + 100))
    assert b"".join(b"".join(piece) for piece in found) == b"".join(buffers)
    sizes = [sum(map(len, piece)) for piece in found]
    assert all(len(part) % PAGE == 0 and len(part) for piece in found for part in piece)
    assert sizes[:-1] == [max_pages * PAGE] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= max_pages * PAGE


def test_buffers_that_fit_stay_whole_and_are_not_copied() -> None:
    buffers = numbered(PAGE, 2 * PAGE)
    ((first, second),) = pieces(buffers, 1 << 20)
    assert (len(first), len(second)) == (PAGE, 2 * PAGE)
    buffers[1][0] = 0xEE
    assert second[0] == 0xEE


def test_no_call_gets_more_buffers_than_the_kernel_takes() -> None:
    page = pages(PAGE)
    found = list(pieces([page] * (2 * MAX_BUFFERS + 1), 1 << 30))
    assert [len(piece) for piece in found] == [MAX_BUFFERS, MAX_BUFFERS, 1]


def test_the_size_is_asked_before_each_piece() -> None:
    sizes = iter([2 * PAGE, PAGE, 1 << 20])
    found = pieces(numbered(6 * PAGE), lambda: next(sizes))
    assert [sum(map(len, piece)) for piece in found] == [2 * PAGE, PAGE, 3 * PAGE]


@pytest.mark.parametrize("max_bytes", [0, 1, PAGE - 1])
def test_a_page_goes_at_the_least(max_bytes: int) -> None:
    assert [len(piece[0]) for piece in pieces(numbered(2 * PAGE), max_bytes)] == [PAGE, PAGE]


def test_nothing_is_no_piece() -> None:
    assert list(pieces([], PAGE)) == []
    assert list(pieces([pages(PAGE)[:0]], PAGE)) == []
