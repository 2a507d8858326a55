// Package framing tests request smuggling through common reverse proxies in front of the mesh: requests whose end two
// HTTP implementations may locate at different bytes.
package framing
