// Package e2e contains the tests of the mesh from outside, with real clients and servers on both sides of the real
// gateway. The comments of tests of security cases name the cases, which docs/security-cases.md describes.
//
// Each topic has a folder:
//
//   - agents: agents of the mesh
//   - approvals: calls that wait for people
//   - catalog: the tool catalog
//   - cli: the command line
//   - clients: official SDKs and other real clients
//   - edge: what the gateway accepts from its callers
//   - mesh: roles in processes of their own, and processes that stop, hang or are killed
//   - policy: what policy denies and hides
//   - servers: MCP servers of all kinds
//   - telemetry: traces and metrics
//
// The folders compose, framing, hostile, limits and packages have tests with a set-up of their own.
//
// The other folders have helpers: stack starts meshes and programs, rawmcp is a server that records bytes, rawmesh is a
// mesh in front of that server, gosdk, npm and npmtest have official clients and servers, rawh2 is an HTTP/2 client,
// network is a network that fails, failpoint builds programs that stop at a point, and story has scenarios that several
// packages run.
package e2e
