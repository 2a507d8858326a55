// Package mesh tests the roles in processes of their own, and meshes whose processes are stopped, hang or are killed,
// or lose their database.
package mesh
