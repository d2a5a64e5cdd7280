"""What a drive says of itself, to verdicts: pure functions. Nothing is concluded from what it does not say."""

from __future__ import annotations

from hifc_ray.health.smart import CriticalWarning, SmartReading
from hifc_ray.health.verdict import DeviceVerdict, Level, Verdict, ok, warn

LEAST_SPARE = 5  # percent; a vendor's own threshold may be higher
HOT_C, COOL_C = 70.0, 65.0
USED_WARN, USED_FAIL = 90, 100  # percent of the rated endurance
MOVE = "move its --flash-dir to another drive and replace this one"
_STOP = CriticalWarning.SPARE | CriticalWarning.RELIABILITY | CriticalWarning.READ_ONLY


def check_smart(smart: SmartReading) -> Verdict:
    """Is there anything to be known of this drive's wear and faults? What it says is judged by `check_drive`."""
    name = f"{smart.device} health"
    heat = "" if smart.temperature_c is None else f", {smart.temperature_c:.0f} °C"
    if smart.known:
        facts = [
            ("endurance used", smart.percentage_used, " %"),
            ("spare", smart.available_spare, " %"),
            ("media errors", smart.media_errors, ""),
        ]
        return ok(name, ", ".join(f"{what} {fact}{unit}" for what, fact, unit in facts if fact is not None) + heat)
    what = f"unknown: {smart.problem or 'no answer'}{heat}"
    if "not installed" in smart.problem:
        return warn(name, what, "apt-get install nvme-cli")
    if "permi" in smart.problem.lower():  # Permission denied, Operation not permitted
        return warn(name, what, "run as root, or with CAP_SYS_ADMIN")
    return ok(name, what)


def check_drive(smart: SmartReading, first: SmartReading | None = None, was_hot: bool = False) -> list[DeviceVerdict]:
    """What is wrong with a drive; nothing of what is not known.

    Media errors are judged by their rise since `first`, an earlier reading of the same drive.
    """
    verdicts = [_spare(smart), _critical(smart), _used(smart), _media_errors(smart, first), _heat(smart, was_hot)]
    return [verdict for verdict in verdicts if verdict is not None]


def is_hot(smart: SmartReading, was_hot: bool) -> bool:
    """Above `HOT_C`, until it is below `COOL_C` again; or by its own warning."""
    limit = COOL_C if was_hot else HOT_C
    return _warns_of_heat(smart) or (smart.temperature_c is not None and smart.temperature_c >= limit)


def _spare(smart: SmartReading) -> DeviceVerdict | None:
    least = max(LEAST_SPARE, smart.spare_threshold or 0)
    if smart.available_spare is None or smart.available_spare >= least:
        return None
    what = f"{smart.available_spare} % of its spare blocks left, less than {least} %"
    return _stop(f"{smart.device} spare", what)


def _critical(smart: SmartReading) -> DeviceVerdict | None:
    bits = (smart.critical_warning or CriticalWarning(0)) & _STOP
    if not bits:
        return None
    says = {
        CriticalWarning.SPARE: "its spare is low",
        CriticalWarning.RELIABILITY: "it is no longer reliable",
        CriticalWarning.READ_ONLY: "it is read-only",
    }
    return _stop(f"{smart.device} warning", "it warns that " + ", ".join(says[bit] for bit in says if bit & bits))


def _stop(name: str, what: str) -> DeviceVerdict:
    return DeviceVerdict(name, Level.FAIL, what, MOVE, read_only=True, drain=True)


def _used(smart: SmartReading) -> DeviceVerdict | None:
    used = smart.percentage_used
    if used is None or used < USED_WARN:
        return None
    level = Level.FAIL if used >= USED_FAIL else Level.WARN
    advice = "plan to replace it; set tier.flash.write_bytes_per_day lower until then"
    return DeviceVerdict(f"{smart.device} wear", level, f"{used} % of its rated endurance is used", advice)


def _media_errors(smart: SmartReading, first: SmartReading | None) -> DeviceVerdict | None:
    if smart.media_errors is None or first is None or first.media_errors is None:
        return None
    rise = smart.media_errors - first.media_errors
    if rise <= 0:
        return None
    what = f"{rise} media errors more than at first, {smart.media_errors} in all"
    return DeviceVerdict(f"{smart.device} media errors", Level.WARN, what, "if they go on, " + MOVE)


def _heat(smart: SmartReading, was_hot: bool) -> DeviceVerdict | None:
    if not is_hot(smart, was_hot):
        return None
    what = (
        "it warns of its temperature" if _warns_of_heat(smart) else f"hotter than {COOL_C if was_hot else HOT_C:.0f} °C"
    )
    what += "" if smart.temperature_c is None else f" ({smart.temperature_c:.0f} °C)"
    return DeviceVerdict(f"{smart.device} heat", Level.WARN, what, "it will slow down: see to its cooling")


def _warns_of_heat(smart: SmartReading) -> bool:
    return bool((smart.critical_warning or 0) & CriticalWarning.TEMPERATURE)
