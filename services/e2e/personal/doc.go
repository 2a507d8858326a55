// Package personal tests the mesh of one person: `sluice init` with configurations of clients, and the mesh that
// `sluice stdio` starts on demand.
package personal
