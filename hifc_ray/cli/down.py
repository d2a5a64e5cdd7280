"""`hifc down`: take everything of a namespace down, with what is in host memory written to flash."""

from __future__ import annotations

import typer

from hifc_ray.cli.options import Address, Namespace
from hifc_ray.cli.output import Json, results_on_stdout, say, to_json


def down(address: Address = None, namespace: Namespace = "hifc", as_json: Json = False) -> None:
    """Stop engines, tiers, manager and policy actor; Ray goes on. Exit code 1 if nothing was up."""
    with results_on_stdout(as_json) as results:
        from hifc_ray.actors import cluster, connection

        try:
            joined = connection.join(address, namespace)
            stopped = cluster.down(namespace)
        finally:
            connection.leave()
        if as_json:
            print(to_json({"ray": joined.address, "namespace": namespace, "stopped": stopped}), file=results)
        elif stopped:
            print(f"stopped on {joined.address}: {', '.join(stopped)}")
        else:
            say(f"hifc: nothing is up in namespace {namespace} on {joined.address}")
    raise typer.Exit(0 if stopped else 1)
