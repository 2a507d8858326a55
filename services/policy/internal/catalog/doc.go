// Package catalog computes the state of servers and their tools. The state contains the definitions that a server has
// listed, which of these were accepted, how each tool is classified, and whether the tool may be called. The package
// does no I/O. Its functions return changed copies and do not modify their arguments. The policy service uses this
// package.
package catalog
