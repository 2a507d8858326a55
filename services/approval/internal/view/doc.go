// Package view renders the content that a person must see before voting on a call. This content consists of the facts
// that the mesh knows about the call, and of all arguments. Characters that could hide content are shown as escapes.
package view
