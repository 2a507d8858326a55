// Package catalog manages the state of servers and their tools: which definitions servers have listed, which
// definitions were accepted, how each tool is classified, and whether the tool may be called. The policy service uses
// the package. The package does no I/O, and its functions modify no value in place.
package catalog
