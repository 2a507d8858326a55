// Package agents tests agents of the mesh: their turns and approvals, the limits that they share, and that they survive
// restarts and failing models.
package agents
