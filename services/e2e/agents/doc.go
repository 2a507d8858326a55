// Package agents tests the turns, approvals and shared limits of agents in the mesh, and that agents survive restarts
// and failures of the model provider.
package agents
