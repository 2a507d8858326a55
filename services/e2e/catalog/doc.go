// Package catalog tests the tool catalog: its pages, the classes of tools, and definitions that an operator must
// accept.
package catalog
