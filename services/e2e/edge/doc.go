// Package edge tests what the gateway accepts from its callers: messages, identities and connections, also in large
// numbers.
package edge
