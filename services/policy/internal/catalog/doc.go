// Package catalog computes the state of servers and their tools. The state contains the definitions that a server has
// listed, which of them were accepted, how each tool is classified, and whether the tool may be called. The package
// does no I/O, and its functions return changed copies instead of modifying their arguments. The policy service uses
// this package.
package catalog
