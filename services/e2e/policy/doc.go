// Package policy tests how denied and hidden requests appear to clients and servers.
package policy
