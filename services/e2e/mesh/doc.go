// Package mesh tests roles in separate processes, and meshes whose processes are stopped, hang or are killed, or whose
// database is unavailable.
package mesh
