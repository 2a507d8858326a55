// Package clients tests the mesh with the official SDKs and other real clients and servers, and with the conformance
// suites.
package clients
