// Package e2e contains the end-to-end tests of the mesh, with real clients and servers on both sides of the real
// gateway. A test of a security case names the case in its comment. docs/security-cases.md describes the cases.
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
// The other directories contain helpers:
//
//   - failpoint: programs that block at a failpoint
//   - gosdk, npm and npmtest: official clients and servers
//   - network: a proxy that simulates network faults
//   - rawh2: an HTTP/2 client that can violate the protocol
//   - rawmcp: a server that records the bytes that it receives
//   - rawmesh: a mesh with that server
//   - scripted: a fake model provider
//   - stack: starts meshes and programs
//   - story: scenarios that several packages run
package e2e
