// Package locator reads what requests name: paths, URLs, URIs, and addresses of hosts and people. Rules compare the
// results, while the called server reads the text with a reader of its own. A text that two readers could understand
// differently is therefore an error, never a guess. Packages engine and condition use it.
//
// Nothing is looked up, neither files nor host names. All functions are pure, safe for concurrent use, and take a time
// that is linear in their text, which is bounded.
package locator
