// Package edge tests what the gateway accepts from its callers: messages, identities, connections and floods.
package edge
