// Package agents tests agents in the mesh: their turns, approvals and shared limits, and that they survive restarts and
// failures of the model provider.
package agents
