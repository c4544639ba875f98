"""Runs a command on a terminal of its own, and types when its output says so.

Arguments: a JSON list of [pattern, text] pairs, then the command. Each text is typed when what was printed since the last one
matches the pattern. Everything printed goes to standard output; the exit code is the command's.
"""
import json
import os
import pty
import re
import select
import sys
import time

steps = json.loads(sys.argv[1])
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
printed = b""
deadline = time.monotonic() + 60
while True:
    if steps and re.search(steps[0][0].encode(), printed, re.S):
        os.write(terminal, steps.pop(0)[1].encode())
        printed = b""
        time.sleep(0.7)  # as somebody types, so that a second Ctrl-C is not the first one again
    if time.monotonic() > deadline:
        sys.stderr.write(f"nothing matched {steps[:1]} in {printed[-500:]!r}\n")
        os.kill(pid, 9)
        sys.exit(70)
    ready, _, _ = select.select([terminal], [], [], 0.05)
    if not ready:
        continue
    try:
        piece = os.read(terminal, 65536)
    except OSError:  # the command has closed the terminal
        piece = b""
    if piece == b"":
        break
    printed += piece
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
_, status = os.waitpid(pid, 0)
if steps:
    sys.stderr.write(f"it ended before {steps[0]}\n")
    sys.exit(70)
sys.exit(os.waitstatus_to_exitcode(status))
