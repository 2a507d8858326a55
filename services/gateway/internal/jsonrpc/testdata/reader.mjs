// Reads messages, base64 a line, as JSON.parse does, and writes for each the SHA-256 of what it has read,
// or why it could not.
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

const bits = new DataView(new ArrayBuffer(8));

function canonical(v) {
  if (v === null) return "n";
  if (v === true) return "t";
  if (v === false) return "f";
  if (typeof v === "number") {
    bits.setFloat64(0, v === 0 ? 0 : v);
    return "#" + bits.getBigUint64(0).toString(16).padStart(16, "0");
  }
  if (typeof v === "string") return "s" + Buffer.from(v, "utf8").toString("hex") + ";";
  if (Array.isArray(v)) return "[" + v.map(canonical).join("") + "]";
  const members = Object.keys(v).map((key) => Buffer.from(key, "utf8").toString("hex") + ":" + canonical(v[key]));
  return "{" + members.sort().join("") + "}";
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try {
    const text = canonical(JSON.parse(utf8.decode(Buffer.from(line, "base64"))));
    said = createHash("sha256").update(text).digest("hex");
  } catch (err) {
    said = "fails: " + String(err).replaceAll("\n", " ");
  }
  process.stdout.write(said + "\n");
}
