"""Run `penstock streams describe TOPIC`: show where the bytes of a topic are stored."""

from typing import TYPE_CHECKING

import typer

from penstock.deploy.cli.options import Controllers, Output, TopicName
from penstock.deploy.output import Format, print_document, print_table, say, size

if TYPE_CHECKING:
    from penstock.deploy.admin.views import StreamView

app = typer.Typer(
    help="Show how topics are stored: streams, epochs, ranges, objects. Not for Kafka Streams.",
    no_args_is_help=True,
)


@app.command("describe")
def describe(
    topic: TopicName,
    *,
    controllers: Controllers,
    output: Output = Format.TABLE,
) -> None:
    """Show the streams of a topic: owner and epoch, committed offsets, and the objects that contain
    them.

    For example: penstock streams describe orders
    """
    from penstock.deploy.admin.views import view_streams
    from penstock.deploy.clients.brokers import no_topic
    from penstock.deploy.clients.metadata import read_metadata

    found, names = read_metadata(
        controllers.find(),
        lambda image: (view_streams(image, topic), [known.name for known in image.topics]),
    )
    if found is None:
        raise no_topic(topic, names)
    if output is not Format.TABLE:
        print_document(output, found)
        return
    _print_streams(topic, found)
    _print_ranges(found)


def _print_streams(topic: str, streams: "list[StreamView]") -> None:
    columns = [
        "stream",
        "partition",
        "kind",
        "phase",
        "epoch",
        "owner",
        "start",
        "committed end",
        "ranges",
        "bytes",
    ]
    rows = [
        (
            s.stream_id,
            s.partition,
            s.kind,
            s.phase,
            s.epoch,
            f"{s.node_id}/{s.node_epoch}",
            s.start_offset,
            s.end_offset,
            len(s.ranges),
            size(s.size_bytes),
        )
        for s in streams
    ]
    print_table(f"streams of {topic}", columns, rows)


def _print_ranges(streams: "list[StreamView]") -> None:
    rows = [
        (
            s.stream_id,
            r.start_offset,
            r.end_offset,
            r.record_count,
            size(r.size_bytes),
            r.role,
            r.key,
        )
        for s in streams
        for r in s.ranges
    ]
    if not rows:
        say("no ranges: records of the last seconds are still only in the WALs of brokers")
        return
    columns = ["stream", "start", "end", "records", "bytes", "role", "key"]
    print_table("ranges, in log order", columns, rows)
