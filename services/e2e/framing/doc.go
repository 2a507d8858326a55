// Package framing sends requests that two HTTP implementations may end at different bytes (request smuggling) to
// the mesh through common reverse proxies.
package framing
