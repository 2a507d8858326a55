// Package realclients tests the mesh of one person with real MCP clients from npm. A program of the test answers their
// requests to a model. `make test-clients` installs the clients and runs these tests.
package realclients
