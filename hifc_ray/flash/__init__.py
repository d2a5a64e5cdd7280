"""Flash: a log-structured store of blocks on a local device. `FlashStore` is the door."""

from hifc_ray.flash.address import Address, volume_of
from hifc_ray.flash.budget import WriteBudget
from hifc_ray.flash.device import Device, Extent
from hifc_ray.flash.entries import keys_as_words
from hifc_ray.flash.faulty_device import FaultyDevice
from hifc_ray.flash.file_device import FileDevice
from hifc_ray.flash.index import Located
from hifc_ray.flash.memory_device import MemoryDevice
from hifc_ray.flash.reading import BlockRead, merge
from hifc_ray.flash.record import FlashBlock, record_bytes
from hifc_ray.flash.recovery import RecoveryReport
from hifc_ray.flash.store import FlashStore
from hifc_ray.flash.volume import Volume

__all__ = [
    "Address",
    "BlockRead",
    "Device",
    "Extent",
    "FaultyDevice",
    "FileDevice",
    "FlashBlock",
    "FlashStore",
    "Located",
    "MemoryDevice",
    "RecoveryReport",
    "Volume",
    "WriteBudget",
    "keys_as_words",
    "merge",
    "record_bytes",
    "volume_of",
]
