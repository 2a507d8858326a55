// Judges the pairs in pairs.json with ajv, and writes ajv.json:
//
//	npm install --no-save ajv@8.20.0 && node judge.mjs
//
// A schema without $schema is of draft 2020-12, or of draft-07 if it is not valid under 2020-12. Formats are not checked.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const { Ajv } = require("ajv");
const { Ajv2020 } = require("ajv/dist/2020.js");

const options = { strict: false, validateFormats: false, logger: false };

function compile(schema) {
  if (schema.$schema !== undefined && !schema.$schema.includes("2020-12")) return new Ajv(options).compile(schema);
  try {
    return new Ajv2020(options).compile(schema);
  } catch (problem) {
    if (schema.$schema !== undefined) throw problem;
    return new Ajv(options).compile(schema);
  }
}

function judge({ schema, arguments: args }) {
  if (schema === undefined) return "no schema";
  try {
    return compile(schema)(args) ? "valid" : "invalid";
  } catch {
    return "unusable schema";
  }
}

const results = {};
for (const pair of JSON.parse(readFileSync("pairs.json", "utf8"))) results[pair.name] = judge(pair);
writeFileSync("ajv.json", JSON.stringify({ ajv: require("ajv/package.json").version, results }, null, 1) + "\n");
