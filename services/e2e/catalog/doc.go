// Package catalog tests the tool catalog: its generated pages, its classes of tools, and the tool definitions that an
// operator must accept.
package catalog
