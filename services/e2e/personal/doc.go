// Package personal tests the mesh of a single user: `sluice init` with clients' configurations, and the mesh that
// `sluice stdio` starts on demand.
package personal
