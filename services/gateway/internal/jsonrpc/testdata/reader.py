"""Reads messages, base64 a line, as json.loads does, and writes for each the SHA-256 of what it has
read, or why it could not."""

import base64
import hashlib
import json
import struct
import sys


def canonical(v):
    if v is None:
        return "n"
    if v is True:
        return "t"
    if v is False:
        return "f"
    if isinstance(v, (int, float)):
        n = float(v)
        return "#" + struct.pack(">d", 0.0 if n == 0 else n).hex()
    if isinstance(v, str):
        return "s" + v.encode().hex() + ";"
    if isinstance(v, list):
        return "[" + "".join(map(canonical, v)) + "]"
    return "{" + "".join(sorted(key.encode().hex() + ":" + canonical(value) for key, value in v.items())) + "}"


for line in sys.stdin.buffer:
    try:
        text = canonical(json.loads(base64.b64decode(line).decode("utf-8")))
        said = hashlib.sha256(text.encode()).hexdigest()
    except Exception as err:  # whatever it is, it is a message that was not read
        said = "fails: " + repr(err).replace("\n", " ")
    sys.stdout.write(said + "\n")
    sys.stdout.flush()
