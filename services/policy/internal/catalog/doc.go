// Package catalog holds the state of servers and their tools: which definitions servers have listed, which of them were
// accepted, how each tool is classified, and whether it may be called. The policy service uses the package. The package
// does no I/O, and its functions change no value in place.
package catalog
