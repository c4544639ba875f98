"""Writes the records that tests/trackers/event_file_test.ts compares with, by TensorBoard's own writer.

Usage: python tests/trackers/event_file.py > tests/fixtures/trackers/events.hex (needs tensorboard)
"""

import io

from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

SECONDS = 1700000000.25
file = io.BytesIO()
writer = RecordWriter(file)

version = event_pb2.Event(wall_time=SECONDS, file_version="brain.Event:2")
scalars = event_pb2.Event(wall_time=SECONDS, step=300)
for tag, value in [("train/loss", 2.5), ("eval/loss", float("inf"))]:
    scalars.summary.value.add(tag=tag, simple_value=value)
restart = event_pb2.Event(wall_time=SECONDS, step=301, session_log=event_pb2.SessionLog(status=1))
text = event_pb2.Event(wall_time=SECONDS)
value = text.summary.value.add(tag="args/text_summary")
value.metadata.plugin_data.plugin_name = "text"
value.tensor.dtype = 7
value.tensor.tensor_shape.dim.add(size=1)
value.tensor.string_val.append("é".encode())
for event in (version, scalars, restart, text):
    writer.write(event.SerializeToString())
print(file.getvalue().hex())
