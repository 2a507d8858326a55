// Package policy tests what policy denies and hides, from the point of view of clients and servers.
package policy
