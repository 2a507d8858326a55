// Package hostile holds a mesh under agents, servers and strangers that do all that
// could spend the machine or push out what is kept, at once, and looks at how one
// well-behaved agent fares beside them, in turns with how it fares without them.
// `make hostile` runs it for an hour and judges that too: the 99th of 100 calls may take
// twice as long. A line a minute says how it goes, and Ctrl-C ends it with what is known
// by then; `make hostile HOSTILE=2m ATTACKS='X3|X8'` looks at some attacks alone.
package hostile
