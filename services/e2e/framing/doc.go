// Package framing tests request smuggling through common reverse proxies in front of the mesh. It sends requests for
// which two HTTP implementations may disagree about the byte at which the request ends.
package framing
