// Package framing sends requests whose end two readers may see in different places, to
// the mesh behind proxies that people put in front of it.
package framing
