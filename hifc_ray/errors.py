"""Every error that this package raises on purpose.

HifcError
 ├── ConfigError            a value that a person gave is wrong; the message names it and what is allowed
 │    ├── ModelRefused      the model cannot run here; the message says why
 │    └── RequestRefused    one request can never run (too long for the model or for the pool)
 ├── StorageError           a place that the cache may not use; nothing in it was touched
 │    ├── DirectoryLocked   another live process owns it
 │    ├── ForeignFiles      it holds files that are not ours
 │    ├── NewerFormat       it was written by a newer release
 │    └── NoRoom            too little memory or disk for what was asked
 ├── FlashFault             inside flash/ and transfer/ only; a miss and a counter at the room's door
 │    ├── CorruptRecord     bytes do not match their checksum, key, namespace or segment
 │    ├── StaleAddress      the segment of this address is gone
 │    └── FlashFull         the device or the byte limit has no room
 ├── InvalidTransition      a block was asked to go where the table has no edge: a bug, raised with the numbers
 ├── ConservationBroken     slots do not add up: a bug, raised with the numbers
 └── TierUnavailable        the cache tier cannot be reached; clients turn it into a miss
"""


class HifcError(Exception):
    """Root of all errors of this package."""


class ConfigError(HifcError):
    """A value that a person gave is wrong. Commands print the message as one line and exit with 2."""


class ModelRefused(ConfigError):
    """This model cannot run in this engine; the message says which property is in the way."""


class RequestRefused(ConfigError):
    """This request can never run, whatever else finishes first."""


class StorageError(HifcError):
    """A directory or memory that the cache may not use. Commands print it as one line and exit with 2."""


class DirectoryLocked(StorageError):
    """Another live process owns the directory or the arena."""


class ForeignFiles(StorageError):
    """The directory holds files that are not ours, so nothing in it is touched."""


class NewerFormat(StorageError):
    """The directory was written by a newer release."""


class NoRoom(StorageError):
    """Too little memory or disk for what was asked."""


class FlashFault(HifcError):
    """A fault of flash. It never leaves the tiers: they turn it into a miss and a counter."""


class CorruptRecord(FlashFault):
    """Bytes on flash do not match their checksum, key, namespace or segment."""


class StaleAddress(FlashFault):
    """The address names a segment that has been dropped."""


class FlashFull(FlashFault):
    """The device or the byte limit has no room for this record."""


class InvalidTransition(HifcError):
    """The transition table has no such edge."""


class ConservationBroken(HifcError):
    """Slots, leases or blocks do not add up."""


class TierUnavailable(HifcError):
    """The cache tier did not answer, or is gone."""
