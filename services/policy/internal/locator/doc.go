// Package locator reads what requests name: paths, URLs, URIs, addresses of hosts and of
// people. Rules compare what it returns, while the server that is called reads the text
// by itself, with whatever reader it has. So a text of which two readers could make
// two things is an error here, never a guess.
//
// Nothing is looked up: no file, no name of a host. All functions are pure, safe for
// concurrent use, and take a time that is linear in their text, which is bounded.
package locator
