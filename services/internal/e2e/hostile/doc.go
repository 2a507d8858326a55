// Package hostile holds a mesh under agents, servers and strangers that do all that
// could spend the machine or push out what is kept, at once, and looks at how one
// well-behaved agent fares beside them. `make hostile` runs it for an hour.
package hostile
