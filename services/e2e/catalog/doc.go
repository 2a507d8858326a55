// Package catalog tests the tool catalog: its pages, its classes of tools, and the definitions that an operator must
// accept.
package catalog
