"""Would a store open this directory? Asked by `hifc doctor`, without opening one."""

from __future__ import annotations

from pathlib import Path

from hifc_ray.errors import StorageError
from hifc_ray.flash.file_device import FileDevice
from hifc_ray.flash.format import LOCK_NAME
from hifc_ray.flash.recovery import refuse_foreign
from hifc_ray.locks import is_locked


def why_refused(directory: Path) -> str | None:
    """One line that says why a store would refuse the directory now, or None. Touches nothing in it."""
    try:
        refuse_foreign(FileDevice(directory))
    except StorageError as error:
        return str(error)
    if is_locked(directory / LOCK_NAME):
        return f"flash directory {directory} belongs to a live process (it holds {LOCK_NAME})"
    return None
