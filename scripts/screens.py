"""Draws what a terminal shows of a run, a failure, help and `doctor`, as SVG under docs/screens/.

Needs Python with pyte (`pip install pyte`), from the project's root: python3 scripts/screens.py
"""

import fcntl
import html
import os
import pathlib
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = [(80, 24), (120, 40)]
TRAIN = "fullyshard run --nproc-per-node 2 examples/train.ts --steps 40 --log-every 5"
SMALL = "--global-batch 4 --sequence-length 64"
# Name, what is typed, the text after which the screen is drawn (None: when the command has ended).
SCREENS = [
    ("run", f"{TRAIN} {SMALL} --out {{out}}", "step 25"),
    ("failure", "fullyshard run --nproc-per-node 2 examples/train.ts --data nowhere --out {out}", None),
    ("help", "fullyshard --help", None),
    ("doctor", "fullyshard doctor", None),
]
COLORS = {"default": "#d8dee9", "black": "#3b4252", "red": "#bf616a", "green": "#a3be8c", "brown": "#ebcb8b",
          "blue": "#81a1c1", "magenta": "#b48ead", "cyan": "#88c0d0", "white": "#eceff4"}


def record(shown, command, columns, rows, until):
    """Runs a command on a terminal of that size; gives the screen as it is at `until`, or at the end."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {shown}\r\n".encode())
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    variables = {**os.environ, "TERM": "xterm-256color", "PATH": f"{ROOT}/.screens:{os.environ['PATH']}"}
    for name in ("CI", "NO_COLOR"):
        variables.pop(name, None)
    child = subprocess.Popen(["bash", "-c", command], cwd=ROOT, env=variables, stdin=follower, stdout=follower,
                             stderr=follower, start_new_session=True)
    os.close(follower)
    seen, deadline = b"", time.monotonic() + 300
    try:
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.2)[0]:
                data = os.read(leader, 65536)
                stream.feed(data.replace(str(ROOT).encode(), b"."))
                seen += data
                if until is not None and until.encode() in seen:
                    break
            elif child.poll() is not None:
                break
    except OSError:
        pass  # the terminal closes with the last process that has it
    child.terminate()
    child.wait()
    os.close(leader)
    return screen


def draw(screen):
    """The screen as SVG."""
    width, height = 8.4, 17
    lines = []
    for row in range(screen.lines):
        column = 0
        cells = [screen.buffer[row][i] for i in range(screen.columns)]
        while column < screen.columns:
            end = column
            style = (cells[column].fg, cells[column].bold)
            while end < screen.columns and (cells[end].fg, cells[end].bold) == style:
                end += 1
            text = "".join(cell.data for cell in cells[column:end]).rstrip()
            if text:
                color = COLORS.get(style[0], f"#{style[0]}")
                weight = ' font-weight="bold"' if style[1] else ""
                x, y = 10 + column * width, 24 + row * height
                lines.append(f'<text x="{x:.1f}" y="{y}" fill="{color}"{weight} xml:space="preserve" '
                             f'textLength="{len(text) * width:.1f}">{html.escape(text)}</text>')
            column = end
    size = f'width="{20 + screen.columns * width:.0f}" height="{20 + screen.lines * height}"'
    body = "\n".join(lines)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="14">\n'
            f'<rect width="100%" height="100%" rx="6" fill="#2e3440"/>\n{body}\n</svg>\n')


def main():
    shim = ROOT / ".screens"
    shim.mkdir(exist_ok=True)
    command = shim / "fullyshard"
    command.write_text(f'#!/bin/sh\nexec node {ROOT}/bin/fullyshard.mjs "$@"\n')
    command.chmod(0o755)
    folder = ROOT / "docs" / "screens"
    folder.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    try:
        for name, template, until in SCREENS:
            if wanted and name not in wanted:
                continue
            for columns, rows in SIZES:
                with tempfile.TemporaryDirectory() as out:
                    shown = template.format(out="runs/mine")
                    screen = record(shown, template.format(out=out), columns, rows, until)
                    print(f"--- {name} {columns}x{rows}")
                    print("\n".join(line.rstrip() for line in screen.display).rstrip())
                    (folder / f"{name}-{columns}x{rows}.svg").write_text(draw(screen))
    finally:
        command.unlink()
        shim.rmdir()


if __name__ == "__main__":
    main()
