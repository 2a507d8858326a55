// Package framing tests the mesh behind common reverse proxies against request smuggling: requests that two HTTP
// implementations may end at different bytes.
package framing
