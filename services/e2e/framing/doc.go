// Package framing tests request smuggling through common reverse proxies in front of the mesh. It sends requests whose
// end is ambiguous, so that two HTTP implementations might interpret them differently.
package framing
