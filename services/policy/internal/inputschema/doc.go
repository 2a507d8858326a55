// Package inputschema checks the arguments of a tool call against the tool's input schema. Rules with `forward: strict`
// require this check.
//
// # What is checked
//
// The arguments must be valid under the schema, and the schema must declare every member of certain objects. These
// objects are the arguments themselves, and each nested object for which an applied part of the schema has `properties`
// or `patternProperties`. Other nested objects may have any members that the schema allows.
//
// A member is declared if an applied part of the schema names it in `properties`, matches it with `patternProperties`,
// or allows it with `additionalProperties` or `unevaluatedProperties`. A part of the schema is applied if the value is
// valid under it. For example, an alternative of `anyOf` declares nothing if the value is not valid under it.
//
// Numbers are compared exactly. Patterns are RE2 regular expressions. `format` and `contentEncoding` are not checked,
// as JSON Schema recommends. If a schema has no `$schema`, draft 2020-12 applies, as MCP says, or draft-07 if the
// schema is not valid under 2020-12. No schema is loaded from a network.
//
// # Bounds
//
// Neither the servers that send schemas nor the callers that send arguments are trusted. Therefore the size of schemas
// and arguments is limited, and also the number of steps in a check. To apply a schema to a value is one step. An
// operation that takes longer counts as several steps. For example, comparing strings takes one step for every 64
// bytes. If `anyOf` is nested, the number of times that a schema is applied to a value can grow exponentially with the
// length of the schema. A check that would exceed the number of steps fails, so that the call is refused.
package inputschema
