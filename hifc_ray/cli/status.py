"""`hifc status`: what runs on a cluster, and how it is."""

from __future__ import annotations

from typing import Any

import typer

from hifc_ray.cli.options import Address, Namespace
from hifc_ray.cli.output import Json, print_table, results_on_stdout, say, to_json
from hifc_ray.config import format_bytes


def status(address: Address = None, namespace: Namespace = "hifc", as_json: Json = False) -> None:
    """Show nodes, tiers and engines of a running cluster. Exit code 1 if something is missing or does not answer."""
    with results_on_stdout(as_json) as results:
        from hifc_ray.actors import connection
        from hifc_ray.actors.state import is_up, is_well, state

        try:
            joined = connection.join(address, namespace)
            report = {"ray": joined.address, **state(namespace)}
        finally:
            connection.leave()
        if as_json:
            print(to_json({"ok": is_well(report), **report}), file=results)
        elif not is_up(report):
            say(f"hifc: nothing is up in namespace {namespace} on {joined.address}: start it with `hifc up`")
        else:
            _print(report)
    raise typer.Exit(0 if is_well(report) else 1)


def _print(report: dict[str, Any]) -> None:
    print_table(
        f"nodes of {report['ray']}",
        ("node", "address", "state", "CPUs", "GPUs"),
        [
            (node["node"][:12], node["address"], "alive" if node["alive"] else "dead", node["cpus"], node["gpus"])
            for node in report["nodes"]
        ],
    )
    columns = ("node", "host slots", "flash", "keys asked", "blocks served", "checksum faults", "weights")
    print_table("cache tiers", columns, [_tier_row(tier) for tier in report["tiers"]])
    devices = [_device_row(tier["node"], device) for tier in report["tiers"] for device in _devices(tier)]
    if devices:
        columns = ("node", "flash directory", "state", "used", "write budget left", "written a day", "projected life")
        print_table("flash devices", columns, devices)
    columns = ("engine", "device", "pool", "tier", "hits", "blocks computed", "tokens saved")
    print_table("engines", columns, [_engine_row(engine) for engine in report["engines"]])
    print_table("services", ("actor", "state"), [_service_row(name, report[name]) for name in ("policy", "manager")])


def _tier_row(tier: dict[str, Any]) -> tuple[object, ...]:
    if "problem" in tier:
        return (tier["node"][:12], tier["problem"], "", "", "", "", "")
    slots, flash = tier["host"]["slots"], tier["flash"]
    lines = [f"{count} {state if state != 'absent' else 'free'}" for state, count in slots.items() if count]
    on_flash = "none"
    if flash is not None:
        used, limit = format_bytes(flash["used_bytes"]), format_bytes(flash["limit_bytes"])
        on_flash = f"{flash['blocks']} blocks, {used} of {limit}"
    host = f"{tier['host']['num_slots']} of {format_bytes(tier['host']['slot_bytes'])}: {', '.join(lines)}"
    counts = (tier["lookup_keys"], tier["served_blocks"], tier["checksum_faults"], f"version {tier['weights_version']}")
    return (tier["node"][:12], host, on_flash, *counts)


def _devices(tier: dict[str, Any]) -> list[dict[str, Any]]:
    return (tier.get("flash") or {}).get("devices", [])


def _device_row(node: str, device: dict[str, Any]) -> tuple[object, ...]:
    used = f"{format_bytes(device['used_bytes'])} of {format_bytes(device['limit_bytes'])}"
    per_day, days = device["budget_bytes_per_day"], device["projected_life_days"]
    budget = f"{device['budget_level']:.0%} of {format_bytes(per_day)} a day" if per_day else "no budget"
    life = "unknown" if days is None else f"{days:,.0f} days"
    written = format_bytes(device["written_bytes_per_day"])
    return (node[:12], device["path"], device["state"], used, budget, written, life)


def _engine_row(engine: dict[str, Any]) -> tuple[object, ...]:
    if "problem" in engine:
        return (engine["name"], engine["problem"], "", "", "", "", "")
    pool = f"{engine['num_blocks']} blocks of {format_bytes(engine['block_bytes'])}"
    hits = ", ".join(f"{count} {tier}" for tier, count in engine.get("hits", {}).items() if count) or "none"
    return (
        engine["name"],
        f"{engine['device']}, {engine['dtype']}",
        pool,
        "yes" if engine["has_tier"] else "no",
        hits,
        engine.get("computed_blocks", "-"),
        engine.get("saved_tokens", "-"),
    )


def _service_row(name: str, service: dict[str, Any] | None) -> tuple[object, ...]:
    if service is None:
        return (name, "missing: hifc up starts it")
    if "problem" in service:
        return (name, service["problem"])
    return (name, f"up, weights version {service['version']}" if "version" in service else "up")
