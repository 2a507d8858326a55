// Package strictyaml reads unambiguous YAML and refuses the rest. It accepts one document without anchors, aliases,
// merge keys, tags and repeated keys. Unknown keys and values of another type than the target's are problems. All
// problems are reported at once, each with line and column and, if possible, a suggestion. JSON is accepted too,
// except for characters escaped as surrogate pairs.
//
// Values are read exactly. Text is a plain or quoted scalar that YAML 1.2 calls a string: a number, a date, true or
// false must be quoted to be text. Numbers are decimal, without leading zeros or underscores. A key without a value
// is refused rather than ignored, because a forgotten value may be a forgotten limit.
//
// A problem shows the value only if a number, a duration, true or false was expected. Other values may be secrets and
// are not repeated.
package strictyaml
