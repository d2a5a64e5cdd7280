"""I/O of upkeep and purges, which may hang: the waiting ends in time, the I/O goes on by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Errands:
    """At most one errand under each name at a time, on a thread of its own. For one thread at a time."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._threads: dict[str, threading.Thread] = {}

    def run(self, name: str, work: Callable[[], object], late: Callable[[], None] = lambda: None) -> bool:
        """Do `work`, and raise what it raises. False if it takes longer than the limit: then `late` is called.

        False, without a try, if the errand before has not come back yet; what it raises then is not heard.
        """
        if name in self._threads and self._threads[name].is_alive():
            return False
        errors: list[BaseException] = []

        def errand() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = self._threads[name] = threading.Thread(target=errand, name=f"hifc-errand-{name}", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if errors:
            raise errors[0]
        if thread.is_alive():
            late()
            return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for those that are out; False if one does not come back within so long."""
        end = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())
