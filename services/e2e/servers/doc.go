// Package servers tests the mesh with MCP servers of all kinds, in particular slow, broken and sandboxed ones.
package servers
