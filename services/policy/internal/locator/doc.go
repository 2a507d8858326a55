// Package locator parses the paths, URLs, URIs, IP addresses and email addresses in requests, so that packages engine
// and condition can compare them with rules.
//
// The server that receives a request parses the same strings with its own parser. Therefore each function returns an
// error if well-known parsers would interpret a string in different ways. In the comments and messages of this package,
// such a parser is called a reader.
//
// The package never accesses the file system and never resolves host names. The result of a function depends only on
// its arguments. All functions are safe for concurrent use. Each function limits the length of its strings, and its
// running time is linear in this length.
package locator
