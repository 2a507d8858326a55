// Package servers tests MCP servers of all kinds behind the mesh, above all those that are slow, broken or must be
// confined.
package servers
