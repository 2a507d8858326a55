// Package catalog is what is known of servers and their tools: which definitions were
// seen, which of them were accepted, what each tool is held to be, and so whether it may
// be called. It is pure: values go in, values come out, and nothing is changed in place.
package catalog
