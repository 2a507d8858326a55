"""Reads {"paths": [], "urls": [], "ips": [], "mails": []} from standard input, and prints for each string how Python's
readers interpret it. A reader that refuses a string has no entry."""

import email.policy
import email.utils
import ipaddress
import json
import ntpath
import posixpath
import socket
import sys
import urllib.parse
from email import message_from_string


def read(readers, text):
    out = {}
    for name, reader in readers.items():
        try:
            value = reader(text)
        except Exception:
            continue
        if value is not None:
            out[name] = value
    return out


def part(clean):
    return {"clean": clean, "base": posixpath.basename(clean), "ext": posixpath.splitext(clean)[1]}


def in_codec(codec):
    """Returns the reader on a system whose file names have this encoding. Characters of one byte become ASCII."""

    def character(c):
        encoded = c.encode(codec)
        return chr(encoded[0]) if len(encoded) == 1 else c

    return lambda text: part(posixpath.normpath("".join(map(character, text)).replace("\\", "/")))


def url(parsed):
    host = parsed.hostname
    if host is None:
        return None
    if not host.isascii():
        host = host.encode("idna").decode()
    if ":" in host:
        host = "[" + host + "]"
    return {
        "scheme": parsed.scheme, "user": (parsed.username or "") + (parsed.password or ""),
        "host": host, "port": "" if parsed.port is None else str(parsed.port), "path": parsed.path,
    }


def address_of(text):
    address = ipaddress.ip_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)


def mail_of_header(text):
    addresses = message_from_string("To: " + text + "\n\n", policy=email.policy.default)["To"].addresses
    return "|".join((a.username + "@" + a.domain).split("@")[1].strip(" >") for a in addresses)


PATHS = {
    "posixpath": lambda text: part(posixpath.normpath(text)),
    "ntpath": lambda text: part(ntpath.normpath(text).replace("\\", "/")),
    "unquote": lambda text: part(posixpath.normpath(urllib.parse.unquote(text))),
    "strip": lambda text: part(posixpath.normpath(text.strip())),
    "shift_jis": in_codec("shift_jis"),
    "cp864": in_codec("cp864"),
}
URLS = {"urlsplit": lambda text: url(urllib.parse.urlsplit(text)), "urlparse": lambda text: url(urllib.parse.urlparse(text))}
IPS = {
    "ipaddress": address_of,
    "inet_aton": lambda text: socket.inet_ntoa(socket.inet_aton(text)),
    "inet_pton": lambda text: socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, text)),
}
MAILS = {
    "parseaddr": lambda text: email.utils.parseaddr(text)[1].rpartition("@")[2] or None,
    "getaddresses": lambda text: "|".join(a.rpartition("@")[2] for _, a in email.utils.getaddresses([text])),
    "header": mail_of_header,
}

given = json.load(sys.stdin)
print(json.dumps({
    "paths": [read(PATHS, text) for text in given["paths"]],
    "urls": [read(URLS, text) for text in given["urls"]],
    "ips": [read(IPS, text) for text in given["ips"]],
    "mails": [read(MAILS, text) for text in given["mails"]],
}))
