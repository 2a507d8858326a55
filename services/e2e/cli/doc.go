// Package cli tests the command line: starting, configuring and checking a mesh, and the error messages.
package cli
