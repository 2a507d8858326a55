#!/usr/bin/env node
// Runs the program in the npm package of this platform, with the same arguments and standard streams.
"use strict";

const { spawn } = require("node:child_process");

const name = `@sluice-mesh/sluice-${process.platform}-${process.arch}`;
const file = process.platform === "win32" ? "sluice.exe" : "sluice";

let program;
try {
  program = require.resolve(`${name}/bin/${file}`);
} catch {
  console.error(`sluice: the npm package ${name} is not installed.`);
  console.error("There are packages for Linux, macOS and Windows on x64 and arm64. Install sluice without --omit=optional.");
  process.exit(1);
}

// The handlers are added before the program starts, because a signal without a handler would end only the launcher. A
// terminal sends Ctrl-C to the program too. The program ignores the repetition.
let child;
const signals = ["SIGINT", "SIGTERM", "SIGHUP"];
for (const signal of signals) {
  process.on(signal, () => child.kill(signal));
}

child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (err) => {
  console.error(`sluice: start ${program}: ${err.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  for (const s of signals) {
    process.removeAllListeners(s);
  }
  process.kill(process.pid, signal);
});
