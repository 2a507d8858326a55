// Package view draws what a person must see before deciding on a call: facts of
// the mesh, and the arguments in full with everything made visible that could hide
// something.
package view
