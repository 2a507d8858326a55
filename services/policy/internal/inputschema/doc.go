// Package inputschema checks the arguments of a tool call against the input schema of the tool, for rules with
// `forward: strict`.
//
// # What is checked
//
// The arguments must be valid under the schema, and every member of an object must be declared: an applied part of the
// schema must name it in `properties`, match it with `patternProperties`, or allow it with `additionalProperties` or
// `unevaluatedProperties`. This holds for the arguments themselves, and for each nested object for which an applied part
// of the schema has `properties` or `patternProperties`. Other nested objects may have any members that the schema
// allows. A part of the schema is applied if the value is valid under it, so a failed alternative of `anyOf` declares
// nothing.
//
// Numbers are exact. Patterns are regular expressions of RE2. `format` and `contentEncoding` are not checked, as JSON
// Schema recommends. A schema without `$schema` is of draft 2020-12, as MCP says, or of draft-07 if it is not valid under
// 2020-12. No schema is loaded from a network.
//
// # Bounds
//
// Schemas and arguments come from servers and callers that are not trusted. The size of both is limited, and the number
// of steps of a check: each pair of a schema and a value is a step, and so is each part of longer work, for example each
// 64 bytes of a compared string. With nested `anyOf`, the number of pairs can grow exponentially with the length of the
// schema. The arguments are refused if the steps do not suffice.
package inputschema
