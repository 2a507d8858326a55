// Reads {"paths": [], "urls": [], "ips": [], "mails": []} from standard input, and prints for each string how Node's
// readers interpret it. A reader that refuses a string has no entry.
const path = require("path");
const net = require("net");
const legacy = require("url");

function attempt(out, name, read) {
  try {
    const value = read();
    if (value !== undefined) out[name] = value;
  } catch {}
}

const slashes = (text) => text.replaceAll("\\", "/");
const part = (clean) => ({ clean, base: path.posix.basename(clean), ext: path.posix.extname(clean) });

function readPath(text) {
  const out = {};
  attempt(out, "posix", () => part(path.posix.normalize(text)));
  attempt(out, "win32", () => part(slashes(path.win32.normalize(text))));
  attempt(out, "decoded", () => part(path.posix.normalize(decodeURIComponent(text))));
  attempt(out, "NFKC", () => part(path.posix.normalize(text.normalize("NFKC"))));
  attempt(out, "trimmed", () => part(path.posix.normalize(text.trim())));
  // Windows removes dots and spaces at the end of a segment, and opens the file in place of its stream ::$DATA.
  attempt(out, "Windows", () =>
    part(slashes(path.win32.normalize(text)).split("/").map((s) => s.replace(/:[^:]*:\$.*$/, "").replace(/[. ]+$/, "")).join("/")));
  // Many servers accept a file URL as a path.
  attempt(out, "file URL", () => (/^file:/i.test(text) ? part(legacy.fileURLToPath(text)) : undefined));
  return out;
}

function readURL(text) {
  const out = {};
  attempt(out, "WHATWG", () => {
    const u = new URL(text);
    return { scheme: u.protocol.slice(0, -1), user: u.username + u.password, host: u.hostname, port: u.port, path: u.pathname };
  });
  attempt(out, "url.parse", () => {
    const u = legacy.parse(text);
    if (!u.protocol || u.hostname === null) return undefined;
    return { scheme: u.protocol.slice(0, -1), user: u.auth ?? "", host: u.hostname, port: u.port ?? "", path: u.pathname ?? "" };
  });
  return out;
}

function readIP(text) {
  const out = {};
  attempt(out, "net.isIP", () => (net.isIP(text) === 0 ? undefined : text));
  attempt(out, "host of a URL", () => new URL("http://" + (text.includes(":") ? "[" + text + "]" : text) + "/").hostname);
  return out;
}

function readMail(text) {
  const out = {};
  attempt(out, "first @", () => text.split("@")[1]);
  attempt(out, "last @", () => text.slice(text.lastIndexOf("@") + 1));
  attempt(out, "last of a list", () => text.split(/[,;\s]/).at(-1).split("@").at(-1));
  return out;
}

const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify({
  paths: given.paths.map(readPath), urls: given.urls.map(readURL), ips: given.ips.map(readIP), mails: given.mails.map(readMail),
}));
