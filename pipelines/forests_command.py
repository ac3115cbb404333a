"""`understudy forests`: how far the trained forests are off on rows they have not seen."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pipelines.command import as_json_option, print_json, quiet_instance


@click.command()
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Device (id or alias); trains its forests if need be. Default: all that are trained.",
)
@as_json_option
def forests(devices: Sequence[str], as_json: bool) -> None:
    """Lists the held-out error of each forest, by device, family and element type."""
    from pipelines import display
    from understudy import catalog
    from warehouse import store

    wanted = [catalog.device(name).id for name in devices]
    if wanted:
        _train(wanted)
    else:
        wanted = sorted(device for device, _ in store.list_partitions("forests"))
    rows = [
        {"device": device, **row}
        for device in wanted
        for row in store.read_table("forests", "forest_errors", device).to_pylist()
    ]
    if as_json:
        print_json(rows)
    elif not wanted:
        click.echo("no forests are trained yet: name a device with --device")
    elif not rows:
        click.echo(f"{', '.join(wanted)}: no measured data; all is predicted by law")
    else:
        names = ("device", "family", "dtype", "split", "rows", "mape", "median", "p90", "bias")
        shown = [
            (
                *(row[name] for name in names[:5]),
                *(f"{row[name]:.1%}" for name in names[5:]),
                f"{row['coverage90']:.0%}",
            )
            for row in rows
        ]
        click.echo(display.table((*names, "in 90 % interval"), shown))


def _train(devices: Sequence[str]) -> None:
    from pipelines import display

    with display.progress("forests") as listener, quiet_instance() as instance:
        from pipelines import running

        for device in devices:
            if listener is not None:
                listener.title = device
            running.prepare(instance, device, listener=listener)
