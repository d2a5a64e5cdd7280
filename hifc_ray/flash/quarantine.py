"""What is kept of records that failed their checks: the newest few, in one small file that people can read.

Enough to tell a flipped bit from a torn write, a stray one, and a bug: where it lay, whose it was, and the two pages
as they were read.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections import deque
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from hifc_ray.clock import Clock
from hifc_ray.flash.device import FilePlace
from hifc_ray.flash.format import FAULTS_NAME
from hifc_ray.layout import PAGE_BYTES

log = logging.getLogger(__name__)

MAX_FAULTS = 16
MAX_TEXT = 200
_PAGE_TEXT = (PAGE_BYTES + 2) // 3 * 4
_LONGEST_ESCAPE = 6  # of a character in JSON
MAX_BYTES = MAX_FAULTS * (2 * _PAGE_TEXT + 5 * MAX_TEXT * _LONGEST_ESCAPE + 1024)  # of the file
_SAVE_EVERY_S = 10.0  # a device that goes bad is not written to for each of its faults


@dataclass(frozen=True)
class Fault:
    """A record that failed its checks. Bytes are hexadecimal, pages base64; texts longer than `MAX_TEXT` are cut."""

    wall_s: float  # since the epoch
    segment: int
    uuid: str  # of the segment
    offset: int
    header_bytes: int
    payload_bytes: int
    key: str
    namespace: str
    reason: str
    detail: str
    header: str = ""  # its first page as it was read
    stripe: str = ""  # the first page of the stripe that failed


def page_text(page: bytes | memoryview) -> str:
    """The first page of `page` for `Fault.header` and `Fault.stripe`."""
    return base64.b64encode(page[:PAGE_BYTES]).decode()


class Quarantine:
    """The newest `MAX_FAULTS` faults of one device. Never raises for what the device does. Safe from any thread."""

    def __init__(self, device: FilePlace, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._lock = threading.Lock()
        self._pen = threading.Lock()  # of who writes, taken first and held through its I/O
        self._faults: deque[Fault] = deque(_load(device), MAX_FAULTS)
        self._unsaved = False
        self._save_at_s = clock.now()

    def note(self, fault: Fault) -> None:
        """Keep one; it is on the device when this returns, or after `flush` if another was put there just now."""
        with self._lock:
            self._faults.append(_cut(fault))
            self._unsaved = True
            due = self._clock.now() >= self._save_at_s
        if due:
            self.flush()

    def flush(self) -> None:
        """Put what is not on the device there. Does nothing while another thread is at it."""
        if not self._pen.acquire(blocking=False):
            return
        try:
            with self._lock:
                if not self._unsaved:
                    return
                self._unsaved, self._save_at_s = False, self._clock.now() + _SAVE_EVERY_S
                rows = [asdict(fault) for fault in self._faults]
            data = json.dumps(rows, indent=1, ensure_ascii=False).encode(errors="replace")
            self._device.put(FAULTS_NAME, data)
        except OSError as error:
            log.warning("%s: %s not written: %s", self._device.path, FAULTS_NAME, error)
            with self._lock:
                self._unsaved = True
        finally:
            self._pen.release()

    def forget_pages(self) -> None:
        """Keep what is known of each fault, but no byte of what was stored: a purge cannot tell whose it was."""
        with self._lock:
            bare = [replace(fault, header="", stripe="") for fault in self._faults]
            self._unsaved = self._unsaved or bare != list(self._faults)
            self._faults = deque(bare, MAX_FAULTS)
        self.flush()

    def all(self) -> list[Fault]:
        """Oldest first, those of former runs included."""
        with self._lock:
            return list(self._faults)


def _cut(fault: Fault) -> Fault:
    limits = {"header": _PAGE_TEXT, "stripe": _PAGE_TEXT}
    row: dict[str, Any] = asdict(fault)
    texts = {name: text[: limits.get(name, MAX_TEXT)] for name, text in row.items() if isinstance(text, str)}
    return Fault(**{**row, **texts})


def _load(device: FilePlace) -> list[Fault]:
    """What is there; nothing if it is damaged."""
    try:
        faults = [Fault(**row) for row in json.loads(device.get(FAULTS_NAME))]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    return [_cut(fault) for fault in faults] if all(map(_is_sound, faults)) else []


def _is_sound(fault: Fault) -> bool:
    types = {"float": (int, float), "int": (int,), "str": (str,)}
    return all(isinstance(getattr(fault, field.name), types[str(field.type)]) for field in fields(Fault))
