// Package cli tests the command line as its users meet it: starting, configuring and checking a mesh, and the messages
// about what is wrong.
package cli
