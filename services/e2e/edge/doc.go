// Package edge tests what the gateway accepts from its callers: messages, identities and connections, including large
// numbers of them.
package edge
