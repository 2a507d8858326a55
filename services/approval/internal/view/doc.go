// Package view draws what a person must see before deciding on a call: the facts that the mesh knows, and all
// arguments. Characters that could hide something are shown as escapes.
package view
