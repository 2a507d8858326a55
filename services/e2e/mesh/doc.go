// Package mesh tests meshes whose services run in separate processes. It also tests meshes whose processes are stopped,
// hang or are killed, and meshes whose database is unavailable.
package mesh
