// Package locator parses the paths, URLs, URIs, IP addresses and email addresses in requests. Packages engine and
// condition use it to compare such strings with rules.
//
// The server that receives the request parses the same string with a different parser. Therefore each function returns
// an error if well-known parsers, which are called readers here, interpret the string in different ways.
//
// The package looks up neither files nor host names. All functions depend only on their arguments and are safe for
// concurrent use. The length of a string is bounded, and the time is linear in the length.
package locator
