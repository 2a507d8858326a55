// Package catalog holds the state of servers and their tools: which definitions were seen, which of them were
// accepted, how each tool is classified, and whether it may therefore be called. The policy service uses it. It is
// pure: it does no I/O, and changes no value in place.
package catalog
