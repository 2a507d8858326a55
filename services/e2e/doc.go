// Package e2e contains the end-to-end tests of the mesh, with real clients and servers on both sides of the real
// gateway. A test that tries a security case names the case in its comment. docs/security-cases.md describes the cases.
//
// Each topic has a directory:
//
//   - agents: agents in the mesh
//   - approvals: calls that need approval
//   - catalog: the tool catalog
//   - cli: the command line
//   - clients: official SDKs and other real clients
//   - edge: what the gateway accepts from its callers
//   - mesh: mesh services in separate processes, and processes that stop, hang or are killed
//   - policy: what the policy denies and hides
//   - servers: MCP servers of all kinds
//   - telemetry: traces and metrics
//
// The tests in compose, framing, hostile, limits and packages each need their own set-up. The tests in realclients need
// clients from npm, which `make test-clients` installs.
//
// The other directories contain helpers: stack starts meshes and programs, rawmcp is a server that records bytes,
// rawmesh is a mesh with that server, gosdk, npm and npmtest provide official clients and servers, rawh2 is an HTTP/2
// client, network simulates an unreliable network, failpoint builds programs that block at a failpoint, and story has
// scenarios that several packages run.
package e2e
