"""Records the first minute with a mesh that `sluice up` has started, as an asciicast (version 2) on standard output.

`make recording` runs it and renders docs/images/first-minute.svg. The first argument is the folder of the programs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

COLUMNS, ROWS = 110, 30
events, now = [], 0.0


def emit(delay, text):
    """Shows a text after a delay in seconds."""
    global now
    now += delay
    events.append([round(now, 3), "o", text])


def show(output):
    for line in output.splitlines():
        for start in range(0, max(1, len(line)), COLUMNS):
            emit(0.05, line[start : start + COLUMNS] + "\r\n")
    emit(1.5, "")


def comment(text):
    emit(0.5, f"\x1b[2m# {text}\x1b[0m\r\n")


def typed(command):
    emit(0.5, "\x1b[1;32m$\x1b[0m ")
    for character in command:
        emit(0.03, character)
    emit(0.4, "\r\n")


def main():
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PATH": os.path.abspath(sys.argv[1]) + os.pathsep + os.environ["PATH"], "HOME": folder}

        def start(command):
            return subprocess.Popen(["bash", "-c", command], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def run(command, shown=None):
            typed(shown or command)
            output = start(command).communicate(timeout=60)[0]
            show(output)
            return output

        mesh = subprocess.Popen(["sluice", "up"], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while start("sluice tools").wait() != 0:
                time.sleep(0.5)
            comment("`make up` has started a mesh in front of a demo server; an agent calls its tools")
            run(f"sluice call demo list_notes | cut -c1-{COLUMNS - 4}", "sluice call demo list_notes")
            run("sluice call demo delete_note --arg id=note-1")
            create = "for i in 1 2 3 4 5; do sluice call demo create_note --arg title=a --arg body=b; done"
            run(f"({create}) 2>&1 | tail -2", create)
            comment("this call waits for a person")
            refund = "sluice call demo refund --arg account=ana --arg 'amount=\"1.00\"'"
            typed(refund + " &")
            waiting = start(refund)
            time.sleep(2)
            listed = run("sluice approvals list")
            run("sluice approvals approve --yes " + re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", listed).group())
            show(waiting.communicate(timeout=60)[0])
            run(f"timeout 2 sluice decisions tail 2>/dev/null | tail -5 | cut -c1-{COLUMNS}", "sluice decisions tail")
            emit(3, "")
        finally:
            mesh.terminate()
            mesh.wait()
    print(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS}))
    for event in events:
        print(json.dumps(event))


main()
