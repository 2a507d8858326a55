// Package strictyaml reads YAML that has only one meaning, and refuses other YAML. It accepts a single document without
// anchors, aliases, merge keys, tags and repeated keys. Unknown keys, and values whose type differs from the target's
// type, are problems. All problems are reported together, each with line and column and, if possible, a suggestion.
// JSON is accepted too, except for characters that are escaped as surrogate pairs.
//
// Values are read exactly. A string is a plain or quoted scalar that YAML 1.2 resolves to a string. Numbers, dates,
// true and false must be quoted to be strings. Numbers are decimal, without leading zeros or underscores. A key without
// a value is refused and not ignored, because a forgotten value might be a forgotten limit.
//
// The message of a problem contains the value only if a number, a duration, true or false was expected. Other values
// might be secrets and are not shown.
package strictyaml
