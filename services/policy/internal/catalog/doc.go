// Package catalog manages the state of servers and their tools: the definitions that servers have listed, the
// definitions that were accepted, the classification of each tool, and whether the tool may be called. The package does
// no I/O, and its functions modify no value in place. The policy service uses the package.
package catalog
