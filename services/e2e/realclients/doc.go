// Package realclients tests a single user's mesh with real MCP clients from npm. The test itself responds to the
// requests that the clients send to a model. `make test-clients` installs the clients and runs these tests.
package realclients
